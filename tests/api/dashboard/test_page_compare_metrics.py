"""A comparison by other metrics than the loss; without a browser."""

import pytest

from api import plots
from service.wire.records import TrialStarted
from tests.api.conftest import Reporting
from tests.api.dashboard.test_page_answers import played
from tests.api.dashboard.test_page_job_modules import call
from tests.api.dashboard.test_page_modules import pytestmark as needs_node

pytestmark = needs_node

PAGE = """
  const drawn = new Map();
  const asked = [];
  Plotly.react = (chart, traces, layout) => drawn.set(chart.getAttribute("aria-label").split(":")[0], [traces, layout]);
  globalThis.fetch = async (address) => {
    const { pathname } = new URL(address, location);
    asked.push(pathname.replace(`/v1/jobs/${id}/`, ""));
    return answers[asked.at(-1)] ? Response.json(answers[asked.at(-1)]) : refusal(503, "busy");
  };
  const root = document.createElement("main");
  document.body.append(root);
  const page = comparePage(root, wanted, new URLSearchParams(query));
  await page.refresh();
  seeAll();
  await settled();
"""


@pytest.fixture
def answers(http, reporting):
    reporting.run_to_the_end()
    names = ("snapshot", "comparison", "metrics/validation_accuracy")
    found = {name: http.get(f"/v1/jobs/{reporting.job_id}/{name}").json() for name in names}
    for series, value in zip(found["metrics/validation_accuracy"], (0.9, 0.8), strict=True):
        series |= {"steps": [0, 100, 200], "seconds": [0, 1, 2], "values": [0.1, 0.5, value], "num_points": 3}
    return found


def compared(script, answers, query, *others):
    modules = ("{ comparePage }", "pages/compare/compare.js")
    job_id = answers["snapshot"]["job"]["id"]
    wanted = ",".join([job_id, *others])
    return played(PAGE + script, modules, answers=answers, query=query, id=job_id, wanted=wanted)


def test_a_comparison_draws_the_metric_that_the_reader_chooses(answers):
    script = """
      const choice = root.querySelector("#metric");
      const before = [...asked];
      const offered = choice.options.map((each) => each.value);
      choice.value = "accuracy";
      choice.onchange({ currentTarget: choice });
      await settled();
      const [traces, layout] = drawn.get("Accuracy of all jobs");
      return [offered, before, asked, traces.map((trace) => trace.y), layout.yaxis.title.text];
    """

    offered, before, asked, lines, title = compared(script, answers, "smooth=0")

    assert offered == ["loss", "accuracy"]
    assert before == ["snapshot", "comparison"]  # only what is drawn
    assert asked == [*before, "metrics/validation_accuracy"]
    assert lines == [[0.1, 0.5, 0.9], [0.1, 0.5, 0.8]] and title == "validation accuracy"


def test_only_jobs_and_trials_that_measure_the_metric_are_asked_for_it(http, store, job, reporting, answers):
    mixed, other = Reporting(store, job), Reporting(store, job)
    for each, metrics in ((mixed, ("accuracy", "f1")), (other, ("f1", "f1"))):
        for arm, metric in zip(("tuned", "dense"), metrics, strict=True):
            run = {"trial_id": each.trial(arm), "arm": arm, "seed": 0, "backend": "gloo", "device": "cpu"}
            each.post(TrialStarted(**run, metrics={metric: "max"}))
        answers[f"/v1/jobs/{each.job_id}/snapshot"] = http.get(f"/v1/jobs/{each.job_id}/snapshot").json()
    ids = [mixed.job_id, other.job_id]
    answers["comparison"] = http.get(f"/v1/jobs/{reporting.job_id}/comparison", params={"other": ids}).json()
    measured = answers["metrics/validation_accuracy"]
    answers[f"/v1/jobs/{mixed.job_id}/metrics/validation_accuracy"] = [
        measured[0] | {"trial_id": mixed.trial("tuned"), "values": [0.2, 0.6, 0.7]}
    ]
    script = """
      const choice = root.querySelector("#metric");
      const [traces] = drawn.get("Accuracy of all jobs");
      const series = asked.filter((path) => path.includes("metrics/"));
      return [choice.options.map((each) => each.value), series, traces.map((trace) => trace.y)];
    """

    offered, asked, lines = compared(script, answers, "metric=accuracy&smooth=0", *ids)

    assert offered == ["loss", "accuracy", "f1"]
    assert asked == ["metrics/validation_accuracy", f"/v1/jobs/{mixed.job_id}/metrics/validation_accuracy"]
    assert lines == [[0.1, 0.5, 0.9], [0.1, 0.5, 0.8], [0.2, 0.6, 0.7]]


