"""The page of a job of many trials: what its charts draw, and what it asks for; without a browser."""

import pytest

from service.job.spec import JobSpec
from tests.api.conftest import Reporting
from tests.api.dashboard.test_page_answers import played
from tests.api.dashboard.test_page_job_modules import call
from tests.api.dashboard.test_page_modules import pytestmark as needs_node

pytestmark = needs_node


def trials_of(num_samples, over):
    """Return the rows of an arm and of samples, of which `over` have ended, and their ranking: the last is the best."""
    names = ["tuned", *(f"sample-{at}" for at in range(num_samples))]
    rows = [{"trial_id": each, "arm": each, "outcome": "completed", "backend": "gloo"} for each in names]
    for row in rows[1 + over :]:
        row["outcome"] = None
    ranking = [{"trial_id": row["arm"], "value": 0.5, "sample": {}} for row in rows[over:0:-1]]
    waiting = [{"trial_id": row["arm"], "value": None, "sample": {}} for row in rows[1 + over :]]
    return rows, [{"trial_id": "tuned", "value": 0.1, "sample": None}, *ranking, *waiting]


def drawn(num_samples, over, *, is_training=True, **choice):
    rows, ranking = trials_of(num_samples, over)
    choice = {"samples": "12", "also": ""} | choice
    told = "{ lines: found.lines.map(({ arm }) => arm), rows: found.rows.length, text: it.drawnText(trials, found) }"
    found = call(
        "pages/job/drawn.js",
        f"((found) => ({told}))(it.drawnTrials(trials, ranking, choice, isTraining))",
        trials=rows,
        ranking=ranking,
        choice=choice,
        isTraining=is_training,
    )
    return found["lines"], found["rows"], found["text"]


def samples(*numbers):
    return ["tuned", *(f"sample-{at}" for at in numbers)]


@pytest.mark.parametrize(
    ("num_samples", "given", "lines", "said"),
    [
        (24, {"over": 20}, samples(*range(24)), "all 25 trials"),
        (40, {"over": 40}, samples(*range(28, 40)), "1 run of an arm and the best 12 of 40 samples."),
        (40, {"over": 38}, samples(*range(26, 40)), "the best 12 of 40 samples and 2 more that train now"),
        (40, {"over": 38, "is_training": False}, samples(*range(26, 38)), "the best 12 of 40 samples."),
        (40, {"over": 40, "also": "sample-3, sample-39"}, samples(3, *range(28, 40)), "samples and sample-3."),
        (40, {"over": 40, "samples": "all"}, samples(*range(40)), "all 41 trials"),
    ],
)
def test_of_many_samples_charts_draw_the_best_those_that_train_and_those_that_the_reader_names(
    num_samples, given, lines, said
):
    found, num_rows, text = drawn(num_samples, **given)

    assert found == lines and num_rows == len(lines)
    assert said in text and text.endswith("The tables have all.")


def test_of_many_trials_charts_with_a_row_for_each_have_the_first():
    _, num_rows, text = drawn(100, over=100, samples="48")

    assert num_rows == 48 and "Bars and the timeline have the first 48." in text
    assert drawn(100, over=100, samples="all")[1] == 101


@pytest.mark.parametrize(("num_lines", "is_shown"), [(24, True), (25, False)])
def test_a_legend_that_would_take_the_charts_place_is_left_out(num_lines, is_shown):
    traces = [{"name": f"sample-{at}", "legendgroup": f"sample-{at}"} for at in range(num_lines)]
    traces += [each | {"showlegend": False, "name": "training"} for each in traces]

    found = played("return legend(traces);", ("{ legend }", "charts/panel.js"), traces=traces)

    assert found == ({} if is_shown else {"showlegend": False})


