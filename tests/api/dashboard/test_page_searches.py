"""Searches and seeds in the charts of a job's page: hatched time, one axis for two charts, one bad probe."""

import pytest

from api.http.routes.page import DASHBOARD
from tests.api.dashboard.test_page_answers import CURVES, played
from tests.api.dashboard.test_page_job_modules import call, pytestmark as needs_node

pytestmark = needs_node

LOOK = {"trial_id": "a", "label": "tuned", "arm": "tuned", "arm_index": 0, "is_first_seed": True, "seed_index": 0}
#: Four steps of a second each; a search of 6 s lies between the second and the third.
SERIES = LOOK | {"steps": [0, 1, 2, 3], "seconds": [1, 2, 9, 10], "values": [4.0, 3.0, 2.0, 1.0]}
SEARCHED = {"trial_id": "a", "stage": 1, "first_step": 2, "num_steps": 2, "search_seconds": 6.0, "forecast": None}
CHOICE = {"metric": "loss", "smooth": 0, "isLog": False, "isLogAxis": False, "isEach": True}
PLACE = f'(await import("{DASHBOARD.as_uri()}/charts/axis.js")).placing(axis, series, series)'


def loss_chart(axis, *, stages=(SEARCHED,)):
    given = "training: [], validation: series, trials, stages, choice"
    trials = [LOOK | {"outcome": None, "metric_directions": {}}]
    expression = f"it.lossChart({{ {given}, place: {PLACE} }})"
    return call("charts/loss.js", expression, axis=axis, series=[SERIES], stages=stages, trials=trials, choice=CHOICE)


def test_a_search_is_hatched_before_its_first_step_and_the_line_pauses_there():
    line, _, hatched = loss_chart("seconds")["traces"]

    assert (hatched["name"], hatched["x"][:4]) == ("searching", [3, 3, 9, 9])
    assert line["x"] == [1, 2, 3, None, 9, 9, 10] and line["y"] == [4, 3, 2, None, 2, 2, 1]
    assert line["marker"]["size"] == [5, 5, 0, 0, 0, 5, 5]  # only evaluations have marks


@pytest.mark.parametrize(
    ("axis", "stages"),
    [
        ("steps", [SEARCHED]),
        ("seconds", [SEARCHED | {"search_seconds": 0}]),
        ("seconds", [SEARCHED | {"num_steps": 0}]),  # it was rolled back
    ],
)
def test_where_no_time_was_searched_nothing_is_hatched(axis, stages):
    chart = loss_chart(axis, stages=stages)

    assert [trace["name"] for trace in chart["traces"] if trace["name"] == "searching"] == []
    assert None not in chart["traces"][0]["y"]


def test_the_first_search_is_hatched_from_the_beginning():
    *_, hatched = loss_chart("seconds", stages=[SEARCHED | {"first_step": 0}])["traces"]

    assert hatched["x"][:4] == [0, 0, 1, 1]


def test_what_was_trained_before_a_run_started_over_is_not_hatched():
    """The first attempt, and its own search, take up the clock before the new first step, which is at 40 s."""
    series = LOOK | {"steps": [0, 1], "seconds": [40, 41], "values": [4.0, 3.0]}
    first, again = SEARCHED | {"first_step": 0, "num_steps": 0}, SEARCHED | {"stage": 2, "first_step": 0}

    spans = call(
        "charts/loss.js", f"it.searches(stages, {PLACE})", axis="seconds", series=[series], stages=[first, again]
    )

    assert [(each["from"], each["to"]) for each in spans] == [(34, 40)]


def schedule_chart(trials, stages=(), *, exported=2):
    entry = {"step": 0, "num_steps": exported, "learning_rate": 0.5, "final_learning_rate": None, "piece_steps": None}
    entries = [entry | {"level": None, "density": None, "threshold": None, "values": {}}]
    schedules = [trial | {"entries": entries, "level_name": "density"} for trial in trials]
    expression = f"it.scheduleChart(schedules, stages, {PLACE}, {{ trials }})"
    given = {"axis": "seconds", "series": [SERIES | trial for trial in trials], "schedules": schedules}
    return call("charts/schedule.js", expression, **given, trials=trials, stages=list(stages))


def test_loss_and_schedule_have_one_range_of_the_axis():
    loss, schedule = loss_chart("seconds"), schedule_chart([LOOK | {"outcome": None}])

    assert loss["layout"]["xaxis"]["autorangeoptions"] == schedule["layout"]["xaxis"]["autorangeoptions"]
    assert schedule["layout"]["xaxis"]["autorangeoptions"]["maxallowed"] > 10


