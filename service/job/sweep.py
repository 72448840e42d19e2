"""A sweep over a job's fields: the fields, the resulting trials, and conflicts of the ranges."""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from typing import Any

from pydantic import ValidationError

from search.sweep.spec import ParamRange, SampleValues
from service.job.conflicts import conflicts
from service.job.parts import SAMPLE_PREFIX, JobParts
from service.job.problems import misread
from trainers.spec.ranges import Conflict
from trainers.spec.refusals import conflicts_of, pointer_to
from trainers.spec.workloads import WorkloadConfig

#: The parts of a job that a sample may change. Others are the same for all trials, or not about training.
SWEPT = (
    "workload", "optimizer", "exchange", "sync", "activations", "blocks", "controller", "accumulate", "clip",
    "precision",
)  # fmt: skip
#: The smallest rung. Even in the longest budget, a smaller share could not tell samples apart.
MIN_RUNG = 1e-6
#: With more combinations of range ends than this, each end is checked alone.
MAX_CORNERS = 64
#: A point of the unit interval at which ranges rarely have a whole number.
INNER = (5**0.5 - 1) / 2


def sample_name(number: int) -> str:
    """Return the name of sample `number`, counted from 0. It stands where an arm has its name."""
    return f"{SAMPLE_PREFIX}{number}"


def at(job: JobParts, values: Mapping[str, Any]) -> JobParts:
    """Return the job with `values` set by path. Conflicts between parts are not checked. Raises ValidationError."""
    if not values:
        return job
    changed = JobParts.model_validate(_given(job, values))
    return job.model_copy(update={root: getattr(changed, root) for root in {path.split(".")[0] for path in values}})


