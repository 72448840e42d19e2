"""The computations of the modules of a job's page, without a browser."""

import re

import pytest
import yaml

from api.documents import parse_yaml
from api.http.routes.page import DASHBOARD
from service.control.access.rules import Action, Owned, Principal, may
from service.errors import UnreadableJob
from service.job.changes import differences, patched
from service.job.spec import JobSpec
from service.job.states import JobState
from service.wire.access import Role
from service.wire.records import Bill
from service.wire.trials import TrialView
from tests.api.dashboard.test_page_modules import SMALL_DOM, pytestmark as needs_node, run

pytestmark = needs_node


#: What a browser has and node has not, as far as modules ask for it when they are loaded.
BROWSER = "globalThis.setInterval = () => {}; globalThis.IntersectionObserver = class { observe() {} };"


def call(module, expression, **given):
    """Return an expression of what `module` exports, as JSON; `given` are its constants."""
    load = f'{BROWSER}\nconst it = await import("{DASHBOARD.as_uri()}/{module}");'
    return run(f"{load}\nconsole.log(JSON.stringify({expression}));", **given)


def bill(**lines):
    return {"bytes_sent": 0, "seconds_training": 0, "steps_search": 0, "steps_taken_back": 0} | lines


@pytest.mark.parametrize(
    ("trial", "budget", "expected"),
    [
        ({"step": 0, "seconds": 0}, {"seconds": 40, "steps": None, "bytes": None}, ("seconds", 0, 40)),
        ({"step": 100, "seconds": 10}, {"seconds": 40, "steps": None, "bytes": None}, ("seconds", 0.25, 30)),
        ({"step": 100, "seconds": 40.3}, {"seconds": 40, "steps": None, "bytes": None}, ("seconds", 1, 0)),
        ({"step": 60, "seconds": 12}, {"seconds": None, "steps": 100, "bytes": None}, ("steps", 0.8, 3)),
        ({"step": 60, "seconds": 12}, {"seconds": 1000, "steps": None, "bytes": 4000}, ("bytes", 0.5, 12)),
        ({"step": 9, "seconds": 40, "outcome": "completed"}, {"seconds": 40, "steps": None}, ("seconds", 1, 0)),
        ({"step": 60, "seconds": 12, "outcome": "completed", "isPruned": True}, {"steps": 100}, ("steps", 0.8, 0)),
    ],
)  # fmt: skip
def test_progress_is_the_budgets_most_used_cap_and_what_is_left_of_it_at_the_pace_so_far(trial, budget, expected):
    trial = {"outcome": None, "bill": bill(bytes_sent=2000, steps_search=15, steps_taken_back=5)} | trial

    found = call("pages/job/progress.js", "it.progressOf(trial, budget)", trial=trial, budget=budget)

    assert (found["unit"], found["share"], round(found["left"], 9)) == expected


@pytest.mark.parametrize(
    ("state", "trials", "expected"),
    [
        ("running", [(60, None), (0, None)], "30 % · running · digits"),
        ("paused", [(99.9, None), (10, "completed")], "99 % · paused · digits"),
        ("running", [(60, None), (10, "stopped")], "80 % · running · digits"),
        ("queued", [(0, None)], "queued · digits"),
        ("failed", [(60, "diverged")], "failed · digits"),
    ],
)
def test_a_tabs_title_says_how_far_a_job_is_while_it_is_under_way(state, trials, expected):
    job = {"name": "digits", "state": state, "started_at": None if state == "queued" else "2026-01-01T00:00:00Z"}
    job["spec"] = {"budget": {"steps": 100}}
    rows = [
        {"step": step, "seconds": 1, "outcome": outcome, "backend": "gloo" if step else None, "bill": bill()}
        | ({"outcome": "completed", "stopped_by": "anna"} if outcome == "stopped" else {})
        for step, outcome in trials
    ]

    assert call("pages/job/heading.js", "it.tabTitle(job, rows)", job=job, rows=rows) == expected


def test_a_jobs_head_says_whose_it_is():
    job = {"name": "digits", "id": "job-1", "state": "queued", "labels": {}, "unreadable": "workers.colour"}
    job |= {"owner": "anna", "project": "vision", "created_at": "2026-01-01T00:00:00Z"}
    script = f"""
import "{SMALL_DOM}";
const {{ heading }} = await import("{DASHBOARD.as_uri()}/pages/job/heading.js");
document.body.append(...heading(job).filter((part) => part !== null));
console.log(JSON.stringify(document.body.textContent));
process.exit();"""

    said = run(script, job=job)

    assert "owner anna" in said and "project vision" in said


def test_a_role_may_change_on_the_page_the_jobs_that_it_may_change_at_the_service():
    asked = [(role, owner) for role in Role for owner in ("anna", "bert")]
    callers = [({"role": role, "name": "anna"}, {"owner": owner}) for role, owner in asked]
    jobs = [(Principal(name="anna", role=role, project="red"), Owned(owner, "red")) for role, owner in asked]

    found = call("states.js", "callers.map(([me, job]) => it.mayChange(me, job))", callers=callers)

    assert found == [may(caller, Action.CHANGE, job) for caller, job in jobs]


def test_a_trial_without_an_outcome_is_in_the_phase_that_the_service_says():
    asked = [(state, backend) for state in JobState for backend in (None, "gloo")]
    said = "asked.map(([state, backend]) => it.unfinished({ backend }, { state }))"

    found = call("pages/job/tables.js", said, asked=asked)

    phases = [TrialView.model_construct(outcome=None, backend=backend).phase(state) for state, backend in asked]
    assert found == phases


@pytest.mark.parametrize(
    ("parts", "is_said"),
    [
        ({"activations": {"kind": "keep"}, "arms": [{"activations": None}]}, False),
        ({"activations": {"kind": "dropit", "gamma": 0.9}, "arms": [{"activations": None}]}, True),
        ({"activations": {"kind": "keep"}, "arms": [{"activations": None}, {"activations": {"kind": "dropit"}}]}, True),
    ],
)
def test_a_bill_says_what_is_kept_for_backward_where_something_is_dropped(parts, is_said):
    costs = Bill(saved_bytes=2_500_000).model_dump(mode="json")
    trial = {"trial_id": "t", "label": "tuned", "outcome": "completed", "line": "main", "step": 1, "seconds": 1}
    trial |= {"validation_loss": 0.5, "validation_metrics": {}, "metric_directions": {}, "bill": costs, "cost": None}
    script = f"""
import "{SMALL_DOM}";
const {{ billTable }} = await import("{DASHBOARD.as_uri()}/pages/job/tables.js");
console.log(JSON.stringify(billTable([trial], job, null).textContent));
process.exit();"""

    said = run(script, trial=trial, job={"state": "succeeded", "spec": {"link": {"mode": "measure"}} | parts})

    assert ("kept for backward" in said and "2.5 MB" in said) is is_said


