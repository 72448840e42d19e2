"""The comparison of several jobs in a real browser: its requests, its content, and its files."""

import pytest

from tests.api.conftest import Reporting

pytestmark = pytest.mark.long

READY = "window.__ready && document.getElementById('connection').className === 'live'"
RESULTS = "[...document.querySelectorAll('h2')].find((each) => each.textContent === 'Results').closest('.panel')"
ROWS = f"[...{RESULTS}.querySelectorAll('tbody tr')].map((row) => row.cells[0].textContent)"
CALLS = (
    "performance.getEntriesByType('resource').map((each) => new URL(each.name).pathname)"
    ".filter((path) => path.startsWith('/v1/jobs'))"
)


@pytest.fixture
def pair(store, job):
    """A job that is over, and one that trains."""
    done, begun = (Reporting(store, job.model_copy(update={"name": name})) for name in ("done", "begun"))
    done.run_to_the_end()
    begun.start("tuned")
    begun.stage("tuned", 0, rate=1.0, density=0.01)
    return done, begun


def compare(tab, client, query, *, width=1200):
    tab.show(width=width)
    tab.open(client.sign_in_link())
    tab.wait_for(READY)
    tab.open(f"{client.url}/?compare={query}")
    tab.wait_for(f"{READY} && document.querySelector('.panels').hidden === false")


def test_jobs_and_arms_are_compared_in_a_request_each_and_stay_live(browser, client, pair):
    done, begun = pair
    compare(browser, client, f"{done.job_id},{begun.job_id}:tuned")
    calls = browser.value_of(CALLS)

    assert browser.value_of(ROWS) == ["A tuned", "A dense", "B tuned"]
    looks = max(calls.count(f"/v1/jobs/{each.job_id}/snapshot") for each in pair)
    assert looks <= 2  # once as it opens, once as the stream does: what came between is not missed
    assert set(calls) == {*(f"/v1/jobs/{each.job_id}/snapshot" for each in pair), f"/v1/jobs/{done.job_id}/comparison"}
    begun.stage("tuned", 1, rate=0.5, density=0.01)
    begun.finish_trial("tuned", rates=[1.0, 0.5], density=0.01, loss=0.3)
    browser.wait_for(f"{RESULTS}.querySelectorAll('tbody tr')[2].textContent.includes('1 of 1')")
    assert browser.complaints == []


def test_what_one_chose_is_in_the_address_and_is_there_again(browser, client, pair):
    done, begun = pair
    compare(browser, client, f"{done.job_id},{begun.job_id}&axis=steps")
    assert browser.value_of("document.getElementById('axis').value") == "steps"
    for name, value in (("axis", "bytes"), ("baseline", "A dense")):
        chosen = f"Object.assign(document.getElementById('{name}'), {{value: '{value}'}})"
        browser.value_of(f"{chosen}.dispatchEvent(new Event('change'))")
    browser.wait_for(f"{RESULTS}.textContent.includes('A dense (baseline)')")
    address = browser.value_of("location.search")
    browser.open(client.url + "/" + address)
    browser.wait_for(f"{READY} && {RESULTS}.textContent.includes('A dense (baseline)')")

    assert "axis=bytes" in address and "baseline=A+dense" in address
    assert browser.value_of("document.getElementById('axis').value") == "bytes"
    first = browser.value_of(f"[...{RESULTS}.querySelectorAll('tbody tr')[0].cells].map((each) => each.textContent)")
    assert {"0.3100", "−0.11", "900 kB", "0.03×", "0.5×"} <= set(first)


def test_what_is_not_there_is_named_and_the_rest_is_compared(browser, client, pair, store):
    done, begun = pair
    begun.finish("failed", "for good")
    store.cancel(begun.job_id)
    compare(browser, client, f"{done.job_id}:tuned,{done.job_id}:none,job-nope,{begun.job_id}")
    for said in ("There is no job job-nope", "There is no arm A none"):
        browser.wait_for(f"document.getElementById('page').innerText.includes('{said}')")
    assert browser.value_of(ROWS) == ["A tuned", "C tuned", "C dense"]

    client.delete(begun.job_id)
    browser.wait_for(f"document.getElementById('page').innerText.includes('There is no job {begun.job_id}')")
    browser.wait_for(f"{ROWS}.length === 1")


def test_every_chart_is_saved_as_a_picture_and_its_rows_as_exact_numbers(browser, client, pair):
    done, begun = pair
    compare(browser, client, f"{done.job_id},{begun.job_id}", width=360)
    assert browser.value_of("document.documentElement.scrollWidth <= innerWidth")
    curves = "[...document.querySelectorAll('.panel')].find((each) => each.querySelector('.chart'))"
    browser.wait_for(f"{curves}.querySelector('.chart')._fullLayout")

    contents = {}
    for kind in ("PNG", "SVG", "CSV"):
        browser.value_of(f"{curves}.querySelector('.menu').open = true")
        button = browser.page.locator(".panel", has_text="Loss of all jobs").get_by_role("button", name=kind)
        with browser.page.expect_download() as started:
            button.first.click()
        assert started.value.suggested_filename == f"loss-of-all-jobs.{kind.lower()}"
        contents[kind] = started.value.path().read_bytes()

    assert contents["PNG"].startswith(b"\x89PNG")
    assert contents["SVG"].startswith(b"<svg") and b"A tuned" in contents["SVG"]
    header, first, *_ = contents["CSV"].decode().splitlines()
    assert header == "label,step,seconds,bytes,value"
    assert first.startswith("A tuned,0,0,0,2.")
