"""Predict each method's cost of a step, of a budget and of reaching a loss, on a link and workers you do not have.

Pure functions of a request and recorded rows. The time to a loss is predicted only if a row covers it.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

from pydantic import Field, ValidationError, model_validator

from search.config import Budget, Config
from service.catalog.methods import MAX_SHAPES, SHAPES, parsed
from service.job.parts import TrialSpec
from service.job.problems import problems_of
from service.job.spec import JobSpec
from service.prediction.evidence import Lesson, Recorded, recorded
from service.prediction.model import GOODPUT, WITHIN_MBPS, Site, StepParts, step
from service.wire.predictions import MethodPrediction, Prediction, Span, Task
from trainers.methods.exchange.onebit_adam.spec import SignsOfAdamConfig
from trainers.methods.replica_config import ReplicaConfig
from trainers.methods.sync.stl_sgd.spec import StlSgdConfig
from trainers.spec.link import EmulateLink
from trainers.spec.partition import IidPartition
from trainers.spec.ranges import Conflict, conflict_error
from trainers.spec.workloads import ConvNet, StdlibLm
from trainers.traffic.collectives import num_elements
from trainers.traffic.shapes import Shape, parameter_shapes

DENSE, OWN = "dense", "this job"
#: The parts of a job in which methods are chosen.
CHOICES = ("exchange", "sync", "blocks", "activations")
#: The optimizer that works only with the job's own exchange, and the one that replaces it for all others.
FROM_EXCHANGE, INSTEAD = "from_exchange", "adamw"
#: Methods to start with if nothing is known about losses, as in docs/choosing.md: `USUAL`, or for a model with fewer
#: than `SMALL` parameters `USUAL_OF_SMALL` first.
USUAL, USUAL_OF_SMALL, SMALL = "powersgd 4", "local_sgd 8, topk 10 %", 1_000_000
#: Recorded tasks in which all hosts have i.i.d. data.
ALIKE = ("images", "text")
#: The error factor of the steps to a loss if only one seed was recorded.
ONE_SEED = 1.3
#: The range of rates in megabits per second, and the bisection steps of the search for a break-even.
SLOWEST, FASTEST, NUM_HALVINGS = 0.01, 1e6, 20


class PredictionRequest(Config):
    """A job, what a step of it computes, and the link and the workers that it may get."""

    job: JobSpec
    compute_ms: float = Field(ge=0.001, le=1e7, description="of a step of one worker that exchanges nothing")
    compute_spread: float = Field(
        1.0, ge=1, le=100, description="four of five steps compute for `compute_ms` up to this factor; 1: it is stated"
    )
    mbps: float = Field(ge=SLOWEST, le=FASTEST, description="of a host's link, each way")
    latency_ms: float = Field(0.0, ge=0, le=10_000, description="one way: what a message waits before it arrives")
    workers: int = Field(2, ge=2, le=1024)
    hosts: int | None = Field(
        None,
        ge=2,
        le=1024,
        description="that share the workers evenly; null: as the job's `per_node` has them, if it has so many workers, "
        "else one for each",
    )
    slowdown: float = Field(
        1.0, ge=1, le=1000, description="of computing, where workers share cores that `compute_ms` had for itself"
    )
    shapes: str | None = Field(
        None,
        pattern=SHAPES,
        max_length=MAX_SHAPES,
        description="of the trained parameters, as 512x64,512; null: those of a built-in workload",
    )
    like: Task | None = Field(
        None, description="the recorded task whose losses stand for the job's; null: by the workload, if it is alike"
    )
    dense_steps: int | None = Field(
        None, ge=1, description="steps to a loss by dense training; null: those of the budget"
    )

    @model_validator(mode="after")
    def _fits_together(self) -> "PredictionRequest":
        if self.hosts is not None and (self.hosts > self.workers or self.workers % self.hosts):
            message = f"`hosts` must divide `workers`, which is {self.workers}, got {self.hosts}"
            raise conflict_error([Conflict("/hosts", self.hosts, message)])
        if self.shapes is None and parameter_shapes(self.job.workload) is None:
            message = "`shapes` must be given for a model of your own: `wiretune predict` finds them out"
            raise conflict_error([Conflict("/shapes", None, message)])
        if self.shapes is not None:
            parsed(self.shapes)
        dense = _dense_job(_base(self))
        try:
            JobSpec.model_validate(dense)
        except ValidationError as error:
            wrong = problems_of(error, dense, JobSpec)[0]
            place = "/workers" if wrong.pointer.startswith("/workers") else f"/job{wrong.pointer}"
            message = f"dense training, with which methods are compared, does not go here: {wrong.message}"
            raise conflict_error([Conflict(place, wrong.value, message)]) from None
        return self

    @property
    def site(self) -> Site:
        return Site(
            mbps=self.mbps,
            latency_ms=self.latency_ms,
            workers=self.workers,
            hosts=self._num_hosts,
            compute_s=self.compute_ms / 1e3,
            slowdown=self.slowdown,
            goodput=1.0 if self._is_paced else GOODPUT,
        )

    @property
    def _num_hosts(self) -> int:
        """The requested hosts; else the job's nodes, if it has as many workers and several nodes; else the workers."""
        if self.hosts is not None:
            return self.hosts
        count, per_node = self.job.workers.count, self.job.workers.per_node
        num_nodes = 1 if per_node == "auto" or self.workers != count else count // per_node
        return num_nodes if num_nodes > 1 else self.workers

    @property
    def _is_paced(self) -> bool:
        """True for the link that the job emulates, which leaves its full rate to data."""
        return isinstance(self.job.link, EmulateLink) and self.job.link.mbps == self.mbps

    @property
    def task(self) -> Task | None:
        """The recorded task that is like the job, or None."""
        if self.like is not None:
            return self.like
        is_alike = isinstance(self.job.partition, IidPartition)
        match self.job.workload:
            case ConvNet(size="large"):
                return "residual-net"  # recorded with hosts whose data differ
            case StdlibLm(size="5M" | "25M"):
                return "transformer"  # recorded likewise
            case ConvNet():
                return "images" if is_alike else "images-apart"
            case StdlibLm():
                return "text" if is_alike else "text-apart"
        return None