def test_a_bill_shows_what_was_measured_on_a_test_set_the_loss_first():
    costs = Bill().model_dump(mode="json")
    trial = {"trial_id": "t", "label": "tuned", "outcome": "completed", "line": "main", "step": 1, "seconds": 1}
    trial |= {"validation_loss": 0.5, "validation_metrics": {}, "metric_directions": {}, "bill": costs, "cost": None}
    spec = {"link": {"mode": "measure"}, "activations": {"kind": "keep"}, "arms": []}
    script = f"""
import "{SMALL_DOM}";
const {{ billTable }} = await import("{DASHBOARD.as_uri()}/pages/job/tables.js");
const tested = {{ ...trial, test: {{ accuracy: 0.75, loss: 0.625 }} }};
console.log(JSON.stringify(billTable([trial, tested], job, null).textContent));
process.exit();"""

    said = run(script, trial=trial, job={"state": "succeeded", "spec": spec})

    assert "test losstest accuracy" in said and "0.62500.7500" in said


def test_a_bill_adds_up_what_trials_sent_and_took_unless_a_part_is_not_known():
    common = {"outcome": "completed", "line": "main", "validation_loss": 0.5, "validation_metrics": {}}
    spec = {"link": {"mode": "measure"}, "activations": {"kind": "keep"}, "arms": []}
    costs = [{"worker_hours": 2, "money": 4}, None]
    bills = [
        Bill(bytes_sent=1_000_000, bytes_of_all=2_000_000, seconds_search=2),
        Bill(bytes_sent=3_000_000, bytes_of_all=None, seconds_search=3),
    ]
    trials = [
        common | {"trial_id": str(at), "label": str(at), "step": 10, "seconds": 30, "metric_directions": {}}
        | {"bill": each.model_dump(mode="json"), "cost": cost}
        for at, (each, cost) in enumerate(zip(bills, costs, strict=True))
    ]  # fmt: skip
    script = f"""
import "{SMALL_DOM}";
const {{ billTable }} = await import("{DASHBOARD.as_uri()}/pages/job/tables.js");
const rows = (trials) => billTable(trials, job, prices).querySelector("tbody").childNodes;
const cells = rows(trials).at(-1).childNodes.map((each) => [each.getAttribute("data-heading"), each.textContent]);
console.log(JSON.stringify([Object.fromEntries(cells), rows(trials.slice(1)).length]));
process.exit();"""

    prices = {"worker_hour": 2, "gb": None, "currency": "EUR"}
    total, num_of_one = run(script, trials=trials, job={"state": "succeeded", "spec": spec}, prices=prices)

    known = {"trial": "all trials", "steps": "20", "sent": "4.0 MB", "search": "5 s", "training clock": "1 min"}
    assert known.items() <= total.items()
    assert (total["sent by all workers"], total["cost"], total["validation loss"]) == ("–", "–", "")
    assert num_of_one == 1  # a single trial is its own sum


def test_what_the_clock_went_to_adds_up_to_it():
    costs = Bill(seconds_training=60, seconds_search=20, seconds_evaluation=5, seconds_checkpoint=0)
    rows = [{"label": "tuned", "bill": costs.model_dump(mode="json")}]

    chart = call("charts/wire.js", "it.clockChart(rows)", rows=rows)

    assert {trace["name"]: trace["x"] for trace in chart["traces"]} == {
        "training and the rest": [35], "searching": [20], "evaluating": [5]
    }  # fmt: skip


@pytest.mark.parametrize(("measured", "is_said"), [(0, False), (3_200_000_000, True)])
def test_a_bill_says_the_peak_memory_where_it_was_measured(measured, is_said):
    costs = Bill(memory_bytes=measured).model_dump(mode="json")
    trial = {"trial_id": "t", "label": "tuned", "outcome": "completed", "line": "main", "step": 1, "seconds": 1}
    trial |= {"validation_loss": 0.5, "validation_metrics": {}, "metric_directions": {}, "bill": costs, "cost": None}
    spec = {"link": {"mode": "measure"}, "activations": {"kind": "keep"}, "arms": []}
    script = f"""
import "{SMALL_DOM}";
const {{ billTable }} = await import("{DASHBOARD.as_uri()}/pages/job/tables.js");
console.log(JSON.stringify(billTable([trial], job, null).textContent));
process.exit();"""

    said = run(script, trial=trial, job={"state": "succeeded", "spec": spec})

    assert ("peak memory" in said and "3.2 GB" in said) is is_said


@pytest.mark.parametrize(
    ("heading", "presses", "order", "sort"),
    [
        ("sent", 1, ["b", "c", "a", "d"], "ascending"),
        ("sent", 2, ["a", "c", "b", "d"], "descending"),
        ("sent", 3, ["c", "a", "d", "b"], None),
        ("trial", 1, ["a", "b", "c", "d"], "ascending"),
    ],
)
def test_a_heading_sorts_a_table_and_later_rows_come_in_the_readers_order(heading, presses, order, sort):
    script = f"""
import "{SMALL_DOM}";
const {{ element, patch, table }} = await import("{DASHBOARD.as_uri()}/dom.js");
const {{ figures, size }} = await import("{DASHBOARD.as_uri()}/units.js");
const draw = (rows) => patch(document.body, table("Bytes", [
  ["trial", (row) => row.name, "name"], figures("sent", (row) => row.sent, size),
], rows, {{ key: (row) => row.name, note: (row) => `of ${{row.name}}` }}));
const all = (node) => node.childNodes.flatMap((each) => [each, ...all(each)]);
const named = (tag) => all(document.body).filter((each) => each.nodeName === tag);
const rows = [["c", 900], ["a", 20_000], ["d", null], ["b", 9]].map(([name, sent]) => ({{ name, sent }}));
draw(rows.slice(1));
for (let press = 0; press < presses; press++) {{
  const currentTarget = named("BUTTON").find((each) => each.textContent === heading);
  currentTarget.onclick({{ currentTarget }});
}}
draw(rows);
const sort = named("TH").find((each) => each.textContent === heading).getAttribute("aria-sort");
console.log(JSON.stringify({{ told: named("TR").map((row) => row.textContent), sort }}));
process.exit();"""

    found = run(script, heading=heading, presses=presses)

    shown = {"a": "20.0 kB", "b": "9 B", "c": "900 B", "d": "–"}
    assert found["told"][1:] == [text for name in order for text in (f"{name}{shown[name]}", f"of {name}")]
    assert found["sort"] == sort


@pytest.mark.parametrize(("least", "said"), [(None, "4 workers"), (4, "4 workers"), (2, "up to 4 workers")])
def test_a_job_that_may_go_on_with_fewer_workers_has_up_to_as_many(least, said):
    spec = {"workers": {"count": 4, "min": least}, "workload": {"kind": "digits-mlp"}, "link": {"mode": "none"}}
    job = {"name": "digits", "id": "job-1", "state": "running", "labels": {}, "created_at": "2026-01-01T00:00:00Z"}
    job["spec"] = spec | {"budget": {"seconds": 40, "steps": None, "bytes": None}}
    script = f"""
import "{SMALL_DOM}";
const {{ heading }} = await import("{DASHBOARD.as_uri()}/pages/job/heading.js");
const {{ progressTable }} = await import("{DASHBOARD.as_uri()}/pages/job/progress.js");
document.body.append(...heading(job).filter((part) => part !== null));
console.log(JSON.stringify([progressTable([], [], job, null).textContent, document.body.textContent]));
process.exit();"""

    progress, head = run(script, job=job)

    assert f"each has {said};" in progress and f"workers {said.removesuffix(' workers')}link" in head