def _given(job: JobParts, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of the job that `values` change, with these values, and the required parts."""
    given: dict[str, Any] = {"budget": job.budget, "workload": job.workload.model_dump(mode="json")}
    for path, value in values.items():
        root, *inner = path.split(".")
        if not inner:
            given[root] = deepcopy(value)
            continue
        given.setdefault(root, job.model_dump(mode="json", include={root})[root])
        _place(given[root], inner[:-1])[inner[-1]] = deepcopy(value)
    return given


def _place(content: Any, path: Iterable[str]) -> Any:
    for name in path:
        content = content.setdefault(name, {})  # a factory may have a keyword argument that the job leaves out
    return content


def sweep_conflicts(job: JobParts) -> Iterator[Conflict]:
    """Yield the conflicts of a sweep that do not depend on the values in its ranges."""
    if job.sweep is not None and not job.params:
        yield Conflict("/sweep", None, "`sweep` is for `params`, which name the fields to vary: give both, or neither")
    if not job.params:
        return
    for index, arm in enumerate(job.arms):
        if arm.name.startswith(SAMPLE_PREFIX):
            message = f"names that begin with `{SAMPLE_PREFIX}` are those of samples, got `{arm.name}`"
            yield Conflict(f"/arms/{index}/name", arm.name, message)
    sweep = job.sweep_config
    if sweep.first_rung < MIN_RUNG:
        most = f"1/{sweep.reduction}" if sweep.scheduler == "asha" else "1"
        message = f"`first_rung` must be from {MIN_RUNG:g} to {most}, got {sweep.first_rung:g}"
        yield Conflict("/sweep/first_rung", sweep.first_rung, message)
    if sweep.scheduler == "asha" and not sweep.rungs():
        message = (
            f"rungs are powers of 1/`reduction`, so `first_rung` must be at most 1/{sweep.reduction}, got "
            f"{sweep.first_rung:g}, with which `asha` ends no sample early; if none is to, give `scheduler: none`"
        )
        yield Conflict("/sweep/first_rung", sweep.first_rung, message)
    caps = job.budget.model_dump(exclude_none=True)
    if sweep.cost is not None and list(caps) == [sweep.cost]:
        message = (
            f"all trials spend the same {sweep.cost}, which are the whole budget, so they do not tell them apart: "
            "give another `cost`, or a budget in another unit"
        )
        yield Conflict("/sweep/cost", sweep.cost, message)
    if job.lanes.after == "insurance":
        message = "a sample that ends at a rung leaves its second line behind: leave out `lanes.after`, or `params`"
        yield Conflict("/lanes/after", job.lanes.after, message)
    for path in job.params:
        if message := _no_field(job, path) or _overlap(job, path):
            yield Conflict(_pointer(path), path, message)


def _overlap(job: JobParts, path: str) -> str:
    """Return a message if another swept path contains `path`, so that only one of the two could apply; else ""."""
    outer = next((each for each in job.params if path.startswith(f"{each}.")), None)
    return f"`{outer}` varies as a whole, and `{path}` is in it: give one of them" if outer else ""


def workloads(job: JobParts) -> Iterator[tuple[str, WorkloadConfig]]:
    """Yield every workload that a trial may train, with the place in the job that names it.

    Raises ValidationError for a value that only an earlier release accepts.
    """
    yield "/workload", job.workload
    for path, of in job.params.items():
        if path.split(".")[0] == "workload":
            for index, value in enumerate(of.ends()):
                yield f"{_pointer(path)}/{of.form}/{index}", at(job, {path: value}).workload


def range_conflicts(job: JobParts) -> Iterator[Conflict]:
    """Yield conflicts of the ranges: at and between their ends, in combinations of ends, and in designed samples.

    Call it for a job without other conflicts.
    """
    yield from _first_found(_of_ranges(job), _of_corners(job), _of_samples(job))


def _first_found(*searches: Iterator[Conflict]) -> list[Conflict]:
    """Return the conflicts of the first search that finds any. Each search assumes that earlier ones found none."""
    return next((found for search in searches if (found := list(search))), [])


def _of_ranges(job: JobParts) -> Iterator[Conflict]:
    """Yield the range ends that are invalid by themselves."""
    for path, of in job.params.items():
        is_any_wrong = False
        for index, value in enumerate(of.ends()):
            for conflict in conflicts_at(job, {path: value}):
                is_any_wrong = True
                place = f"{_pointer(path)}/{of.form}/{index}"
                inside = _behind(path, conflict.pointer)
                yield Conflict(place + inside, conflict.value if inside else value, conflict.message)
        if not is_any_wrong and (message := _takes_whole_numbers(job, path, of)):
            yield Conflict(f"{_pointer(path)}/{of.form}", None, message)


def _takes_whole_numbers(job: JobParts, path: str, of: ParamRange) -> str:
    """Return a remedy if the range draws fractions but the field takes only whole numbers; else ""."""
    from search.sweep.draw import values_at  # here: it needs numpy, which no other job does

    if of.choice is not None or of.is_whole:
        return ""
    inner = values_at({path: of}, [INNER])[path]
    if not conflicts_at(job, {path: inner}) or conflicts_at(job, {path: round(float(inner))}):  # type: ignore[arg-type]
        return ""
    whole = "log_integer" if of.is_log else "integer"
    return f"`{path}` takes whole numbers, and `{of.form}` draws others, such as {inner:g}: give `{whole}`"


def _of_corners(job: JobParts) -> Iterator[Conflict]:
    """Yield the first combination of range ends that is invalid although each end is valid."""
    corners = list(itertools.islice(itertools.product(*(of.ends() for of in job.params.values())), MAX_CORNERS + 1))
    if len(corners) > MAX_CORNERS or len(job.params) < 2:
        return
    for corner in corners:
        values = dict(zip(job.params, corner, strict=True))
        if found := conflicts_at(job, values):
            yield Conflict("/params", None, f"{_shown(values)} do not go together: {found[0].message}")
            return


def _of_samples(job: JobParts) -> Iterator[Conflict]:
    """Yield the first designed sample that is invalid although the ends of its ranges are valid."""
    from search.sweep.draw import designed  # here: it needs numpy, which no other job does

    for number, values in enumerate(designed(job.params, job.sweep_config)):
        if not (found := conflicts_at(job, values)):
            continue
        name, alone = sample_name(number), {path: conflicts_at(job, {path: value}) for path, value in values.items()}
        if path := next((path for path, wrong in alone.items() if wrong), None):
            why = alone[path][0].message
            message = f"`{name}` would have `{path}` {values[path]}: {why}; give a `choice` of what fits"
            yield Conflict(f"{_pointer(path)}/{job.params[path].form}", None, message)
        else:
            message = f"`{name}` would have {_shown(values)}, which do not go together: {found[0].message}"
            yield Conflict("/params", None, message)
        return


def conflicts_at(job: JobParts, values: SampleValues) -> list[Conflict]:
    """Return the conflicts of a trial with these values, each with its place in the changed job."""
    try:
        changed = at(job, values)
    except ValidationError as error:
        return conflicts_of(error, _given(job, values), JobParts)
    if (code := changed.code) not in (None, job.code):
        message = f"all trials import the same package, so a sample cannot change `workload.code`, got {code!r}"
        return [Conflict("/workload/code", code, message)]
    for path, value in values.items():
        for name in reversed(path.split(".")):
            value = {name: value}
        if wrong := list(misread(value, changed)):
            return wrong
    alone = changed.model_copy(update={"arms": JobParts.model_fields["arms"].default, "params": {}, "sweep": None})
    return list(conflicts(alone))


def _behind(path: str, pointer: str) -> str:
    """Return `pointer` relative to the value at `path`; "" if it leads to the whole value, or elsewhere."""
    place = pointer_to(path.split("."))
    return pointer.removeprefix(place) if pointer.startswith(f"{place}/") else ""


def _no_field(job: JobParts, path: str) -> str:
    """Return why a sample cannot set the field at `path`; "" if it can."""
    root, *inner = path.split(".")
    if path.startswith("workload.weights_of."):  # each choice is looked up when the job is added, and kept with it
        return "vary the weights as a whole: `workload.weights_of: {choice: [{job: ...}, ...]}`"
    if root not in SWEPT:
        return f"a sample can change {', '.join(f'`{name}`' for name in SWEPT)} and what is in them, not `{root}`"
    content: Any = job.model_dump(mode="json", include={root})[root]
    for depth, name in enumerate(inner):
        parent = ".".join([root, *inner[:depth]])
        if not isinstance(content, dict):
            return f"`{parent}` is {content!r}, which has no `{name}` inside"
        is_free = depth > 0 and path.startswith("workload.params.")
        if name not in content and not is_free:
            return f"`{parent}` has no `{name}`; available: {', '.join(content)}"
        content = content.get(name, {})
    if inner and inner[-1] == "kind":
        return (
            f"kinds differ in their fields: vary the whole part, `{'.'.join([root, *inner[:-1]])}: {{choice: [...]}}`"
        )
    return ""


def _pointer(path: str) -> str:
    return f"/params/{path}"


def _shown(values: Mapping[str, Any]) -> str:
    return ", ".join(f"`{path}` {value}" for path, value in values.items())


def expected_cost(job: JobParts) -> str:
    """Say in a sentence how many trials a sweep has, and what they are expected to take."""
    sweep, num_arms = job.sweep_config, len(job.arms) * len(job.seeds)
    share = sweep.expected_share()
    whole = num_arms + sweep.samples * share
    shown = f"{num_arms} of arms and {sweep.samples} samples, at most {sweep.at_once} at a time"
    if not sweep.rungs():  # an earlier release has accepted `asha` without any
        return f"{num_arms + sweep.samples} trials ({shown}), each with the whole budget"
    rungs = " and ".join(f"{rung:.0%}" for rung in sweep.rungs())
    return (
        f"{num_arms + sweep.samples} trials ({shown}); samples are compared at {rungs} of the budget, and all are "
        f"expected to take {whole:.1f} times the budget, at most {num_arms + sweep.samples} times"
    )
