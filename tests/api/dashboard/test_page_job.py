"""A job's page in a real browser: the reader's choices, zooming, and live updates."""

import json
import math
from urllib.parse import parse_qs, urlsplit

import pytest

from service.wire.records import MetricPoints, ProbeDone, StageDecided
from tests.api.dashboard.test_page_live import chart, choose, show
from tests.support.decisions import decision

pytestmark = pytest.mark.long

NAME = "digits over a slow link"
ASKED = "performance.getEntriesByType('resource').map((each) => each.name).filter((name) => name.includes('/v1/'))"
LOSS, TIMELINE = chart("Loss"), chart("Timeline")


def part(name):
    """Return the expression for a part of the page, which it scrolls to."""
    return f"(() => {{ const it = document.getElementById('{name}'); it.scrollIntoView(); return it; }})()"


def long_run(reporting, num_steps):
    trial_id = reporting.trial("tuned")
    reporting.start("tuned")
    for name, stride in (("loss", 1), ("bytes_sent", 500)):
        for start in range(0, num_steps, 5000):
            steps = tuple(range(start, min(start + 5000, num_steps), stride))
            values = tuple(1000.0 * step if stride > 1 else 2 + math.sin(step) for step in steps)
            seconds = tuple(0.01 * step for step in steps)
            reporting.post(MetricPoints(trial_id=trial_id, name=name, steps=steps, seconds=seconds, values=values))


def test_the_axis_is_the_readers_choice_and_a_link_shows_another_person_the_same(browser, client, reporting):
    long_run(reporting, 1000)
    show(browser, client, reporting.job_id, NAME)
    last = f"{LOSS}._fullData.find((each) => each.mode === 'lines').x.at(-1)"
    browser.wait_for(f"Math.abs({last} - 9.99) < 1e-6")

    choose(browser, "along", "steps")
    browser.wait_for(f"{last} === 999")
    choose(browser, "along", "bytes")
    browser.wait_for(f"{last} === 500")  # kB
    assert parse_qs(urlsplit(browser.value_of("location.href")).query)["x"] == ["bytes"]

    browser.open(f"{client.url}/?job={reporting.job_id}&x=steps")
    browser.wait_for(f"{last} === 999")
    assert browser.complaints == []


def test_a_link_to_a_part_of_the_page_leads_there_and_draws_nothing_anew(browser, client, reporting):
    reporting.run_to_the_end()
    show(browser, client, reporting.job_id, NAME)
    choose(browser, "along", "steps")
    browser.value_of("void (window.bill = document.getElementById('bill'))")

    browser.value_of("document.querySelector('nav.parts a[href=\"#bill\"]').click()")
    browser.wait_for("location.hash === '#bill' && bill.getBoundingClientRect().top < innerHeight")

    assert browser.value_of("bill === document.getElementById('bill')")
    assert parse_qs(urlsplit(browser.value_of("location.href")).query)["x"] == ["steps"]
    assert browser.complaints == []


def test_who_zooms_gets_all_points_of_what_is_in_sight(browser, client, reporting):
    long_run(reporting, 12_000)
    show(browser, client, reporting.job_id, NAME)
    within = f"{LOSS}._fullData.find((each) => each.mode === 'lines').x.filter((x) => x >= 50 && x <= 60).length"
    coarse = browser.wait_for(within)

    browser.value_of(f"void Plotly.relayout({LOSS}, {{'xaxis.range[0]': 50, 'xaxis.range[1]': 60}})")
    browser.wait_for(f"{within} > 999")

    asked = [parse_qs(urlsplit(url).query) for url in browser.value_of(ASKED) if "/metrics/loss" in url]
    assert [(each["first_step"], each["last_step"]) for each in asked] == [(["5000"], ["6000"])]
    assert coarse < 500


def test_the_timeline_has_as_many_blocks_as_there_were_probes_and_a_row_for_each(browser, client, reporting):
    reporting.start("tuned")
    ends = [0.4, 0.8, 1.2]
    reporting.post(
        *(
            ProbeDone(trial_id=reporting.trial("tuned"), stage=0, probe_id=f"0.{at}", learning_rate=1.0, level=0.01,
                      origin="wide", num_steps=20, seconds=0.4, ended_s=end, bytes_sent=0, density=0.01, loss=0.9)
            for at, end in enumerate(ends)
        )
    )  # fmt: skip
    reporting.stage("tuned", 1, rate=1.0, density=None)
    reporting.post(
        StageDecided(
            trial_id=reporting.trial("tuned"), stage=0, first_step=0, learning_rate=1.0, level=0.01, reason="the best",
            switched=True, probability=None, forecast=None, forecast_std=None, search_seconds=1.2, search_steps=60,
            search_bytes=0, decision=decision(),
        )
    )  # fmt: skip
    show(browser, client, reporting.job_id, NAME)

    probes = f"{TIMELINE}._fullData.filter((each) => each.name === 'probe')"
    assert browser.wait_for(f"{probes}.flatMap((each) => each.x).filter((x) => x === null).length") == len(ends)
    browser.value_of(f"{TIMELINE}.parentNode.querySelector('button').click()")
    rows = f"[...{TIMELINE}.parentNode.querySelectorAll('tbody tr')]"
    assert browser.wait_for(f"{rows}.filter((each) => each.innerText.includes('probe')).length") == len(ends)


