"""Differences between two jobs, patches to a job, and the job of one of its trials."""

from collections.abc import Iterator, Mapping
from itertools import zip_longest
from typing import Any

from pydantic import Field

from search.config import Config
from search.sweep.spec import SampleValues
from service.job.spec import JobSpec
from service.job.sweep import at
from trainers.spec.refusals import pointer_to
from trainers.spec.wrong_kind_fields import WORDS, is_freely_named


class Change(Config):
    """A field in which two jobs differ, defaults filled in; null: it is not there, or has no value."""

    pointer: str = Field(description="RFC 6901, into the job")
    before: Any
    after: Any


def differences(before: JobSpec, after: JobSpec) -> tuple[Change, ...]:
    """Return every field in which two jobs differ, with defaults filled in, in the order of the first job."""
    return tuple(_differences("", before.model_dump(mode="json"), after.model_dump(mode="json")))


def _differences(pointer: str, before: Any, after: Any) -> Iterator[Change]:
    if before == after:
        return
    if isinstance(before, dict) and isinstance(after, dict):
        for name in [*before, *(name for name in after if name not in before)]:
            yield from _differences(pointer + pointer_to([name]), before.get(name), after.get(name))
    elif isinstance(before, list) and isinstance(after, list) and any(isinstance(each, dict) for each in after):
        for index, (old, new) in enumerate(zip_longest(before, after)):
            yield from _differences(f"{pointer}/{index}", old, new)
    else:
        yield Change(pointer=pointer, before=before, after=after)


def value_at(content: Any, pointer: str) -> Any:
    """Return what is at a JSON pointer; None: there is nothing."""
    for part in pointer.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(content, dict):
            content = content.get(name)
        elif isinstance(content, list) and name.isdecimal() and int(name) < len(content):
            content = content[int(name)]
        else:
            return None
    return content


def patched(base: Any, patch: Any, place: tuple[str, ...] = ()) -> Any:
    """Apply `patch`, a JSON merge patch (RFC 7396), to `base`, the value at `place` in a job.

    Beyond the RFC: an object whose `kind` (or `mode`) changes is replaced whole, for its other fields belong to that.
    Labels and a factory's arguments are not: there, `kind` is a name that somebody chose.
    """
    if not isinstance(patch, Mapping):
        return patch
    tags = {} if is_freely_named(place) else {tag: patch[tag] for tag in WORDS if isinstance(patch.get(tag), str)}
    if not isinstance(base, Mapping) or any(base.get(tag) != kind for tag, kind in tags.items()):
        base = {}
    changed = {
        name: patched(base.get(name), value, (*place, name)) for name, value in patch.items() if value is not None
    }
    return {name: value for name, value in base.items() if name not in patch} | changed


def of_trial(job: JobSpec, arm: str, sample: SampleValues | None) -> dict[str, Any]:
    """Return, as JSON, the job that states what one of its trials trains, and searches over nothing.

    `sample` has the values of a sample, and is None for an arm's trial. Seeds, budget and all else stay.
    Raises ValidationError for values, drawn by an earlier release, that no trial can have.
    """
    content = at(job, sample or {}).model_dump(mode="json", exclude={"arms", "params", "sweep"})
    if sample is not None:
        return content
    chosen = next(each for each in job.arms if each.name == arm)
    parts = chosen.model_dump(mode="json", exclude={"name"})
    own = {name: part for name, part in parts.items() if part is not None}  # null inside a part is a value
    return content | own | {"arms": [{"name": arm}]}
