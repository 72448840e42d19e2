"""The form's panel "What would each method take?": its requests, and how "use" changes the job."""

import pytest

from service.control.listing import JobFilter
from service.job.spec import JobSpec
from service.prediction.predict import DENSE, OWN, PredictionRequest
from tests.api.dashboard.test_page_job_modules import call
from tests.api.dashboard.test_page_jobs import click, show, write
from tests.api.dashboard.test_page_modules import pytestmark as needs_node

MODULE = "pages/submit/prediction.js"
JOB = {
    "workload": {"kind": "fashion-conv"},
    "exchange": {"kind": "topk", "density": 0.02},
    "budget": {"steps": 500},
    "link": {"mode": "emulate", "mbps": 30, "latency_ms": 7},
    "workers": {"count": 4},
}
PREDICT = "[...document.querySelectorAll('#prediction button')].find((each) => each.textContent === 'Predict')"
ROWS = "[...document.querySelectorAll('#prediction tbody tr')]"


def _full(**changes):
    return JobSpec.model_validate(JOB | changes).model_dump(mode="json")


def _question(job, given, recorded_ms=None):
    return call(MODULE, "it.question(job, given, recorded ?? undefined)", job=job, given=given, recorded=recorded_ms)


@needs_node
def test_what_is_not_written_follows_from_the_job_and_from_its_bill():
    asked = PredictionRequest.model_validate(_question(_full(), {"hosts": 2}, 6.5))

    assert (asked.mbps, asked.latency_ms, asked.workers, asked.hosts, asked.compute_ms) == (30, 7, 4, 2, 6.5)


@needs_node
def test_what_is_written_holds_and_a_measured_link_is_not_guessed():
    job = _full(link={"mode": "measure"}, workers={"count": 1})

    assert _question(job, {"compute_ms": 3}, 6.5) == {"job": job, "compute_ms": 3, "workers": 2}


@needs_node
def test_a_step_of_a_recorded_job_is_the_mean_over_all_timed_ones():
    bills = [
        {"steps_timed": steps, "seconds_compute": seconds} for steps, seconds in ((100, 1.0), (300, 2.0), (0, 0.0))
    ]
    trials = [{"bill": bill} for bill in bills]

    assert call(MODULE, "it.computeMs(trials)", trials=trials) == pytest.approx(7.5)
    sample = {"sample": {"values": {"accumulate": 8}}, "bill": {"steps_timed": 100, "seconds_compute": 9.0}}
    assert call(MODULE, "it.computeMs(trials)", trials=[*trials, sample]) == pytest.approx(7.5)
    assert call(MODULE, "it.computeMs(trials) ?? null", trials=trials[2:]) is None


@needs_node
@pytest.mark.parametrize(
    ("below", "above", "said"),
    [
        (None, None, "at any rate"),
        (80, None, "below 80 Mbit/s"),
        (None, 20, "above 20 Mbit/s"),
        (80, 20, "from 20 to 80 Mbit/s"),
        (0, None, "at no rate"),
    ],
)
def test_the_rates_at_which_a_method_pays_are_named_by_their_ends(below, above, said):
    row = {"method": "topk 1 %", "pays_below_mbps": below, "pays_above_mbps": above}

    assert call(MODULE, "it.breakEven(row)", row=row) == said


@needs_node
@pytest.mark.parametrize(("num_missed", "said"), [(0, "10 s to 40 s"), (1, "10 s or more")])
def test_the_time_to_a_loss_that_a_recorded_seed_missed_has_no_end(num_missed, said):
    row = {"loss_s": {"expected": 20.0, "low": 10.0, "high": 40.0}, "num_missed": num_missed}

    assert call(MODULE, "it.spanToLoss(row)", row=row) == said


@needs_node
def test_every_method_that_is_used_makes_a_job_that_the_service_takes(http):
    job = _full(optimizer={"kind": "sgd"}, link={"mode": "measure"})
    found = http.post("/v1/predictions", json={"job": job, "compute_ms": 20, "mbps": 30, "workers": 4}).json()[
        "methods"
    ]
    parts = [each["job"] for each in found if each["method"] != OWN]

    made = call(MODULE, "parts.map((each) => it.withMethod(job, each))", job=job, parts=parts)

    assert len(made) > 20
    for part, used in zip(parts, made, strict=True):
        spec = JobSpec.model_validate(used)
        assert spec.exchange.kind == part["exchange"]["kind"]
        assert spec.sync.kind == part.get("sync", {"kind": "every_step"})["kind"]
        assert spec.workers.count == 4


@pytest.mark.long
def test_a_method_of_the_table_is_used_in_the_form_once_the_question_is_mended(browser, client, store):
    show(browser, client, "?submit=new")
    write(browser, {"/workload/kind": "fashion-conv", "/budget/steps": "500", "/optimizer/kind": "sgd"})
    write(browser, {"/exchange/kind": "signsgd", "/compute_ms": "20", "/mbps": "50", "/hosts": "3"})
    browser.value_of("document.getElementById('prediction').open = true")
    click(browser, "Predict", "#prediction")
    refused = "document.querySelector('#prediction [data-pointer=\"/hosts\"] .problem').textContent"
    assert "must divide" in browser.wait_for(refused)

    write(browser, {"/hosts": ""})
    click(browser, "Predict", "#prediction")
    browser.wait_for(f"{ROWS}.length > 20 && !{PREDICT}.disabled")
    methods = browser.value_of(f"{ROWS}.map((row) => row.cells[0].textContent)")
    assert {OWN, DENSE} <= set(methods)
    assert browser.value_of(f"{refused}") == ""
    own = f"{ROWS}.find((row) => row.cells[0].textContent === '{OWN}')"
    assert browser.value_of(f"{own}.querySelector('strong') !== null && {own}.querySelector('button') === null")

    browser.value_of("document.querySelector('[aria-label=\"use local_sgd 8\"]').click()")
    browser.wait_for("document.querySelector('#prediction [role=status]').textContent.includes('is in the job')")
    browser.wait_for("document.querySelector('.verdict').textContent.includes('takes this job')")
    click(browser, "Submit the job", ".side")
    browser.wait_for("location.search.startsWith('?job=')")
    (made,) = store.jobs(JobFilter()).jobs
    spec = store.job(made.id).spec
    assert (spec.exchange.kind, spec.sync.kind, spec.sync.period) == ("none", "local_sgd", 8)


@pytest.mark.long
def test_a_clone_of_a_recorded_job_knows_what_a_step_computes(browser, client, reporting):
    reporting.start("tuned")
    reporting.finish_trial("tuned", rates=[1.0], density=0.01, loss=0.3, timed=(400, 3.0))
    show(browser, client, f"?clone={reporting.job_id}")

    hint = "document.querySelector('#prediction [data-pointer=\"/compute_ms\"] .hint').textContent"
    browser.wait_for(f"{hint}.includes('default: 7.5, as in')")
    write(browser, {"/mbps": "50"})
    click(browser, "Predict", "#prediction")
    browser.wait_for(f"{ROWS}.length > 5")