def test_a_log_is_followed_from_where_it_was_read_to_and_its_last_error_comes_first(browser, client, reporting):
    storage = reporting.store.storage
    place = storage.log_url(reporting.job_id, 1)
    reporting.store.attempts.note_log(reporting.job_id, 1)
    storage.write(place, b"one\ntwo\n")
    reporting.start("tuned")
    show(browser, client, reporting.job_id, NAME)
    browser.wait_for(f"{part('log')}.innerText.includes('two')")

    frame = '  File "/home/me/model.py", line 3, in loss\n    1 / 0\n'
    trace = f"Traceback (most recent call last):\n{frame}ZeroDivisionError: no\n"
    storage.write(place, b"one\ntwo\nthree\n" + trace.encode())
    log = f"{part('log')}.innerText"
    text = browser.wait_for(f"{log}.includes('/home/me/model.py:3') && {log}")

    assert text.index("In your code") < text.index("three")
    first, *others = [parse_qs(urlsplit(url).query) for url in browser.value_of(ASKED) if "/logs" in url]
    assert "tail" in first and others[0]["offset"] == ["8"]
    browser.value_of("""(() => {
      const search = document.querySelector('#log input[type=search]');
      search.value = 'TWO';
      search.dispatchEvent(new Event('input'));
    })()""")
    assert browser.value_of("document.querySelector('#log .log').innerText") == "two"


def test_a_clone_shows_what_differs_from_the_job_that_it_was_made_of(browser, client, reporting, http):
    made = http.post(f"/v1/jobs/{reporting.job_id}:clone", content=json.dumps({"budget": {"seconds": 90}}),
                     headers={"Content-Type": "application/json"})  # fmt: skip
    job_id = made.json()["job"]["id"]
    show(browser, client, job_id, NAME)

    told = f"{part('specification')}.innerText"
    text = browser.wait_for(f"{told}.includes('/budget/seconds') && {told}")
    assert "40" in text and "90" in text and "kind: digits-mlp" in text
    assert browser.value_of(f"document.querySelector('a[href=\"/?job={reporting.job_id}\"]') !== null")


@pytest.mark.parametrize("way", ["button", "keys"])
def test_what_is_printed_has_every_chart_painted_in_light_colours_and_no_table_cut(browser, client, reporting, way):
    reporting.run_to_the_end()
    show(browser, client, reporting.job_id, NAME, dark=True)
    browser.run("window.prints = 0; window.print = () => { prints += 1; }")
    charts = "[...document.querySelectorAll('.chart')].filter((each) => each.checkVisibility())"
    painted = f"{charts}.filter((each) => each.querySelector('svg')).length"
    first = browser.wait_for(painted)
    assert first < browser.value_of(f"{charts}.length")

    if way == "button":
        browser.value_of("document.getElementById('print').click()")
        browser.wait_for("prints === 1")
        assert browser.value_of(f"{painted} === {charts}.length")
    browser.page.emulate_media(media="print", color_scheme="dark")
    browser.value_of("void dispatchEvent(new Event('beforeprint'))")

    assert browser.value_of(painted) > first
    dark = "getComputedStyle(document.body).color"
    assert browser.value_of(f"{charts}.map((each) => each._fullLayout?.font.color).filter(Boolean)[0] === {dark}")
    assert browser.value_of(dark) == "rgb(27, 31, 38)"
    assert browser.value_of("document.querySelector('header').checkVisibility()") is False
    cut = "[...document.querySelectorAll('.scroll')].filter((each) => each.scrollHeight > each.clientHeight + 1)"
    assert browser.value_of(f"{cut}.map((each) => each.ariaLabel)") == []

    browser.page.emulate_media(media="screen", color_scheme="dark")
    browser.value_of("void dispatchEvent(new Event('afterprint'))")
    browser.wait_for(f"{LOSS}._fullLayout.font.color === {dark} && {dark} !== 'rgb(27, 31, 38)'")
    assert [each for each in browser.complaints if "/logs?" not in each] == []  # there is no log
