"""The computations of the page's modules, without a browser: formats of figures, and merging of changes."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from api.documents import parse_yaml
from api.http.routes.page import DASHBOARD
from service.job.spec import JobSpec
from tests.api.conftest import Reporting
from tests.support.example_jobs import EXAMPLES

node = shutil.which("node")
pytestmark = pytest.mark.skipif(node is None, reason="needs `node` on the PATH (apt-get install nodejs)")

SMALL_DOM = Path(__file__).with_name("small_dom.js").as_uri()

WRITTEN = {
    "size(0)": "0 B", "size(999)": "999 B", "size(999960)": "1.0 MB", "size(120e9)": "120 GB", "duration(0)": "0 s",
    "duration(0.085)": "85 ms", "duration(0.9996)": "1 s", "duration(12.34)": "12.3 s", "duration(59.96)": "1 min",
    "duration(725)": "12 min 5 s", "duration(3599.7)": "1 h", "duration(3600)": "1 h", "duration(5400)": "1 h 30 min",
    "duration(90000)": "1 d 1 h", "number(1024)": "1024", "number(1234.5)": "1230", "share(0.997)": "99.7 %",
    "share(1.12)": "112 %", "share(0.1)": "10 %", "share(0.00874)": "0.87 %", "level(0.1, 'density')": "10 %",
    "level(4, 'rank')": "4", "loss(0.31)": "0.3100", "loss(0.00001234)": "0.00001234", "loss(54321.9)": "54322",
    "loss(null)": "–", "spread(0.45, 0.02, loss, number)": "0.4500 ± 0.02", "spread(0.45, null, loss)": "0.4500",
    "signed(-1.23)": "−1.2", "signed(0.5)": "+0.5", "sizeAxis(2e8).unit": "MB", "timeAxis(100).unit": "s",
    "timeAxis(7200).unit": "min", "sizeAxis(0).unit": "B",
    "besides({learning_rate: 1, level: 2, batch_size: 64, option: null})": "batch size 64",
    "age('2026-01-01T00:00:00Z', Date.parse('2026-01-01T02:05:00Z'))": "2 h ago",
    "moment('2026-01-01T00:00:00Z')": "Jan 1, 2026, 12:00:00\u00a0AM\u00a0UTC",
}  # fmt: skip


def run(script, **given):
    """Return what a module prints as JSON; `given` are its constants."""
    source = "".join(f"const {name} = {json.dumps(value)};\n" for name, value in given.items()) + script
    done = subprocess.run(
        [node, "--input-type=module", "-"],
        input=source.encode(),
        capture_output=True,
        env={"TZ": "UTC", "LANG": "en_US.UTF-8"},
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def written():
    calls = ", ".join(f"() => {call}" for call in WRITTEN)
    names = "age, besides, duration, level, loss, moment, number, share, signed, size, sizeAxis, spread, timeAxis"
    module = f'import {{ {names} }} from "{DASHBOARD.as_uri()}/units.js";'
    found = run(f"{module}\nconsole.log(JSON.stringify([{calls}].map((each) => each())));")
    return dict(zip(WRITTEN, found, strict=True))


@pytest.mark.parametrize("call", WRITTEN)
def test_figures_are_written_in_their_units(written, call):
    assert written[call] == WRITTEN[call]


def test_changes_that_the_page_merges_are_the_whole(http, reporting):
    url = f"/v1/jobs/{reporting.job_id}/snapshot"
    whole = http.get(url).json()
    changes, cursor = [], whole["cursor"]

    def look():
        nonlocal cursor
        changes.append(http.get(url, params={"since": cursor}).json())
        cursor = changes[-1]["cursor"]

    for arm, density in (("tuned", 0.01), ("dense", None)):
        reporting.start(arm)
        for stage in range(2):
            reporting.stage(arm, stage, rate=1.0, density=density)
            look()
        reporting.finish_trial(arm, rates=[1.0, 1.0], density=density, loss=0.3)
        look()

    script = f"""
import {{ merged }} from "{DASHBOARD.as_uri()}/live/snapshot.js";
console.log(JSON.stringify(changes.reduce(merged, whole)));"""
    assert not any(change["whole"] for change in changes)
    assert run(script, changes=changes, whole=whole) == http.get(url).json()


@pytest.mark.parametrize(
    ("asked", "names", "unknown"),
    [
        ("A", ["tuned", "dense", "sample-1", "sample-2"], []),
        ("A:sample-0", ["sample-0"], []),
        ("A:dense,A:sample-2,A:sample-3", ["dense", "sample-2"], ["A sample-3"]),
    ],
)
def test_of_a_sweep_the_arms_and_the_best_samples_are_compared_and_any_that_is_asked_for(
    http, store, job, asked, names, unknown
):
    params = {"workload.batch_size": {"choice": [16, 64]}}
    swept = job.model_dump(mode="json") | {"params": params, "sweep": {"samples": 3, "cost": "bytes"}}
    begun = Reporting(store, JobSpec.model_validate(swept))
    for arm, loss, density in (("sample-0", 0.9, 0.1), ("sample-1", 0.5, None), ("sample-2", 0.7, 0.1)):
        begun.start(arm)
        begun.finish_trial(arm, rates=[1.0], density=density, loss=loss)  # a density sends less
    answers = {name: http.get(f"/v1/jobs/{begun.job_id}/{name}").json() for name in ("snapshot", "comparison")}
    script = f"""