class _Question(NamedTuple):
    """A request, with everything derived from it."""

    request: PredictionRequest
    known: Recorded
    shapes: tuple[Shape, ...]
    dense: TrialSpec


class _Choice(NamedTuple):
    name: str
    job: dict[str, Any]
    trial: TrialSpec


def predict(request: PredictionRequest, known: Recorded | None = None) -> Prediction:
    """Predict the cost of every method that fits the job."""
    found = known or recorded()
    shapes = parameter_shapes(request.job.workload) if request.shapes is None else parsed(request.shapes)
    assert shapes is not None  # validated by the request
    dense = _fitting(_dense_job(_base(request)))
    assert dense is not None
    asked = _Question(request, found, shapes, dense)
    order = _by_step if request.task is None else _by_loss
    fitting = [each for each in _choices(request, found) if _is_indexed(asked, each.trial)]
    methods = sorted((_of_method(asked, each) for each in fitting), key=order)
    return Prediction(
        workers=request.workers,
        hosts=request.site.hosts,
        mbps=request.mbps,
        latency_ms=request.latency_ms,
        num_parameters=num_elements(shapes),
        dense_steps=_dense_steps(asked),
        task=request.task,
        methods=tuple(methods),
        assumptions=tuple(_assumptions(asked, fitting)),
    )


def _by_step(each: MethodPrediction) -> float:
    return each.step_s.expected


def _by_loss(each: MethodPrediction) -> tuple[bool, float]:
    return (each.loss_s is None, each.step_s.expected if each.loss_s is None else each.loss_s.expected)


def _choices(request: PredictionRequest, known: Recorded) -> Iterator[_Choice]:
    """Yield the job's own choice, and every recorded method that could replace it."""
    base = _base(request)
    plain, optimizer = _dense_job(base), _optimizer_of_others(base)
    searched = {"controller": request.job.controller.model_dump(mode="json")}  # a range needs it
    own = _fitting(base | {"controller": {"kind": "fixed"}}) or _fitting(base | searched)
    # The traffic of competing exchanges, and of a threshold, is known only from training.
    if own is not None and not own.replica.exchange.competes and own.replica.exchange.level_name != "threshold":
        yield _Choice(OWN, {part: base[part] for part in base if part in CHOICES[:3]}, own)
    for name, job in known.methods.items():
        trial = _fitting(_merged(plain, job))
        if trial is not None:
            yield _Choice(name, job | optimizer, trial)


