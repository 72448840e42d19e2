"""Follow a learned schedule in plain torch."""

import logging
from collections.abc import Callable, Collection, Mapping
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from search.schedule_file import OWN, Entry, RecordedSchedule
from search.types import FURTHER

log = logging.getLogger("wiretune.schedule")
#: Torch's optimizers whose learning rates the controller knows. Any other is treated like a workload's own.
KINDS = {"SGD": "sgd", "Adam": "adamw", "AdamW": "adamw"}
#: Searched values that a scheduler sets in its optimizer.
OPTIONS = ("momentum", "weight_decay", "nesterov")
#: Searched values that are not an optimizer's: `period`, `outer_learning_rate`, `outer_momentum`, `share`, `gamma`.
OF_OTHERS = tuple(name for name in FURTHER if name not in (*OPTIONS, "batch_size", "option", "optimizer"))
#: Those of them that only a job can set.
OF_JOBS = ("share", "gamma")


class Schedule(RecordedSchedule):
    """A schedule file that gives a plain torch optimizer its rates."""

    def scheduler(
        self,
        optimizer: Optimizer,
        *,
        on_level: Callable[[float], None] | None = None,
        on_values: Callable[[Mapping[str, Any]], None] | None = None,
    ) -> LambdaLR:
        """Return a scheduler that gives `optimizer` these rates, from its next step on.

        The first parameter group gets the schedule's rates, warm-up included, and the others keep their ratio to it.
        The rates of an `own` schedule multiply those of all groups instead.

        A searched momentum, weight decay or nesterov is set in the groups whose value equals the first group's now.
        Where an entry does not set it, it goes back to its value of now.

        Args:
            optimizer: of the kind that the schedule was learned with. Of a torch optimizer of another kind a warning is
                logged. For several optimizers, call this once for each.
            on_level: called with the level of the coming step, at once and whenever it changes.
            on_values: called likewise, with the searched values that are not an optimizer's, by name: `period`,
                `outer_learning_rate`, `outer_momentum`, `share`, `gamma`.

        Raises:
            ValueError: `optimizer` is none; the first group's rate is not positive, so there is no ratio to it; an
                entry sets an option that the first group does not have; or there is no `on_values`, and an entry sets a
                value that it would be called with.
        """
        if not isinstance(optimizer, Optimizer):
            raise ValueError(
                f"`optimizer` must be one torch.optim.Optimizer, got {type(optimizer).__name__}: of several, give each "
                "its own scheduler"
            )
        if on_values is None:
            self._check_values()
        first = optimizer.param_groups[0]
        self._check_options(first)
        self._advise(optimizer)
        # `LambdaLR` multiplies this rate too. As a number: a rate in a tensor changes in place.
        base = 1.0 if self.optimizer == OWN else float(first.get("initial_lr", first["lr"]))
        if not base > 0:
            raise ValueError(f"`optimizer` must have a positive learning rate in its first group, got {base}.")
        announced: list[float | None] = [None]
        announced_values: list[Mapping[str, Any]] = [{}]
        followed = _followed(optimizer, {name for entry in self.entries for name in entry.values})

        def factor(step: int) -> float:
            entry = self.entry_at(step)
            _set_options(optimizer, followed, entry.values)
            if on_level is not None and entry.level is not None and entry.level != announced[0]:
                announced[0] = entry.level
                on_level(entry.level)
            values = _of_others(entry)
            if on_values is not None and values != announced_values[0]:
                announced_values[0] = values
                on_values(values)
            return self.learning_rate_at(step) / base

        return _Following(optimizer, factor, followed)

    def _check_options(self, group: Mapping[str, Any]) -> None:
        """Raise ValueError for an entry with an option that a parameter `group` does not have."""
        has = {_name_of(option) for option in group}
        for number, entry in enumerate(self.entries):
            for name in sorted(entry.values.keys() & {*OPTIONS} - has):
                raise ValueError(
                    f"`entries[{number}].values` sets `{name}`, which the first group of `optimizer` does not have: "
                    f"give an optimizer of the kind `{self.optimizer}`"
                )

    def _advise(self, optimizer: Optimizer) -> None:
        """Log a warning if `optimizer` is clearly of another kind than the schedule's."""
        kind = KINDS.get(type(optimizer).__name__)
        expected = {"from_exchange": "sgd", OWN: kind}.get(self.optimizer, self.optimizer)
        if kind is not None and kind != expected:
            log.warning(
                "the schedule was learned with `%s`, and its rates mean nothing to %s: take what "
                "`wiretune.build_optimizer` returns",
                self.optimizer,
                type(optimizer).__name__,
            )

    def _check_values(self) -> None:
        """Raise ValueError for an entry with a value that no optimizer has."""
        for number, entry in enumerate(self.entries):
            for name in _of_others(entry):
                remedy = (
                    "train by it as a job"
                    if name in OF_JOBS
                    else "give `on_values`, as `handle.set_values` of what `wiretune.attach` returns, or have the "
                    "schedule followed by `controller={'kind': 'schedule', ...}`, there or in a job"
                )
                raise ValueError(
                    f"`entries[{number}].values` sets `{name}`, which no optimizer has: {remedy}; a loop leaves such "
                    "values out by `on_values=lambda values: None`"
                )


#: By option, its value of before the schedule, and the numbers of the groups that follow the schedule in it.
_Followed = dict[str, tuple[Any, list[int]]]


class _Following(LambdaLR):
    """A scheduler that resumes with the rates, level and values of its own step, not with those of step 0.

    Its state has what is `followed`: an optimizer whose state was loaded has searched values in place of those that it
    was built with.
    """

    def __init__(self, optimizer: Optimizer, factor: Callable[[int], float], followed: _Followed) -> None:
        self.followed = followed
        super().__init__(optimizer, factor)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        followed = self.followed
        super().load_state_dict(state_dict)
        followed |= self.followed  # in place: the factor reads it
        self.followed = followed
        self.lr_lambdas[0](self.last_epoch)  # sets the options, and calls `on_level` and `on_values`
        for group, rate in zip(self.optimizer.param_groups, self._last_lr, strict=True):
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(float(rate))
            else:
                group["lr"] = float(rate)


def _of_others(entry: Entry) -> dict[str, Any]:
    return {name: value for name, value in entry.values.items() if name in OF_OTHERS}


def _followed(optimizer: Optimizer, searched: Collection[str]) -> _Followed:
    """Return for each `searched` option the first group's value, and the numbers of the groups that have the same.

    Numbers, since loading a state gives the optimizer new groups in the same order.
    """
    first, groups = optimizer.param_groups[0], [*enumerate(optimizer.param_groups)]
    return {
        option: (first[option], [number for number, group in groups if group.get(option) == first[option]])
        for option in ("betas", *OPTIONS)
        if option in first and _name_of(option) in searched
    }


def _set_options(optimizer: Optimizer, followed: _Followed, values: Mapping[str, float | str]) -> None:
    for option, (built, numbers) in followed.items():
        value = values.get(_name_of(option))
        for number in numbers:
            group = optimizer.param_groups[number]
            given = (value, group["betas"][1]) if option == "betas" else value
            group[option] = built if value is None else given


def _name_of(option: str) -> str:
    """Return the schedule's name for a group's option: Adam's momentum is the first of its betas."""
    return "momentum" if option == "betas" else option