import "{SMALL_DOM}";
const {{ comparedTrials, parsed, unknownArms }} = await import("{DASHBOARD.as_uri()}/pages/compare/jobs.js");
const {{ armRows, resultTable }} = await import("{DASHBOARD.as_uri()}/pages/compare/tables.js");
const jobs = parsed(asked).map((each) => ({{ ...each, letter: "A", held: snapshot, isGone: false }}));
const rows = armRows(comparison, jobs);
const shown = resultTable(comparison, rows, "").querySelector("tbody").childNodes.map((row) => row.textContent);
console.log(JSON.stringify([comparedTrials(jobs).map((each) => each.arm), rows, shown, unknownArms(jobs)]));
process.exit();"""

    trials, rows, shown, missing = run(script, asked=asked.replace("A", begun.job_id), **answers)

    assert trials == [row["name"] for row in rows] == [f"A {name}" for name in names] and missing == unknown
    assert all("1 of 1" in line for name, line in zip(names, shown, strict=True) if name.startswith("sample"))
    assert {key for row in rows for key in row["report"]} == {*answers["comparison"]["arms"][0]["arm"]}
    assert not any(row["isPruned"] for row in rows)


def test_a_sample_that_ended_at_a_rung_is_compared_as_pruned():
    told = {"outcome": "completed", "validation_loss": 0.5, "validation_metrics": {}, "controller": "bo"}
    told["bill"] = {"bytes_sent": 1, "seconds_training": 1}
    trials = [told | {"arm": f"sample-{at}", "trial_id": f"t{at}"} for at in range(2)]
    ranking = [{"trial_id": "t0", "status": "pruned"}, {"trial_id": "t1", "status": "completed"}]
    held = {
        "job": {"spec": {"arms": [], "params": {"a": {}}}},
        "trials": trials,
        "stages": [],
        "report": {"sweep": {"ranking": ranking}, "trials": []},
    }
    script = f"""
import "{SMALL_DOM}";
const {{ armRows, resultTable }} = await import("{DASHBOARD.as_uri()}/pages/compare/tables.js");
const rows = armRows({{ arms: [], trials }}, jobs);
const shown = resultTable({{ confidence: 0.95, metric: "loss", target: null }}, rows, "");
console.log(JSON.stringify(shown.querySelector("tbody").childNodes.map((row) => row.textContent)));
process.exit();"""
    jobs = [{"id": "j", "letter": "A", "arms": ["sample-0", "sample-1"], "held": held, "isGone": False}]
    compared = [{"job_id": "j", "trial": each, "seconds_to_target": None} for each in trials]

    first, second = run(script, jobs=jobs, trials=compared)

    assert "pruned" in first and "1 of 1" in second


def test_a_form_and_its_text_hold_every_example_job_as_it_is(anonymous):
    document = anonymous.get("/openapi.json").json()
    specs = [JobSpec.model_validate(parse_yaml(path.read_bytes())) for path in EXAMPLES]
    script = f"""
import {{ reader }} from "{DASHBOARD.as_uri()}/pages/submit/schema.js";
import {{ yaml }} from "{DASHBOARD.as_uri()}/yaml.js";
const {{ trimmed }} = reader(schemas);
const held = specs.map((spec) => trimmed(spec, schemas.components.schemas.JobSpec));
console.log(JSON.stringify(held.map((value) => [value, yaml(value)])));"""
    given = {"components": {"schemas": document["components"]["schemas"]}}
    held = run(script, schemas=given, specs=[spec.model_dump(mode="json") for spec in specs])

    assert [JobSpec.model_validate(value) for value, _ in held] == specs
    assert [JobSpec.model_validate(parse_yaml(text.encode())) for _, text in held] == specs
    assert sum(len(text.splitlines()) for _, text in held) < 2000  # what is as by default is not written


FORM = f"""
import {{ settled }} from "{SMALL_DOM}";
let leave = null;
globalThis.addEventListener = (_, hear) => {{ leave = hear; }};
globalThis.fetch = async (path) => Response.json(answers[path] ?? {{ id: "job-2" }});
location.assign = () => {{}};
const {{ submitPage }} = await import("{DASHBOARD.as_uri()}/pages/submit/submit.js");
await submitPage(document.body, "new").refresh();
const field = (name) => document.body.querySelector(`[data-pointer=/${{name}}]`).querySelector("input");
const write = (value) => field("name").oninput({{ currentTarget: {{ value }} }});
const begin = document.body.querySelector("[class=begin]").querySelector("select");
const beginWith = async (value) => {{
  begin.value = value;
  begin.onchange({{ currentTarget: begin }});
  await settled();
}};
const isAsked = () => {{ let asked = false; leave({{ preventDefault() {{ asked = true; }} }}); return asked; }};
const shown = () => [begin.value, field("name").value, isAsked()];
"""


def of_form(anonymous, script):
    document = anonymous.get("/openapi.json").json()
    answers = {
        "/v1/me": {"role": "submitter", "may": ["create a job"]},
        "/openapi.json": {"components": document["components"]},
    }
    examples = document["components"]["schemas"]["JobSpec"]["examples"]
    return examples, run(f"{FORM}\n{script}\nprocess.exit();", answers=answers)


def test_an_example_takes_the_place_of_what_somebody_wrote_only_after_a_question(anonymous):
    examples, found = of_form(
        anonymous,
        """