def test_what_was_trained_after_the_exported_step_is_faint_and_said_to_be():
    over = LOOK | {"outcome": "completed", "step": 4, "learning_rate": 0.05}
    later = SEARCHED | {"first_step": 3, "learning_rate": 0.25, "promoted": None, "probes": []}

    whole, tail = schedule_chart([over], [later])["traces"]

    assert (tail["name"], tail["x"], tail["y"]) == ("after the exported step", [2, 9, 10], [0.5, 0.25, 0.05])
    assert tail["opacity"] < whole["opacity"]
    assert len(schedule_chart([LOOK | {"outcome": None, "step": 4, "learning_rate": 0.5}])["traces"]) == 1


def test_seeds_of_an_arm_are_lines_that_a_reader_can_tell_apart():
    seeds = [
        LOOK | {"trial_id": str(at), "label": f"tuned seed {at}", "seed_index": at, "outcome": None} for at in (0, 1)
    ]

    lines = schedule_chart(seeds)["traces"]

    assert [line["name"] for line in lines] == ["tuned seed 0", "tuned seed 1"]
    assert len({line["line"]["dash"] for line in lines}) == 2 and len({line["line"]["color"] for line in lines}) == 1


def test_a_zoom_of_one_chart_is_that_of_the_other_until_both_show_the_whole():
    found = played(
        CURVES
        + """
      const told = [];
      const charts = [];
      globalThis.Plotly.react = (chart) => { chart.on = (_, hear) => charts.push({ chart, hear }); };
      globalThis.Plotly.relayout = (chart, fields) => {
        told.push([charts.findIndex((each) => each.chart === chart), fields]);
        charts.find((each) => each.chart === chart).hear(fields);
      };
      const entry = { step: 0, num_steps: 300, learning_rate: 1, final_learning_rate: null, density: null, values: {} };
      const shown = curves("job-1", { held: choice }, null);
      document.body.append(shown.loss, shown.schedule);
      seeAll();
      await shown.update({ ...held(0, 100, 200, 300), schedules: [{ ...trial, entries: [entry] }] });
      const [loss, schedule] = charts;
      loss.hear(rangeOf(0, 100));
      schedule.hear(rangeOf(50, 80));
      schedule.hear({ "xaxis.autorange": true });
      return told;
    """,
        ("{ curves }", "pages/job/curves.js"),
    )

    whole = {"xaxis.autorange": True}
    assert found == [[1, {"xaxis.range": [0, 100]}], [0, {"xaxis.range": [50, 80]}], [0, whole]]


#: The second line begins when the main line's search is over, and takes more steps than that.
OWN = SERIES | {"name": "insurance_validation_loss", "steps": [0, 5], "seconds": [2, 12], "values": [4.0, 0.5]}
INSURED = LOOK | {"outcome": "completed", "line": "insurance", "validation_loss": 0.5, "averaged": False}
INSURED |= {"exported_step": None, "step": 4, "metric_directions": {}}
BESIDE = f'(await import("{DASHBOARD.as_uri()}/charts/axis.js")).placing("seconds", series, series, insured)'


def test_the_own_schedule_is_a_dashed_line_and_has_the_star_where_its_weights_were_kept():
    given = "training: [], validation: series, insured, trials, stages: [], choice"
    expression = f"it.lossChart({{ {given}, place: {BESIDE} }})"

    chart = call("charts/loss.js", expression, series=[SERIES], insured=[OWN], trials=[INSURED], choice=CHOICE)

    _, own, star = chart["traces"]
    assert (own["name"], own["line"]["dash"], own["x"]) == ("tuned, own schedule", "dash", [2, 12])
    assert (star["name"], star["x"], star["y"]) == ("best weights", [12], [0.5])
    assert "tuned, own schedule: step 5" in star["text"][0]
    assert chart["layout"]["xaxis"]["autorangeoptions"]["maxallowed"] > 12
    assert "tuned, own schedule" in [row["label"] for row in chart["rows"]]


def test_a_schedule_that_is_the_users_own_says_so_and_has_no_stages_of_the_search():
    stage = SEARCHED | {"promoted": "1-0", "probes": [{"probe_id": "1-0", "num_steps": 2}], "learning_rate": 0.1}

    chart = schedule_chart([LOOK | INSURED], [stage], exported=4)

    [line] = chart["traces"]
    assert line["name"] == "tuned, own schedule" and chart["layout"]["shapes"] == []


