"""Choose the exchanges that compete under `exchange: {kind: auto}`: those predicted to be worth a probe on the link.

Their bytes follow from the model's shapes. Their seconds follow from the compute time of a step, which the warm-up
shows, and from the link, which the job states or the warm-up measures.
"""

from collections.abc import Callable, Mapping, Sequence

from search.budget.link import DENSE, Link, OptionCost, StepCost, fit, short_list
from search.space import OptionAxis, SearchSpace
from search.types import Values
from service.cluster.first_steps import step_cost, warm_up
from service.job.parts import TrialSpec
from trainers.methods.exchange.auto.spec import LOCAL, WITH_BATCH_NORM, Option, mean_traffic
from trainers.methods.optimizer.spec import num_iterates
from trainers.segment import SegmentResult
from trainers.spec.link import EmulateLink, LinkConfig
from trainers.traffic.collectives import MeanTraffic
from trainers.training.group import Group

#: To measure a link, options are tried from sparse to dense until a step takes this many times as long.
VISIBLE = 1.5


def opened(spec: TrialSpec, space: SearchSpace, groups: Sequence[Group]) -> tuple[SearchSpace, list[SegmentResult]]:
    """Return `space` with the exchanges that compete in a fresh run, and their warm-ups on all lanes.

    The cost of a step is the one predicted for the opening exchange, since a warm-up contains no average of local
    updates.
    """
    traffic = predicted(spec, groups[0])
    measuring = _Measuring(traffic, lambda option: warm_up(groups[0], _at(space.opening, option.name)))
    timed = costs = measuring.in_seconds(spec.replica.link) if spec.budget.seconds is not None else None
    if costs is None:  # without a clock, options cost their bytes; if only steps count, all cost the same
        counts_bytes = spec.budget.bytes is not None or spec.budget.seconds is not None
        costs = [_cost(option, each, each.bytes if counts_bytes else 1.0) for option, each in traffic.items()]
    if groups[0].built.has_batch_norm:
        costs = [each.model_copy(update={"teaches": each.teaches**WITH_BATCH_NORM}) for each in costs]
    options, opening = short_list(costs)
    if measuring.link is not None:
        space = space.model_copy(update={"exchanges": tuple(costs), "link": measuring.link})
    cold = [(name, group) for name in options for group in groups if group != groups[0] or name not in measuring.steps]
    warm_ups = [warm_up(group, _at(space.opening, option)) for option, group in cold]
    axes = (*space.axes, OptionAxis(options=options)) if len(options) > 1 else space.axes
    menu = tuple(option.name for option in sorted(traffic, key=lambda option: -traffic[option].bytes))
    teaching = tuple((each.option, each.teaches) for each in costs)
    measured = measuring.steps | {name: step_cost(each) for (name, _), each in zip(cold, warm_ups, strict=True)}
    [first] = (each for each in costs if each.option == opening)
    told = {
        "axes": axes,
        "guess": _at(space.guess, opening),
        "menu": menu,
        "teaching": teaching,
        "step": _mean_step(first, measured[opening], is_timed=timed is not None),
    }
    return space.model_copy(update=told), [*measuring.warm_ups, *warm_ups]


def predicted(spec: TrialSpec, group: Group) -> dict[Option, MeanTraffic]:
    """Return the traffic of a step between the nodes of `group` under each option of the job."""
    return {
        option: mean_traffic(
            option,
            group.shapes,
            num_workers=len(group.nodes),
            like=spec.replica.exchange,
            num_iterates=num_iterates(spec.replica.optimizer.kind),
        )
        for option in spec.replica.menu
    }


def _at(values: Values, option: str) -> Values:
    return values.model_copy(update={"option": option})


def _cost(option: Option, traffic: MeanTraffic, cost: float, spared: float = 0.0) -> OptionCost:
    family = DENSE if option.level is None else option.kind  # an exchange without a level sends everything
    return OptionCost(
        option=option.name, bytes=traffic.bytes, cost=cost, family=family, spared=spared, teaches=option.teaches
    )


def _mean_step(option: OptionCost, measured: StepCost | None, *, is_timed: bool) -> StepCost | None:
    """Return the mean cost of a step with `option`; None if unknown. With `is_timed`, options cost seconds."""
    if is_timed:
        return StepCost(bytes=option.bytes, seconds=option.cost)
    return measured and StepCost(bytes=option.bytes, seconds=measured.seconds)


class _Measuring:
    """Measures the compute time of a step, and the link if the job does not state it; `warm_ups` are the results.

    Each option is measured once. The options in `steps` have loaded their libraries and opened their connections.
    """

    def __init__(self, traffic: Mapping[Option, MeanTraffic], warm_up: Callable[[Option], SegmentResult]) -> None:
        self._traffic, self._warm_up = traffic, warm_up
        self._sparse_first = sorted(
            (option for option in traffic if option.kind != LOCAL), key=lambda option: traffic[option].bytes
        )
        self.warm_ups: list[SegmentResult] = []
        self._steps: dict[Option, StepCost | None] = {}
        self.link: Link | None = None

    @property
    def steps(self) -> dict[str, StepCost | None]:
        """The cost of a step with each option tried, by name; None if it diverged."""
        return {option.name: step for option, step in self._steps.items()}

    def in_seconds(self, link: LinkConfig) -> list[OptionCost] | None:
        """Return the cost of a step under each option; None if the link cannot be measured."""
        if isinstance(link, EmulateLink):
            seconds = {option: each.seconds(link) for option, each in self._traffic.items()}
            option = next(iter(self._sparse_first or self._traffic))  # its steps send little, or nothing
            step = self._step(option)
            if step is None:
                return None  # it diverged
            compute = max(0.0, step.seconds - (seconds[option] if option.kind != LOCAL else 0.0))
        else:
            self.link = found = self._measured()
            if found is None:
                return None
            seconds = {option: each.bytes * found.seconds_per_byte for option, each in self._traffic.items()}
            compute = found.compute_s
        # The part of it that goes into the exchange: the shortest warm-up step of local updates does not average.
        local = next((option for option in self._traffic if option.kind == LOCAL), None)
        alone = None if local is None else self._step(local)
        exchanging = 0.0 if alone is None else max(0.0, compute - alone.seconds)
        costs = []
        for option, each in self._traffic.items():
            # local updates compute an exchange only once a period
            spared = exchanging * (1 - 1 / (option.level or 1)) if option.kind == LOCAL else 0.0
            costs.append(_cost(option, each, compute + seconds[option] - spared, spared))
        return costs

    def _measured(self) -> Link | None:
        """Measure the link by steps that send more and more, until they take visibly longer."""
        steps: list[StepCost] = []
        for option in self._sparse_first:
            step = self._step(option)
            if step is None:
                break
            steps.append(step)
            if step.seconds > VISIBLE * steps[0].seconds:
                break
        return fit(steps)

    def _step(self, option: Option) -> StepCost | None:
        """Return the cost of a step, or None if the first one diverged."""
        if option not in self._steps:
            result = self._warm_up(option)
            self.warm_ups.append(result)
            self._steps[option] = step_cost(result)
        return self._steps[option]