await beginWith("1");
const found = [shown(), Boolean(document.body.querySelector("dialog"))];
await beginWith("");
found.push(shown());
write("mine");
await beginWith("0");
found.push([begin.value, isAsked()]);
document.body.querySelector("dialog").querySelector("form").onsubmit({ preventDefault() {} });
await settled();
found.push(shown());
console.log(JSON.stringify(found));""",
    )

    assert found[:2] == [["1", examples[1]["name"], False], False]
    assert found[2:] == [["", "", False], ["", True], ["0", examples[0]["name"], False]]


def test_who_leaves_a_form_is_asked_while_something_is_written_and_not_submitted(anonymous):
    _, found = of_form(
        anonymous,
        """
const found = [isAsked()];
write("mine");
found.push(isAsked());
await document.body.querySelector("[class=primary]").onclick();
console.log(JSON.stringify([...found, isAsked()]));""",
    )

    assert found == [False, True, False]


def test_form_and_text_are_two_buttons_of_which_one_is_pressed(anonymous):
    _, found = of_form(
        anonymous,
        """
const pressed = () => document.body.querySelector("[aria-pressed=true]");
const found = [pressed().textContent];
await document.body.querySelector("[aria-pressed=false]").onclick();
console.log(JSON.stringify([...found, pressed().textContent, pressed().getAttribute("role")]));""",
    )

    assert found == ["Form", "YAML", None]


def test_a_field_names_the_bound_that_binds():
    seconds = {"schema": {"minimum": 0.01, "exclusiveMinimum": 0, "maximum": 100}, "options": []}
    module = f'import {{ bounds }} from "{DASHBOARD.as_uri()}/pages/submit/schema.js";'

    assert run(f"{module}\nconsole.log(JSON.stringify(bounds(given)));", given=seconds) == "at least 0.01, at most 100"


@pytest.mark.parametrize(
    ("schema", "name", "value"),
    [
        ("JobSpec", "params", {"workload.width": {"choice": [64, 128]}, "optimizer.momentum": {"uniform": [0.5, 0.9]}}),
        ("OwnWorkload", "data", {"train": {"url": "s3://bucket/a.npy", "sha256": None}}),
        ("JobSpec", "labels", {"note": "a, b", "team": "computer vision", "formula": "x=y"}),
    ],
)
def test_a_field_reads_back_what_it_shows(anonymous, schema, name, value):
    schemas = anonymous.get("/openapi.json").json()["components"]["schemas"]
    script = f"""
import "{SMALL_DOM}";
const {{ fieldsFor }} = await import("{DASHBOARD.as_uri()}/pages/submit/fields.js");
const {{ reader }} = await import("{DASHBOARD.as_uri()}/pages/submit/schema.js");
let held = value;
const field = fieldsFor(reader(given))(name, schema, `/${{name}}`, () => held, (next) => {{ held = next; }}, false);
const input = field.querySelector("input");
input.oninput({{ currentTarget: {{ value: `${{input.value}} ` }} }});
console.log(JSON.stringify(held));"""

    given = {"components": {"schemas": schemas}}
    assert run(script, given=given, schema=schemas[schema]["properties"][name], name=name, value=value) == value


def test_the_form_of_a_clone_tells_the_service_its_source(anonymous, job):
    document = anonymous.get("/openapi.json").json()
    spec = job.model_dump(mode="json")
    answers = {
        "/v1/me": {"role": "submitter", "may": ["create a job"]},
        "/openapi.json": {"components": document["components"]},
        "/v1/jobs/job-1": {"id": "job-1", "name": job.name, "spec": spec},
        "/v1/jobs:validate": {"spec": spec, "num_trials": 1, "notes": [], "advice": []},
    }
    script = f"""
import "{SMALL_DOM}";
const asked = [];
globalThis.fetch = async (path) => {{ asked.push(path); return Response.json(answers[path] ?? {{ id: "job-2" }}); }};
location.assign = (to) => asked.push(to);
const {{ clonePage }} = await import("{DASHBOARD.as_uri()}/pages/submit/submit.js");
await clonePage(document.body, "job-1", new URLSearchParams()).refresh();
await document.body.querySelector("[class=primary]").onclick();
console.log(JSON.stringify(asked));
process.exit();"""

    assert run(script, answers=answers)[-2:] == ["/v1/jobs?source=job-1", "/?job=job-2"]


@pytest.mark.parametrize(("name", "project", "is_copied"), [("a", "p", True), ("b", "p", False), ("a", "q", False)])
def test_the_form_of_a_clone_has_the_webhook_of_an_own_job_alone(anonymous, job, name, project, is_copied):
    document = anonymous.get("/openapi.json").json()
    spec = job.model_dump(mode="json") | {"webhook": {"url": "https://chat.example/x", "on": ["failed"]}}
    answers = {
        "/v1/me": {"role": "submitter", "may": ["create a job"], "name": name, "project": project},
        "/openapi.json": {"components": document["components"]},
        "/v1/jobs/job-1": {"id": "job-1", "name": job.name, "owner": "a", "project": "p", "spec": spec},
    }
    script = f"""