def _base(request: PredictionRequest) -> dict[str, Any]:
    """Return the job on the requested workers, as one run at its guess.

    It keeps its own controller if a fixed one is not possible, as with competing exchanges.
    """
    base = request.job.given() | {"arms": [{"name": "tuned"}], "seeds": [0]}
    per_node = request.site.per_host
    base["workers"] = {"count": request.workers, **({"per_node": per_node} if per_node > 1 else {})}
    others = {part: value for part, value in base.items() if part not in ("lanes", "params", "sweep")}
    others |= {"link": {"mode": "measure"}}
    fixed = others | {"controller": {"kind": "fixed"}}
    return others if _fitting(_dense_job(fixed)) is None else fixed


def _dense_job(base: Mapping[str, Any]) -> dict[str, Any]:
    others = {part: value for part, value in base.items() if part not in CHOICES}
    return others | _optimizer_of_others(base) | {"exchange": {"kind": "none"}}


def _optimizer_of_others(base: Mapping[str, Any]) -> dict[str, Any]:
    """Return the replacement optimizer for other exchanges, if the job's optimizer works only with its own exchange."""
    is_bound = base.get("optimizer", {}).get("kind") == FROM_EXCHANGE
    return {"optimizer": {"kind": INSTEAD}} if is_bound else {}


def _fitting(job: Mapping[str, Any]) -> TrialSpec | None:
    """Return the run of a job, or None if its parts conflict."""
    try:
        return next(JobSpec.model_validate(job).trials())
    except ValidationError:
        return None


