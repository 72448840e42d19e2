"""Find the choices that combine with a method, and the knobs they need, by validating trial jobs."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, NamedTuple, get_args, get_origin

from pydantic import BaseModel, ValidationError

from search.config import ControllerConfig
from service.catalog.papers import NOTES, Composed, Note
from service.job.problems import problems_of
from service.job.spec import JobSpec
from trainers.methods import registry
from trainers.methods.activations.spec import ActivationsConfig
from trainers.methods.blocks.spec import BlocksConfig
from trainers.methods.exchange.auto import spec as auto
from trainers.methods.exchange.auto.spec import JobExchange
from trainers.methods.optimizer.spec import JobOptimizer
from trainers.methods.sync.spec import SyncConfig
from trainers.spec.method import Method
from trainers.spec.partition import PartitionConfig

JobFields = Mapping[str, Any]

#: The parts of a job that offer kinds, in listing order.
PARTS: dict[str, Any] = {
    "exchange": JobExchange,
    "sync": SyncConfig,
    "blocks": BlocksConfig,
    "activations": ActivationsConfig,
    "optimizer": JobOptimizer,
    "partition": PartitionConfig,
    "controller": ControllerConfig,
}
#: The fields that a job must state; all others have defaults.
MINIMAL: JobFields = {"workload": {"kind": "digits-mlp"}, "budget": {"steps": 100}}


class Combination(NamedTuple):
    """A method combined with a kind of another part."""

    part: str
    kind: str
    needs: JobFields  # knobs by part, beyond those that the method and the kind need by themselves
    reason: str  # why a job refuses the combination; empty if it accepts it


def job(parts: JobFields) -> JobSpec:
    """Return the minimal job with these parts. Raises pydantic.ValidationError if they conflict."""
    return JobSpec.model_validate({**MINIMAL, **parts})


def kinds_of(union: Any) -> dict[str, type[BaseModel]]:
    """Return the configurations of a (possibly nested) union, by kind."""
    found: dict[str, type[BaseModel]] = {}
    for each in get_args(get_args(union)[0]):
        found |= kinds_of(each) if get_origin(each) is Annotated else {each.model_fields["kind"].default: each}
    return found


def note_of(part: str, kind: str) -> Method | Note:
    """Return a kind's description: the method's own, else a note."""
    methods: dict[tuple[str, str], Method] = {(each.part, each.kind): each for each in (*registry.METHODS, auto.METHOD)}
    return methods.get((part, kind)) or NOTES.get(part, {}).get(kind, Note())


def choosing(part: str, kind: str) -> dict[str, Any]:
    """Return the job fields that choose a kind, with its required knobs."""
    note = note_of(part, kind)
    return {part: {"kind": kind, **note.least}, **note.beside}


def combinations(method: Composed) -> Iterator[Combination]:
    """Combine the method with every kind of every other part, in place of what the method's job has there."""
    for part, union in PARTS.items():
        if part != method.part:
            for kind in kinds_of(union):
                yield _combination(method, part, kind)


def merged(parts: JobFields, knobs: JobFields) -> dict[str, Any]:
    """Return `parts` with `knobs` merged in."""
    inner = {name: merged(parts.get(name, {}), each) for name, each in knobs.items() if isinstance(each, Mapping)}
    return {**parts, **knobs, **inner}


def _combination(method: Composed, part: str, kind: str) -> Combination:
    other = choosing(part, kind)
    inside = {name: value for name, value in method.job.get(part, {}).items() if name == method.part}  # `levels`
    both = {**other, **method.job, part: other[part] | inside}  # where both set a part, the method's is taken
    for needs in _to_try(method, part, kind):
        if not any(_refusals(merged(both, needs))):
            return Combination(part, kind, needs, "")
    return Combination(part, kind, {}, "; ".join(_refusals(both)))


def _to_try(method: Composed, part: str, kind: str) -> Iterator[JobFields]:
    """Yield knobs that may make the combination work.

    The knobs that the method's own job sets in this part come first. They may define the method, as `values: sign`
    does.
    """
    note = note_of(part, kind)
    yield _asked(method.job, part, besides=method.part)
    yield {}
    yield from (_asked(note.beside, each) for each in note.beside if each in method.job)
    yield from (*method.otherwise, *note.otherwise)


def _asked(parts: JobFields, part: str, *, besides: str = "") -> JobFields:
    """Return the knobs that `parts` sets in `part`, except those that its kind always needs."""
    chosen: JobFields = parts.get(part, {})
    known = {"kind", besides, *note_of(part, chosen.get("kind", "")).least}
    knobs = {name: value for name, value in chosen.items() if name not in known}
    return {part: knobs} if knobs else {}


def _refusals(parts: JobFields) -> Iterator[str]:
    """Yield the reasons for which the job refuses these parts."""
    body = {**MINIMAL, **parts}
    try:
        JobSpec.model_validate(body)
    except ValidationError as error:
        yield from (each.message for each in problems_of(error, body, JobSpec))