import "{SMALL_DOM}";
let sent = null;
globalThis.fetch = async (path, {{ body }}) => {{
  if (path.startsWith("/v1/jobs?")) sent = JSON.parse(body);
  return Response.json(answers[path] ?? {{ id: "job-2" }});
}};
location.assign = () => {{}};
const {{ clonePage }} = await import("{DASHBOARD.as_uri()}/pages/submit/submit.js");
await clonePage(document.body, "job-1", new URLSearchParams()).refresh();
await document.body.querySelector("[class=primary]").onclick();
console.log(JSON.stringify(sent));
process.exit();"""

    sent = run(script, answers=answers)
    assert (sent["name"], sent.get("webhook")) == (job.name, spec["webhook"] if is_copied else None)


def test_a_form_for_a_clone_of_a_sample_has_what_the_sample_trains(anonymous, job):
    document = anonymous.get("/openapi.json").json()
    spec = job.model_dump(mode="json")
    answers = {
        "/v1/me": {"role": "submitter", "may": ["create a job"]},
        "/openapi.json": {"components": document["components"]},
        "/v1/jobs/job-1": {"id": "job-1", "name": job.name, "spec": spec},
        "/v1/jobs/job-1:clone?trial=sample-3&dry_run=true": {"spec": spec | {"clip": 0.25}, "job": None},
    }
    script = f"""
import "{SMALL_DOM}";
let sent = null;
globalThis.fetch = async (path, {{ body }}) => {{
  if (path.startsWith("/v1/jobs?")) sent = [path, JSON.parse(body).clip];
  return Response.json(answers[path] ?? {{ id: "job-2" }});
}};
location.assign = () => {{}};
const {{ clonePage }} = await import("{DASHBOARD.as_uri()}/pages/submit/submit.js");
await clonePage(document.body, "job-1", new URLSearchParams("trial=sample-3")).refresh();
await document.body.querySelector("[class=primary]").onclick();
console.log(JSON.stringify([sent, document.body.querySelector("h1").textContent]));
process.exit();"""

    assert run(script, answers=answers) == [["/v1/jobs?source=job-1", 0.25], f"Clone sample-3 of “{job.name}”"]


@pytest.mark.parametrize(
    ("status", "errors", "is_asked_again", "said"),
    [
        (403, [{"pointer": "/priority", "message": "`priority` is high"}], False, "/priority `priority` is high"),
        (403, [], False, "/ told"),
        (409, [], False, "/ told"),
        (429, [], True, "told Trying again."),
        (503, [], True, "told Trying again."),
    ],
)
def test_a_form_asks_again_only_where_the_same_job_may_pass_later(anonymous, job, status, errors, is_asked_again, said):
    document = anonymous.get("/openapi.json").json()
    answers = {
        "/v1/me": {"role": "submitter", "may": ["create a job"]},
        "/openapi.json": {"components": document["components"]},
        "/v1/jobs/job-1": {"id": "job-1", "name": job.name, "spec": job.model_dump(mode="json")},
    }
    script = f"""
import {{ settled }} from "{SMALL_DOM}";
globalThis.CSS = {{ escape: (text) => text }};
const checks = [], wait = setTimeout;
globalThis.setTimeout = (act) => wait(act, 0);
globalThis.fetch = async (path) => {{
  if (path !== "/v1/jobs:validate") return Response.json(answers[path]);
  checks.push(path);
  return Response.json({{ detail: "told", errors }}, {{ status }});
}};
const {{ clonePage }} = await import("{DASHBOARD.as_uri()}/pages/submit/submit.js");
await clonePage(document.body, "job-1", new URLSearchParams()).refresh();
for (let turn = 0; turn < 20; turn += 1) await settled();
console.log(JSON.stringify([checks.length, document.body.querySelector("[class=verdict panel]").textContent]));
process.exit();"""

    num_checks, shown = run(script, answers=answers, status=status, errors=errors)

    assert (num_checks > 1) is is_asked_again
    assert said in shown


@pytest.mark.parametrize(
    ("low", "high", "current", "shown"),
    [
        (0.001, 0.015625, 0.015625, "0.015625"),
        (0.015624, 0.1, 0.015624, "0.015624"),
        (0.001, 0.1, 0.0123456, "0.01235"),
        (1, 100_000, 12_345, "12345"),
    ],
)
def test_the_value_that_the_steer_dialog_begins_with_is_one_that_it_takes(low, high, current, shown):
    steerable = {"name": "density", "trials": ["a"], "low": low, "high": high, "names": [], "current": current}
    steering = {"version": 1, "steers": [], "steerable": [steerable], "notes": []}
    script = f"""
