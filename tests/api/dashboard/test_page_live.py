"""The live page in a real browser: its requests, what stays during updates, and its look after failures."""

from contextlib import closing
from urllib.parse import urlsplit

import pytest

from api.client import Client
from api.http.app import create_app
from service.control.access.rules import LOCAL
from service.wire.access import NewKey
from service.wire.records import AttemptFinished, ProbeDone, ScheduleEntry, StageDecided, TrialFinished
from tests.api.conftest import Reporting, serving
from tests.support.decisions import decision

pytestmark = pytest.mark.long

CALLS = (
    "performance.getEntriesByType('resource').map((each) => new URL(each.name).pathname)"
    ".filter((path) => path.startsWith('/v1/'))"
)
LIVE = "document.getElementById('connection').className === 'live'"
TITLE = "document.querySelector('h1').textContent"
BUTTONS = "[...document.querySelectorAll('.controls button')].map((each) => each.textContent)"
#: What is long, or costs a request, waits until somebody looks.
LOOK = "document.getElementById('decisions').scrollIntoView()"
STAGES = "(() => { const it = document.getElementById('stages'); it.scrollIntoView(); return it; })()"


def show(tab, client, job_id, title, *, width=1200, dark=False):
    """Open a job's page, and wait until it is drawn and hears of changes."""
    tab.show(width=width, dark=dark)
    tab.open(client.sign_in_link(job_id))
    tab.wait_for(f"window.__ready && {LIVE} && {TITLE} === '{title}'")


def choose(tab, label, value):
    """Choose as a person does, by the label."""
    tab.value_of(f"""(() => {{
      const labels = [...document.querySelectorAll(".tools label")];
      const found = labels.find((each) => each.textContent.startsWith('{label}'));
      const input = found.querySelector('select, input');
      input.value = '{value}';
      input.dispatchEvent(new Event('change'));
    }})()""")


def chart(title):
    """Return the expression for the last drawn chart with this title, which it scrolls to."""
    return f"""(() => {{
      const isIt = (each) => each.querySelector('h2')?.textContent === '{title}';
      const found = [...document.querySelectorAll('.panel')].findLast(isIt).querySelector('.chart');
      found.scrollIntoView();
      return found._fullLayout && found;
    }})()"""


SCHEDULE = chart("Learned schedule")
GAIN = chart("Expected gain: further fall of the log loss than in the first probe")


def search(reporting, rates, *, chosen, rewards, options=None, promoted=None):
    """Have the first stage of a trial decided, after a probe for each rate."""
    trial_id = reporting.trial("tuned")
    reporting.start("tuned")
    values = [{} if options is None else {"option": option} for option in options or rates]
    common = {"trial_id": trial_id, "stage": 0, "level": None, "forecast": 0.4, "forecast_std": 0.02}
    probes = [
        ProbeDone(probe_id=f"0.{at}", learning_rate=rate, values=each, origin="wide", num_steps=40, seconds=0.4,
                  bytes_sent=40_000, density=None, loss=0.9, **common)
        for at, (rate, each) in enumerate(zip(rates, values, strict=True))
    ]  # fmt: skip
    grounds = decision(learning_rate=chosen, rewards=rewards).model_copy(update={"promoted": promoted})
    decided = StageDecided(
        first_step=0, learning_rate=chosen, values=values[-1], reason="the best", switched=True, probability=None,
        search_seconds=0.8, search_steps=40, search_bytes=80_000, decision=grounds, **common,
    )  # fmt: skip
    reporting.post(*probes, decided)


def test_a_running_job_is_followed_in_few_requests_and_no_complaint(browser, client, reporting):
    reporting.start("tuned")
    show(browser, client, reporting.job_id, "digits over a slow link")
    for stage in range(3):
        reporting.stage("tuned", stage, rate=1.0, density=0.01)
        browser.wait_for(f"{STAGES}.querySelectorAll('tr.noted').length === {stage + 1}")
        browser.wait_for(f"{LOOK}, {CALLS}.filter((path) => path.endsWith('/stages')).length === {stage + 1}")

    calls = browser.value_of(CALLS)
    job = f"/v1/jobs/{reporting.job_id}"
    seldom = {f"{job}/{what}" for what in ("events", "metrics", "metrics/bytes_sent", "attempts", "artifacts", "logs")}
    assert {call for call in calls if call.startswith("/v1/jobs")} <= {f"{job}/snapshot", f"{job}/stages", *seldom}
    assert calls.count(f"{job}/stages") == 3  # posteriors, of each decision once
    assert browser.complaints == []


