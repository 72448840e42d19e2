"""Steer a running controller: apply people's vetoes to the space, and their pins to the stage. Pure functions.

A veto narrows the space. A pinned value leaves it: it is no longer searched. If the learning rate is pinned, nothing is
searched, since every search compares rates.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from search.bayesian.setup import SearchSetup
from search.bayesian.stage import Stage, Steered
from search.space import AnyAxis, Axis, OptionAxis, SearchSpace, are_within
from search.types import SEARCHED, Band, Setting, Steer, Values

RATE = "learning_rate"
#: Earlier probes still count if they lie within this factor of the pinned values.
PINNED_FACTOR = 1.02


class Steering(NamedTuple):
    """All steers in force, and their pins and vetoes by name of a value."""

    steers: tuple[Steer, ...] = ()
    pins: dict[str, Setting] = {}  # noqa: RUF012  (never mutated)
    bands: dict[str, tuple[Band, ...]] = {}  # noqa: RUF012
    lists: dict[str, frozenset[Setting]] = {}  # noqa: RUF012


def heard(steers: Sequence[Steer], *, level_name: str, voided: Collection[int], done: Collection[int]) -> list[Steer]:
    """Return the parts of `steers` that are still in force, by names of `Values`.

    The steers in `voided` no longer pin the rate. Those in `done` have had their search.
    """
    found = []
    for steer in steers:
        pin = {name: value for name, value in steer.pin.items() if name != RATE or steer.id not in voided}
        renamed = {
            "pin": {(own := _own_name(name, level_name)): _legal(own, value) for name, value in pin.items()},
            "veto": {_own_name(name, level_name): veto for name, veto in steer.veto.items()},
            "search_now": steer.search_now and steer.id not in done,
        }
        if any(renamed.values()):
            found.append(steer.model_copy(update=renamed))
    return found


def require_names(steers: Sequence[Steer], *, level_name: str) -> None:
    """Raise ValueError for a steer that names an unknown value. A level may go by the exchange's name for it."""
    for steer in steers:
        for name in (*steer.pin, *steer.veto):
            if _own_name(name, level_name) not in SEARCHED:
                known = ", ".join(f"`{each}`" for each in dict.fromkeys([*SEARCHED, level_name]))
                raise ValueError(f"steer {steer.id} names `{name}`, which is no value here: these are {known}")


def _own_name(name: str, level_name: str) -> str:
    return "level" if name == level_name else name


def _legal(name: str, value: Setting) -> Setting:
    """Return a value with the type that it has in `Values`: JSON writes 1 for 1.0."""
    if SEARCHED[name].scale in ("log", "complement"):
        return float(value)
    return int(value) if SEARCHED[name].scale == "integer" else value


def steering_of(steers: Sequence[Steer]) -> Steering:
    """Combine `steers`. Of two pins of one value, the later holds."""
    bands: dict[str, tuple[Band, ...]] = {}
    lists: dict[str, frozenset[Setting]] = {}
    for name, veto in (each for steer in steers for each in steer.veto.items()):
        if isinstance(veto, Band):
            bands[name] = (*bands.get(name, ()), veto)
        else:
            lists[name] = lists.get(name, frozenset()) | set(veto)
    pins = {name: value for steer in steers for name, value in steer.pin.items()}
    return Steering(tuple(steers), pins, bands, lists)


def steered_setup(setup: SearchSetup, steering: Steering) -> SearchSetup:
    """Return the setup with the space that the steers leave to the controller."""
    if not steering.steers:
        return setup
    space = setup.space
    low, high = _narrowed(space.min_learning_rate, space.max_learning_rate, steering.bands.get(RATE, ()))
    axes = tuple(left for axis in space.axes if (left := _left_of(axis, space, steering)) is not None)
    banned = steering.lists.get("option", frozenset())
    allowed = tuple(each for each in space.exchanges if each.option not in banned)
    narrowed = space.model_copy(
        update={
            "min_learning_rate": low,
            "max_learning_rate": high,
            "axes": axes,
            "exchanges": allowed if "option" not in steering.pins and len(allowed) > 1 else (),
        }
    )
    return replace(setup, space=narrowed.model_copy(update={"guess": fitted(space.opening, space, steering)}))


