"""A job whose parts fit together, and the training runs that it comes to."""

from collections.abc import Iterator

from pydantic import model_validator

from service.job.conflicts import conflicts
from service.job.parts import JobParts, TrialSpec
from trainers.spec.ranges import conflict_error


class JobSpec(JobParts):
    """A job: what to train, over which link, how values are chosen, and what it may spend."""

    @model_validator(mode="after")
    def _parts_fit_together(self) -> "JobSpec":
        if found := list(conflicts(self)):
            raise conflict_error(found)
        return self

    def resolved(self, folder: str) -> "JobSpec":
        """Return the job with its own code and files found from `folder`, as a shell finds them."""
        return self.model_copy(update={"workload": self.workload.resolved(folder)})

    @property
    def num_workers(self) -> int:
        """Workers of one training run, in all lanes."""
        return self.lanes.count * self.workers.count

    def trials(self) -> Iterator[TrialSpec]:
        """Yield the job's training runs, arm by arm, with every override applied."""
        for arm in self.arms:
            for seed in self.seeds:
                yield self.trial(arm, seed)