def test_a_change_keeps_the_focus_the_selection_and_the_place_in_a_table(browser, client, reporting):
    reporting.start("tuned")
    reporting.stage("tuned", 0, rate=1.0, density=0.01)
    show(browser, client, reporting.job_id, "digits over a slow link", width=360)
    browser.wait_for(f"{STAGES}.querySelector('tr.noted') !== null")
    browser.value_of(f"""(() => {{
      const part = {STAGES};
      window.kept = [part.querySelector('.scroll'), part.querySelector('tr.noted td'),
        document.querySelector('.files button'), document.querySelector('.card')];
      kept[0].scrollLeft = 60;
      getSelection().selectAllChildren(kept[1]);
      kept[2].focus();
    }})()""")

    reporting.stage("tuned", 1, rate=0.5, density=0.01)
    browser.wait_for(f"{STAGES}.querySelectorAll('tr.noted').length === 2")

    assert browser.value_of("kept.every((each) => each.isConnected)")
    assert browser.value_of("[kept[0].scrollLeft, String(getSelection()).trim()]") == [60, "tuned"]
    assert browser.value_of("document.activeElement === kept[2]")


def test_a_page_says_that_it_reconnects_and_then_shows_what_it_missed(browser, store, key, reporting):
    reporting.start("tuned")
    with serving(create_app(store)) as url, Client(url, key) as client:
        show(browser, client, reporting.job_id, "digits over a slow link")
    browser.wait_for("document.getElementById('connection').textContent === 'reconnecting …'")
    reporting.stage("tuned", 0, rate=1.0, density=0.01)
    reporting.finish()

    with serving(create_app(store), port=urlsplit(url).port):
        browser.wait_for(f"{LIVE} && document.querySelector('.badge').textContent === 'succeeded'")
        assert browser.wait_for(f"{STAGES}.querySelectorAll('tr.noted').length") == 1


def test_eight_tabs_are_live_over_one_stream(browser, client, reporting):
    tabs = [browser, *(browser.beside() for _ in range(7))]
    for tab in tabs:
        tab.open(client.sign_in_link(reporting.job_id))
        tab.wait_for(f"window.__ready && {LIVE}")
    reporting.start("tuned")

    for tab in tabs:
        tab.value_of("Object.defineProperty(document, 'hidden', { value: false })")  # each in a window of its own
        tab.value_of("document.dispatchEvent(new Event('visibilitychange'))")
        tab.wait_for("document.querySelector('.badge').textContent === 'running'")
        assert "/v1/events" not in tab.value_of(CALLS)
    for tab in tabs[1:]:
        tab.close()


def test_a_browser_without_shared_workers_is_live_too(browser, client, reporting):
    with closing(browser.beside()) as tab:
        tab.before_pages("delete window.SharedWorker")
        show(tab, client, reporting.job_id, "digits over a slow link")
        reporting.start("tuned")

        tab.wait_for("document.querySelector('.badge').textContent === 'running'")
        assert not tab.value_of("'SharedWorker' in window")


def test_signing_in_in_one_tab_opens_the_page_in_another(browser, client, reporting):
    with closing(browser.beside()) as other:
        browser.open(client.sign_in_link(reporting.job_id))
        browser.wait_for(f"window.__ready && {LIVE}")
        other.open(f"{client.url}/")
        other.wait_for(f"window.__ready && {LIVE}")
        browser.value_of("document.getElementById('sign-out').click()")
        browser.wait_for("document.getElementById('key') !== null")
        other.wait_for("document.getElementById('key') !== null")

        browser.open(client.sign_in_link())
        other.wait_for(f"{TITLE} === 'Jobs'")