@pytest.mark.parametrize(("priority", "is_said"), [("normal", False), ("urgent", True)])
def test_a_jobs_head_says_a_priority_that_is_not_the_usual_one(priority, is_said):
    job = {"name": "digits", "id": "job-1", "state": "queued", "labels": {}, "unreadable": "workers.colour"}
    job |= {"created_at": "2026-01-01T00:00:00Z", "priority": priority}
    script = f"""
import "{SMALL_DOM}";
const {{ heading }} = await import("{DASHBOARD.as_uri()}/pages/job/heading.js");
document.body.append(...heading(job).filter((part) => part !== null));
console.log(JSON.stringify(document.body.textContent.includes("priority")));
process.exit();"""

    assert run(script, job=job) is is_said


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ("", []),
        (" team=red, env=prod ", ["team=red", "env=prod"]),
        ("team=computer vision env=a, b", ["team=computer vision", "env=a, b"]),
        ("team=red,env=x=y", ["team=red", "env=x=y"]),
        ("vision team=red", ["vision", "team=red"]),
    ],
)
def test_a_label_filter_keeps_spaces_and_commas_of_values(text, labels):
    assert call("pages/jobs/filters.js", "it.labelsOf(text)", text=text) == labels


def test_a_job_of_another_release_says_so_in_the_place_of_its_charts():
    job = {"state": "queued", "unreadable": "workers.colour"}

    said = call("pages/job/heading.js", "it.waitingText(job)", job=job)

    assert "cannot read it: workers.colour" in said


def test_a_running_mean_begins_at_its_first_value_and_leaves_gaps():
    values = [4, None, 4, 0]

    assert call("charts/loss.js", "it.smoothed(values, 0)", values=values) == values
    found = call("charts/loss.js", "it.smoothed(values, 0.5)", values=values)
    assert found[:3] == [4, None, 4] and 0 < found[3] < 4


def test_a_mean_over_seeds_is_of_those_that_are_known_there_and_its_band_within_them():
    lines = [{"x": [0, 5, 10], "y": [1, 2, 3]}, {"x": [0, 5], "y": [2, 2]}, {"x": [0, 5], "y": [None, None]}]

    found = call("charts/loss.js", "it.meanOf(lines)", lines=lines)

    assert (found["x"], found["counts"]) == ([0, 5, 10], [2, 2, 1])
    assert found["mean"] == pytest.approx([1.5, 2, 3])
    assert found["lower"] == pytest.approx([1, 2, 3]) and found["upper"] == pytest.approx([2, 2, 3])
    assert call("charts/loss.js", "it.meanOf(lines)", lines=lines[2:]) is None


def test_a_mean_over_seeds_has_more_points_where_its_lines_have_them():
    """Ten thousand places over the whole, of which five thousand lie within the part that the reader has zoomed to."""
    coarse, fine = [*range(0, 100_000, 20)], [*range(50_001, 50_001 + 10_000, 2)]
    lines = [{"x": sorted(x), "y": [1.0] * len(x)} for x in (coarse, coarse + fine)]

    found = call("charts/loss.js", "it.meanOf(lines)", lines=lines)["x"]

    assert (found[0], found[-1]) == (0, 99_980) and 1900 < len(found) < 2100
    assert len([x for x in found if 50_000 <= x <= 60_000]) > 900


@pytest.mark.parametrize(("ends", "said"), [([10, 10], "mean of 2 seeds"), ([10, 5], "mean of up to 2 seeds")])
def test_the_legend_of_a_mean_says_of_how_many_seeds_it_is(ends, said):
    looks = [{"trial_id": str(at), "arm": "tuned", "label": "", "arm_index": 0, "is_first_seed": True} for at in (0, 1)]
    series = [
        look | {"steps": [0, end], "values": [2, 1], "seconds": [0, 1]} for look, end in zip(looks, ends, strict=True)
    ]
    trials = [look | {"outcome": None, "metric_directions": {}, "validation_loss": None} for look in looks]
    place = f'(await import("{DASHBOARD.as_uri()}/charts/axis.js")).placing("steps", [], [])'
    choice = {"metric": "loss", "smooth": 0, "isLog": False, "isLogAxis": False, "isEach": False}

    chart = call(
        "charts/loss.js",
        f"it.lossChart({{ training: [], validation: series, trials, stages: [], choice, place: {place} }})",
        series=series,
        trials=trials,
        choice=choice,
    )

    [line] = [each for each in chart["traces"] if "mean" in each.get("name", "")]
    assert line["name"] == f"tuned, {said} ± 1 std"


FORECAST = {"trial_id": "a", "stage": 0, "first_step": 0, "num_steps": 20, "forecast_std": 0.1, "closed": True}


@pytest.mark.parametrize(
    ("forecast", "loss", "chosen", "low"),
    [
        (-5.0, -5.0, {}, -5.2),
        (0.15, 0.1, {}, 0.1),
        (0.15, 0.1, {"smooth": 0.9}, 0.1),
        (0.15, 0.4, {}, 0.15),  # below all losses
        (0.15, 0.4, {"isLog": False}, -0.05),
    ],
)
def test_a_forecast_is_drawn_where_it_is_unless_a_logarithmic_axis_has_no_place_for_it(forecast, loss, chosen, low):
    look = {"trial_id": "a", "label": "tuned", "arm": "tuned", "arm_index": 0, "is_first_seed": True}
    trial = look | {"outcome": None, "metric_directions": {}}
    points = {"steps": [0, 20], "seconds": [0, 1], "values": [forecast + 0.3, loss]}
    place = f'(await import("{DASHBOARD.as_uri()}/charts/axis.js")).placing("steps", [series], [])'
    choice = {"metric": "loss", "smooth": 0, "isLog": True, "isLogAxis": False, "isEach": False} | chosen
    given = "training: [series], validation: [], trials: [trial], stages: [stage], choice"

    chart = call(
        "charts/loss.js",
        f"it.lossChart({{ {given}, place: {place} }})",
        trial=trial,
        stage=FORECAST | {"forecast": forecast, "loss": forecast},
        series=look | points,
        choice=choice,
    )

    fan, middle, *_ = chart["traces"]
    assert fan["y"][1:3] == pytest.approx([forecast + 0.2, low]) and middle["y"][1] == forecast