def _merged(job: Mapping[str, Any], parts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the job with `parts` replaced. A part without a `kind` only changes its knobs."""
    changed = {part: {**job.get(part, {}), **value} if "kind" not in value else value for part, value in parts.items()}
    return {**job, **changed}


def _of_method(asked: _Question, choice: _Choice) -> MethodPrediction:
    known, request = asked.known, asked.request
    parts, dense = _step(asked, choice.trial, request.site), _step(asked, asked.dense, request.site)
    usual = known.usual_error if known.is_timed(choice.trial.replica) else 2 * known.usual_error
    step_s = _span(parts.seconds, _error(usual, parts, request.compute_spread))
    ratio, known_from, num_missed = _ratio(asked, choice.name)
    steps, budget = _steps(request, parts), _dense_steps(asked)
    above, below = _break_evens(asked, choice, 1.0 if ratio is None else ratio.expected)
    return MethodPrediction(
        method=choice.name,
        job=choice.job,
        bytes_per_step=parts.bytes,
        step_s=step_s,
        compute_s=parts.compute_s,
        exchange_s=parts.exchange_s,
        wire_s=parts.wire_s,
        steps=steps,
        budget_s=None if steps is None else steps * parts.seconds,
        budget_bytes=None if steps is None else steps * parts.bytes,
        steps_ratio=ratio,
        loss_s=None if ratio is None or budget is None else _product(ratio, step_s, budget),
        known_from=known_from,
        num_missed=num_missed,
        spare_ratio=dense.seconds / parts.seconds,
        pays_below_mbps=below,
        pays_above_mbps=above,
    )


def _error(usual: float, parts: StepParts, spread: float) -> float:
    """Return the error factor of a step: the errors of prediction and measurement, added in quadrature."""
    measured = 1 + (spread - 1) * parts.compute_s / parts.seconds
    return math.exp(math.hypot(math.log(1 + usual), math.log(measured)))


def _step(asked: _Question, trial: TrialSpec, site: Site) -> StepParts:
    """Predict a step; the mean over the job if its exchange is dense for part of the steps."""
    parts = step(trial.replica, asked.shapes, site, asked.known.own_cost(trial.replica))
    exchange, steps = trial.replica.exchange, asked.request.job.budget.steps
    if steps is None or not isinstance(exchange, SignsOfAdamConfig):
        return parts
    dense, share = _step(asked, asked.dense, site), exchange.num_dense(steps) / steps
    return StepParts(*(share * whole + (1 - share) * signs for whole, signs in zip(dense, parts, strict=True)))


def _is_indexed(asked: _Question, trial: TrialSpec) -> bool:
    """Return whether the method's payloads can index the largest bucket of the model."""
    try:
        _step(asked, trial, asked.request.site)
    except ValueError:  # a bucket of a large model's two iterates (Schedule-Free) may exceed int32 indices
        return False
    return True


def _steps(request: PredictionRequest, parts: StepParts) -> float | None:
    """Return the number of steps in the job's budget, by the cap that is reached first."""
    budget = request.job.budget
    caps = [
        budget.steps,
        None if budget.seconds is None else budget.seconds / parts.seconds,
        None if budget.bytes is None or not parts.bytes else budget.bytes / parts.bytes,
    ]
    return min((float(cap) for cap in caps if cap is not None), default=None)


def _dense_steps(asked: _Question) -> int | None:
    if asked.request.dense_steps is not None:
        return asked.request.dense_steps
    steps = _steps(asked.request, _step(asked, asked.dense, asked.request.site))
    return None if steps is None else max(1, round(steps))


def _ratio(asked: _Question, method: str) -> tuple[Span | None, str, int]:
    """Return the steps to a loss relative to dense training, the rows that say so, and how many seeds missed it.

    If no row covers it, the second value says why.
    """
    task = asked.request.task
    if method == DENSE:
        return Span(expected=1.0, low=1.0, high=1.0), "by definition", 0
    if task is None:
        return None, "no recorded task is like this job: name one with `like`", 0
    lesson = asked.known.lessons_of(method, task, asked.request.site.hosts)
    if lesson is None:
        return None, f"no row on `{task}`", 0
    num_missed = lesson.num_missed
    num_seeds = len(lesson.ratios) + num_missed
    rows = f"`{task}` with {lesson.hosts} hosts, {num_seeds} {'seed' if num_seeds == 1 else 'seeds'}"
    rows += f", {num_missed} missed" if num_missed else ""
    if num_missed >= len(lesson.ratios):
        return None, f"{rows}: the loss was not reached", num_missed
    return _of_lesson(lesson), rows, num_missed


def _of_lesson(lesson: Lesson) -> Span:
    middle = lesson.ratios[(len(lesson.ratios) + lesson.num_missed) // 2]
    if len(lesson.ratios) == 1:
        return _span(middle, ONE_SEED)
    # A seed that missed has no upper bound, and JSON has no infinity. `num_missed` says that `high` is not a bound.
    high = 10 * middle if lesson.num_missed else lesson.ratios[-1]
    return Span(expected=middle, low=lesson.ratios[0], high=high)


def _span(expected: float, factor: float) -> Span:
    return Span(expected=expected, low=expected / factor, high=expected * factor)


def _product(ratio: Span, step_s: Span, steps: int) -> Span:
    """Return the time of `steps` x ratio steps. The two errors are independent and add in quadrature."""
    expected = steps * ratio.expected * step_s.expected
    low = math.hypot(*(math.log(each.expected / each.low) for each in (ratio, step_s)))
    high = math.hypot(*(math.log(each.high / each.expected) for each in (ratio, step_s)))
    return Span(expected=expected, low=expected / math.exp(low), high=expected * math.exp(high))


def _break_evens(asked: _Question, choice: _Choice, ratio: float) -> tuple[float | None, float | None]:
    """Return the lowest and highest rate at which `ratio` steps of the method are faster than one dense step.

    None means no bound; (None, 0) means at no rate.
    """

    def pays(mbps: float) -> bool:
        site = replace(asked.request.site, mbps=mbps)
        return ratio * _step(asked, choice.trial, site).seconds < _step(asked, asked.dense, site).seconds

    # All rates between two that pay also pay: a method's time is convex in 1 / rate, and dense training's is linear.
    paying = [rate for rate in (SLOWEST, asked.request.mbps, FASTEST) if pays(rate)]
    if choice.name == DENSE or not paying:
        return None, 0.0
    return (
        None if paying[0] == SLOWEST else _boundary(pays, paying[0], SLOWEST),
        None if paying[-1] == FASTEST else _boundary(pays, paying[-1], FASTEST),
    )


def _boundary(pays: Callable[[float], bool], inside: float, outside: float) -> float:
    """Find by bisection the last rate that pays, between `inside`, which pays, and `outside`, which does not."""
    for _ in range(NUM_HALVINGS):
        middle = math.sqrt(inside * outside)
        inside, outside = (middle, outside) if pays(middle) else (inside, middle)
    return float(f"{inside:.3g}")


def _assumptions(asked: _Question, choices: Sequence[_Choice]) -> Iterator[str]:
    request, site = asked.request, asked.request.site
    given = f"TCP leaves {GOODPUT:.0%} of the link's rate to data"
    paced = "the job's emulated link gives data all of its rate"
    yield f"{paced if site.goodput == 1 else given}; no other traffic is on the link"
    yield f"a message waits {request.latency_ms:g} ms for the link, in every round of an exchange"
    if site.per_host > 1:
        whose = "" if request.hosts else ", by the job's `per_node`,"
        yield (
            f"the {site.per_host} workers of a host{whose} add up their gradients over {WITHIN_MBPS / 1e3:g} Gbit/s "
            "and exchange as one"
        )
    yield "gradients are sent after backward, with no overlap; averages that travel while workers train on are hidden"
    yield "compression takes as long as on two cores of our server, however fast your processors are"
    yield (
        f"the error bar holds four steps in five: {asked.known.num_rows} recorded ones were predicted from others, "
        "with 2 and 4 hosts and at most 5 million parameters"
    )
    if request.compute_spread > 1:
        spread = f"{request.compute_spread:.2g}"
        yield f"and what a step computes: four of five that were timed took within a factor of {spread} of it"
    if request.task is not None:
        source = "as asked for" if request.like else "by the kind and size of the workload"
        differing = "" if request.task in ALIKE else ", whose hosts' data differ"
        yield (
            f"steps to a loss go as on the recorded task `{request.task}`{differing} ({source}), each method at its "
            "best rate"
        )
    yield "a searched level counts as the densest of its pair, which sends the most; other ranges as their first value"
    yield "searching is not charged"
    if request.job.optimizer.kind == FROM_EXCHANGE:
        yield f"all but `{OWN}` step by `{INSTEAD}`: `{FROM_EXCHANGE}` goes with the job's own exchange alone"
    for own in (each.trial.replica for each in choices if each.name == OWN):
        yield from _changing(own, request.job.budget)


def _changing(own: ReplicaConfig, budget: Budget) -> Iterator[str]:
    """Yield how the job's own choice changes over the run, and in which direction its row errs."""
    if isinstance(own.sync, StlSgdConfig):
        yield f"`{OWN}` averages by its first period for ever: as `stl_sgd` makes it longer, steps send less than that"
    if isinstance(own.exchange, SignsOfAdamConfig):
        if budget.steps is None:
            yield f"`{OWN}` sends signs from the first step: its dense steps send more than that"
        elif budget.seconds is not None or budget.bytes is not None:
            yield f"`{OWN}` has its dense steps among {budget.steps}: a run that ends before has a larger share of them"
        if own.exchange.drifts:
            yield f"`{OWN}` sends signs in each step: where `max_interval` leaves exchanges out, nothing is sent"
    match own.exchange.level_policy:
        case "warmup":
            yield f"`{OWN}` has its final density from the first step: while `warmup` lasts, steps send more than that"
        case "accordion":
            yield f"`{OWN}` counts no critical regime of `accordion`, in which steps send more than that"
        case "cat":
            yield f"`{OWN}` sends what its density says: `cat` chooses in each step, and sends more or less than that"


def best(prediction: Prediction) -> Sequence[MethodPrediction]:
    """Return the recommended method, then the others, the fastest to the loss first.

    The recommendation is the fastest method that never missed the loss, since one that did may not reach it. If only
    dense training's loss is known, it is the usual method: the shortest step says nothing about the loss.
    """
    known = [each for each in prediction.methods if each.loss_s is not None and each.method != OWN]
    if len(known) <= 1:
        known = [each for each in prediction.methods if each.method != OWN]
        first = _usual(prediction)
    else:
        first = next(each for each in known if not each.num_missed)  # dense training never missed its own loss
    return [first, *(each for each in known if each is not first)]


def _usual(prediction: Prediction) -> MethodPrediction:
    """Return the usual method for a model of this size, or dense training if that method's step is not shorter."""
    fitting = {each.method: each for each in prediction.methods}
    dense = fitting[DENSE]
    names = (USUAL_OF_SMALL, USUAL) if prediction.num_parameters < SMALL else (USUAL,)
    usual = (fitting[name] for name in names if name in fitting)
    return next((each for each in usual if each.step_s.expected < dense.step_s.expected), dense)


Judgement = Literal["faster", "tie", "slower"]


def judged(one: Span, other: Span) -> Judgement:
    """Compare two times; they tie if either lies in the other's error bar."""
    if other.low <= one.expected <= other.high or one.low <= other.expected <= one.high:
        return "tie"
    return "faster" if one.expected < other.expected else "slower"
