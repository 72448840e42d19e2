"""The report of a job: when arms reached which loss, and means over seeds."""

import pytest
from hypothesis import given, settings, strategies as st
from scipy import stats

from search.sweep.spec import ParamRange, SweepConfig
from service.control import sweeps
from service.control.results import report
from service.control.results.report import estimate, positive_estimate, t_quantile
from service.job.spec import JobSpec
from service.job.states import JobState
from service.wire.jobs import JobView
from service.wire.records import Bill
from service.wire.reports import Prices
from service.wire.sweeps import SweepReport
from service.wire.trials import Series, TrialView

JOB = JobSpec.model_validate(
    {
        "workload": {"kind": "digits-mlp"},
        "controller": {"kind": "fixed"},
        "arms": [{"name": "tuned"}, {"name": "dense"}],
        "seeds": [0, 1, 2],
        "budget": {"steps": 10},
    }
)
PARAMS = {"accumulate": ParamRange(integer=(1, 2))}
MOMENT = "2026-01-01T00:00:00Z"


def series(*points: tuple[float, float | None]) -> Series:
    seconds, values = zip(*points, strict=True) if points else ((), ())
    steps = tuple(range(len(points)))
    return Series(
        trial_id="t", arm="a", seed=0, name="validation_loss", steps=steps, seconds=seconds, values=values,
        num_points=len(points),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("first", "other", "expected"),
    [
        (series((1, 0.9), (2, 0.5), (3, 0.2)), series((4, 0.8), (8, 0.5)), (0.5, 2, 8)),
        (series((1, 0.9), (2, 0.6)), series((4, 0.8), (8, 0.5)), (0.5, None, 8)),
        (series((1, None), (2, 0.4)), series((4, 0.8), (8, None)), (0.8, 2, 4)),
        (series(), series((4, 0.8)), (0.8, None, 4)),
        (series((1, 0.9), (2, 0.4)), series((4, 0.3), (6, 0.7), (8, 0.5)), (0.5, 2, 4)),
    ],
)
def test_a_crossing_is_the_first_time_of_each_at_or_below_the_others_last_loss(
    first: Series, other: Series, expected: tuple[float, float | None, float]
) -> None:
    found = report.crossing(first, other, "loss", "min", loss=9.0)

    assert found is not None
    assert (found.value, found.seconds, found.other_seconds) == expected
    assert found.loss == found.value


def test_a_crossing_of_a_metric_that_grows_is_the_first_time_at_or_above_it() -> None:
    first, other = series((1, 0.1), (2, 0.6), (3, 0.8)), series((4, 0.2), (8, 0.5))

    found = report.crossing(first, other, "accuracy", "max", loss=0.7)

    assert found is not None
    assert (found.value, found.loss, found.seconds, found.other_seconds) == (0.5, 0.7, 2, 8)


def test_there_is_no_crossing_with_what_was_never_measured() -> None:
    assert report.crossing(series((1, 0.9)), series((4, None)), "loss", "min", loss=0.7) is None
    assert report.crossing(series((1, 0.9)), series((4, 0.8)), "accuracy", "max", loss=None) is None


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 9, 30, 99])
@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.999])
def test_students_quantile_is_scipys(confidence: float, freedom: int) -> None:
    expected = stats.t.ppf((1 + confidence) / 2, freedom)

    assert t_quantile(confidence, freedom) == pytest.approx(expected, rel=1e-12)


@settings(deadline=None)  # the first example pays for imports
@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=20))
def test_an_interval_is_that_of_a_t_test(values: list[float]) -> None:
    found = estimate(values)
    mean, spread = float(stats.tmean(values)), float(stats.sem(values))
    half = stats.t.ppf(0.975, len(values) - 1) * spread

    assert found is not None and found.low is not None and found.high is not None
    assert (found.mean, found.num_seeds) == (pytest.approx(mean, abs=1e-9), len(values))
    assert (found.low, found.high) == (pytest.approx(mean - half, abs=1e-6), pytest.approx(mean + half, abs=1e-6))


@settings(deadline=None)
@given(st.lists(st.floats(1e-3, 1e6), min_size=2, max_size=20))
def test_an_interval_of_what_is_positive_holds_its_mean_and_stays_above_0(values: list[float]) -> None:
    found = positive_estimate(values)

    assert found is not None and found.low is not None and found.high is not None
    assert 0 < found.low <= found.mean * (1 + 1e-9) and found.mean <= found.high * (1 + 1e-9)
    if len(values) == 2:
        assert (found.low, found.high) == (min(values), max(values))


