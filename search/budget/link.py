"""Fit the cost of a step on the link, and derive the level that suits it."""

import statistics
from collections.abc import Callable, Iterable, Sequence

from search.budget import spending
from search.types import Value

#: A step teaches more by these powers of its density: `BELOW` and `ABOVE` a density of `KNEE` (docs/decisions/0039).
BELOW, KNEE, ABOVE = 0.38, 0.1, 0.17
#: Densities of a range that are compared: steps of 5 % on 1.5 decades.
NUM_DENSITIES = 65
#: The least ratio between the bytes of two steps that tells compute from transfer.
MIN_CONTRAST = 1.5
#: The seconds of a step scatter by the share `SCATTER`. If they differ from the link's prediction by more than the
#: factor `STEADY`, the link may have changed.
SCATTER, STEADY = 0.2, 1.5
#: Within this factor of the suggestion the current level stays: the rule is coarse, and loss hardly depends on it.
DEAD_BAND = 2.0
#: An exchange must cost less than this share of a denser one of its family, or it is not worth a probe.
WORTH_IT = 0.95
#: At most this many exchanges are probed.
MOST_OPTIONS = 4
#: The family of exchanges that send every entry. They all teach the same in a step, and no other teaches more.
DENSE = ""


class StepCost(Value):
    """The measured cost of a step: bytes sent by one worker, and seconds."""

    bytes: float
    seconds: float


class OptionCost(Value):
    """A competing exchange: the bytes that a step sends, and its predicted cost."""

    option: str
    bytes: float
    cost: float  # in the budget's unit: seconds, bytes, or steps
    family: str = DENSE  # within a family, a denser exchange teaches at least as much per step
    spared: float = 0.0  # seconds of compute that a step saves against one that exchanges gradients
    teaches: float = 1.0  # what a step is expected to teach, as a share of a dense step

    @property
    def cost_of_dense(self) -> float:
        """The expected cost of learning as much as in a dense step."""
        return self.cost / self.teaches


class Link(Value):
    """A step's time = `compute_s` + bytes x `seconds_per_byte`; latency counts as compute."""

    compute_s: float
    seconds_per_byte: float

    def step_s(self, num_bytes: float) -> float:
        """Return the seconds of a step that sends `num_bytes`."""
        return self.compute_s + num_bytes * self.seconds_per_byte


def fit(steps: Sequence[StepCost]) -> Link | None:
    """Fit compute and transfer to `steps` by non-negative least squares; None if they sent much the same bytes."""
    sent = [step.bytes for step in steps]
    if len(steps) < 2 or min(sent) <= 0 or max(sent) < MIN_CONTRAST * min(sent):
        return None
    slope, offset = statistics.linear_regression(sent, [step.seconds for step in steps])
    if slope <= 0:
        return Link(compute_s=statistics.fmean(step.seconds for step in steps), seconds_per_byte=0.0)
    if offset < 0:
        through_zero = sum(step.bytes * step.seconds for step in steps) / sum(count * count for count in sent)
        return Link(compute_s=0.0, seconds_per_byte=through_zero)
    return Link(compute_s=offset, seconds_per_byte=slope)


def is_hidden(link: Link, steps: Sequence[StepCost]) -> bool:
    """Return whether `steps` take about as long as `link` predicts, but differ too little to measure it again."""
    expected = [link.step_s(step.bytes) for step in steps]
    as_known = (
        step.seconds <= STEADY * known <= STEADY**2 * step.seconds for step, known in zip(steps, expected, strict=True)
    )
    return bool(steps) and all(as_known) and max(expected) - min(expected) < SCATTER * min(expected)


def teaches(density: float) -> float:
    """Return what a step at `density` is expected to teach, as a share of a step at `KNEE`."""
    return float((density / KNEE) ** (BELOW if density < KNEE else ABOVE))


def best_density(available: spending.Amounts, densities: Iterable[float], cost: Callable[[float], StepCost]) -> float:
    """Return the one of `densities` at which the budget teaches the most: the steps that fit x what each teaches."""

    return max(densities, key=lambda density: steps_that_fit(available, cost(density)) * teaches(density))


def steps_that_fit(available: spending.Amounts, step: StepCost) -> float:
    """Return how many such steps a budget holds."""
    costs = {"steps": 1.0, "bytes": step.bytes, "seconds": step.seconds}
    return spending.num_steps(available, {unit: costs[unit] for unit in available})


def short_list(costs: Sequence[OptionCost]) -> tuple[tuple[str, ...], str]:
    """Return the exchanges that are worth a probe, from dense to sparse, and the one to open with.

    The opening exchange costs the least for what it is expected to teach. The list adds the best of each other family,
    then the next best, up to 4 in all.

    On a logarithmic scale, tasks scatter about the expectation by about as much as it lies below 1, so its square is a
    low estimate. An exchange is left out if it costs more than the opening one would at that estimate.
    """
    listed = list[OptionCost]()
    for each in sorted(costs, key=lambda each: -each.bytes):
        if all(each.cost < WORTH_IT * other.cost for other in listed if other.family in (DENSE, each.family)):
            if each.family == DENSE:  # probes are too short to measure rounding: the cheapest stands for all
                listed = [other for other in listed if other.family != DENSE]
            listed.append(each)
    best_first = sorted(listed, key=lambda each: each.cost_of_dense)
    opening = best_first[0]
    worth_it = [each for each in best_first if each.cost <= opening.cost / opening.teaches**2]
    of_family = {each.family: each for each in reversed(worth_it)}
    families_first = sorted(worth_it, key=lambda each: each is not of_family[each.family])
    return tuple(each.option for each in listed if each in families_first[:MOST_OPTIONS]), opening.option
