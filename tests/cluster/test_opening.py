"""A job's ranges become axes of its search; workers, records and schedule get the chosen values."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from search.bayesian.link_rule import suggested_level
from search.bayesian.setup import SearchSetup
from search.budget.link import Link
from search.space import OptionAxis, SearchSpace
from service.cluster import trial
from service.cluster.exchange_probing import predicted
from service.cluster.opening import opening_space
from service.job.parts import TrialSpec
from service.wire.records import MetricPoints, ProbeDone, StageDecided, TrialFinished
from tests.support.small_trials import Memory, digits_trial
from trainers.segment import Segment, SegmentResult, StepTimes
from trainers.training.call_results import Built
from trainers.workload import WorkloadError

JOB: dict[str, Any] = {
    "workload": {"kind": "digits-mlp", "batch_size": [16, 64]},
    "optimizer": {"kind": "sgd", "learning_rate": 0.5, "momentum": [0.8, 0.98], "nesterov": [True, False]},
    "controller": {"kind": "bo", "revisit": "stages", "max_search_fraction": 0.5, "num_stages": 1},
}
#: What a worker answers whose first step diverged.
NOTHING: dict[str, Any] = {
    "first_step": 0,
    "losses": (),
    "step_seconds": (),
    "bytes_sent": ({},),
    "bytes_dense": 0,
    "density": None,
    "threshold": None,
    "diverged": True,
}


@pytest.fixture
def spec() -> TrialSpec:
    return digits_trial(**JOB)


@pytest.fixture
def group(arithmetic_group: Any) -> Any:
    """It remembers what it was told to train."""
    group = arithmetic_group()
    group.told, run = [], group.run

    def remember(segment: Segment) -> SegmentResult:
        group.told.append(segment)
        return run(segment)

    group.run = remember
    return group


def test_the_search_opens_in_the_middle_of_a_pair_and_with_the_first_choice(spec: TrialSpec, group: Any) -> None:
    space, _ = opening_space(spec, [group])

    assert {axis.name: (axis.low, axis.high) for axis in space.axes} == {
        "batch_size": (16, 64),
        "momentum": (0.8, 0.98),
        "nesterov": (False, True),
    }
    assert (space.opening.batch_size, space.opening.nesterov) == (32, True)
    assert space.opening.momentum == pytest.approx(1 - (0.2 * 0.02) ** 0.5)
    assert group.told[0].options == space.opening.further  # the warm-up trains with them too


@pytest.mark.parametrize(("partition", "samples"), [({"kind": "iid"}, 4), ({"kind": "by_label"}, 12)])
def test_the_search_knows_the_samples_of_a_probes_step(partition: Any, samples: int, group: Any) -> None:
    group.num_workers, run = 3, group.run
    group.run = lambda segment: run(segment).model_copy(update={"batch_samples": 4})
    spec = digits_trial(partition=partition, controller={"kind": "bo"})

    assert opening_space(spec, [group])[0].batch_size == samples  # a worker that probes alone has its own alone


def test_the_search_knows_how_many_lanes_probe_side_by_side(group: Any, arithmetic_group: Any) -> None:
    spec = digits_trial(controller={"kind": "bo"})

    assert opening_space(spec, [group])[0].num_lanes == 1
    assert opening_space(spec, [group, arithmetic_group()])[0].num_lanes == 2


@pytest.mark.parametrize(("compute", "alone_s"), [(0.0006, 0.0002), (0.3, 0.001), (None, 0.001)])
def test_a_step_of_a_worker_alone_takes_the_warm_ups_compute_at_most(
    compute: float | None, alone_s: float, group: Any
) -> None:
    run, times = group.run, compute and StepTimes(compute=compute, exposed=0.5, compress=0.0, wire=0.5)
    group.run = lambda segment: run(segment).model_copy(update={"times": times})  # of its three steps

    space, _ = opening_space(digits_trial(controller={"kind": "bo"}), [group])

    assert space.alone_s == pytest.approx(alone_s)


def test_the_search_knows_what_the_workers_model_begins_with(group: Any) -> None:
    group.built = Built(matrices=(14, 0.013, False))

    weights = opening_space(digits_trial(controller={"kind": "bo"}), [group])[0].weights

    assert weights == (14, 0.013, False)


def test_bytes_alone_are_no_budget_where_all_workers_turn_out_to_share_a_machine(group: Any) -> None:
    group.nodes = ((0, 1),)

    with pytest.raises(WorkloadError, match=r"add `budget\.seconds` or `steps`"):
        opening_space(digits_trial(**JOB | {"budget": {"bytes": 10**6}}), [group])
    assert not group.told


@pytest.mark.parametrize(
    ("exchange", "densest"),
    [
        ({"kind": "topk", "density": [0.001, 0.4]}, 0.4),
        ({"kind": "threshold", "search": "absolute", "threshold": [0.01, 0.1]}, 0.01),
        ({"kind": "powersgd", "rank": [1, 4]}, 4),
    ],
    ids=lambda each: each["kind"] if isinstance(each, dict) else str(each),
)
def test_where_nothing_counts_what_a_step_sends_the_densest_level_is_used(
    exchange: Any, densest: float, group: Any
) -> None:
    def space(changes: dict[str, Any], **budget: int) -> SearchSpace:
        return opening_space(digits_trial(exchange=exchange | changes, budget={"steps": 900, **budget}), [group])[0]

    [searched] = set(exchange) - {"kind", "search"}
    assert space({}) == space({searched: densest})  # as if no other had been given
    assert space({}, bytes=10**12).axis("level") is not None


@pytest.mark.parametrize("levels", [{"kind": "accordion", "critical": 0.5}, {"kind": "warmup", "steps": 9}])
def test_the_link_suggests_a_density_only_where_it_is_in_force_at_once(levels: Any, group: Any) -> None:
    plain = {"kind": "topk", "density": [0.001, 0.4]}
    given = {"budget": {"seconds": 100}, "controller": {"kind": "bo"}, "link": {"mode": "emulate", "mbps": 1}}
    guesses = [
        opening_space(digits_trial(**given | {"exchange": plain | changes}), [group])[0].guess.level
        for changes in ({}, {"levels": levels})
    ]

    assert guesses[0] is not None
    assert guesses[1] is None


@pytest.mark.parametrize("num_nodes", [2, 16])
@pytest.mark.parametrize(
    ("exchange", "optimizer"),
    [({"kind": "topk"}, "sgd"), ({"kind": "topk", "aggregate": "gather"}, "sgd"), ({"kind": "demo"}, "from_exchange")],
    ids=["topk", "gather", "demo"],
)
def test_a_measured_link_suggests_the_density_that_the_same_link_opens_with_if_it_is_stated(
    exchange: dict[str, Any], optimizer: str, num_nodes: int, group: Any
) -> None:
    group.nodes, group.shapes = tuple((rank,) for rank in range(num_nodes)), [(100_000,)]
    run = group.run
    group.run = lambda segment: run(segment).model_copy(update={"step_seconds": (0.02,) * segment.num_steps})
    given = {"exchange": exchange | {"density": [0.001, 0.1]}, "optimizer": {"kind": optimizer, "learning_rate": 0.1}}
    link = {"mode": "emulate", "mbps": 10}
    spec = digits_trial(**given, budget={"seconds": 100}, controller={"kind": "bo"}, link=link)

    space, _ = opening_space(spec, [group])

    setup = SearchSetup(space, spec.controller, spec.budget, seed=0)
    per_byte = 8 / 10e6
    measured = Link(compute_s=0.02 - per_byte * (space.bytes_at(0.001) or 0.0), seconds_per_byte=per_byte)
    assert suggested_level(setup, measured, current=1e-6) == pytest.approx(space.guess.level, rel=0.2)


@pytest.mark.parametrize("link", [{"mode": "emulate", "mbps": 100}, {"mode": "measure"}])
@pytest.mark.parametrize("exchange", [{"kind": "threshold", "density": [0.01, 0.1]}, {"kind": "auto"}])
def test_a_first_step_that_diverges_says_nothing_of_the_link(exchange: Any, link: Any, group: Any) -> None:
    group.run = lambda segment: SegmentResult(**NOTHING)
    given = {"exchange": exchange, "link": link, "budget": {"seconds": 100}, "controller": {"kind": "bo"}}

    space, warm_ups = opening_space(digits_trial(**given), [group])

    assert space.axes and all(result.diverged for result in warm_ups)


@pytest.mark.parametrize("link", [{"mode": "emulate", "mbps": 1e6, "latency_ms": 0}, {"mode": "measure"}])
@pytest.mark.parametrize(
    ("local_s", "has_batch_norm", "competing", "opening"),
    [
        (0.034, False, set(), "none"),
        (0.027, False, {"none", "local_sgd"}, "local_sgd 4"),
        (0.027, True, {"none", "local_sgd"}, "none"),  # by the statistics of its own batches each learns less
    ],
)
def test_local_updates_compete_on_a_fast_link_where_their_steps_are_shorter(
    local_s: float, has_batch_norm: bool, competing: set[str], opening: str, link: Any, group: Any
) -> None:
    group.built, group.shapes = Built(has_batch_norm=has_batch_norm), [(512, 64), (512, 512)]
    spec = digits_trial(exchange={"kind": "auto"}, link=link, budget={"seconds": 100}, controller={"kind": "bo"})
    sent = {option.name: traffic.bytes for option, traffic in predicted(spec, group).items()}
    warmed: list[str] = []

    def run(segment: Segment) -> SegmentResult:
        assert segment.option is not None
        warmed.append(segment.option)
        seconds = local_s if segment.option.startswith("local_sgd") else 0.034
        return SegmentResult(
            first_step=0,
            losses=(1.0,) * segment.num_steps,
            step_seconds=(seconds,) * segment.num_steps,
            bytes_sent=({"gradient": int(sent[segment.option]) * segment.num_steps},) * 2,
            bytes_dense=0,
            diverged=False,
        )

    group.run = run
    space, _ = opening_space(spec, [group])

    options = [option for axis in space.axes if isinstance(axis, OptionAxis) for option in axis.options]
    assert {option.split()[0] for option in options} == competing
    assert space.opening.option == opening
    assert len(warmed) == len(set(warmed))


def test_what_is_chosen_is_trained_with_reported_and_in_the_schedule(
    spec: TrialSpec, group: Any, tmp_path: Any
) -> None:
    sink = Memory()
    finished = trial.train(spec, group, sink, trial_id="job.tuned.0", storage_url=f"file://{tmp_path}")
    probes, [decided] = sink.of(ProbeDone), sink.of(StageDecided)

    assert all(segment.options.keys() == {"batch_size", "momentum", "nesterov"} for segment in group.told)
    assert len({record.values["momentum"] for record in probes}) > 4
    *promoted, last = finished.schedule  # a finalist's own values may begin the commit
    assert last.values == decided.values
    assert all(entry.values in [record.values for record in probes] for entry in promoted)
    assert group.told[-1].options == decided.values


@pytest.mark.parametrize(
    ("given", "longest"),
    [
        ({"sync": {"kind": "local_sgd", "period": 24}}, 24),
        ({"sync": {"kind": "streaming_diloco", "period": 24}}, 24),
        ({"sync": {"kind": "local_sgd", "period": [2, 24]}}, 24),
        ({"exchange": {"kind": "auto", "options": ["none", "local_sgd 24"]}}, 24),
        ({"exchange": {"kind": "none"}}, 1),
    ],
)
def test_the_search_knows_after_how_many_steps_workers_average(given: Any, longest: int, group: Any) -> None:
    spec = digits_trial(budget={"bytes": 10**9}, **{"exchange": {"kind": "none"}, "controller": {"kind": "bo"}} | given)

    assert opening_space(spec, [group])[0].longest_period == longest


class OnAClock:
    """Runs a segment on a machine where all takes what it is told: a step, and an average every `period` of them."""

    def __init__(self, period: int, *, step_s: float, average_s: float) -> None:
        self.period, self.step_s, self.average_s, self.num_averages = period, step_s, average_s, 0

    def __call__(self, segment: Segment) -> SegmentResult:
        period, seconds = segment.period or self.period, []
        for index in range(segment.num_steps):
            meets = (index + 1) % period == 0
            self.num_averages += meets
            opening_s = 5.0 if meets and self.num_averages == 1 else 0.0  # connections open, libraries load
            seconds.append(self.step_s + meets * (self.average_s + opening_s))
        return SegmentResult(
            first_step=0,
            losses=(1.0,) * segment.num_steps,
            step_seconds=tuple(seconds),
            bytes_sent=({},) * 2,
            bytes_dense=0,
            diverged=False,
        )


LOCAL: dict[str, Any] = {"exchange": {"kind": "none"}, "controller": {"kind": "bo"}, "optimizer": {"kind": "sgd"}}
STATED, MEASURED = {"mode": "emulate", "mbps": 1, "latency_ms": 0}, {"mode": "measure"}


@pytest.mark.parametrize("period", [2, 8, 500])
@pytest.mark.parametrize(("link", "average_s"), [(MEASURED, 0.4), (STATED, 1000 * 8 / 1e6)], ids=["measured", "stated"])
def test_a_run_of_local_updates_is_as_long_as_their_averages_let_it_be(
    link: Any, average_s: float, period: int, group: Any
) -> None:
    group.shapes = [(250,)]  # of two hosts, each sends an average of 1000 bytes
    spec = digits_trial(**LOCAL, sync={"kind": "local_sgd", "period": period}, link=link, budget={"seconds": 100})
    group.run = OnAClock(period, step_s=0.01, average_s=average_s)

    step = opening_space(spec, [group])[0].step

    assert step is not None
    assert step.seconds == pytest.approx(0.01 + average_s / period, rel=0.01)  # the loss is averaged, too
    assert step.bytes == pytest.approx(1000 / period, rel=0.01)


@pytest.mark.parametrize(
    ("sync", "step_s"),
    [
        ({"kind": "streaming_diloco", "period": 20, "fragments": 4}, 0.01 + 8.0 / 20),  # of each fragment one
        ({"kind": "overlap_local_sgd", "period": 2}, 8.0 / 2),  # workers train beside an average
        ({"kind": "overlap_local_sgd", "period": 5000}, 0.01),
    ],
    ids=["fragments", "an average that is longer than its round", "one that is shorter"],
)
def test_whatever_a_policy_makes_of_its_averages_a_run_counts_them(sync: Any, step_s: float, group: Any) -> None:
    group.shapes = [(50_000,)] * 5  # of two hosts, each sends 1 MB, which takes 8 s
    spec = digits_trial(**LOCAL, sync=sync, link=STATED, budget={"seconds": 100})
    group.run = OnAClock(5000, step_s=0.01, average_s=0.0)

    step = opening_space(spec, [group])[0].step

    assert step is not None
    assert (step.seconds, step.bytes) == (
        pytest.approx(step_s, rel=0.03),
        pytest.approx(1e6 / sync["period"], rel=0.01),
    )


def test_a_budget_in_bytes_pays_for_no_average_before_the_first_step(group: Any) -> None:
    spec = digits_trial(**LOCAL, sync={"kind": "diloco", "period": 500}, budget={"bytes": 10**7})
    group.run = clock = OnAClock(500, step_s=0.01, average_s=0.4)

    step = opening_space(spec, [group])[0].step

    assert step is not None and step.bytes > 0
    assert not clock.num_averages


@pytest.mark.parametrize("budget", [{"seconds": 100.0}, {"bytes": 10**7}])
def test_a_run_of_exchanges_that_compete_is_as_long_as_the_one_it_opens_with_lets_it_be(
    budget: dict[str, float], group: Any
) -> None:
    group.shapes = [(512, 64), (512, 512)]
    given: dict[str, Any] = {"exchange": {"kind": "auto"}, "controller": {"kind": "bo"}}
    spec = digits_trial(**given, link={"mode": "emulate", "mbps": 10, "latency_ms": 0}, budget=budget)
    group.run = OnAClock(16, step_s=0.01, average_s=0.4)

    space, _ = opening_space(spec, [group])

    opened = {option.name: traffic for option, traffic in predicted(spec, group).items()}[str(space.opening.option)]
    assert space.step is not None
    assert space.step.bytes == opened.bytes > 0
    if "seconds" in budget:
        assert space.step.seconds > opened.bytes * 8 / 10e6


def test_where_the_link_does_not_show_a_step_of_the_exchange_that_is_opened_with_tells_the_length(group: Any) -> None:
    exchange = {"kind": "auto", "options": ["local_sgd 4", "local_sgd 16"]}
    spec = digits_trial(exchange=exchange, link=MEASURED, budget={"seconds": 100}, controller={"kind": "bo"})
    group.run = OnAClock(100, step_s=0.01, average_s=0.0)

    step = opening_space(spec, [group])[0].step

    assert step is not None and step.seconds == pytest.approx(0.01)


@pytest.mark.parametrize("budget", [{"seconds": 100.0}, {"bytes": 10**7}])
@pytest.mark.parametrize("link", [MEASURED, {"mode": "emulate", "mbps": 1}])
@pytest.mark.parametrize(
    ("exchange", "sparsest"),
    [
        ({"kind": "threshold", "density": [0.001, 0.1]}, 0.001),
        ({"kind": "threshold", "search": "absolute", "threshold": [0.001, 0.1]}, 0.1),
        ({"kind": "powersgd", "rank": [1, 8]}, 1),
    ],
    ids=["density", "threshold", "rank"],
)
def test_a_run_counts_its_steps_at_the_level_that_it_opens_with_after_a_first_one_that_sends_least(
    exchange: Any, sparsest: float, link: Any, budget: dict[str, float], group: Any
) -> None:
    told = []

    def run(segment: Segment) -> SegmentResult:
        told.append(segment.level)
        step_s = 0.01 + (segment.level or 0.0)
        sent = {"gradient": round(1e6 * step_s) * segment.num_steps}
        return OnAClock(500, step_s=step_s, average_s=0.0)(segment).model_copy(update={"bytes_sent": (sent,) * 2})

    group.run = run
    spec = digits_trial(exchange=exchange, link=link, budget=budget, controller={"kind": "bo"})

    space, _ = opening_space(spec, [group])

    opening = space.opening.level
    assert opening is not None and space.step is not None
    assert told[0] == sparsest
    assert space.step.seconds == pytest.approx(0.01 + opening)
    assert space.step.bytes == pytest.approx(1e6 * (0.01 + opening), rel=1e-3)


def test_an_evaluation_that_outlasts_the_budget_leaves_all_of_it_to_the_steps(
    group: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {"controller": {"kind": "fixed"}, "objective": {"every": 10**6}}
    spec, sink, now = digits_trial(budget={"seconds": 0.2}, **given), Memory(), [0.0]
    run, evaluate = group.run, group.evaluate

    def takes(seconds: float, result: Any) -> Any:
        now[0] += seconds
        return result

    group.run = lambda segment: takes(0.001 * segment.num_steps, run(segment))
    group.evaluate = lambda **how: takes(10.0, evaluate(**how))
    monkeypatch.setattr("service.cluster.clock.time", SimpleNamespace(monotonic=lambda: now[0]))
    trial.train(spec, group, sink, trial_id="job.tuned.0", storage_url=f"file://{tmp_path}")

    [finished] = sink.of(TrialFinished)
    assert finished.bill.steps == pytest.approx(200, abs=1)
    assert finished.bill.seconds_training == pytest.approx(0.2, abs=0.001)
    first = next(record for record in sink.of(MetricPoints) if record.name == "validation_loss")
    assert (first.steps, first.seconds) == ((0,), (0.0,))
