"""What the page's modules compute, without a browser: how figures are written, and how changes are merged."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from api.documents import parse_yaml
from api.http.routes.page import DASHBOARD
from service.job.spec import JobSpec
from tests.example_jobs import EXAMPLES

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
    "moment('2026-01-01T00:00:00Z').replaceAll('\\u202f', ' ')": "Jan 1, 2026, 12:00:00 AM UTC",
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


def test_a_form_and_its_text_hold_every_example_job_as_it_is(anonymous):
    document = anonymous.get("/openapi.json").json()
    specs = [JobSpec.model_validate(parse_yaml(path.read_bytes())) for path in EXAMPLES]
    script = f"""
import {{ reader, yaml }} from "{DASHBOARD.as_uri()}/pages/submit/schema.js";
const {{ trimmed }} = reader(schemas);
const held = specs.map((spec) => trimmed(spec, schemas.components.schemas.JobSpec));
console.log(JSON.stringify(held.map((value) => [value, yaml(value)])));"""
    given = {"components": {"schemas": document["components"]["schemas"]}}
    held = run(script, schemas=given, specs=[spec.model_dump(mode="json") for spec in specs])

    assert [JobSpec.model_validate(value) for value, _ in held] == specs
    assert [JobSpec.model_validate(parse_yaml(text.encode())) for _, text in held] == specs
    assert sum(len(text.splitlines()) for _, text in held) < 2000  # what is as by default is not written


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
await clonePage(document.body, "job-1").refresh();
await document.body.querySelector("[class=primary]").onclick();
console.log(JSON.stringify(asked));
process.exit();"""

    assert run(script, answers=answers)[-2:] == ["/v1/jobs?source=job-1", "/?job=job-2"]


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


def test_every_job_to_begin_with_is_one_that_the_service_takes(http):
    jobs = http.get("/openapi.json").json()["components"]["schemas"]["JobSpec"]["examples"]

    assert len({job["name"] for job in jobs}) == len(jobs) > 3
    assert [http.post("/v1/jobs:validate", json=job).status_code for job in jobs] == [200] * len(jobs)
