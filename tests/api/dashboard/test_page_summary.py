"""The tiles under a job's heading: what was chosen, what it reached, how soon, and what it sent."""

import pytest

from tests.api.dashboard.test_page_answers import of_job
from tests.api.dashboard.test_page_job_modules import call, pytestmark as needs_node

pytestmark = needs_node


def trial(arm, seed, *, loss=None, crossing=None, sent=1_000_000):
    bill = {"bytes_sent": sent, "bytes_dense": 4_000_000, "seconds_search": 2.0, "seconds_training": 10.0}
    outcome = None if loss is None else "completed"
    found = {"trial_id": f"{arm}.{seed}", "arm": arm, "outcome": outcome, "validation_loss": loss, "bill": bill}
    return found | {"validation_metrics": {}, "crossing": crossing and dict(zip(CROSSING, crossing, strict=True))}


def stage(arm, seed, *, rate, num_probes=3, number=0, num_steps=10, switched=False, reason="of a plateau"):
    found = {"trial_id": f"{arm}.{seed}", "stage": number, "learning_rate": rate, "level": 0.1, "level_name": "density"}
    found |= {"num_steps": num_steps, "switched": switched}
    return found | {"probes": [{}] * num_probes, "reason": f"{rate} {reason}"}


CROSSING = ("value", "seconds", "other_seconds")


def tiles(trials, stages=(), *, best=None, sweep=None):
    arms = [{"arm": arm} for arm in dict.fromkeys(each["arm"] for each in trials) if not arm.startswith("sample")]
    report = {"metric": "loss", "metric_directions": {}, "best_arm": best, "sweep": sweep, "arms": arms}
    given = {"report": report | {"trials": trials}, "trials": trials, "stages": list(stages)}
    return call("pages/job/summary.js", "it.tilesOf(report, trials, stages)", **given)


def test_the_time_to_a_baselines_loss_is_the_median_over_seeds():
    tuned = [trial("tuned", seed, loss=0.2) for seed in range(3)]
    dense = [trial("dense", at, loss=0.4, crossing=(0.4, reached, 20)) for at, reached in enumerate((3, 5, None))]

    _, time, _ = tiles([*tuned, *dense])

    assert time["name"] == "time to where dense ended" and time["value"] == "5 s instead of 20 s"
    assert "median of 3 seeds, of which 2 got there" in time["note"]


@pytest.mark.parametrize(
    ("end", "said"), [(0.4, "to loss 0.4000; "), (0.5, "to loss 0.5000 (its exported weights: 0.4000); ")]
)
def test_a_loss_that_an_arm_ended_at_stands_beside_that_of_its_weights(end, said):
    result, time, _ = tiles([trial("tuned", 0, loss=0.2), trial("dense", 0, loss=0.4, crossing=(end, 3, 20))])

    assert result["value"] == "loss 0.2000 instead of 0.4000" and time["note"].startswith(said)


def test_a_loss_that_most_seeds_never_reached_was_not_reached():
    dense = [trial("dense", at, loss=0.1, crossing=(0.1, reached, 20)) for at, reached in enumerate((3, None, None))]

    _, time, _ = tiles([*(trial("tuned", seed, loss=0.2) for seed in range(3)), *dense])

    assert time["value"] == "not reached instead of 20 s"


def test_a_result_stands_beside_that_of_the_best_other_arm():
    result, *_ = tiles([trial("tuned", 0, loss=0.3), trial("dense", 0, loss=0.4), trial("slow", 0, loss=0.9)])

    assert result["name"] == "result of tuned against dense"
    assert (result["value"], result["note"]) == ("loss 0.3000 instead of 0.4000", "25 % lower; one seed")


def test_what_was_chosen_is_what_each_seed_trains_with_now():
    later = [stage("tuned", 0, rate=0.25, num_probes=0, number=1, reason="stays: the rate decays")]

    chosen, *_ = tiles(
        [trial("tuned", 0), trial("tuned", 1), trial("tuned", 2)],
        [stage("tuned", 0, rate=0.25), *later, stage("tuned", 1, rate=2.0), stage("tuned", 2, rate=1.0, num_probes=0)],
    )

    assert chosen["value"] == "learning rate 0.25 to 2, density 10 %"
    assert chosen["note"] == "2 of 3 seeds searched; 0.25 of a plateau"


