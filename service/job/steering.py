"""Check pins and vetoes against the values that a run searches and the steers in force. Pydantic only."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from search.config import STAGED_KINDS, StagedConfig
from search.types import MAX_LEARNING_RATE, MIN_LEARNING_RATE, SEARCHED, Band, Setting, Steer
from service.job.parts import TrialSpec
from trainers.spec.ranges import Conflict
from trainers.spec.refusals import pointer_to

#: The one value that is fixed before the first step or in the first search, and never changes again.
_SETTLED = "optimizer"


class Searchable(NamedTuple):
    """A value that a run's controller may choose: numbers from `low` to `high`, or the `names` of what competes."""

    name: str  # as in `search.types.Values`
    low: float = 0.0
    high: float = 0.0
    names: tuple[str, ...] = ()

    @property
    def scale(self) -> str:
        return SEARCHED[self.name].scale

    @property
    def is_of_numbers(self) -> bool:
        return self.scale not in ("choice", "name")

    @property
    def listed(self) -> tuple[Setting, ...]:
        """The possible values, if they are not numbers."""
        return self.names or (False, True)


def is_steerable(trial: TrialSpec) -> bool:
    """Return whether the run's controller searches, and therefore follows steers."""
    return isinstance(trial.controller, StagedConfig)


def has_steerable(stored: Mapping[str, Any]) -> bool:
    """Return whether any run of a stored job is steerable. Reads no other part of the job, since lists have many."""
    own = stored.get("controller") or {}
    controllers = [arm.get("controller") or own for arm in stored["arms"]] + ([own] if stored.get("params") else [])
    return any(each.get("kind") in STAGED_KINDS for each in controllers)


def searchable(trial: TrialSpec) -> dict[str, Searchable]:
    """Return the steerable values of a run, by user-facing name: a level has its exchange's name for it."""
    low, high = getattr(trial.controller, "stated_rates", None) or (MIN_LEARNING_RATE, MAX_LEARNING_RATE)
    found = {"learning_rate": Searchable("learning_rate", low, high)}
    for each in trial.searched:
        shown = trial.replica.exchange.level_name if each.name == "level" else each.name
        found[shown] = Searchable(each.name, each.low, each.high)
    if names := tuple(option.name for option in trial.replica.menu):
        found["option"] = Searchable("option", names=names)
    return found


def conflicts(trial: TrialSpec, steer: Steer, others: Sequence[Steer]) -> Iterator[Conflict]:
    """Yield the reasons why `steer` cannot apply to the run, given the `others` in force."""
    known = searchable(trial)
    named = [(part, name) for part in ("pin", "veto") for name in getattr(steer, part)]
    unknown = [_unknown(part, name, getattr(steer, part)[name], known) for part, name in named if name not in known]
    wrong = [
        conflict
        for part, name in named
        if name in known and (conflict := _conflict(part, name, getattr(steer, part)[name], known[name]))
    ]
    yield from (*unknown, *wrong)
    if unknown or wrong:
        return
    together = (*others, steer)
    for name in dict.fromkeys(name for _, name in named):
        yield from _against_each_other(name, known[name], steer, together)
    pinned = [each for each in together if "learning_rate" in each.pin]
    if pinned and steer.search_now:
        message = f"with the learning rate pinned ({_who(pinned[-1], steer)}) nothing is searched"
        yield Conflict("/search_now", True, message)


def _unknown(part: str, name: str, value: Any, known: Mapping[str, Searchable]) -> Conflict:
    because = "is settled when the run begins" if name == _SETTLED else "is not searched by this job"
    names = ", ".join(f"`{each}`" for each in known)
    shown = value.model_dump(exclude_none=True) if isinstance(value, Band) else value
    return Conflict(pointer_to([part, name]), shown, f"`{name}` {because}; it may be one of {names}")


def _conflict(part: str, name: str, value: Any, of: Searchable) -> Conflict | None:
    """Return why a value is invalid for this name, or why its veto has the wrong form."""
    message = _pin_conflict(name, value, of) if part == "pin" else _veto_conflict(name, value, of)
    shown = value.model_dump(exclude_none=True) if isinstance(value, Band) else value
    return Conflict(pointer_to([part, name]), shown, message) if message else None


def _pin_conflict(name: str, value: Setting, of: Searchable) -> str:
    if not of.is_of_numbers:
        known = [each for each in of.listed if each == value and type(each) is type(value)]
        return "" if known else f"`{name}` must be one of {_shown(of.listed)}, got {_shown([value])}"
    whole = of.scale == "integer"
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and of.low <= float(value) <= of.high and not (whole and float(value) % 1):
        return ""
    kind = "a whole number" if whole else "a number"
    return f"`{name}` must be {kind} in [{of.low:g}, {of.high:g}], got {_shown([value])}"


def _veto_conflict(name: str, veto: Band | tuple[bool | str, ...], of: Searchable) -> str:
    if of.is_of_numbers:
        return "" if isinstance(veto, Band) else f"`{name}` is a number: veto those `above` or `below` a limit"
    if isinstance(veto, Band):
        return f"`{name}` is no number: list what is vetoed of {_shown(of.listed)}"
    strange = [each for each in veto if each not in of.listed]
    return f"`{name}` must be among {_shown(of.listed)}, got {_shown(strange)}" if strange else ""


def _against_each_other(name: str, of: Searchable, steer: Steer, together: Sequence[Steer]) -> Iterator[Conflict]:
    """Yield a conflict if vetoes leave no possible value, or a pinned value is vetoed."""
    part = "veto" if name in steer.veto else "pin"
    vetoes = [(each, each.veto[name]) for each in together if name in each.veto]
    low, high = of.low, of.high
    for band in (veto for _, veto in vetoes if isinstance(veto, Band)):
        low, high = band.narrow(low, high)
    if of.scale == "integer":
        low, high = math.ceil(low), math.floor(high)
    left = [each for each in of.listed if not any(each in veto for _, veto in vetoes if isinstance(veto, tuple))]
    if (low > high) if of.is_of_numbers else not left:
        whole = f"[{of.low:g}, {of.high:g}]" if of.is_of_numbers else _shown(of.listed)
        people = " and ".join(dict.fromkeys(_who(each, steer) for each, _ in vetoes))
        yield Conflict(pointer_to([part, name]), None, f"nothing of {whole} is left: vetoed by {people}")
        return
    pins = [each for each in together if name in each.pin]
    if pins and not _is_allowed(value := pins[-1].pin[name], of, low, high, left):
        people = " and ".join(dict.fromkeys(_who(each, steer) for each, _ in vetoes))
        message = f"{_shown([value])}, pinned by {_who(pins[-1], steer)}, is vetoed by {people}: withdraw one of them"
        yield Conflict(pointer_to([part, name]), value, message)


def _is_allowed(value: Setting, of: Searchable, low: float, high: float, left: Sequence[Setting]) -> bool:
    return low <= float(value) <= high if of.is_of_numbers else value in left


def _who(each: Steer, asking: Steer) -> str:
    return "this request" if each is asking else f"{each.by} (steer {each.id})"


def _shown(values: Sequence[Setting]) -> str:
    return ", ".join(str(value).lower() if isinstance(value, bool) else str(value) for value in values)
