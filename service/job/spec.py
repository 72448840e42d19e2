"""A validated job, and its training runs."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import (
    PlainSerializer,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)

from search.sweep.spec import ParamRange, SampleValues
from service.job.conflicts import conflicts, taken_names
from service.job.parts import GIVEN, STORED, Arm, JobParts, TrialSpec
from service.job.sweep import at, range_conflicts, sample_name, sweep_conflicts
from trainers.spec.ranges import conflict_error
from trainers.spec.workloads import OwnWorkload

#: The samples' values of a job without samples, or whose samples are not drawn yet.
NOT_DRAWN: Mapping[str, SampleValues] = MappingProxyType({})


class JobSpec(JobParts):
    """A job: what to train, over which link, how values are chosen, and what it may spend."""

    @classmethod
    def stored(cls, content: Mapping[str, Any]) -> "JobSpec":
        """Read a job that was accepted before. Conflicts are not checked again: this release may be stricter.

        Raises ValidationError for a field or value that this release does not know.
        """
        return cls.model_validate(content, context=STORED)

    @model_validator(mode="after")
    def _parts_fit_together(self, info: ValidationInfo) -> "JobSpec":
        if info.context == STORED:
            return self
        found = [*conflicts(self), *sweep_conflicts(self)]
        if info.context == GIVEN:  # a replay, or a retry with other workers, is of a job that is accepted already
            found += taken_names(self)
        if not found and info.context == GIVEN:  # checking the ends of all ranges is slow
            found = list(range_conflicts(self))
        if found:
            raise conflict_error(found)
        return self

    def given(self) -> dict[str, Any]:
        """Return what was given, as JSON: without this release's defaults, which another one may not know."""
        given, whole = self.model_dump(mode="json", exclude_unset=True), self.model_dump(mode="json")
        return {name: _with_kinds(value, whole[name]) for name, value in given.items()}

    def resolved(self, folder: str) -> "JobSpec":
        """Return the job with paths to user code and files resolved from `folder`, as a shell does."""
        changes: dict[str, Any] = {"workload": self.workload.resolved(folder)}
        if self.params:  # otherwise they were not given
            changes["params"] = {path: self._resolved_range(path, of, folder) for path, of in self.params.items()}
        return self.model_copy(update=changes)

    def _resolved_range(self, path: str, of: ParamRange, folder: str) -> ParamRange:
        """Return the range at `path`, with any paths to user code and files resolved from `folder`."""
        if of.choice is None or path not in ("workload", "workload.weights", "workload.path"):
            return of
        choices: list[Any] = []
        for workload in (at(self, {path: value}).workload for value in of.choice):
            if isinstance(workload, OwnWorkload) and workload.path is None and self.code:
                workload = workload.model_copy(update={"code": self.code})  # as the job's own factory
            found = workload.resolved(folder).model_dump(mode="json", exclude_unset=True)
            choices.append(found if path == "workload" else found[path.removeprefix("workload.")])
        return of.model_copy(update={"choice": tuple(choices)})

    @property
    def num_workers(self) -> int:
        """The number of workers in one training run, over all lanes."""
        return self.lanes.count * self.workers.count

    @property
    def num_trials(self) -> int:
        """The number of training runs: arms x seeds, plus samples."""
        return len(self.arms) * len(self.seeds) + self.num_samples

    def trials(self, drawn: Mapping[str, SampleValues] = NOT_DRAWN) -> Iterator[TrialSpec]:
        """Yield the job's training runs, arm by arm, then sample by sample, with all overrides applied.

        `drawn` maps sample names to values. A sample that is not drawn yet keeps the job's own values, and so does one
        whose values, drawn by an earlier release, no trial can have.
        """
        for arm in self.arms:
            for seed in self.seeds:
                yield self.trial(arm, seed)
        for number in range(self.num_samples):
            name = sample_name(number)
            changed: JobParts = self
            with suppress(ValidationError):
                changed = at(self, drawn.get(name, {}))
            yield changed.trial(Arm(name=name), self.seeds[0])

    def arm_trials(self) -> Iterator[TrialSpec]:
        """Yield each arm's training run with the first seed; samples are left out."""
        return (self.trial(arm, self.seeds[0]) for arm in self.arms)

    @property
    def apart_under(self) -> frozenset[str]:
        """The choices, in any arm or sample, that give workers their own parameters."""
        ends = ((path, value) for path, of in self.params.items() for value in of.ends())
        samples = (
            at(self, {path: value}).trial(Arm(name=sample_name(0)), self.seeds[0])
            for path, value in ends
            if path.split(".")[0] in ("exchange", "sync", "optimizer")
        )
        return frozenset(name for trial in (*self.arm_trials(), *samples) for name in trial.replica.apart_under)


def _with_kinds(given: Any, whole: Any) -> Any:
    """Add what names a part's type. A part that was built in Python, as `TopKConfig(density=0.1)`, was not given it."""
    if isinstance(given, list):
        return [_with_kinds(*each) for each in zip(given, whole, strict=True)]
    if not isinstance(given, dict):
        return given
    named = {name: whole[name] for name in ("kind", "mode") if name in whole}  # `mode` is a link's
    return named | {name: _with_kinds(value, whole[name]) for name, value in given.items()}


def _as_stored(content: Any, _: ValidatorFunctionWrapHandler) -> JobSpec:
    return content if isinstance(content, JobSpec) else JobSpec.stored(content)


#: A job that was accepted before, wherever it is read again. JSON has only the fields that it was stored with: a driver
#: of the release that stored it may read this, and would refuse those that a later release has added.
StoredJob = Annotated[
    JobSpec,
    WrapValidator(_as_stored),
    PlainSerializer(lambda spec: spec.given(), when_used="json"),
]