@pytest.mark.parametrize(
    ("num_drawn", "num_trials", "asked"),
    [
        (2, 2, ["?max_points=2000"]),
        (200, 200, ["?max_points=500"]),
        (2, 200, ["?trial=0&max_points=2000", "?trial=1&max_points=2000"]),
        (100, 200, ["?max_points=500"]),
    ],
)
def test_a_series_is_asked_for_of_the_trials_that_are_drawn_and_of_many_with_fewer_points(num_drawn, num_trials, asked):
    script = """
      const held = heldService();
      const rows = Array.from({ length: numDrawn }, (_, at) => ({ trial_id: String(at) }));
      const series = heldSeries("job-1")("bytes_sent", rows, numTrials);
      await settled();
      for (const [address, answer] of held) {
        const [, only] = /trial=(\\d+)/.exec(address) ?? [];
        answer(Response.json(rows.filter((row) => !only || row.trial_id === only)));
      }
      return [held.map(([address]) => address), (await series).length];
    """

    found, num = played(
        script, ("{ heldSeries }", "pages/job/held_series.js"), numDrawn=num_drawn, numTrials=num_trials
    )

    assert found == [f"/v1/jobs/job-1/metrics/bytes_sent{query}" for query in asked] and num == num_drawn


@pytest.mark.parametrize(("status", "drawn"), [(404, ["a"]), (503, "busy")])
def test_a_drawn_trial_that_does_not_report_a_series_hides_no_others(status, drawn):
    script = """
      const held = heldService();
      const rows = [{ trial_id: "a" }, { trial_id: "b" }];
      const series = heldSeries("job-1")("own_norm", rows, 30);
      const drawn = series.then((all) => all.map((each) => each.trial_id), (error) => error.message);
      await settled();
      const answers = { a: Response.json([rows[0]]), b: refusal(status, "busy") };
      for (const [address, answer] of held) answer(answers[/trial=(.)/.exec(address)[1]]);
      return drawn;
    """

    assert played(script, ("{ heldSeries }", "pages/job/held_series.js"), status=status) == drawn


def test_a_page_that_holds_twice_the_points_of_a_snapshot_takes_a_new_one():
    def is_too_long(num_series, num_points):
        series = f"Array.from({{ length: {num_series} }}, () => ({{ steps: Array({num_points}) }}))"
        return call("live/snapshot.js", f"it.isTooLong({{ series: {series} }})")

    assert not is_too_long(400, 1000)
    assert is_too_long(400, 1001)
    assert is_too_long(1, 4001)


def test_a_note_on_many_trials_is_told_once():
    trials = [{"label": f"sample-{at}", "notes": ["it is too fast"]} for at in range(5)]
    trials.append({"label": "tuned", "notes": ["it is slow"]})
    script = "return notes(trials).map((each) => each.textContent);"

    told = played(script, ("{ notes }", "pages/job/tables.js"), trials=trials)

    assert told == ["sample-0, sample-1, sample-2 and 2 more: it is too fast.", "tuned: it is slow."]


def test_the_charts_of_a_large_sweep_follow_the_readers_choice(http, store, job):
    params = {"optimizer.momentum": {"uniform": [0.1, 0.9]}}
    swept = job.model_dump(mode="json") | {"params": params, "sweep": {"samples": 30}}
    begun = Reporting(store, JobSpec.model_validate(swept))
    for at in range(30):
        begun.start(f"sample-{at}")
        begun.stage(f"sample-{at}", 0, rate=1.0, density=0.01)
        begun.finish_trial(f"sample-{at}", rates=[1.0], density=0.01, loss=1 - at / 100)
    script = """
      const drawn = new Map();
      Plotly.react = (chart, traces) => drawn.set(chart.getAttribute("aria-label").split(":")[0], traces);
      globalThis.fetch = async (address) => Response.json(
        address.includes("/snapshot") ? whole : address === "/v1/me" ? { role: "viewer" } : []);
      const root = document.createElement("main");
      document.body.append(root);
      await jobPage(root, whole.job.id, null, () => {}).refresh();
      seeAll();
      await settled();
      const lines = () => drawn.get("Loss").filter((trace) => trace.showlegend).map((trace) => trace.name);
      const before = [root.querySelector("#drawn").textContent, lines()];
      const choice = root.querySelector("#drawn").querySelector("select");
      choice.value = "all";
      choice.onchange({ currentTarget: choice });
      await settled();
      return [...before, lines()];
    """
    whole = http.get(f"/v1/jobs/{begun.job_id}/snapshot").json()

    said, few, every = played(script, ("{ jobPage }", "pages/job/job.js"), whole=whole)

    assert "the best 12 of 30 samples" in said
    assert few == [f"sample-{at}" for at in range(18, 30)]
    assert every == [f"sample-{at}" for at in range(30)]