@pytest.mark.parametrize(("forecast", "below", "low"), [(-5.0, [0.2, 0.1], -5.2), (0.1, [0.09, 0.09], 0.01)])
def test_a_forecasts_bars_are_whole_unless_a_logarithmic_axis_has_no_place_for_them(forecast, below, low):
    judged = {"arm": "tuned", "arm_index": 0, "label": "tuned", "loss": forecast + 0.05, "z_score": 0.5}

    stage = FORECAST | judged | {"forecast": forecast}
    chart = call("charts/calibration.js", "it.calibrationChart([stage])", stage=stage)

    diagonal, *bars = chart["traces"]
    assert [each["error_x"]["arrayminus"][0] for each in bars] == pytest.approx(below)
    assert diagonal["x"] == diagonal["y"] == pytest.approx([low, forecast + 0.2])


@pytest.mark.parametrize("values", [[2.3], [2.3, 2.4], [0.001, 2.3]])
def test_a_logarithmic_axis_has_its_values_in_sight_and_goes_along_with_what_comes_later(values):
    axis = call("charts/look.js", "it.logAxis(values, String)", values=values)

    low, high = axis["autorangeoptions"]["include"]
    assert low < min(values) and high > max(values) and any(low <= tick <= high for tick in axis["tickvals"])
    assert "range" not in axis  # the chart would keep it


@pytest.mark.parametrize("values", [[0, 2.3], [-1.5, None, 2.3]])
def test_values_of_0_and_below_are_drawn_on_a_linear_axis(values):
    assert call("charts/look.js", "it.logAxis(values, String)", values=values) == {}


@pytest.mark.parametrize(
    ("low", "high"), [(1e-6, 3.0), (0.21, 1.9), (6.1, 7.9), (0.305, 0.3124), (0.99991, 0.99999), (1023.2, 1024.1)]
)
@pytest.mark.parametrize("write", ["String", "number", "share"])
def test_a_logarithmic_axis_has_ticks_in_any_part_of_it_and_no_two_read_alike(low, high, write):
    units = f'const {{ number, share }} = await import("{DASHBOARD.as_uri()}/units.js");'

    ticks = call(
        "charts/look.js",
        f"await (async () => {{ {units} return it.ticksOf(low, high, {write}); }})()",
        low=low,
        high=high,
    )

    seen = [each for each in ticks["tickvals"] if low <= each <= high]
    assert len(seen) >= 2 and len(set(ticks["ticktext"])) == len(ticks["tickvals"])
    per = 100 if write == "share" else 1
    read = [float(text.removesuffix(" %")) / per for text in ticks["ticktext"]]
    assert read == pytest.approx(ticks["tickvals"], rel=1e-9)


def test_32_arms_have_looks_of_their_own_and_the_first_8_colours_of_their_own():
    looks = call("charts/look.js", "Array.from({ length: 32 }, (_, arm_index) => it.look({ arm_index }, 1))")

    assert len({(each["color"], each["dash"]) for each in looks}) == 32
    assert len({each["color"] for each in looks[:8]}) == 8


@pytest.mark.parametrize(
    ("direction", "outcome", "marked"),
    [
        ("max", None, ["highest so far", 0.9]),
        ("min", None, ["lowest so far", 0.2]),
        ("max", "completed", ["best weights", 0.7]),
    ],
)
def test_another_metric_than_the_loss_has_its_own_best_and_no_forecast_of_the_loss(direction, outcome, marked):
    look = {"trial_id": "a", "label": "tuned", "arm": "tuned", "arm_index": 0, "is_first_seed": True}
    end = {"validation_loss": 0.1, "validation_metrics": {"accuracy": 0.7}, "exported_step": 10, "step": 20}
    trial = look | end | {"outcome": outcome, "metric_directions": {"accuracy": direction}}
    forecast = {"stage": 0, "trial_id": "a", "first_step": 0, "num_steps": 20, "forecast": 0.1, "forecast_std": 0.1}
    points = {"steps": [0, 10, 20], "seconds": [0, 1, 2], "values": [0.2, 0.9, 0.5]}
    place = f'(await import("{DASHBOARD.as_uri()}/charts/axis.js")).placing("steps", [series], [])'
    choice = {"metric": "accuracy", "smooth": 0, "isLog": False, "isLogAxis": False, "isEach": False}
    given = "training: [], validation: [series], trials: [trial], stages: [stage], choice"

    chart = call(
        "charts/loss.js",
        f"it.lossChart({{ {given}, place: {place} }})",
        trial=trial,
        stage=forecast,
        series=look | points,
        choice=choice,
    )

    lines, stars = chart["traces"]
    assert [lines["y"], stars["name"], *stars["y"]] == [points["values"], *marked]
    assert chart["layout"]["yaxis"] == {"title": {"text": "validation accuracy"}}


@pytest.mark.parametrize(
    ("averaged", "exported_step", "said", "label"),
    [
        (False, 10, "the weights of tuned: step 10", "best weights of tuned after 10 steps"),
        (False, None, "the weights of tuned: step 20", "no points yet"),
        (True, 10, "an average of the weights of tuned up to step 10", None),
        (True, None, "an average of the weights of tuned up to step 20", None),
    ],
)
def test_a_finished_trial_says_which_of_its_weights_are_exported(averaged, exported_step, said, label):
    trial = {"trial_id": "a", "label": "tuned", "arm": "tuned", "arm_index": 0, "outcome": "completed", "step": 20}
    trial |= {"averaged": averaged, "exported_step": exported_step, "validation_loss": 0.1, "metric_directions": {}}
    place = f'(await import("{DASHBOARD.as_uri()}/charts/axis.js")).placing("steps", [], [])'
    choice = {"metric": "loss", "smooth": 0, "isLog": False, "isLogAxis": False, "isEach": False}
    given = "training: [], validation: [], trials: [trial], stages: [], choice"

    chart = call("charts/loss.js", f"it.lossChart({{ {given}, place: {place} }})", trial=trial, choice=choice)

    (stars,) = chart["traces"]
    assert stars["text"] == [f"{said}, 0.1000"] and chart["label"] == (label or said)


@pytest.mark.parametrize("is_recorded", [False, True])
def test_any_metric_is_smoothed_and_has_a_logarithmic_scale_as_the_reader_chooses(is_recorded):
    look = {"trial_id": "a", "label": "tuned", "arm": "tuned", "arm_index": 0, "is_first_seed": True}
    trial = look | {"outcome": None, "metric_directions": {}, "validation_metrics": {}}
    points = {"steps": [0, 10, 20], "seconds": [0, 1, 2], "values": [1.0, 4.0, 2.0]}
    place = f'(await import("{DASHBOARD.as_uri()}/charts/axis.js")).placing("steps", [series], [])'
    choice = {"metric": "own_aux", "isRecorded": is_recorded, "smooth": 0.5, "isLog": True, "isLogAxis": False}
    given = "training: [], validation: [series], trials: [trial], stages: [], choice"

    chart = call(
        "charts/loss.js",
        f"it.lossChart({{ {given}, place: {place} }})",
        trial=trial,
        series=look | points,
        choice=choice | {"isEach": False},
    )

    assert chart["traces"][0]["y"] == pytest.approx([1.0, 3.0, 17 / 7])
    assert chart["layout"]["yaxis"]["type"] == "log"


