"""The learned artefact: a schedule, and how plain torch follows it."""

from collections.abc import Callable

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from search.schedule_file import ScheduleFile

OWN = "own"  # the optimizer of a user's workload, whose groups have rates already


class Schedule(ScheduleFile):
    """A schedule file that gives a plain torch optimizer its rates."""

    def scheduler(self, optimizer: Optimizer, *, on_level: Callable[[float], None] | None = None) -> LambdaLR:
        """Return a scheduler that gives `optimizer` these rates, from its next step on.

        The first parameter group gets the schedule's rates, the others keep their ratio to it. The rates of an
        `own` optimizer multiply those of its groups, also of the first. `on_level` is called with the level of
        the coming step, at once and whenever it changes.

        Raises:
            ValueError: the first group's rate is not positive, so there is no ratio to it.
        """
        base = 1.0 if self.optimizer == OWN else optimizer.param_groups[0]["lr"]
        if not base > 0:
            raise ValueError(f"`optimizer` must have a positive learning rate in its first group, got {base}.")
        announced: list[float | None] = [None]

        def factor(step: int) -> float:
            level = self.level_at(step)
            if on_level is not None and level is not None and level != announced[0]:
                announced[0] = level
                on_level(level)
            return self.learning_rate_at(step) / float(base)

        return LambdaLR(optimizer, factor)