def test_one_seed_has_a_mean_and_no_interval() -> None:
    found = estimate([0.25, None])

    assert found is not None
    assert (found.num_seeds, found.mean, found.low, found.high) == (1, 0.25, None, None)


def test_nothing_known_has_no_mean() -> None:
    assert estimate([None, None]) is None


def trial(arm: str, seed: int, loss: float | None, *, outcome: str | None = "completed") -> TrialView:
    return TrialView(
        trial_id=f"{arm}.{seed}", arm=arm, seed=seed, outcome=outcome, line="main", backend="gloo", device="cpu",
        step=10, seconds=4.0, learning_rate=0.1, level=None, validation_loss=loss, validation_metrics={"accuracy": 0.9},
        metric_directions={"accuracy": "max"}, bill=Bill(bytes_sent=100, seconds_training=4.0), weights_url=None,
    )  # fmt: skip


def made(
    *trials: TrialView,
    curves: dict[str, list[float | None]],
    metric: str = "loss",
    job: JobSpec = JOB,
    state: JobState = JobState.RUNNING,
    sweep: SweepReport | None = None,
) -> report.JobReport:
    """The report of `trials` whose objective's metric was measured a second apart."""
    spec = job.model_copy(update={"objective": job.objective.model_copy(update={"metric": metric})})
    view = JobView(
        id="job-1", name="n", state=state, created_at=MOMENT, started_at=MOMENT, finished_at=None,
        version=1, verbs=(), labels={}, spec=spec,
    )  # fmt: skip
    facts = [
        report.TrialFacts(
            each,
            series(*((float(second), value) for second, value in enumerate(curves[each.trial_id]))).model_copy(
                update={"trial_id": each.trial_id, "arm": each.arm, "seed": each.seed}
            ),
        )
        for each in trials
    ]
    return report.job_report(view, facts, sweep=sweep)


def test_every_arm_is_timed_to_the_worst_end_of_its_seed() -> None:
    trials = [trial(arm, seed, 0.0) for arm in ("tuned", "dense") for seed in JOB.seeds]
    curves: dict[str, list[float | None]] = {
        "tuned.0": [0.9, 0.5, 0.1], "tuned.1": [0.9, 0.2, 0.1], "tuned.2": [0.9, 0.8, 0.7],
        "dense.0": [0.9, 0.8, 0.5], "dense.1": [0.9, 0.3, 0.4], "dense.2": [0.9, 0.8, 0.6],
    }  # fmt: skip

    found = made(*trials, curves=curves)

    times = {each.trial_id: (each.target_loss, each.seconds_to_target) for each in found.trials}
    assert times == {
        "tuned.0": (0.5, 1), "tuned.1": (0.4, 1), "tuned.2": (0.7, 2),
        "dense.0": (0.5, 2), "dense.1": (0.4, 1), "dense.2": (0.7, 2),
    }  # fmt: skip
    tuned = found.arms[0].seconds_to_target
    assert tuned is not None and tuned.mean == pytest.approx(4 / 3)


def test_target_and_crossing_are_of_the_objectives_metric_in_its_direction() -> None:
    trials = [trial("tuned", 0, 0.1), trial("dense", 0, 0.7)]
    accuracies: dict[str, list[float | None]] = {"tuned.0": [0.1, 0.95, 0.9], "dense.0": [0.1, 0.5, 0.8]}

    found = made(*trials, curves=accuracies, metric="accuracy")

    assert [(each.target, each.target_loss, each.seconds_to_target) for each in found.trials] == [
        (0.8, None, 1),
        (0.8, None, 2),
    ]
    crossing = found.trials[1].crossing
    assert crossing is not None
    assert (crossing.value, crossing.loss, crossing.seconds, crossing.other_seconds) == (0.8, 0.7, 1, 2)


def test_where_a_diverged_trial_ended_is_no_target_and_no_crossing() -> None:
    trials = [trial("tuned", 0, 0.1), trial("dense", 0, 90.0, outcome="diverged")]

    tuned, dense = made(*trials, curves={"tuned.0": [0.9, 0.5, 0.1], "dense.0": [0.9, 9.0, 90.0]}).trials

    assert (tuned.target_loss, tuned.seconds_to_target) == (0.1, 2)
    assert dense.crossing is None and dense.seconds_to_target is None


def test_where_a_trial_is_that_has_not_ended_is_no_target() -> None:
    trials = [trial("tuned", 0, 0.1), trial("dense", 0, 0.8, outcome=None)]
    curves: dict[str, list[float | None]] = {"tuned.0": [0.9, 0.5, 0.1], "dense.0": [0.9, 0.8]}

    ended, begun = made(*trials, curves=curves).trials
    nobody = made(*(each.model_copy(update={"outcome": None}) for each in trials), curves=curves).trials

    assert (ended.target, ended.seconds_to_target) == (0.1, 2)
    assert (begun.target, begun.seconds_to_target) == (0.1, None)
    assert [each.target for each in nobody] == [None, None]