def test_the_second_lines_evaluations_are_fetched_where_there_is_one():
    found = played(
        CURVES
        + """
      const asked = [];
      const own = { ...lossAt(0, 100), name: "insurance_validation_loss", values: [2, 1] };
      const fetchSeries = async (name) => { asked.push(name); return [own]; };
      const lines = [];
      globalThis.Plotly.react = (chart, traces) => { chart.on = () => {}; lines.push(traces.map(({ name }) => name)); };
      const shown = curves("job-1", { held: choice }, fetchSeries);
      document.body.append(shown.loss);
      seeAll();
      await shown.update({ ...held(0, 100), trials: [{ ...trial, bill: { steps_insurance: 0 } }] });
      const before = asked.length;
      await shown.update({ ...held(0, 100), trials: [{ ...trial, bill: { steps_insurance: 100 } }] });
      return [before, asked, lines.map((names) => names.filter((name) => /own schedule/.test(name)))];
    """,
        ("{ curves }", "pages/job/curves.js"),
    )

    assert found == [0, ["insurance_validation_loss"], [[], ["tuned, own schedule"]]]


def posterior_chart(gains, origins=()):
    probes = [
        {"learning_rate": 10.0**-at, "reward": gain, "loss": 1.0, "level": None, "values": {}, "status": "ok"}
        | {"forecast": None, "forecast_std": None, "num_steps": 20, "origin": origins[at] if origins else "wide"}
        for at, gain in enumerate(gains)
    ]
    stage = {"learning_rate": 0.1, "level": None, "values": {}, "probes": probes, "posterior": None}
    chart = "it.posteriorChart(stage, 'density', { ink: '#000', paper: '#fff' })"
    return call("charts/posterior.js", chart, stage=stage)


def test_one_bad_probe_stands_on_the_floor_with_its_gain_and_flattens_nothing():
    chart = posterior_chart([0.0, 0.5, 0.4, -65.0])

    low, high = chart["layout"]["yaxis"]["range"]
    below = next(trace for trace in chart["traces"] if trace.get("name") == "below the axis")
    assert -3 < low < 0 and 0.5 < high < 3
    assert below["text"] == ["-65"] and low < below["y"][0] < 0
    assert -65 not in next(trace for trace in chart["traces"] if trace.get("name") == "probes")["y"]
    assert [trace["text"] for trace in chart["traces"] if trace.get("name") == "chosen"] == [["", "0.1"]]


@pytest.mark.parametrize("gains", [[0.0, 0.5, 0.4, -0.2], [0.0], [0.0, 0.0, 0.0], [None]])
def test_probes_that_are_alike_are_all_in_sight(gains):
    chart = posterior_chart(gains)

    low, high = chart["layout"]["yaxis"]["range"]
    assert low < min(gain or 0 for gain in gains) and max(gain or 0 for gain in gains) < high
    assert "below the axis" not in [trace.get("name") for trace in chart["traces"]]


def test_finalists_gain_from_the_first_of_them_as_the_posterior_does_and_coarse_probes_from_theirs():
    chart = posterior_chart([0.5, 0.75, None, 2.0, 2.5], ["wide", "wide", "finalist", "finalist", "vertex"])

    drawn = {trace["name"]: trace["y"] for trace in chart["traces"] if trace.get("mode") == "markers"}
    assert drawn["probes"] == [0, 0.5] and drawn["coarse probes"] == [0, 0.25]
    assert "the best gained 0.5;" in chart["label"]
    assert [row["gain"] for row in chart["rows"]] == [0, 0.25, None, 0, 0.5]


def test_coarse_probes_without_a_finite_finalist_are_all_that_a_search_has():
    chart = posterior_chart([0.5, 0.75, None], ["wide", "wide", "finalist"])

    assert [row["gain"] for row in chart["rows"]] == [0, 0.25, None]
    assert next(trace["y"] for trace in chart["traces"] if trace.get("name") == "probes") == [0, 0.25]


def test_a_search_goes_on_after_the_probe_with_whose_steps_the_commit_begins():
    kept = SEARCHED | {"first_step": 1, "promoted": "1-0", "probes": [{"probe_id": "1-0", "num_steps": 1}]}

    *_, hatched = loss_chart("seconds", stages=[kept | {"search_seconds": 8.0}])["traces"]

    assert [hatched["x"][at : at + 4] for at in (0, 5)] == [[1, 1, 2, 2], [2, 2, 9, 9]]


def test_chosen_values_are_told_by_their_names_and_a_density_in_percent():
    values = [{"learning_rate": 0.5, "density": 0.01}, {"learning_rate": 0.25, "density": 0.1}]
    rows = [LOOK | {"values": each, "loss": 1.0} for each in values]

    chart = call("charts/parallel.js", "it.parallelChart(rows)", rows=rows)

    assert chart["layout"]["xaxis"]["ticktext"] == ["learning rate", "density", "loss at its end"]
    assert {"1 %", "10 %"} <= {each["text"] for each in chart["layout"]["annotations"]}