import {{ settled }} from "{SMALL_DOM}";
globalThis.fetch = async () => Response.json(steering);
const {{ controls }} = await import("{DASHBOARD.as_uri()}/pages/job/controls.js");
const {{ body, update }} = controls(() => {{}});
document.body.append(body);
update({{ id: "job-1", name: "one", state: "running", verbs: ["steer"] }}, {{ role: "admin" }});
body.querySelector("[class=steer]").onclick();
await settled();
console.log(JSON.stringify(document.body.querySelector("[name=density]").value));
process.exit();"""

    assert run(script, steering=steering) == shown


CONTROLS = f"""
import {{ settled }} from "{SMALL_DOM}";
const sent = [];
globalThis.fetch = async (path, {{ method, headers, body }}) => {{
  sent.push([method, path, headers["If-Match"], body && JSON.parse(body)]);
  return new Response(null, {{ status: 204 }});
}};
const {{ controls }} = await import("{DASHBOARD.as_uri()}/pages/job/controls.js");
const {{ body, update }} = controls(() => {{}});
document.body.append(body);
update(job, me);
const buttons = body.querySelector("[class=buttons]").childNodes.map((each) => each.textContent);
const press = async (verb) => {{ body.querySelector(`[class=${{verb}}]`).onclick(); await settled(); }};
const answer = async () => {{
  document.body.querySelector("dialog").querySelector("form").onsubmit({{ preventDefault() {{}} }});
  await settled();
}};
"""
OF_ANNA = {"id": "job-1", "name": "one", "owner": "anna", "version": 3, "verbs": [], "archived": False, "notes": ""}
OF_ANNA |= {"labels": {"team": "red", "env": "a b=c"}, "priority": "normal"}


def of_controls(script, **changes):
    me = {"name": "anna", "role": "submitter"}
    return run(f"{CONTROLS}\n{script}\nprocess.exit();", job=OF_ANNA | changes, me=me)


@pytest.mark.parametrize(
    ("changes", "buttons"),
    [
        ({"state": "running"}, ["clone", "edit", "compare"]),
        ({"state": "failed"}, ["clone", "edit", "archive", "delete", "compare"]),
        ({"state": "failed", "archived": True}, ["clone", "edit", "unarchive", "delete", "compare"]),
        ({"state": "failed", "owner": "bert"}, ["clone", "compare"]),
    ],
)
def test_a_jobs_own_page_edits_archives_and_deletes_what_is_ones_own(changes, buttons):
    assert of_controls("console.log(JSON.stringify(buttons));", **changes) == buttons


def test_what_each_button_does_is_on_the_page_for_whoever_cannot_point_at_it():
    found = of_controls(
        """
const told = body.querySelector("details");
const words = told.querySelector("dl").childNodes.map((each) => each.textContent);
update(job, { name: "bert", role: "viewer" });
console.log(JSON.stringify([words, told.hidden]));""",
        state="running",
        verbs=["stop", "cancel"],
    )

    stop, cancel = "End as if the budget were spent, and keep the result", "End without a result"
    assert found[0][:4] == ["stop", stop, "cancel", cancel] and found[1]


def test_archiving_and_deleting_act_on_the_job_as_it_was_shown_and_deleting_asks_first():
    found = of_controls(
        """
await press("archive");
await press("delete");
const before = sent.length;
await answer();
console.log(JSON.stringify([before, sent]));""",
        state="failed",
    )

    archived = ["PATCH", "/v1/jobs/job-1", '"3"', {"archived": True}]
    assert found == [1, [archived, ["DELETE", "/v1/jobs/job-1", '"3"', None]]]


@pytest.mark.parametrize(
    ("state", "priority", "more"),
    [("queued", "high", {"priority": "high"}), ("queued", "normal", {}), ("failed", None, {})],
)
def test_the_edit_dialog_changes_notes_labels_and_the_priority_of_what_is_not_over(state, priority, more):
    [[*asked, patch]] = of_controls(
        f"""