@pytest.mark.parametrize("arms", [["tuned"], ["tuned", "tuned"]])
def test_a_series_of_training_steps_is_drawn_under_its_name_and_none_of_its_values_is_called_the_best(arms):
    looks = [{"trial_id": str(at), "label": arm, "arm": arm, "arm_index": 0} for at, arm in enumerate(arms)]
    end = {"outcome": None, "metric_directions": {}, "validation_metrics": {}, "is_first_seed": True}
    points = {"steps": [0, 10], "seconds": [0, 1], "values": [2.0, 3.0]}
    place = f'(await import("{DASHBOARD.as_uri()}/charts/axis.js")).placing("steps", all, [])'
    choice = {"metric": "own_aux", "isRecorded": True, "smooth": 0, "isLog": False, "isLogAxis": False}
    given = "training: [], validation: all, trials, stages: [], choice"

    chart = call(
        "charts/loss.js",
        f"it.lossChart({{ {given}, place: {place} }})",
        trials=[look | end for look in looks],
        all=[look | end | points for look in looks],
        choice=choice | {"isEach": False},
    )

    assert [trace for trace in chart["traces"] if "star" in str(trace)] == []
    assert "own_aux" in chart["traces"][-1]["hovertemplate"]
    assert chart["layout"]["yaxis"] == {"title": {"text": "own_aux"}}
    assert "own_aux now 3.0000" in chart["label"]


@pytest.mark.parametrize(("axis", "at"), [("steps", 50), ("seconds", 5.0), ("bytes", 0.5)])
def test_a_step_has_its_place_on_every_axis_and_a_range_of_the_axis_its_steps(axis, at):
    losses = [{"trial_id": "a", "steps": [0, 100], "seconds": [0, 10], "values": [1, 1]}]
    sent = [{"trial_id": "a", "steps": [0, 100], "seconds": [0, 10], "values": [0, 1000]}]
    place = "const place = it.placing(axis, losses, sent);"

    asked = "[place.at('a', 50), place.steps([place.at('a', 20), place.at('a', 50)]), place.at('b', 1)]"
    found = call("charts/axis.js", f"(() => {{ {place} return {asked}; }})()", axis=axis, losses=losses, sent=sent)

    assert found[:2] == [at, [20, 50]]
    assert found[2] == (1 if axis == "steps" else None)


def stage(number, probes, *, closed_s, num_steps=10, **more):
    return {
        "trial_id": "a", "stage": number, "first_step": 10 * number, "learning_rate": 0.1, "search_seconds": 1.0,
        "closed": True, "num_steps": num_steps, "bill": {"seconds_training": closed_s}, "promoted": None,
        "probes": probes,
    } | more  # fmt: skip


def probe(name, ended_s, seconds=0.5, status="ok"):
    rest = {"learning_rate": 0.1, "loss": 1.0, "values": {}}
    return {"probe_id": name, "seconds": seconds, "ended_s": ended_s, "status": status} | rest


def test_a_timeline_has_a_block_for_each_probe_and_commit_where_it_was_measured():
    stages = [
        stage(0, [probe("0", 0.5), probe("1", 1.0), probe("2", 1.0, status="diverged")], closed_s=4.0, promoted="1"),
        stage(1, [], closed_s=7.0, search_seconds=0.0, num_steps=0),
    ]
    trials = [{"trial_id": "a", "seconds": 7.0, "step": 10}]

    blocks = call("charts/timeline.js", "it.blocksOf(trials, stages)", trials=trials, stages=stages)

    assert [(each["kind"], each["from"], each["to"]) for each in blocks] == [
        ("ok", 0.0, 0.5), ("kept", 0.5, 1.0), ("diverged", 0.5, 1.0), ("commit", 1.0, 4.0), ("back", 4.0, 7.0),
    ]  # fmt: skip


def test_a_probe_is_in_the_row_of_the_lane_and_of_the_worker_that_trained_it():
    alone = [probe("0", 0.5), probe("1", 0.5)]  # told of in one moment: a worker each
    together = [probe("2", 1.0), probe("3", 1.01)]  # side by side: a lane each
    drawn = [{"trial_id": "a", "label": "tuned", "seconds": 4.0, "step": 10}]
    given = {"trials": drawn, "stages": [stage(0, [*alone, *together], closed_s=4.0)]}

    blocks = call("charts/timeline.js", "it.blocksOf(trials, stages)", **given)
    axis = call("charts/timeline.js", "it.timelineChart(trials, stages, []).layout.yaxis", **given)

    rows = [(each["lane"], each["worker"]) for each in blocks]
    assert rows == [(0, 0), (0, 1), (0, None), (1, None), (None, None)]
    assert axis["ticktext"] == ["tuned, lane 1 worker 0", "lane 1 worker 1", "lane 2 worker 0", "lane 2 worker 1"]


def test_a_timeline_of_twice_as_many_trials_takes_twice_as_much_work():
    script = f"""
const {{ timelineChart }} = await import("{DASHBOARD.as_uri()}/charts/timeline.js");
let work = 0; // elements of lists that are gone through, and reads of a trial's id
const told = (value) => {{ work += 1; return value; }};
Array.prototype[Symbol.iterator] = function* () {{ for (let at = 0; at < this.length; at += 1) yield told(this[at]); }};
const idOf = (row, id) => Object.defineProperty(row, "trial_id", {{ get: () => told(id), enumerable: true }});
const workOf = (count) => {{
  const ids = Array.from({{ length: count }}, (_, at) => `t${{at}}`);
  const trials = ids.map((id) => idOf({{ label: id, seconds: 50, step: 50 }}, id));
  const stages = ids.flatMap((id) => Array.from({{ length: 5 }}, (_, at) => idOf({{ ...stage, stage: at }}, id)));
  work = 0;
  timelineChart(trials, stages, []);
  return work;
}};
console.log(JSON.stringify([workOf(20), workOf(40)]));"""

    few, many = run(script, stage=stage(0, [probe("0", 0.5), probe("1", 1.0)], closed_s=4.0))

    assert many < 2.2 * few


def test_probes_whose_end_was_never_written_down_are_one_search():
    stages = [stage(0, [probe("0", None), probe("1", None)], closed_s=4.0)]

    blocks = call("charts/timeline.js", "it.blocksOf([{trial_id: 'a', seconds: 4, step: 10}], stages)", stages=stages)

    assert [each["kind"] for each in blocks] == ["search", "commit"]


