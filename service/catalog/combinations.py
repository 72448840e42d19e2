"""Find the kinds of a job's other parts that go with a method, and with which knobs, by asking the job itself."""

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

#: The parts of a job that offer kinds, in the order that they are listed.
PARTS: dict[str, Any] = {
    "exchange": JobExchange,
    "sync": SyncConfig,
    "blocks": BlocksConfig,
    "activations": ActivationsConfig,
    "optimizer": JobOptimizer,
    "partition": PartitionConfig,
    "controller": ControllerConfig,
}
#: The least that a job says; everything else has a default.
MINIMAL: JobFields = {"workload": {"kind": "digits-mlp"}, "budget": {"steps": 100}}


class Combination(NamedTuple):
    """A kind of another part, beside a method."""

    part: str
    kind: str
    needs: JobFields  # knobs by part, besides those that the method and the kind need by themselves
    reason: str  # why a job refuses both; empty: it does not


def job(parts: JobFields) -> JobSpec:
    """Return the minimal job with these parts in it; raises pydantic.ValidationError where they do not go together."""
    return JobSpec.model_validate({**MINIMAL, **parts})


def kinds_of(union: Any) -> dict[str, type[BaseModel]]:
    """Return the configurations of a union, which may hold others, by kind."""
    found: dict[str, type[BaseModel]] = {}
    for each in get_args(get_args(union)[0]):
        found |= kinds_of(each) if get_origin(each) is Annotated else {each.model_fields["kind"].default: each}
    return found


def note_of(part: str, kind: str) -> Method | Note:
    """Return what is known of a kind: a method says it of itself."""
    methods: dict[tuple[str, str], Method] = {(each.part, each.kind): each for each in (*registry.METHODS, auto.METHOD)}
    return methods.get((part, kind)) or NOTES.get(part, {}).get(kind, Note())


def choosing(part: str, kind: str) -> dict[str, Any]:
    """Return the parts of a job that choose a kind, with the least that it needs."""
    note = note_of(part, kind)
    return {part: {"kind": kind, **note.least}, **note.beside}


def combinations(method: Composed) -> Iterator[Combination]:
    """Yield every kind of every part that is not the method's own, in place of what its job has there."""
    for part, union in PARTS.items():
        if part != method.part:
            for kind in kinds_of(union):
                yield _combination(method, part, kind)


def merged(parts: JobFields, knobs: JobFields) -> dict[str, Any]:
    """Return `parts` with these knobs in them."""
    inner = {name: merged(parts.get(name, {}), each) for name, each in knobs.items() if isinstance(each, Mapping)}
    return {**parts, **knobs, **inner}


def _combination(method: Composed, part: str, kind: str) -> Combination:
    other = choosing(part, kind)
    inside = {name: value for name, value in method.job.get(part, {}).items() if name == method.part}  # `levels`
    both = {**other, **method.job, part: other[part] | inside}  # of a part that both have, the method's is taken
    for needs in _to_try(method, part, kind):
        if not any(_refusals(merged(both, needs))):
            return Combination(part, kind, needs, "")
    return Combination(part, kind, {}, "; ".join(_refusals(both)))


def _to_try(method: Composed, part: str, kind: str) -> Iterator[JobFields]:
    """Yield knobs with which both may go together.

    Those that the method's own job has in this part come first: they may be its point, as `values: sign` is.
    """
    note = note_of(part, kind)
    yield _asked(method.job, part, besides=method.part)
    yield {}
    yield from (_asked(note.beside, each) for each in note.beside if each in method.job)
    yield from (*method.otherwise, *note.otherwise)


def _asked(parts: JobFields, part: str, *, besides: str = "") -> JobFields:
    """Return the knobs that `parts` asks of what it chooses at `part`, but for those that this kind always needs."""
    chosen: JobFields = parts.get(part, {})
    known = {"kind", besides, *note_of(part, chosen.get("kind", "")).least}
    knobs = {name: value for name, value in chosen.items() if name not in known}
    return {part: knobs} if knobs else {}


def _refusals(parts: JobFields) -> Iterator[str]:
    """Yield what the job refuses these parts for."""
    body = {**MINIMAL, **parts}
    try:
        JobSpec.model_validate(body)
    except ValidationError as error:
        yield from (each.message for each in problems_of(error, body, JobSpec))