await press("edit");
const field = (name) => document.body.querySelector("dialog").querySelector(`[name=${{name}}]`);
const shown = field("labels").textContent;
field("labels").value = `${{shown.replace("team=red\\n", "")}}\\n use = x=y \\n`;
field("notes").value = "second try";
if ({json.dumps(priority)}) field("priority").value = {json.dumps(priority)};
await answer();
console.log(JSON.stringify(sent));""",
        state=state,
    )

    assert asked == ["PATCH", "/v1/jobs/job-1", '"3"']
    labels = {"team": None, "env": "a b=c", "use": "x=y"}
    assert patch == {"notes": "second try", "labels": labels} | more


#: A job that another client has changed behind the question, and the versions and notes with which an edit is sent.
EDITED = f"""
import {{ settled }} from "{SMALL_DOM}";
const sent = [], patches = [];
globalThis.fetch = async (path, {{ method, headers, body }}) => {{
  if (!method) return Response.json(now);
  patches.push(JSON.parse(body));
  const isFresh = headers["If-Match"] === `"${{now.version}}"`;
  sent.push([headers["If-Match"], JSON.parse(body).notes, isFresh]);
  return isFresh ? Response.json(now) : Response.json({{ detail: "stale" }}, {{ status: 412 }});
}};
const {{ controls }} = await import("{DASHBOARD.as_uri()}/pages/job/controls.js");
const {{ body, update }} = controls(() => {{}});
document.body.append(body);
update(job, {{ name: "anna", role: "submitter" }});
body.querySelector("[class=edit]").onclick();
const question = document.body.querySelector("dialog");
for (const [name, value] of [["notes", "mine"], ["labels", ""], ["priority", "normal"]]) {{
  question.querySelector(`[name=${{name}}]`).value = value;
}}
const press = async () => {{
  question.querySelector("form").onsubmit({{ preventDefault() {{}} }});
  for (let turn = 0; turn < 5; turn += 1) await settled();
}};
"""


def of_edited(script, **changes):
    now = OF_ANNA | {"state": "succeeded", "version": 4} | changes
    return run(f"{EDITED}\n{script}\nprocess.exit();", job=OF_ANNA | {"state": "running"}, now=now)


def test_an_edit_is_taken_though_the_jobs_state_has_changed_behind_it():
    sent = of_edited("await press();\nconsole.log(JSON.stringify(sent));")

    assert sent == [['"3"', "mine", False], ['"4"', "mine", True]]


def test_what_another_has_written_behind_an_edit_is_told_before_it_is_replaced():
    script = """
await press();
const told = question.textContent;
await press();
console.log(JSON.stringify([told, sent, patches.at(-1).labels]));"""

    told, sent, labels = of_edited(script, notes="theirs", labels={"team": "blue", "host": "b"})

    assert "its notes are now “theirs”; its labels are now “team=blue, host=b”" in told and "priority is" not in told
    assert sent == [['"3"', "mine", False], ['"4"', "mine", True]]
    assert labels == {"team": None, "host": None}  # the text of the question has none


def test_a_priority_that_another_has_given_behind_an_edit_is_replaced_by_that_of_the_question():
    script = """
await press();
const told = question.textContent;
await press();
console.log(JSON.stringify([told, patches.map(({ priority }) => priority ?? null)]));"""

    told, priorities = of_edited(script, state="running", priority="high")

    assert "its priority is now high" in told
    assert priorities == [None, "normal"]


@pytest.mark.parametrize(("steers", "is_taken"), [([], True), ([{"id": 1, "in_force": True}], False)])
def test_a_steer_is_taken_behind_a_change_of_the_jobs_state_unless_other_steers_hold_by_then(steers, is_taken):
    limits = {"low": 0.001, "high": 1.0, "names": [], "current": None}
    steerable = [{"name": "density", "trials": ["job-1.tuned.0"]} | limits]
    before = {"version": 3, "steers": [], "steerable": steerable, "notes": []}
    script = f"""
import {{ settled }} from "{SMALL_DOM}";
const sent = [], answers = [before, after];
globalThis.fetch = async (path, {{ method, headers }}) => {{
  if (!method) return Response.json(answers.shift());
  sent.push(headers["If-Match"]);
  if (headers["If-Match"] !== '"4"') return Response.json({{ detail: "stale" }}, {{ status: 412 }});
  return Response.json({{ id: "job-1", version: 5 }});
}};
const {{ controls }} = await import("{DASHBOARD.as_uri()}/pages/job/controls.js");
const {{ body, update }} = controls(() => {{}});
document.body.append(body);
update({{ id: "job-1", name: "one", state: "starting", version: 3, verbs: ["steer"] }}, {{ role: "admin" }});
body.querySelector("[class=steer]").onclick();
await settled();
const question = document.body.querySelector("dialog");
question.querySelector("[name=how density]").value = "pin";
question.querySelector("[name=density]").value = "0.5";
question.querySelector("form").onsubmit({{ preventDefault() {{}} }});
for (let turn = 0; turn < 5; turn += 1) await settled();
console.log(JSON.stringify([sent, question.textContent.includes("stale")]));
process.exit();"""

    sent, is_refused = run(script, before=before, after=before | {"version": 4, "steers": steers})

    assert sent == (['"3"', '"4"'] if is_taken else ['"3"']) and is_refused is not is_taken


SPEC = {"budget": {"seconds": 40, "steps": None, "bytes": None}, "seeds": [0], "params": {}, "lanes": {"after": "idle"}}
SWEPT = {"params": {"clip": {"choice": [1, 2]}}, "sweep": {"samples": 8}}


@pytest.mark.parametrize(
    ("spec", "fields", "written", "sent"),
    [
        ({}, ["seconds", "seeds"], {"seeds": " 2, 3 "}, {"seeds": [2, 3]}),
        ({}, ["seconds", "seeds"], {"seconds": "40"}, {"seconds": 40}),  # a stopped job gets its old budget again
        (SWEPT, ["seconds", "seeds", "samples"], {"samples": "12"}, {"samples": 12}),
        ({"lanes": {"after": "insurance"}}, ["seeds"], {"seeds": "1"}, {"seeds": [1]}),
    ],
)
def test_an_extension_sends_what_somebody_has_written_and_nothing_else(spec, fields, written, sent):
    found = of_controls(
        f"""