def test_a_job_that_is_not_there_is_told_so_once(browser, client, job):
    show(browser, client, "job-nope", "No such job")

    assert "There is no job job-nope" in browser.value_of("document.getElementById('page').innerText")
    client.submit(job)
    num_looks = browser.value_of(CALLS).count("/v1/jobs/job-nope/snapshot")
    assert num_looks <= 2  # once more where the stream began later: somebody else may have signed in


def test_labels_and_notes_are_shown_as_they_change_and_a_deleted_job_is_told_of(browser, client, store, job):
    job_id = store.add_job(job)[0].id
    store.cancel(job_id)
    show(browser, client, job_id, job.name)

    client.edit(job_id, labels={"team": "vision"}, notes="<b>for</b> the paper", archived=True)
    browser.wait_for("document.body.innerText.includes('labels team=vision')")
    text = browser.value_of("document.getElementById('page').innerText")
    assert "notes <b>for</b> the paper" in text and "archived yes" in text

    client.delete(job_id)
    browser.wait_for(f"document.getElementById('page').innerText.includes('There is no job {job_id}')")


def test_nothing_of_a_failed_job_runs(browser, client, reporting):
    search(reporting, [1.0], chosen=1.0, rewards=[None])
    reporting.finish("failed", "a worker died")
    while client.job(reporting.job_id).state == "queued":  # it is tried again
        reporting = Reporting(reporting.store, reporting.spec, reporting.job_id)
        search(reporting, [1.0], chosen=1.0, rewards=[None])
        reporting.finish("failed", "a worker died")
    show(browser, client, reporting.job_id, "digits over a slow link")

    text = browser.wait_for(f"{STAGES}.querySelector('tr.noted') && {STAGES}.innerText")
    assert "not finished" in text and "runs" not in text
    assert "runs" not in browser.value_of("document.querySelector('.card').innerText")


@pytest.mark.parametrize("role", ["viewer", "submitter", "operator"])
def test_there_are_the_buttons_that_the_role_may_use(browser, live_url, store, job, role):
    job_id = store.add_job(job)[0].id
    key = store.keyring.create(NewKey.model_validate({"name": role, "role": role}), by=LOCAL).secret
    with Client(live_url, key) as client:
        show(browser, client, job_id, job.name)

        expected = {"viewer": [], "submitter": ["clone"], "operator": ["pause", "cancel", "steer", "clone", "edit"]}
        assert browser.value_of(BUTTONS) == expected[role]


def test_a_list_counts_what_it_shows_and_long_names_leave_its_columns_in_sight(browser, client, store, job):
    for number in range(60):
        store.add_job(job.model_copy(update={"name": "n" * 80 if number == 59 else f"job {number}"}))
    browser.show(width=1200)
    browser.open(client.sign_in_link())

    assert browser.wait_for("document.querySelector('caption').textContent") == "50 of 60 jobs"
    assert browser.value_of(
        "(({ scrollWidth, clientWidth }) => scrollWidth <= clientWidth)(document.querySelector('.scroll'))"
    )
    browser.value_of("document.querySelector('.tools a').click()")
    browser.wait_for("document.querySelector('caption').textContent === '10 of 60 jobs'")


def test_a_change_of_the_theme_reaches_charts_and_marks_differ_from_their_ground(browser, client, reporting):
    search(reporting, [1.0, 2.0], chosen=2.0, rewards=[0.1, None])
    show(browser, client, reporting.job_id, "digits over a slow link")
    browser.wait_for(f"{GAIN} !== undefined")
    unjudged = f"{GAIN}._fullData.find((each) => each.name === 'not judged')"
    colours = f"[{GAIN}._fullLayout.font.color, {unjudged}.marker.line.color]"
    light = browser.value_of(colours)
    browser.show(width=1200, dark=True)
    browser.wait_for(f"{GAIN}._fullLayout.font.color !== '{light[0]}'")

    ink = browser.value_of("getComputedStyle(document.body).color")
    assert browser.value_of(colours) == [ink, ink]
    assert light[0] == light[1] != ink