def test_a_timeline_marks_what_disturbed_a_trial_on_its_own_clock():
    told = [
        {"kind": "job", "data": {"state": "paused", "reason": "", "attempt": 1, "clocks": {"a": 3.5}}},
        {"kind": "job", "data": {"state": "starting", "reason": "", "attempt": 2, "clocks": {"a": 3.5}}},
        {"kind": "repair", "data": {"trial_id": "a", "seconds": 5.0, "repairs": 1, "absences": {"1": 2}}},
    ]
    divergence = {"step": 7, "learning_rate": 1.0}
    trials = [{"trial_id": "a", "seconds": 9.0, "outcome": "diverged", "divergence": divergence}]
    stages = [stage(0, [], closed_s=4.0, num_steps=0)]

    marks = call("charts/timeline.js", "it.marksOf(trials, stages, told)", trials=trials, stages=stages, told=told)

    assert sorted((each["at"], each["kind"]) for each in marks) == [
        (3.5, "attempt"), (3.5, "pause"), (4.0, "rollback"), (5.0, "repair"), (9.0, "divergence"),
    ]  # fmt: skip


def test_a_state_that_is_told_again_is_one_mark():
    states = [(state, 1) for state in ("paused", "paused", "queued", "queued")]
    states += [(state, 2) for state in ("starting", "starting", "paused")]
    told = [
        {"kind": "job", "data": {"state": state, "reason": str(at), "attempt": attempt, "clocks": {"a": 3.5}}}
        for at, (state, attempt) in enumerate(states)
    ]

    marks = call("charts/timeline.js", "it.marksOf([], [], told)", told=told)

    assert [each["text"] for each in marks] == [
        "the job was paused: 0", "the job was queued: 2", "attempt 2 began", "the job was paused: 6",
    ]  # fmt: skip


def test_averages_that_a_worker_missed_one_after_the_other_are_one_mark_of_all_of_them():
    bills = [(0, 1), (0, 2), (1, 2), (1, 3), (1, 4)]  # replacements and missed averages
    told = [
        {"kind": "repair", "data": {"trial_id": "a", "seconds": at, "repairs": repairs, "absences": {"1": missed}}}
        for at, (repairs, missed) in enumerate(bills)
    ]

    marks = call("charts/timeline.js", "it.marksOf([], [], told)", told=told)

    assert [(each["at"], each["text"]) for each in marks] == [
        (0, "0 repairs so far, worker 1 missed 2, until 1 s"), (2, "1 repair so far, worker 1 missed 4, until 4 s"),
    ]  # fmt: skip


def test_no_chart_rounds_a_small_value_to_nothing_where_it_is_pointed_at():
    sources = {file.name: file.read_text("utf-8") for file in (DASHBOARD / "charts").glob("*.js")}

    assert [name for name, source in sources.items() if re.search(r"%\{[^}]*\df\}", source)] == []


def test_a_traceback_has_the_users_own_lines_apart_from_those_of_libraries():
    log = """before
(RankActor pid=7) Traceback (most recent call last):
(RankActor pid=7)   File "/opt/venv/lib/python3.11/site-packages/ray/worker.py", line 10, in main
(RankActor pid=7)     run()
(RankActor pid=7)   File "/srv/wiretune/trainers/training/replica.py", line 20, in _loss
(RankActor pid=7)     self.workload.loss()
(RankActor pid=7)   File "/tmp/ray/session/_ray_pkg_1/model.py", line 30, in loss
(RankActor pid=7)     return 1 / 0
(RankActor pid=7) ZeroDivisionError: division by zero
after"""

    (found,) = call("pages/job/traceback.js", "it.tracebacks(log)", log=log)

    assert found["error"] == "ZeroDivisionError: division by zero"
    assert [(each["file"].rpartition("/")[2], each["line"], each["code"]) for each in found["own"]] == [
        ("model.py", 30, "return 1 / 0")
    ]
    assert len(found["others"]) == 2


@pytest.mark.parametrize(
    "file",
    [
        "wiretune/train.py",
        "wiretune/api/model.py",
        "search/data.py",
        "service/control/plant.py",
        "trainers/training/loss.py",
    ],
)
def test_code_of_the_user_is_his_own_whatever_its_folder_is_called(file):
    frames = [f"/home/me/{file}", "/srv/wiretune/trainers/training/replica.py", "/srv/wiretune/api/client.py"]
    lines = [f'  File "{each}", line 1, in loss' for each in frames]
    log = "\n".join(["Traceback (most recent call last):", *lines, "ValueError: no"])

    (found,) = call("pages/job/traceback.js", "it.tracebacks(log)", log=log)

    assert [each["file"] for each in found["own"]] == frames[:1]


def test_an_error_that_ray_brings_is_named_by_what_was_raised_and_one_that_python_ignores_is_none():
    log = """Exception ignored in: <function WeakSet.__init__.<locals>._remove at 0x7f>
Traceback (most recent call last):
  File "/usr/lib/python3.11/_weakrefset.py", line 39, in _remove
SystemExit: 1
Traceback (most recent call last):
  File "/opt/venv/lib/python3.11/site-packages/ray/worker.py", line 10, in get
    raise value.as_instanceof_cause()
ray.exceptions.RayTaskError(Hopeless): ray::ImplicitFunc.train() (pid=7)
              ^^^^^^
  File "/tmp/ray/session/_ray_pkg_1/model.py", line 30, in loss
    raise ValueError("no labels")
WorkerFailed: worker 0 failed: Traceback (most recent call last):
  File "/tmp/ray/session/_ray_pkg_1/model.py", line 31, in loss
    raise ValueError("no labels")
ValueError: no labels

The above exception was the direct cause of the following exception:

ray::ImplicitFunc.train() (pid=7)
  File "/srv/wiretune/service/cluster/tune_trial.py", line 75, in _run
    raise Hopeless(str(refused)) from refused
service.cluster.attempt.Hopeless: no labels
after"""

    _, cause, last = call("pages/job/traceback.js", "it.tracebacks(log)", log=log)

    assert (cause["error"], [each["line"] for each in cause["own"]]) == ("ValueError: no labels", [31])
    assert last["error"] == "service.cluster.attempt.Hopeless: no labels"


def test_expected_improvement_is_what_a_normal_belief_says():
    posterior = {"mean": [0.0, 1.0, 1.0], "std": [1.0, 1.0, 0.0]}

    found = call("charts/posterior.js", "it.expectedImprovement(posterior)", posterior=posterior)

    assert found == pytest.approx([0.0833155, 0.3989423, 0.0], abs=1e-6)  # phi(1) - Phi(-1), phi(0), nothing to learn


@pytest.mark.parametrize(
    ("bytes_sent", "expected"), [([0, 100, 400], [10.0, 30.0]), ([0], []), ([], [])]
)  # fmt: skip
def test_a_rate_is_what_was_sent_between_two_reports(bytes_sent, expected):
    series = {"seconds": [10 * at for at in range(len(bytes_sent))], "values": bytes_sent}

    assert call("charts/wire.js", "it.rates(series)", series=series)["rate"] == expected