SWITCH = stage("tuned", 0, rate=2.0, switched=True, reason="beats 1")
KEPT = stage("tuned", 0, rate=2.0, number=1, reason="stays: nothing is surely better")
STALLED = stage("tuned", 0, rate=0.8, number=2, num_probes=0, reason="without a search: the loss stood still")
STAYED = stage("tuned", 0, rate=0.8, number=3, num_probes=0, reason="stays: the rate decays")


@pytest.mark.parametrize(
    ("later", "rate", "reason"),
    [
        ([KEPT], "2", SWITCH["reason"]),
        ([KEPT, STALLED, STAYED], "0.8", f"{SWITCH['reason']}; {STALLED['reason']}"),
    ],
)
def test_the_reason_for_what_was_chosen_is_that_of_the_last_switch_and_of_what_changed_its_rate_since(
    later, rate, reason
):
    chosen, *_ = tiles([trial("tuned", 0)], [stage("tuned", 0, rate=1.0), SWITCH, *later])

    assert (chosen["value"], chosen["note"]) == (f"learning rate {rate}, density 10 %", reason)


def test_values_whose_weights_were_not_kept_say_that_the_own_schedule_was():
    seeds = [trial("tuned", seed) | {"line": line} for seed, line in enumerate(("insurance", "main"))]

    one, two = (tiles(own, [stage("tuned", 0, rate=1.0)])[0]["note"] for own in (seeds[:1], seeds))

    assert one.startswith("your own schedule was kept; ")
    assert two.startswith("your own schedule was kept for 1 of 2 seeds; ")


STARTED_OVER = [stage("tuned", 0, rate=1.0, num_steps=0), stage("tuned", 0, rate=0.3, num_probes=0, number=1)]
SEARCHED_ONCE = [stage("tuned", 0, rate=1.0)]
SWITCHED = stage("tuned", 0, rate=4.0, number=1, num_steps=0, switched=True)


@pytest.mark.parametrize(
    ("stages", "rate"),
    [
        (STARTED_OVER, "0.3"),
        ([*SEARCHED_ONCE, SWITCHED, stage("tuned", 0, rate=1.0, num_probes=0, number=2)], "1"),
        ([*SEARCHED_ONCE, SWITCHED | {"num_steps": None}], "4"),  # it still trains
    ],
)
def test_what_was_chosen_is_never_that_of_a_stage_that_was_rolled_back(stages, rate):
    [chosen] = tiles([trial("tuned", 0, sent=0)], stages)

    assert chosen["value"] == f"learning rate {rate}, density 10 %"
    assert chosen["note"] == f"{float(rate)} of a plateau"


def test_what_was_sent_is_that_of_the_best_arm():
    *_, sent = tiles([trial("tuned", 0, loss=0.3), trial("dense", 0, loss=0.2, sent=4_000_000)], best="tuned")

    assert (sent["name"], sent["value"]) == ("sent by tuned, the best arm", "1.0 MB")
    assert sent["note"] == "75 % less than dense, which is 4.0 MB; searching took 20 % of the time"


@pytest.mark.parametrize(
    ("trials", "names"),
    [([], []), ([trial("tuned", 0, sent=0)], []), ([trial("tuned", 0, loss=0.3, sent=0)], ["result of tuned"])],
)
def test_what_is_not_known_has_no_tile(trials, names):
    assert [tile["name"] for tile in tiles(trials)] == names


def test_a_sweep_is_told_by_its_best_sample():
    ranking = {"ranking": [{"arm": "sample-1"}, {"arm": "sample-0"}]}

    found = tiles(
        [trial("dense", 0, loss=0.4), trial("sample-0", 0, loss=0.9), trial("sample-1", 0, loss=0.1)], sweep=ranking
    )

    assert found[0]["name"] == "result of sample-1 against dense" and found[1]["name"] == "sent by sample-1"


@pytest.mark.parametrize(("is_over", "ends"), [(False, ["progress", "bill"]), (True, ["arms", "progress"])])
def test_a_job_that_is_over_begins_with_what_came_of_it(http, reporting, is_over, ends):
    if is_over:
        reporting.run_to_the_end()
    else:
        reporting.start("tuned")

    found = of_job(
        """
      await jobPage(root, id, null, () => {}).refresh();
      const panels = root.childNodes.find((each) => each.getAttribute("class") === "panels");
      return panels.childNodes.map((each) => each.getAttribute("id"));
    """,
        http,
        reporting,
    )

    assert [name for name in found if name in ("progress", "arms", "bill")][::2] == ends and found[-1] == ends[1]