@pytest.mark.parametrize(("tuned", "dense"), [("completed", None), (None, "completed")])
def test_while_one_of_them_trains_two_arms_have_no_crossing(tuned: str | None, dense: str | None) -> None:
    trials = [trial("tuned", 0, 0.1, outcome=tuned), trial("dense", 0, 0.2, outcome=dense)]

    found = made(*trials, curves={"tuned.0": [0.9, 0.1], "dense.0": [0.9, 0.2]})

    assert [each.crossing for each in found.trials] == [None, None]


def test_only_finished_trials_count() -> None:
    trials = [
        *(trial("tuned", seed, 0.1 * seed, outcome="completed" if seed else None) for seed in JOB.seeds),
        *(trial("dense", seed, 0.5, outcome=None) for seed in JOB.seeds),
    ]

    found = made(*trials, curves={each.trial_id: [] for each in trials})

    tuned, dense = found.arms
    assert (tuned.num_trials, tuned.num_finished) == (3, 2)
    assert tuned.validation_loss is not None and tuned.validation_loss.mean == pytest.approx(0.15)
    assert dense.validation_loss is None and dense.validation_metrics == {}
    assert found.best_arm is None and not found.complete


def test_what_the_weights_are_worth_on_the_test_set_stands_beside_and_ranks_nothing() -> None:
    losses = {"tuned": 0.4, "dense": 0.2}
    trials = [
        trial(arm, seed, {"tuned": 0.1, "dense": 0.3}[arm]).model_copy(update={"test": {"loss": loss + 0.01 * seed}})
        for arm, loss in losses.items()
        for seed in JOB.seeds
    ]

    found = made(*trials, curves={each.trial_id: [0.5] for each in trials})

    assert {arm.arm: round(arm.test["loss"].mean, 9) for arm in found.arms} == {"tuned": 0.41, "dense": 0.21}
    assert [each.test for each in found.trials] == [each.test for each in trials]
    assert found.best_arm == "tuned"


def test_a_test_set_that_cannot_be_evaluated_is_noted_with_the_reason() -> None:
    failed = trial("tuned", 0, 0.1).model_copy(update={"test_failure": "no column `age`"})

    others = [trial(arm, seed, 0.1) for arm in ("tuned", "dense") for seed in JOB.seeds][1:]
    trials = [failed, *others]
    report_of_it, *rest = made(*trials, curves={each.trial_id: [0.5] for each in trials}).trials

    assert not any("test set" in note for each in rest for note in each.notes)
    assert "the test set was not evaluated: no column `age`" in report_of_it.notes and report_of_it.test == {}


def test_an_arm_that_diverged_on_fewer_seeds_is_better() -> None:
    trials = [
        *(trial("tuned", seed, 0.01, outcome="completed" if seed else "diverged") for seed in JOB.seeds),
        *(trial("dense", seed, 0.5) for seed in JOB.seeds),
    ]

    found = made(*trials, curves={each.trial_id: [] for each in trials})

    assert found.best_arm == "dense"
    assert [arm.num_diverged for arm in found.arms] == [1, 0]


def _two_arms(tuned: list[float], dense: list[float]) -> report.JobReport:
    losses = {"tuned": tuned, "dense": dense}
    trials = [trial(arm, seed, loss) for arm, each in losses.items() for seed, loss in enumerate(each)]
    return made(*trials, curves={each.trial_id: [] for each in trials})


def test_an_arm_is_told_by_its_differences_to_the_best_with_the_same_seeds() -> None:
    far_apart = [0.1, 0.5, 0.9]  # the seeds differ by more than the arms do

    found = _two_arms(far_apart, [0.13, 0.52, 0.93])
    as_good = _two_arms(far_apart, [0.13, 0.46, 0.93])

    beside = found.arms[1].beside_best
    assert beside is not None and beside.difference is not None and beside.bytes_sent is not None
    assert beside.difference.mean == pytest.approx(0.08 / 3) and beside.bytes_sent.mean == pytest.approx(1)
    assert found.arms[0].beside_best is None
    assert (found.best_arm, found.best_is_clear, as_good.best_arm, as_good.best_is_clear) == (
        "tuned", True, "tuned", False,
    )  # fmt: skip