def test_a_specification_is_yaml_that_reads_back_as_it_was():
    spec = {
        "name": "digits: on", "kind": "no", "seeds": [0, 1], "text": "line\nbreak", "empty": {}, "none": None,
        "yes": True,
        "arms": [{"name": "tuned"}, {"name": "dense", "exchange": {"kind": "none", "levels": []}}],
        "rate": 1e-05, "least": 1e-9, "on": {"of": [[1, 2], [3, 4]], "many": list(range(60))},
        "-x": " y ",
    }  # fmt: skip

    text = call("yaml.js", "it.yaml(spec)", spec=spec)

    assert yaml.safe_load(text) == parse_yaml(text.encode()) == spec  # as YAML 1.1 and as YAML 1.2


@pytest.mark.parametrize(
    "patch",
    [
        {},
        {"budget": {"seconds": 90}, "seeds": [0], "name": "another"},
        {"exchange": {"kind": "powersgd"}},
        {"arms": [{"name": "tuned"}, {"name": "dense", "exchange": {"kind": "none"}}]},
        {"arms": [{"name": "alone"}]},
        {"workload": {"kind": "own", "factory": "model:make", "params": {"a/b": 1, "c~d": [{}]}}},
    ],
)
def test_the_page_finds_the_differences_that_the_service_finds(job, patch):
    other = JobSpec.model_validate(patched(job.model_dump(mode="json"), patch))
    before, after = job.model_dump(mode="json"), other.model_dump(mode="json")

    found = call("differences.js", "it.differences(before, after)", before=before, after=after)

    assert found == [each.model_dump(mode="json") for each in differences(job, other)]


def test_a_comparison_that_was_not_answered_is_asked_for_again_though_nothing_has_changed_since():
    parts = {"job": None, "report": None, "trials": [], "schedules": [], "stages": [], "series": []}
    whole = parts | {"whole": True, "cursor": 1, "job": {}, "report": {}}
    looks = """(async () => {
      let [first, fails] = [true, true];
      globalThis.fetch = async (path) => {
        if (!path.includes("comparison")) return Response.json(first ? whole : { ...parts, whole: false, cursor: 1 });
        return fails ? Response.json({ detail: "busy" }, { status: 503 }) : Response.json("compared");
      };
      const compared = it.comparedJobs([{ id: "a", arms: null }]);
      const lost = await compared.look().catch((error) => error.message);
      first = fails = false;
      const found = await compared.look();
      return [lost, found.comparison, found.isNew, (await compared.look()).isNew];
    })()"""

    found = call("pages/compare/jobs.js", f"await {looks}", whole=whole, parts=parts)

    assert found == ["busy", "compared", True, False]


def test_a_job_of_a_comparison_that_was_not_to_be_seen_is_asked_for_again_once_another_may_have_signed_in():
    parts = {"trials": [], "schedules": [], "stages": [], "series": []}
    whole = parts | {"whole": True, "cursor": 1, "job": {}, "report": {}}
    looks = """(async () => {
      let may = false;
      globalThis.fetch = async () => (may ? Response.json(whole) : Response.json({ detail: "" }, { status: 404 }));
      const compared = it.comparedJobs([{ id: "a", arms: null }]);
      const gone = [(await compared.look()).jobs[0].isGone];
      may = true;
      gone.push((await compared.look()).jobs[0].isGone);
      compared.shows("a");
      compared.missed();
      return [...gone, (await compared.look()).jobs[0].isGone];
    })()"""

    assert call("pages/compare/jobs.js", f"await {looks}", whole=whole) == [True, True, False]


def test_a_job_that_only_another_release_can_read_is_named_and_the_rest_is_compared():
    parts = {"trials": [], "schedules": [], "stages": [], "series": [], "report": {"sweep": None}}
    about = {"id": "a", "name": "digits", "state": "running", "created_at": "2026-01-01T00:00:00Z"}
    whole = parts | {"whole": True, "cursor": 1, "job": about | {"spec": {"arms": [], "seeds": [0]}}}
    compared = {"jobs": [{"id": "a"}], "arms": [], "trials": [], "confidence": 0.95, "metric": "loss", "target": None}
    script = f"""
import {{ seeAll }} from "{SMALL_DOM}";
const {{ comparePage }} = await import("{DASHBOARD.as_uri()}/pages/compare/compare.js");
const asked = [];
globalThis.fetch = async (path) => {{
  asked.push(path.replace("/v1/jobs/", "").replace(/[?].*/, ""));
  if (path.includes("/b/")) return Response.json(unreadable, {{ status: 409 }});
  return Response.json(path.includes("comparison") ? compared : whole);
}};
const page = comparePage(document.body, "b,a", new URLSearchParams());
await page.refresh();
await page.refresh();
console.log(JSON.stringify([asked, document.body.textContent]));
process.exit();"""

    unreadable = {"type": f"/problems/{UnreadableJob.slug}", "detail": "cannot read"}
    asked, shown = run(script, whole=whole, compared=compared, unreadable=unreadable)

    assert asked == ["b/snapshot", "a/snapshot", "a/comparison", "a/snapshot", "a/comparison"]
    assert "has stored the job b, and this one cannot read it" in shown and "digits" in shown
    assert "loading" not in shown and "nothing to compare" not in shown


def test_a_trial_that_goes_on_has_a_button_that_stops_it_alone_and_asks_first():
    trial = {"outcome": None, "backend": "gloo", "device": "cpu", "step": 1, "seconds": 1, "learning_rate": None}
    trial |= {"bill": bill(), "stopped_by": None}
    trials = [trial | {"trial_id": f"job-1.{arm}.0", "label": arm} for arm in ("good", "hopeless", "ended", "told")]
    trials[2]["outcome"], trials[3]["stopped_by"] = "completed", "olga"
    spec = {"workers": {"count": 2, "min": None}, "budget": {"steps": 100}}
    script = f"""
import {{ settled }} from "{SMALL_DOM}";
const sent = [];
globalThis.fetch = async (path, {{ method, headers }}) => {{
  sent.push([method, path, headers["If-Match"]]);
  return Response.json({{}});
}};
const {{ progressTable }} = await import("{DASHBOARD.as_uri()}/pages/job/progress.js");
const {{ trialStop }} = await import("{DASHBOARD.as_uri()}/pages/job/controls.js");
const shown = progressTable(trials, [], job, () => "", (trial) => trialStop(job, trial, () => sent.push("changed")));
document.body.append(shown);
const labels = ["good", "hopeless", "ended", "told"]
  .filter((each) => shown.querySelector(`[aria-label=stop ${{each}}]`));
shown.querySelector("[aria-label=stop hopeless]").onclick();
await settled();
const asked = sent.length;
document.body.querySelector("dialog").querySelector("form").onsubmit({{ preventDefault() {{}} }});
await settled();
console.log(JSON.stringify([labels, asked, sent]));
process.exit();"""

    job = {"id": "job-1", "version": 3, "state": "running", "spec": spec}
    labels, asked, sent = run(script, trials=trials, job=job)

    assert (labels, asked) == (["good", "hopeless"], 0)
    assert sent[0] == ["POST", "/v1/jobs/job-1/trials/job-1.hopeless.0:stop", '"3"']


