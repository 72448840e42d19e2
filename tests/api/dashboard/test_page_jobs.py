"""The pages around a job's in a real browser: the list, the form, keys, and the buttons of each role."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any

import pytest

from api.client import Client
from api.http.app import create_app
from api.http.examples import EXAMPLE_JOB
from service.control.access.rules import LOCAL
from service.control.listing import JobFilter
from service.control.reconciling.assembly import assemble
from service.control.store import Store
from service.job.spec import JobSpec
from service.job.states import JobState
from service.settings import Settings
from service.wire.access import NewKey, Role
from tests.api.conftest import Reporting, serving
from tests.api.dashboard.browser import WRITE, Tab
from tests.support.fake_ray import FakeCluster, FakeRay

pytestmark = pytest.mark.long

LIVE = "window.__ready && document.getElementById('connection').className === 'live'"
NAMES = "[...document.querySelectorAll('tbody td.name > a')].map((each) => each.textContent)"
LISTS = "performance.getEntriesByType('resource').filter((each) => new URL(each.name).pathname === '/v1/jobs').length"
BUTTONS = "[...document.querySelectorAll('main button')].map((each) => each.textContent)"


@pytest.fixture
def add(store: Store) -> Callable[..., str]:
    """Queue a job; later ones are newer."""

    def add(name: str, **changes: Any) -> str:
        return store.add_job(JobSpec.model_validate(EXAMPLE_JOB | {"name": name} | changes))[0].id

    return add


def show(tab: Tab, client: Client, address: str = "") -> None:
    """Sign in, and open the page at this address; wait until it is drawn and hears of changes."""
    tab.open(client.sign_in_link("none"))
    tab.wait_for(LIVE)
    tab.open(f"{client.url}/{address}")
    tab.wait_for(f"location.search === '{address}' && {LIVE} && !document.body.innerText.includes('loading …')")


def click(tab: Tab, label: str, within: str = "main") -> None:
    button = f"[...document.querySelectorAll('{within} button')].find((each) => each.textContent === '{label}')"
    tab.wait_for(f"{button} !== undefined")
    tab.value_of(f"{button}.click()")


def write(tab: Tab, texts: Mapping[str, str]) -> None:
    """Write into fields of a form, each by its JSON pointer."""
    for pointer, text in texts.items():
        tab.value_of(f"{WRITE}({pointer!r}, {text!r})")


@contextmanager
def role_of(client: Client, store: Store, role: Role) -> Iterator[Client]:
    """A client of somebody else, who has this role."""
    issued = store.keyring.create(NewKey(name="anna", role=role), by=LOCAL)
    with Client(client.url, issued.secret) as other:
        yield other


def test_a_filter_is_in_the_address_and_survives_a_reload_and_a_step_back(
    browser: Tab, client: Client, store: Store, add: Callable[..., str]
) -> None:
    add("alpha", labels={"team": "red"})
    store.cancel(add("beta", labels={"team": "red"}))
    add("gamma")
    show(browser, client)
    browser.value_of("document.querySelector('.states input[value=queued]').click()")
    browser.wait_for(f"String({NAMES}) === 'gamma,alpha'")
    browser.value_of("""(() => {
      const field = document.getElementById('filter-label');
      field.value = 'team=red';
      field.dispatchEvent(new Event('change'));
    })()""")
    browser.wait_for(f"String({NAMES}) === 'alpha'")
    assert browser.value_of("location.search") == "?state=queued&label=team%3Dred"

    browser.value_of("window.isOld = true, location.reload()")
    browser.wait_for(f"!window.isOld && {LIVE} && String({NAMES}) === 'alpha'")
    assert browser.value_of("document.getElementById('filter-label').value") == "team=red"

    browser.value_of("history.back()")
    browser.wait_for(f"String({NAMES}) === 'gamma,alpha'")
    assert browser.value_of("document.getElementById('filter-label').value") == ""

    for text, names in (("alp", "alpha"), ("", "gamma,alpha")):
        browser.value_of(f"""((field) => {{
          field.value = '{text}';
          field.dispatchEvent(new Event('input'));
        }})(document.getElementById('filter-text'))""")
        browser.wait_for(f"String({NAMES}) === '{names}'")
    assert browser.complaints == []


def test_a_heading_orders_the_list_and_turns_it_around(browser: Tab, client: Client, add: Callable[..., str]) -> None:
    for name in ("beta", "alpha", "gamma"):
        add(name)
    show(browser, client)
    assert browser.value_of(NAMES) == ["gamma", "alpha", "beta"]

    click(browser, "job", "thead")
    browser.wait_for(f"String({NAMES}) === 'alpha,beta,gamma'")
    click(browser, "job", "thead")
    browser.wait_for(f"String({NAMES}) === 'gamma,beta,alpha'")
    assert browser.value_of("document.querySelector('th[aria-sort]').ariaSort") == "descending"
    assert browser.value_of("location.search") == "?order_by=-name"


def test_chosen_jobs_are_cancelled_after_one_question_each_with_a_result(
    browser: Tab, client: Client, store: Store, add: Callable[..., str]
) -> None:
    first, second, kept = add("first"), add("second"), add("kept")
    show(browser, client)
    browser.value_of("""[...document.querySelectorAll('tbody .choose input')].slice(1).forEach((box) => box.click())""")
    compare = browser.value_of("[...document.querySelectorAll('.bulk a')].map((each) => each.getAttribute('href'))")
    assert compare == [f"/?compare={second},{first}"]

    click(browser, "cancel", ".bulk")
    click(browser, "cancel 2 jobs", "dialog")

    browser.wait_for("document.querySelectorAll('.results li.done').length === 2")
    browser.wait_for("document.querySelectorAll('.badge.cancelled').length === 2")
    assert {store.job(each).state for each in (first, second)} == {JobState.CANCELLED}
    assert store.job(kept).state is JobState.QUEUED


def test_what_is_refused_of_several_is_told_beside_the_job(
    browser: Tab, client: Client, store: Store, add: Callable[..., str]
) -> None:
    moved, still = add("moved"), add("still")
    show(browser, client)
    browser.value_of("document.querySelectorAll('tbody .choose input').forEach((box) => box.click())")
    click(browser, "cancel", ".bulk")
    browser.wait_for("document.querySelector('dialog[open]') !== null")
    store.pause(moved)  # behind the question
    click(browser, "cancel 2 jobs", "dialog")

    told = browser.wait_for("document.querySelector('.results li.refused').textContent")
    assert told.startswith("moved: ") and "is paused now" in told
    assert (store.job(moved).state, store.job(still).state) == (JobState.PAUSED, JobState.CANCELLED)


def test_a_change_renews_the_row_of_its_job_alone_and_asks_once_a_second(
    browser: Tab, client: Client, reporting: Reporting, add: Callable[..., str]
) -> None:
    add("another")
    reporting.start("tuned")
    show(browser, client)
    browser.value_of(
        """(() => {
      window.written = new Set();
      new MutationObserver((all) => all.forEach(({ target }) => {
        const row = (target.closest ? target : target.parentElement)?.closest('tr');
        if (row && !target.parentElement?.closest('time')) written.add(row.querySelector('td.name a').textContent);
      })).observe(document.querySelector('tbody'),
        { subtree: true, childList: true, characterData: true, attributes: true });
      window.before = """
        + LISTS
        + """;
      window.began = performance.now();
    })()"""
    )
    for stage in range(4):
        reporting.stage("tuned", stage, rate=2.0, density=0.01)
    browser.wait_for("document.querySelector('tbody .sparkline') && document.body.innerText.includes('density 1 %')")

    assert browser.value_of("[...written]") == [EXAMPLE_JOB["name"]]
    asked, seconds = browser.value_of(f"[{LISTS} - before, (performance.now() - began) / 1000]")
    assert asked <= 1 + seconds
    assert browser.complaints == []


def test_why_a_job_waits_is_the_same_on_its_page_as_in_the_list_and_is_kept_up_to_date(
    browser: Tab, store: Store, settings: Settings, key: str, add: Callable[..., str]
) -> None:
    cluster = FakeCluster(FakeRay(cpus=8))
    reconciler = assemble(store, settings, api_url="http://127.0.0.1:8470", cluster=cluster).reconciler
    running, ahead, waiting = (add(name, workers={"count": 6}) for name in ("running", "ahead", "waiting"))
    for _ in range(2):  # what one tick starts waits no more in the next
        reconciler.tick(store._db.now())
    app = create_app(store, outlook=lambda: reconciler.outlook)
    listed = "document.querySelector('tbody .why').textContent"  # the newest comes first
    on_page = "document.querySelector('p.reason').textContent"
    with serving(app) as url, Client(url, key) as client, closing(browser.beside()) as tab:
        show(browser, client)
        show(tab, client, f"?job={waiting}")
        behind = f"2nd of 2; waits for 4 of 6 workers; behind ahead of project default ({ahead}, priority normal)"
        assert browser.wait_for(listed) == tab.wait_for(on_page) == behind

        store.cancel(ahead)
        reconciler.tick(store._db.now())
        for each, shown in ((tab, on_page), (browser, listed)):
            each.page.bring_to_front()  # what is behind does not ask
            each.wait_for(f"{shown} === '1st of 1; waits for 4 of 6 workers'")

        store.pause(waiting)
        tab.page.bring_to_front()
        tab.wait_for(f"document.querySelector('.badge').textContent === 'paused' && !{on_page}.includes('1st')")
        assert store.job(running).state is JobState.STARTING


def test_a_list_says_why_it_is_empty(browser: Tab, client: Client, add: Callable[..., str]) -> None:
    show(browser, client)
    assert "No jobs yet" in browser.value_of("document.querySelector('main').innerText")
    add("one")
    browser.wait_for(f"String({NAMES}) === 'one'")

    show(browser, client, "?owner=nobody")
    assert "No job matches" in browser.value_of("document.querySelector('main').innerText")
    show(browser, client, "?order_by=size")
    assert "order_by" in browser.value_of("document.querySelector('main .panel:not([hidden])').innerText")


def test_a_job_is_submitted_by_the_form_once_its_problem_is_mended(browser: Tab, client: Client, store: Store) -> None:
    show(browser, client, "?submit=new")
    write(browser, {"/workload/kind": "digits-mlp", "/budget/seconds": "-4", "/name": "by form"})
    problem = "document.querySelector('[data-pointer=\"/budget/seconds\"] .problem').textContent"
    assert "greater" in browser.wait_for(problem)
    browser.value_of("document.querySelector('.verdict button').click()")  # leads to the field
    assert browser.value_of("document.activeElement.ariaInvalid") == "true"
    click(browser, "Submit the job", ".side")
    browser.wait_for("!document.querySelector('button.primary').disabled")
    assert store.jobs(JobFilter()).jobs == ()

    write(browser, {"/budget/seconds": "30", "/exchange/kind": "topk", "/exchange/density": "[0.01, 0.1]"})
    browser.wait_for(f"!{problem} && document.querySelector('.verdict').textContent.includes('takes this job')")
    click(browser, "Submit the job", ".side")
    browser.wait_for("document.querySelector('h1').textContent === 'by form'")
    show(browser, client)

    assert browser.value_of(NAMES) == ["by form"]
    (made,) = store.jobs(JobFilter()).jobs
    wanted = {"name": "by form", "workload": {"kind": "digits-mlp"}, "budget": {"seconds": 30},
              "exchange": {"kind": "topk", "density": [0.01, 0.1]}}  # fmt: skip
    assert store.job(made.id).spec == JobSpec.model_validate(wanted)


def test_form_and_text_hold_the_same_job_and_a_broken_text_is_kept(browser: Tab, client: Client) -> None:
    show(browser, client, "?submit=new")
    browser.value_of("""(() => {
      const begin = document.querySelector('.begin select');
      begin.value = 0;
      begin.dispatchEvent(new Event('change'));
    })()""")
    rewrite = """((text) => {
      const area = document.querySelector('textarea');
      area.value = text(area.value);
      area.dispatchEvent(new Event('input'));
    })"""
    click(browser, "YAML", ".tabs")
    text = browser.value_of("document.querySelector('textarea').value")
    assert "exchange: {kind: threshold, density: [0.003, 0.1]}" in text
    browser.value_of(f"{rewrite}((text) => text.replace('seconds: 40', 'seconds: {{'))")
    click(browser, "Form", ".tabs")
    browser.wait_for("document.querySelector('.verdict').textContent.includes('mend it first')")
    assert browser.value_of("document.getElementById('as-form').hidden")

    browser.value_of(f"{rewrite}((text) => text.replace('seconds: {{', 'seconds: 55'))")
    click(browser, "Form", ".tabs")
    browser.wait_for("document.querySelector('[data-pointer=\"/budget/seconds\"] input').value === '55'")
    assert browser.value_of("document.querySelector('[data-pointer=\"/arms/1/name\"] input').value") == "dense"


def test_a_viewer_sees_no_buttons_and_no_page_that_is_not_his(
    browser: Tab, client: Client, store: Store, add: Callable[..., str]
) -> None:
    add("one")
    with role_of(client, store, Role.VIEWER) as viewer:
        show(browser, viewer)
        browser.value_of("document.querySelector('tbody .choose input').click()")
        assert set(browser.value_of(BUTTONS)) == {"job", "state", "result", "created", "finished", "clear"}
        shown = "[...document.querySelectorAll('nav[aria-label=Pages] a')].filter((each) => !each.hidden)"
        assert browser.value_of(f"{shown}.map((each) => each.textContent)") == ["Jobs", "Cluster", "Keys", "API"]
        show(browser, viewer, "?submit=new")
        assert browser.value_of(BUTTONS) == []
        show(browser, viewer, "?keys=all")
        assert browser.value_of(BUTTONS) == ["rotate", "revoke"]  # their own
        show(browser, viewer, "?cluster=now")
        assert browser.value_of(BUTTONS) == []
        assert browser.complaints == []
        show(browser, viewer, "?audit=all")
        assert "for admins" in browser.value_of("document.querySelector('main').innerText")


def test_a_key_is_made_shown_once_and_revoked(browser: Tab, client: Client, store: Store) -> None:
    show(browser, client, "?keys=all")
    click(browser, "New key …")
    browser.value_of("document.querySelector('dialog [name=name]').value = 'ci'")
    click(browser, "create the key", "dialog")
    secret = browser.wait_for("document.querySelector('input.secret').value")
    assert store.keyring.holder(secret).role is Role.SUBMITTER
    click(browser, "I have it")
    assert secret not in browser.value_of("document.documentElement.outerHTML + location.href")

    revoke = "document.querySelector('[aria-label=\"revoke ci\"]')"
    browser.wait_for(f"{revoke} !== null")
    browser.value_of(f"{revoke}.click()")
    click(browser, "revoke the key", "dialog")
    browser.wait_for("document.querySelector('main table').innerText.includes('revoked')")
    (key,) = [each for each in store.keyring.list(by=LOCAL) if each.name == "ci"]
    assert key.revoked_at is not None

    show(browser, client, "?audit=all&action=revokeKey")
    assert key.id in browser.value_of("document.querySelector('tbody').innerText")
    assert browser.value_of("document.querySelectorAll('tbody tr').length") == 1


def test_the_end_of_a_session_loses_neither_a_secret_nor_what_somebody_writes(
    browser: Tab, client: Client, store: Store
) -> None:
    def sign_in_again(secret: str) -> None:
        browser.value_of("dispatchEvent(new Event('online'))")  # else the stream looks again in some seconds
        browser.wait_for("document.getElementById('key') !== null")
        assert browser.value_of("document.querySelector('input.secret')?.value ?? null") in (secret, None)
        browser.value_of(f"document.getElementById('key').value = {secret!r}")
        click(browser, "Sign in")
        browser.wait_for(f"document.getElementById('key') === null && {LIVE}")

    with role_of(client, store, Role.ADMIN) as anna:
        show(browser, anna, "?keys=all")
    browser.value_of("document.querySelector('[aria-label=\"rotate anna\"]').click()")
    click(browser, "rotate the key", "dialog")
    secret = browser.wait_for("document.querySelector('input.secret').value")
    sign_in_again(secret)
    assert browser.value_of("document.querySelector('input.secret').value") == secret

    browser.value_of("location.assign('/?submit=new')")
    browser.wait_for("document.querySelector('[data-pointer=\"/name\"]') !== null")
    write(browser, {"/name": "half"})
    (key,) = [each for each in store.keyring.list(by=LOCAL) if each.name == "anna" and each.revoked_at is None]
    sign_in_again(store.keyring.rotate(key.id, by=LOCAL).secret)
    assert browser.value_of("document.querySelector('[data-pointer=\"/name\"] input').value") == "half"


def test_a_keyboard_and_a_finger_turn_all_ages_into_moments_and_the_next_page_keeps_it(
    browser: Tab, client: Client, add: Callable[..., str]
) -> None:
    job_id = add("one")
    show(browser, client)
    told = "document.querySelector('time').textContent"
    assert browser.value_of(told) == "just now"

    browser.value_of("document.getElementById('times').focus()")
    browser.press("Enter")
    moment = browser.value_of(told)
    assert "just now" not in moment and browser.value_of("document.querySelector('time').title") == "just now"

    show(browser, client, f"?job={job_id}")
    assert browser.value_of(told) == moment
    browser.value_of("document.querySelector('time').click()")
    assert browser.value_of(f"[{told}, document.getElementById('times').ariaPressed]") == ["just now", "false"]


@pytest.mark.parametrize("address", ["", "?submit=new", "?cluster=now", "?keys=all", "?audit=all"])
def test_every_page_fits_a_narrow_screen_and_has_a_label_for_each_field(
    browser: Tab, client: Client, add: Callable[..., str], address: str
) -> None:
    add("one", labels={"team": "red"})
    browser.show(width=360)
    show(browser, client, address)

    assert browser.value_of("""[document.documentElement, ...document.querySelectorAll('.scroll')]
        .every((each) => each.scrollWidth <= each.clientWidth)""")
    assert (
        browser.value_of("""[...document.querySelectorAll('main input, main select, main textarea')]
        .filter((each) => !each.labels?.length && !each.ariaLabel).map((each) => each.outerHTML)""")
        == []
    )
    browser.show(width=1200)