def test_a_metric_of_the_address_that_gets_no_answer_is_told_of_and_asked_for_again(answers):
    script = """
      const alert = root.querySelector("#unanswered");
      const said = alert.textContent;
      answers["metrics/validation_accuracy"] = measured;
      alert.querySelector("button").onclick();
      await settled();
      return [said, alert.textContent, drawn.has("Accuracy of all jobs")];
    """
    measured = answers.pop("metrics/validation_accuracy")
    given = f"const measured = {measured};".replace("None", "null").replace("'", '"')

    said, after, is_drawn = compared(given + script, answers, "metric=accuracy")

    assert "busy" in said and after == "" and is_drawn


@pytest.mark.parametrize(("metric", "values"), [("loss", [0.31, 0.42]), ("accuracy", [0.97, 0.97])])
def test_costs_are_those_of_the_metric_that_all_jobs_aim_at(answers, metric, values):
    answers["comparison"]["metric"] = metric
    script = """
      const [name, [traces]] = [...drawn].find(([label]) => label.includes("against its cost"));
      const marks = traces.filter((trace) => trace.mode === "markers" && trace.xaxis === "x");
      return [name, marks.map((trace) => trace.y[0])];
    """

    name, drawn = compared(script, answers, "")

    assert name == f"{metric.capitalize()} against its cost" and drawn == values


def test_results_have_what_was_chosen_and_how_many_times_fewer_bytes_it_sent(answers):
    script = """
      const head = root.querySelector("[aria-label=save: results]").parentNode.parentNode;
      const shown = head.parentNode.querySelector("table");
      const [heads, ...rows] = [shown.querySelector("thead").firstChild, ...shown.querySelector("tbody").childNodes]
        .map((row) => row.childNodes.map((cell) => cell.textContent));
      return rows.map((row) => ["learning rate", "density", "ratio"].map((name) => row[heads.indexOf(name)]));
    """

    tuned, dense = compared(script, answers, "")

    assert (tuned, dense) == (["1", "1 %", "33.3×"], ["0.1", "–", "1.0×"])


@pytest.mark.parametrize(("clock", "along"), [("training", "clock, "), ("target", "clock until the target, ")])
def test_costs_are_weighed_by_the_time_to_the_target_if_the_reader_asks(answers, clock, along):
    reached = {each["trial"]["arm"]: each for each in answers["comparison"]["trials"]}
    reached["tuned"]["seconds_to_target"], reached["dense"]["seconds_to_target"] = 4, None
    script = """
      const [traces, layout] = [...drawn].find(([label]) => label.includes("against its cost"))[1];
      const marks = traces.filter((trace) => trace.mode === "markers" && trace.xaxis === "x2");
      return [layout.xaxis2.title.text, marks.map((trace) => trace.x[0])];
    """

    title, drawn = compared(script, answers, f"clock={clock}")

    assert title.startswith(along) and (drawn == [4]) is (clock == "target")


def seeds_drawn(*, is_each):
    line = {"arm": "A tuned", "arm_index": 0, "steps": [0, 10], "seconds": [0, 1], "trial": {"step": 10, "stages": []}}
    line["trial"]["bill"] = {"bytes_sent": 1}
    lines = [
        line | {"label": f"A tuned seed {at}", "seed_index": at, "values": [1, end]}
        for at, end in enumerate((0.2, 0.4))
    ]
    chart = call(
        "charts/overlay.js",
        "it.overlaidCurves([], lines, { axis: 'steps', smoothing: 0, isEach })",
        lines=lines,
        isEach=is_each,
    )
    return [each for each in chart["traces"] if each.get("showlegend")]


def test_seeds_of_an_arm_are_one_line_their_mean():
    [mean] = seeds_drawn(is_each=False)

    assert mean["name"] == "A tuned, mean of 2 seeds ± 1 std" and mean["y"][-1] == pytest.approx(0.3)


def test_each_seed_that_is_drawn_has_a_dash_and_a_name_of_its_own():
    lines = seeds_drawn(is_each=True)

    assert [each["name"] for each in lines] == ["A tuned seed 0", "A tuned seed 1"]
    assert len({each["line"]["dash"] for each in lines}) == 2


@pytest.mark.parametrize(("is_high", "on_front"), [(False, ["a", "c"]), (True, ["a", "b"])])
def test_a_front_has_the_highest_values_where_they_are_the_best(is_high, on_front):
    points = [{"at": at, "value": value, "cost": cost} for at, value, cost in (("a", 5, 1), ("b", 7, 2), ("c", 3, 3))]

    found = call("charts/pareto.js", "it.front(points, (each) => each.cost, isHigh)", points=points, isHigh=is_high)

    assert [each["at"] for each in found] == on_front


def test_a_file_of_a_comparison_holds_what_its_menu_offers(client, reporting, store, job):
    reporting.run_to_the_end()
    other = store.add_job(job)[0].id

    found = plots.plot(client, [reporting.job_id, other]).answers

    assert f"/v1/jobs/{reporting.job_id}/metrics/validation_accuracy" in found