@pytest.mark.parametrize(
    ("state", "owner", "num_trials", "may"),
    [
        ("running", "anna", 2, True),
        ("running", "bert", 2, False),
        ("running", "anna", 1, False),
        ("stopping", "anna", 2, False),
        ("succeeded", "anna", 2, False),
    ],
)
def test_trials_are_stopped_on_the_page_by_whoever_may_change_the_job(state, owner, num_trials, may):
    me, job = {"role": "submitter", "name": "anna"}, {"owner": owner, "state": state}

    assert call("states.js", "it.mayStopTrials(me, job, trials)", me=me, job=job, trials=[{}] * num_trials) is may


def test_a_job_whose_attempts_are_lost_says_so_beside_its_place_in_the_queue():
    reason = "trainers.training.call_results.WorkerLost: worker 1 is gone"
    job = {"name": "digits", "id": "job-1", "state": "queued", "labels": {}, "unreadable": "workers.colour"}
    job |= {"created_at": "2026-01-01T00:00:00Z", "reason": f"attempt 2 ended: {reason}"}
    job |= {"lost": {"number": 2, "reason": reason, "num_lost": 2, "max_lost": 3}}
    script = f"""
import "{SMALL_DOM}";
const {{ heading }} = await import("{DASHBOARD.as_uri()}/pages/job/heading.js");
const {{ cells }} = await import("{DASHBOARD.as_uri()}/pages/jobs/row.js");
const progress = {{ losses: [], learning_rate: null }};
const said = (job) => [heading(job), cells({{ ...job, arms: [], progress }})[1].childNodes].map((parts) =>
  parts.filter((part) => /\\bbad\\b/.test(part?.getAttribute("class"))).map((part) => part.textContent).join());
const all = (job) => heading(job).filter((part) => part !== null).map((part) => part.textContent).join("\\n");
const queued = {{ ...job, queue: {{ sentence: "1st of 2" }} }};
console.log(JSON.stringify([said(job), said({{ ...job, lost: null }}), all(queued), all(job)]));
process.exit();"""

    lost, others, waiting, unplaced = run(script, job=job)

    text = "attempt 2 was lost: worker 1 is gone (2 in a row without progress; after 3 the job fails)"
    assert lost == [text, text] and others == ["", ""]
    assert "1st of 2" in waiting and text in waiting
    assert unplaced.count("worker 1 is gone") == 1


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("starts", "1st of 2; starts now; extended by anna: `tuned.0` goes on"),
        ("room", "1st of 2; starts now"),  # the queue has written its own reason into the job
        (None, "extended by anna: `tuned.0` goes on"),
    ],
)
def test_a_job_that_waits_says_how_it_came_there_unless_its_place_says_why_it_waits(kind, expected):
    job = {"reason": "extended by anna: `tuned.0` goes on", "lost": None}
    job["queue"] = kind and {"kind": kind, "sentence": "1st of 2; starts now"}

    assert call("states.js", "it.whyOf(job)", job=job) == expected


@pytest.mark.parametrize(("held_s", "is_said"), [(725, True), (None, False)])
def test_a_job_that_is_over_says_how_long_it_took_without_the_time_in_which_it_held_no_workers(held_s, is_said):
    job = {"name": "digits", "id": "job-1", "state": "cancelled", "labels": {}, "unreadable": "workers.colour"}
    job |= {"created_at": "2026-01-01T00:00:00Z", "finished_at": "2026-02-01T00:00:00Z", "seconds_held": held_s}
    script = f"""
import "{SMALL_DOM}";
const {{ heading }} = await import("{DASHBOARD.as_uri()}/pages/job/heading.js");
console.log(JSON.stringify(heading(job).filter((part) => part !== null).map((part) => part.textContent).join()));
process.exit();"""

    assert ("took 12 min 5 s" in run(script, job=job)) is is_said


def arm_report(losses, *, best="tuned", sweep=None):
    """Return a report of an arm for each name of `losses`, with a seed for each of its values."""
    mean = {
        name: {"num_seeds": len(own), "mean": sum(own) / len(own), "low": sum(own) / len(own) - 8.5}
        | {"high": sum(own) / len(own) + 8.5}
        for name, own in losses.items()
    }
    arms = [
        {"arm": name, "controller": "bo", "num_finished": len(own), "num_trials": len(own), "num_diverged": 0}
        | {"validation_loss": mean[name], "validation_metrics": {}, "test": {}, "bytes_sent": None}
        | {"seconds_to_target": None}
        for name, own in losses.items()
    ]
    trial = {"validation_metrics": {}, "outcome": "completed", "bill": {"bytes_sent": None}, "seconds_to_target": None}
    trials = [trial | {"arm": name, "validation_loss": value} for name, own in losses.items() for value in own]
    known = {"metric": "loss", "metric_directions": {}, "confidence": 0.95, "best_arm": best, "sweep": sweep}
    return known | {"arms": arms, "trials": trials}


def told_arms(report):
    script = f"""
import "{SMALL_DOM}";
const {{ armTable }} = await import("{DASHBOARD.as_uri()}/pages/job/tables.js");
const table = armTable(report);
console.log(JSON.stringify([table.textContent, table.querySelector("b")?.textContent ?? null]));
process.exit();"""
    return run(script, report=report)


@pytest.mark.parametrize(
    ("tuned", "said"),
    [([0.25, 0.5], "0.2500 – 0.5000"), ([0.5], "0.5000"), ([0.25, 0.5, 0.75], "0.5000 ± 8.5000")],
)
def test_the_spread_of_two_seeds_is_their_values_and_not_an_interval(tuned, said):
    text, _ = told_arms(arm_report({"tuned": tuned, "dense": [2.0]}))

    assert said in text and ("±" in text.split("both values")[1]) is ("±" in said)


def test_an_interval_that_reaches_further_on_one_side_is_told_by_its_ends():
    report = arm_report({"tuned": [0.25, 0.5, 0.75]})
    report["arms"][0]["validation_loss"] |= {"low": 0.25, "high": 1.0}

    assert "0.5000 (0.2500 to 1.0000)" in told_arms(report)[0]


@pytest.mark.parametrize(
    ("is_clear", "arms", "bold"),
    [
        (True, ("tuned", "dense"), "tuned (best loss)"),
        (None, ("tuned", "dense"), "tuned (best loss)"),
        (False, ("tuned", "dense"), None),
        (None, ("tuned",), None),
    ],
)
def test_the_best_of_several_arms_is_bold_unless_it_may_be_so_by_chance(is_clear, arms, bold):
    report = arm_report({arm: [0.1, 0.2] for arm in arms}) | {"best_is_clear": is_clear}

    assert told_arms(report)[1] == bold


def test_the_one_arm_of_a_sweep_is_its_baseline_and_the_best_of_nothing():
    text, bold = told_arms(arm_report({"dense": [0.3, 0.4]}, best="dense", sweep={"ranking": []}))

    assert text.startswith("Baseline over seeds") and bold is None and "best" not in text