await press("extend");
const question = document.body.querySelector("dialog");
const isThere = (name) => question.querySelector(`[name=${{name}}]`);
const fields = ["seconds", "steps", "bytes", "seeds", "samples"].filter(isThere);
const values = fields.map((name) => isThere(name).value);
for (const [name, value] of Object.entries({json.dumps(written)})) isThere(name).value = value;
await answer();
console.log(JSON.stringify([fields, values, sent]));""",
        state="succeeded",
        verbs=["extend"],
        spec=SPEC | spec,
    )

    assert found == [fields, [""] * len(fields), [["POST", "/v1/jobs/job-1:extend", '"3"', sent]]]


@pytest.mark.parametrize("verb", ["retry", "stop"])
def test_several_jobs_are_retried_or_stopped_at_once(verb):
    script = f"""
import {{ settled }} from "{SMALL_DOM}";
const sent = [];
globalThis.fetch = async (path) => {{ sent.push(path); return Response.json({{}}); }};
const {{ bulk }} = await import("{DASHBOARD.as_uri()}/pages/jobs/bulk.js");
const {{ bar, update }} = bulk(() => jobs, () => {{}}, () => {{}});
update({{ name: "anna", role: "submitter", may: ["change this job"] }});
bar.querySelector(`[class=${{verb}}]`).onclick();
document.body.querySelector("form").onsubmit({{ preventDefault() {{}} }});
await settled();
console.log(JSON.stringify(sent));
process.exit();"""
    jobs = [OF_ANNA | {"id": f"job-{at}", "state": "failed", "verbs": [verb]} for at in (1, 2)]

    assert run(script, jobs=jobs, verb=verb) == [f"/v1/jobs/job-1:{verb}", f"/v1/jobs/job-2:{verb}"]


def test_the_priority_of_several_jobs_is_changed_until_they_are_over():
    script = f"""
import {{ settled }} from "{SMALL_DOM}";
const sent = [];
globalThis.fetch = async (path, {{ method, body }}) => {{
  sent.push([path, method, JSON.parse(body)]);
  return Response.json({{}});
}};
const {{ bulk }} = await import("{DASHBOARD.as_uri()}/pages/jobs/bulk.js");
const {{ bar, update }} = bulk(() => jobs, () => {{}}, () => {{}});
update({{ name: "ops", role: "operator", may: ["change this job"] }});
bar.childNodes.find((each) => each.textContent === "priority …").onclick();
const question = document.body.querySelector("form");
question.querySelector("select").value = "urgent";
question.onsubmit({{ preventDefault() {{}} }});
await settled();
console.log(JSON.stringify(sent));
process.exit();"""
    jobs = [OF_ANNA | {"id": f"job-{state}", "state": state} for state in ("queued", "running", "failed")]

    changed = [[f"/v1/jobs/job-{state}", "PATCH", {"priority": "urgent"}] for state in ("queued", "running")]
    assert run(script, jobs=jobs) == changed


def test_a_steer_of_which_a_part_was_refused_says_what_holds_and_goes_on_with_the_rest():
    pair = [("learning_rate", ["job-1.tuned.0"], 3), ("density", ["job-1.other.0"], 4)]
    limits = {"low": 0.001, "high": 1.0, "names": [], "current": None}
    steerable = [{"name": name, "trials": trials} | limits for name, trials, _ in pair]
    steering = {"version": 3, "steers": [], "steerable": steerable, "notes": []}
    script = f"""
