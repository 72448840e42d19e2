"""Everything a later attempt needs to resume a training run, stored as JSON in each checkpoint's record."""

import json
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from search import strategies
from search.budget.link import StepCost
from search.config import Budget
from search.loop.endings import Failure
from search.types import Candidate, Values
from service.cluster.measured import OpenCommit
from service.cluster.opening import step_bytes
from service.cluster.probe_ends import Held
from service.cluster.trial_ledger import TrialLedger
from service.job.parts import TrialSpec
from service.wire.records import ProbeDone
from trainers.training.group import Group


class StageStart(BaseModel):
    """The state to which a diverged commit is rolled back, or a run that starts over."""

    checkpoint: str
    progress: TrialLedger
    closed: int | None = None  # the stage that ended there; None: none has, or an earlier release has not said


class OpenSearch(BaseModel):
    """An open search with its ended probes, readable and writable as JSON."""

    model_config = ConfigDict(frozen=True)

    seconds: float = Field(0.0, description="it has taken so far, on the training clock")
    probes: tuple[ProbeDone, ...] = ()
    running: tuple[Candidate, ...] = Field((), description="asked for, and not told")
    held: Held = Held()

    @property
    def stage(self) -> int:
        """The stage of the search."""
        return self.probes[0].stage


class Resume(BaseModel):
    """All that a later attempt needs to continue from a checkpoint as if nothing had happened."""

    model_config = ConfigDict(ser_json_inf_nan="strings")

    fingerprint: str  # of the training task
    checkpoint: str
    checkpoints: list[str]  # all still on storage, oldest first
    stage: StageStart
    first: StageStart | None = None  # where a run starts over; None: it never does
    journal: dict[str, Any]
    progress: TrialLedger
    num_workers: int | None = None  # in the checkpoint; None: written by an earlier release
    cost: StepCost | None
    failures: list[Failure] = Field(default_factory=list)  # the commits that diverged since one was kept
    diverged_values: Values | None = None  # of the last of them, as an earlier release wrote it
    open_commit: OpenCommit | None  # None: the stage is closed
    search: OpenSearch | None = None  # the open search; None: no probe has ended yet
    insurance: dict[str, Any] | None = None  # the second line's `Resume`

    @model_validator(mode="after")
    def _knows_failures(self) -> Self:
        if self.diverged_values is not None and not self.failures:
            num_steps = max(0, (self.progress.diverged_step or 0) - self.stage.progress.step)
            self.failures = [Failure(values=self.diverged_values, num_steps=num_steps)]
        return self

    def as_json(self) -> dict[str, Any]:
        """Return it as standard JSON. NaN and infinity, which JSON lacks, become strings."""
        told: dict[str, Any] = json.loads(self.model_dump_json())
        return told

    def among(self, spec: TrialSpec, group: Group) -> "Resume":
        """Return the same run for the workers of `group`. If their number changed, the cost of a step is unknown."""
        if self.num_workers in (None, group.num_workers):
            return self
        num_alone = spec.replica.num_alone(group.num_workers)
        space = {**self.journal["space"], **step_bytes(spec, group), "num_alone": num_alone}
        return self.model_copy(update={"cost": None, "journal": {**self.journal, "space": space}})

    def within(self, budget: Budget) -> "Resume":
        """Return the same run under `budget`, which may have been extended."""
        before = Budget.model_validate(self.journal["budget"])
        if before == budget:
            return self
        commit = self.open_commit and self.open_commit.stretched(before, budget)
        until = None if commit is None else commit.decision.commit_until
        journal = strategies.extended(self.journal, budget, until=until)
        # otherwise patience could end it at once; and `best_at` is a share of the old budget
        progress = self.progress.model_copy(update={"num_stale": 0, "best_at": 0.0})
        return self.model_copy(update={"journal": journal, "open_commit": commit, "progress": progress})