def test_an_arm_that_diverged_less_is_clearly_better() -> None:
    trials = [
        *(trial("tuned", seed, 0.5) for seed in JOB.seeds),
        *(trial("dense", seed, 0.5, outcome="completed" if seed else "diverged") for seed in JOB.seeds),
    ]

    assert made(*trials, curves={each.trial_id: [] for each in trials}).best_is_clear


def test_a_single_arm_is_not_the_best_of_anything() -> None:
    alone = JOB.model_copy(update={"arms": JOB.arms[:1]})
    trials = [trial("tuned", seed, 0.1 + seed) for seed in JOB.seeds]

    found = made(*trials, curves={each.trial_id: [] for each in trials}, job=alone)

    assert (found.best_arm, found.best_is_clear, found.best_trial) == (None, None, "tuned.0")


def test_a_trial_that_a_stop_left_out_does_not_keep_the_others_from_being_the_best() -> None:
    trials = [
        trial("tuned", 0, 0.2),
        trial("tuned", 1, 0.1),
        trial("dense", 0, 0.5),
        trial("dense", 1, None, outcome=None),
    ]
    curves: dict[str, list[float | None]] = {each.trial_id: [] for each in trials}
    job = JOB.model_copy(update={"seeds": (0, 1)})

    during, after = (
        made(*trials, curves=curves, job=job, state=state) for state in (JobState.RUNNING, JobState.SUCCEEDED)
    )

    assert (during.best_arm, during.best_trial) == (None, None)
    assert (after.best_arm, after.best_trial) == ("tuned", "tuned.1")


@pytest.mark.parametrize(
    ("outcomes", "best"),
    [
        ({"tuned.0": "completed", "dense.0": "completed"}, "dense.0"),
        ({"tuned.0": "completed", "dense.0": "diverged"}, "tuned.0"),
        ({"tuned.0": "diverged", "dense.0": "diverged"}, None),
    ],
)
def test_the_best_trial_of_a_sweep_has_a_value_and_did_not_diverge(outcomes: dict[str, str], best: str | None) -> None:
    job = JOB.model_copy(update={"seeds": (0,), "params": PARAMS, "sweep": SweepConfig(samples=1)})
    trials = [trial(arm, 0, loss, outcome=outcomes[f"{arm}.0"]) for arm, loss in (("tuned", 0.2), ("dense", 0.1))]
    ranking = sweeps.report(job, JobState.SUCCEEDED, [], trials)

    found = made(*trials, curves={each.trial_id: [] for each in trials}, job=job, sweep=ranking)

    assert found.best_trial == best


def test_a_cost_counts_all_workers_in_every_way_that_they_were_used() -> None:
    bill = Bill(
        seconds_training=1700.0,
        seconds_recovery=100.0,
        bytes_sent=2 * 10**9,
        bytes_insurance=10**9,
        bytes_recovery=10**9,
    )

    both = report.cost(bill, Prices(worker_hour=0.5, gb=0.1, currency="EUR"), num_workers=4)
    hours = report.cost(bill, Prices(worker_hour=0.5, gb=None, currency=""), num_workers=4)

    of_lanes = bill.model_copy(update={"bytes_of_all": 5 * 10**9, "seconds_of_workers": 6800.0})
    known = report.cost(of_lanes, Prices(worker_hour=0.5, gb=0.1, currency="EUR"), num_workers=2, num_lanes=2)

    assert (both.worker_hours, both.gigabytes, both.money) == (2.0, 16.0, pytest.approx(2.6))
    assert (known.worker_hours, known.gigabytes) == (2.0, 5.0 + 2 * 2.0)
    assert hours.money == 1.0


@pytest.mark.parametrize(("ended_early", "begin"), [(True, "ended early, after 10 steps: "), (False, "")])
def test_a_run_that_was_never_measured_says_so_and_not_that_it_did_not_improve(ended_early: bool, begin: str) -> None:
    unmeasured = trial("tuned", 0, None).model_copy(update={"ended_early": ended_early})

    found, other = made(unmeasured, trial("dense", 0, 0.4), curves={"tuned.0": [None] * 3, "dense.0": [0.4]}).trials

    said = "the validation loss was not finite in any evaluation: look for NaN in the validation data"
    assert (found.notes, other.notes) == ((f"{begin}{said}",), ())


@pytest.mark.parametrize("curve", [[], [None, 0.4]])
def test_a_run_with_a_finite_evaluation_or_none_yet_was_not_never_measured(curve: list[float | None]) -> None:
    found = made(trial("tuned", 0, 0.4), trial("dense", 0, 0.4), curves={"tuned.0": curve, "dense.0": [0.4]})

    assert found.trials[0].notes == ()