import {{ heldService, refusal, settled }} from "{SMALL_DOM}";
const {{ controls }} = await import("{DASHBOARD.as_uri()}/pages/job/controls.js");
const asked = heldService();
const sent = [];
const held = globalThis.fetch;
globalThis.fetch = (path, request) => {{
  sent.push([request.headers?.["If-Match"], request.body]);
  return held(path, request);
}};
const answer = async (given) => {{ asked.shift()[1](given); await settled(); }};
const {{ body, update }} = controls(() => {{}});
document.body.append(body);
update({{ id: "job-1", name: "one", state: "running", version: 3, verbs: ["steer"] }}, {{ role: "admin" }});
body.querySelector("[class=steer]").onclick();
await answer(Response.json(steering));
sent.length = 0;
const question = document.body.querySelector("dialog");
const press = async () => {{ question.querySelector("form").onsubmit({{ preventDefault() {{}} }}); await settled(); }};
for (const {{ name }} of steering.steerable) {{
  question.querySelector(`[name=how ${{name}}]`).value = "pin";
  question.querySelector(`[name=${{name}}]`).value = "0.5";
}}
await press();
await answer(Response.json({{ id: "job-1", version: 4 }}));
await answer(refusal(422, "out of range"));
const told = question.textContent;
question.querySelector("[name=density]").value = "0.25";
await press();
console.log(JSON.stringify([told, sent.map(([match, said]) => [match, JSON.parse(said).pin])]));
process.exit();"""

    told, sent = run(script, steering=steering)

    assert "out of range" in told and "Taken already: learning rate of tuned.0." in told
    first, refused, again = [{"learning_rate": 0.5}, {"density": 0.5}, {"density": 0.25}]
    assert sent == [['"3"', first], ['"4"', refused], ['"4"', again]]


@pytest.mark.parametrize(
    ("places", "num_seen", "of", "after", "next_after", "told", "links"),
    [
        ([1, 2], 2, 2, None, None, "In the order in which room is given", []),
        ([], 0, 0, None, None, "Nobody waits.", []),
        ([], 0, 40, None, None, "None of yours waits; 40 jobs of other projects do.", []),
        ([7, 20, 31], 3, 40, None, None, "3 of yours; 40 wait in all", []),
        ([1, 2], 5, 5, None, 2, "The first 2 of 5 jobs that wait", ["&after=2"]),
        ([7, 20], 5, 40, 3, 20, "2 of yours, behind place 3; 40 wait in all", ["", "&after=20"]),
        ([], 5, 40, 39, None, "None of yours waits behind place 39.", [""]),
    ],
)
def test_the_cluster_page_counts_who_waits_and_what_of_it_is_listed(
    places, num_seen, of, after, next_after, told, links
):
    entries = [
        {"job_id": f"job-{place}", "owner": "ann", "project": "red", "priority": "normal"}
        | {"place": {"place": place, "sentence": ""}, "queued_at": "2026-01-01T00:00:00Z"}
        for place in places
    ]
    shares = {"weight": 1, "running": 0, "workers": 0, "share": 0, "recent": 0}
    queue = {"entries": entries, "of": of, "next_after": next_after}
    queue["projects"] = [shares | {"project": "red", "waiting": num_seen}]
    script = f"""
import "{SMALL_DOM}";
let asked = null;
globalThis.fetch = async (path) => {{
  if (path.startsWith("/v1/jobs")) return Response.json({{ jobs: [] }});
  if (path.startsWith("/v1/cluster")) return Response.json({{ reachable: false, reason: "", version: "1", nodes: [] }});
  asked = new URLSearchParams(path.split("?")[1]).get("after");
  return Response.json(queue);
}};
const {{ clusterPage }} = await import("{DASHBOARD.as_uri()}/pages/cluster.js");
await clusterPage(document.body, "now", new URLSearchParams(after ? {{ after }} : {{}})).refresh();
const [, shown] = document.body.childNodes[2].childNodes;
const links = document.body.querySelector("nav")?.childNodes.map((each) => each.getAttribute("href")) ?? [];
console.log(JSON.stringify([asked, shown.getAttribute("aria-label") ?? shown.textContent, links]));
process.exit();"""

    found = run(script, queue=queue, after=after)

    assert found == [str(after or 0), told, [f"/?cluster=now{each}" for each in links]]


#: A clock that a test moves on, and a service whose answer comes in parts.
SLOW = f"""
let now = 0;
const timers = new Map();
globalThis.setTimeout = (act, ms) => {{ timers.set(act, now + ms); return act; }};
globalThis.clearTimeout = (act) => timers.delete(act);
const turn = () => new Promise((resolve) => setImmediate(resolve));
const pass = async (seconds) => {{
  now += 1000 * seconds;
  for (const [act, at] of timers) if (at <= now) {{ timers.delete(act); act(); }}
  await turn();
}};
let parts = null;
globalThis.fetch = async (_, {{ signal }}) => new Response(new ReadableStream({{ start(given) {{
  parts = given;
  signal.addEventListener("abort", () => given.error(signal.reason));
}} }}));
const say = async (text) => {{ parts.enqueue(new TextEncoder().encode(text)); await turn(); }};
const api = await import("{DASHBOARD.as_uri()}/api.js");
"""


def test_an_answer_that_keeps_coming_is_read_to_its_end_however_long_it_takes():
    script = f"""{SLOW}
const found = api.jobs({{}});
await turn();
for (const part of ['{{"jobs"', ": [1, ", "2]", "}}"]) {{ await pass(9); await say(part); }}
await pass(9);
parts.close();
console.log(JSON.stringify([await found, timers.size]));"""

    assert run(script) == [{"jobs": [1, 2]}, 0]


def test_an_answer_that_stops_halfway_is_given_up_and_said_to_be_late():
    script = f"""{SLOW}
const found = api.jobs({{}}).catch((error) => error.message);
await turn();
await pass(9);
await say('{{"jobs"');
await pass(10);
console.log(JSON.stringify(await found));"""

    assert run(script) == "The service has not answered within 10 s."


def test_every_job_to_begin_with_is_one_that_the_service_takes(http):
    jobs = http.get("/openapi.json").json()["components"]["schemas"]["JobSpec"]["examples"]

    assert len({job["name"] for job in jobs}) == len(jobs) > 3
    assert [http.post("/v1/jobs:validate", json=job).status_code for job in jobs] == [200] * len(jobs)