def test_what_was_chosen_is_on_its_axis(browser, client, reporting):
    search(reporting, [0.1, 0.2], chosen=20.0, rewards=[0.1, 0.2])
    show(browser, client, reporting.job_id, "digits over a slow link")

    low, high = browser.wait_for(f"{GAIN}._fullLayout.xaxis.range")
    assert 10**low < 0.1 and 10**high > 20


def test_a_job_without_a_number_shows_no_empty_chart_until_it_has_one(browser, client, reporting):
    reporting.start("tuned")
    show(browser, client, reporting.job_id, "digits over a slow link")
    shown = "[...document.querySelectorAll('.panel h2')].filter((each) => each.checkVisibility())"
    assert not {"Loss", "Bytes", "Learned schedule"} & {*browser.value_of(f"{shown}.map((each) => each.textContent)")}

    reporting.stage("tuned", 0, rate=1.0, density=0.01)
    browser.wait_for(f"{chart('Loss')} && {chart('Bytes')} && {SCHEDULE}")


def test_densities_that_hardly_differ_are_no_cliff(browser, client, reporting):
    reporting.start("tuned")
    for stage, density in enumerate((0.01, 0.0102)):
        reporting.stage("tuned", stage, rate=1.0, density=density)
    show(browser, client, reporting.job_id, "digits over a slow link")

    low, high = browser.wait_for(f"{SCHEDULE}._fullLayout.yaxis2.range")
    assert high - low > 0.5 and 10**low < 0.01 < 10**high


def test_options_that_competed_have_a_lane_each(browser, client, reporting):
    options = ["fp16", "local_sgd 16", "powersgd 4"]
    search(reporting, [2.0, 2.0, 2.0], chosen=2.0, rewards=[0.1, 0.2, 0.3], options=options)
    show(browser, client, reporting.job_id, "digits over a slow link")

    assert browser.wait_for(f"{GAIN}._fullData.find((each) => each.name === 'probes').y") == options
    assert browser.value_of(f"{GAIN}._fullData.find((each) => each.name === 'chosen').y") == ["powersgd 4"]


def test_a_promoted_probe_is_no_fall_of_the_schedule_and_without_density_there_is_one_axis(browser, client, reporting):
    search(reporting, [1.0, 2.0], chosen=1.5, rewards=[0.1, 0.9], promoted="0.1")
    rates = [(0, 20, 2.0, None), (20, 20, 2.0, 0.01), (40, 100, 1.5, None)]
    entries = tuple(
        ScheduleEntry(step=step, num_steps=steps, learning_rate=rate, final_learning_rate=final, reason="the best")
        for step, steps, rate, final in rates
    )
    finished = TrialFinished(
        trial_id=reporting.trial("tuned"), outcome="completed", validation_loss=0.3, schedule=entries, bill={},
        weights_url=None,
    )  # fmt: skip
    reporting.post(finished)
    reporting.post(AttemptFinished(outcome="succeeded"))
    show(browser, client, reporting.job_id, "digits over a slow link")
    choose(browser, "along", "steps")
    browser.wait_for(f"{SCHEDULE}._fullData[0].x.at(-1) === 140")

    assert browser.value_of(f"{SCHEDULE}._fullData.map((each) => each.x)") == [[40, 140], [0, 20, 20, 40]]
    assert browser.value_of(f"{SCHEDULE}._fullLayout.yaxis.domain") == [0, 1]
    assert browser.value_of(f"'yaxis2' in {SCHEDULE}._fullLayout") is False


def test_buttons_have_names_of_their_own_and_a_keyboard_scrolls_every_table(browser, client, reporting):
    reporting.run_to_the_end()
    show(browser, client, reporting.job_id, "digits over a slow link", width=360)
    browser.wait_for("document.querySelectorAll('.card').length === 2")

    names = browser.value_of("[...document.querySelectorAll('[aria-expanded]')].map((each) => each.ariaLabel)")
    assert len(names) == len(set(names)) > 5
    assert all(name.startswith("data table: ") for name in names)
    assert browser.value_of("""[...document.querySelectorAll('#page *')].every((each) =>
        each.scrollWidth <= each.clientWidth || getComputedStyle(each).overflowX !== 'auto' || each.tabIndex === 0)""")
    assert browser.value_of("document.documentElement.scrollWidth <= innerWidth")