def steered_stage(stage: Stage, space: SearchSpace, steering: Steering) -> Stage:
    """Return the stage that opens, with its steers; `space` is the one without them.

    From earlier stages, only scores of values that may still be used count. On the ramp no stage searches, so a request
    for a search waits for the first stage after it.
    """
    own = stage.steered.unsteered or stage.incumbent
    incumbent = fitted(own, space, steering)
    steers = _without_searches(steering.steers) if stage.is_on_ramp else steering.steers
    history = tuple(tuple(score for score in each if _may_use(score.values, steering)) for each in stage.line.history)
    line = replace(stage.line, history=history) if steering.steers else stage.line
    steered = Steered(steers, frozenset(steering.pins), own)
    if incumbent == own:
        return replace(stage, incumbent=incumbent, steered=steered, line=line)
    # The steps of the new values may take another time, and no commit has shown which rises suit their rate.
    line, course = replace(line, reference=None), replace(stage.course, raised=1.0)
    return replace(stage, incumbent=incumbent, steered=steered, line=line, course=course)


def _without_searches(steers: Sequence[Steer]) -> tuple[Steer, ...]:
    return tuple(each.model_copy(update={"search_now": False}) for each in steers if each.pin or each.veto)


def fitted(values: Values, space: SearchSpace, steering: Steering) -> Values:
    """Return `values` with the pins, moved out of the vetoes."""
    if not steering.steers:
        return values
    low, high = _narrowed(space.min_learning_rate, space.max_learning_rate, steering.bands.get(RATE, ()))
    moved: dict[str, Any] = {RATE: min(high, max(low, values.learning_rate))}
    for axis in space.ranges:
        moved[axis.name] = _within_vetoes(axis, steering).opening(getattr(values, axis.name))
    if values.option is not None:
        allowed = _allowed_options(space, steering)
        moved["option"] = values.option if values.option in allowed else allowed[0]
    return values.model_copy(update={**moved, **steering.pins})


def _allowed_options(space: SearchSpace, steering: Steering) -> tuple[str, ...]:
    """Return the competing exchanges that are not vetoed; if none is left, others of the menu."""
    banned = steering.lists.get("option", frozenset())
    competing = tuple(each for each in space.options if each not in banned)
    return competing or tuple(each for each in space.menu if each not in banned) or space.menu


def _left_of(axis: AnyAxis, space: SearchSpace, steering: Steering) -> AnyAxis | None:
    """Return the part of an axis that is still searched; None: one value is left."""
    if axis.name in steering.pins:
        return None
    if isinstance(axis, OptionAxis):
        left = axis.among(_allowed_options(space, steering))
        return left if len(left.options) > 1 else None
    within = _within_vetoes(axis, steering)
    return within if within.low < within.high else None


def _within_vetoes(axis: Axis, steering: Steering) -> Axis:
    """Return an axis without the vetoed values. The service only accepts vetoes that leave some."""
    if SEARCHED[axis.name].scale == "choice":
        legal = [each for each in (False, True) if each not in steering.lists.get(axis.name, ())] or [False, True]
        return Axis(name=axis.name, low=legal[0], high=legal[-1])
    low, high = _narrowed(axis.low, axis.high, steering.bands.get(axis.name, ()))
    whole = SEARCHED[axis.name].scale == "integer"
    return Axis(name=axis.name, low=math.ceil(low) if whole else low, high=math.floor(high) if whole else high)


def _narrowed(low: float, high: float, bands: Sequence[Band]) -> tuple[float, float]:
    left = low, high
    for band in bands:
        left = band.narrow(*left)
    return left if left[0] <= left[1] else (low, high)


def _may_use(values: Values, steering: Steering) -> bool:
    """Return whether `values` are not vetoed, and agree with all pins but the rate's."""
    pinned = values.model_copy(update={name: value for name, value in steering.pins.items() if name != RATE})
    if not are_within(values, pinned, PINNED_FACTOR):
        return False
    in_bands = all(
        low <= getattr(values, name) <= high
        for name, bands in steering.bands.items()
        if getattr(values, name) is not None
        for low, high in [_narrowed(float("-inf"), float("inf"), bands)]
    )
    return in_bands and not any(getattr(values, name) in banned for name, banned in steering.lists.items())
