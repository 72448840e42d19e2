"""The buttons of a job's page in a real browser: which exist, what they request, and for which job."""

import os
from pathlib import Path

import pytest

from api.client import Client
from api.http.examples import EXAMPLE_JOB
from service.job.spec import JobSpec
from service.job.states import JobState, Verb
from tests.api.conftest import Reporting
from tests.api.dashboard.browser import WRITE, Tab

pytestmark = pytest.mark.long

BUTTONS = "[...document.querySelectorAll('.controls button')].map((button) => button.textContent)"
STATE = "document.querySelector('.badge').textContent"
QUESTION = "document.querySelector('dialog[open]').textContent"


class Page:
    """A job's page, and what a person does there."""

    def __init__(self, tab: Tab, client: Client, job_id: str) -> None:
        self.tab, self._client, self._job_id = tab, client, job_id
        tab.open(client.sign_in_link(job_id))
        self.wait_until(client.job(job_id).state)

    def wait_until(self, state: JobState) -> None:
        """Wait until the page shows the job in `state`, with the buttons that go with it."""
        self.tab.wait_for(f"location.search.includes('{self._job_id}') && {STATE} === '{state.value}'")
        view = self._client.job(self._job_id).view
        others = ["archive", "delete"] if view.is_over else []
        assert self.tab.value_of(BUTTONS) == [*view.verbs, "clone", "edit", *others]

    def click(self, where: str, label: str) -> None:
        buttons, wanted = (
            f"[...document.querySelectorAll('{where} button')]",
            f"(each) => each.textContent === '{label}'",
        )
        self.tab.wait_for(f"{buttons}.some({wanted})")
        self.tab.value_of(f"{buttons}.find({wanted}).click()")

    def picture(self, name: str) -> None:
        """Leave a picture for eyes where WIRETUNE_PICTURES names a folder."""
        if folder := os.environ.get("WIRETUNE_PICTURES"):
            self.tab.picture(Path(folder) / f"{name}.png")


@pytest.fixture
def page(browser: Tab, client: Client, job: JobSpec) -> Page:
    return Page(browser, client, client.submit(job).id)


@pytest.fixture
def job_id(page: Page) -> str:
    found: str = page.tab.value_of("document.querySelector('code').textContent")
    return found


def test_every_state_has_the_buttons_of_what_may_be_asked_in_it(
    browser: Tab, client: Client, reporting: Reporting
) -> None:
    job_id = reporting.job_id
    page = Page(browser, client, job_id)
    reporting.start("tuned")
    page.wait_until(JobState.RUNNING)
    page.picture("running")
    page.click(".controls", "pause")
    page.wait_until(JobState.PAUSING)
    reporting.finish("paused")
    page.wait_until(JobState.PAUSED)
    page.click(".controls", "resume")
    page.wait_until(JobState.QUEUED)
    client.cancel(job_id)
    page.wait_until(JobState.CANCELLED)
    page.click(".controls", "retry")
    page.wait_until(JobState.QUEUED)


def test_a_keyboard_reaches_every_button_and_keeps_its_place(page: Page, client: Client, job_id: str) -> None:
    focus = "document.activeElement.textContent"
    page.tab.value_of("document.querySelector('#sign-out').focus()")
    seen = []
    for _ in client.job(job_id).view.verbs:
        page.tab.press("Tab")
        seen.append(page.tab.value_of(focus))
    assert seen == [Verb.PAUSE, Verb.CANCEL, Verb.STEER]

    page.tab.value_of("document.querySelector('#sign-out').focus()")
    page.tab.press("Tab", "Enter")
    page.wait_until(JobState.PAUSED)
    page.tab.wait_for("document.activeElement.className === 'controls'")
    page.tab.press("Tab")
    assert page.tab.value_of(focus) == Verb.RESUME

    page.tab.press("Tab", "Enter")
    assert "It ends without a result" in page.tab.wait_for(QUESTION)
    assert page.tab.value_of(focus) == "back"  # Enter alone ends nothing
    page.picture("cancel")
    page.tab.press("Escape")
    page.tab.wait_for("!document.querySelector('dialog')")
    assert page.tab.value_of(focus) == Verb.CANCEL
    assert client.job(job_id).state is JobState.PAUSED

    page.tab.press("Enter", "Tab", "Enter")
    page.wait_until(JobState.CANCELLED)


def test_a_job_that_has_moved_on_behind_a_question_is_left_alone(page: Page, client: Client, job_id: str) -> None:
    page.click(".controls", "cancel")
    page.tab.wait_for(QUESTION)
    client.pause(job_id)
    page.click("dialog", "cancel the job")

    said = page.tab.wait_for("document.querySelector('dialog .refused').textContent")
    page.picture("stale")
    assert "is paused now" in said and "Nothing was done" in said
    assert client.job(job_id).state is JobState.PAUSED
    page.click("dialog", "back")
    page.wait_until(JobState.PAUSED)


def test_a_button_pressed_too_late_is_refused_beside_it(page: Page, client: Client, job_id: str, key: str) -> None:
    pauses = f"""(() => {{
      const elsewhere = new XMLHttpRequest();
      elsewhere.open("POST", "/v1/jobs/{job_id}:pause", false);  // the page cannot look meanwhile
      elsewhere.setRequestHeader("Authorization", "Bearer {key}");
      elsewhere.send();
      document.querySelector(".controls button.pause").click();
    }})()"""
    page.tab.value_of(pauses)

    said = page.tab.wait_for("document.querySelector('.controls .refused').textContent")
    assert "is paused now" in said and "`resume`, `cancel` or `steer`" in said
    page.wait_until(JobState.PAUSED)
    assert client.job(job_id).view.version == 2


def test_an_extension_asks_for_the_budget_and_takes_no_smaller_one(
    browser: Tab, client: Client, reporting: Reporting
) -> None:
    reporting.run_to_the_end()
    finished = Page(browser, client, reporting.job_id)
    finished.click(".controls", "extend")
    finished.tab.wait_for("document.querySelector('dialog input[name=seconds]').placeholder === 'such as 80'")
    finished.picture("extend")
    finished.tab.value_of("document.querySelector('dialog input').value = 40")
    finished.click("dialog", "extend the job")
    assert "nothing is larger" in finished.tab.wait_for("document.querySelector('dialog .refused').textContent")
    finished.tab.value_of("document.querySelector('dialog input').value = 60")
    finished.click("dialog", "extend the job")
    finished.wait_until(JobState.QUEUED)

    assert client.job(reporting.job_id).spec.budget.seconds == 60


def test_an_extension_takes_further_seeds_as_text_and_leaves_the_budget_as_it_is(
    browser: Tab, client: Client, reporting: Reporting
) -> None:
    reporting.run_to_the_end()
    finished = Page(browser, client, reporting.job_id)
    finished.click(".controls", "extend")
    seeds = "document.querySelector('dialog input[name=seeds]')"
    finished.tab.wait_for(seeds)
    finished.tab.value_of(f"{seeds}.value = 'two'")
    assert finished.tab.value_of(f"{seeds}.checkValidity()") is False
    finished.tab.value_of(f"{seeds}.value = '2, 3'")
    finished.click("dialog", "extend the job")
    finished.wait_until(JobState.QUEUED)

    spec = client.job(reporting.job_id).spec
    assert spec.seeds == (0, 2, 3) and spec.budget.seconds == 40


def test_a_clone_opens_the_form_which_shows_what_differs_before_it_is_queued(
    page: Page, client: Client, job_id: str
) -> None:
    page.click(".controls", "clone")
    page.tab.wait_for("document.querySelector('[data-pointer=\"/budget/seconds\"] input').value === '40'")
    page.tab.value_of(f"{WRITE}('/budget/seconds', '80'), {WRITE}('/name', 'larger')")
    page.tab.wait_for("document.querySelector('.differing').textContent.includes('/budget/seconds: 40 → 80')")
    page.picture("clone")
    assert len(client.jobs().jobs) == 1
    page.click(".side", "Submit the job")

    page.tab.wait_for("document.querySelector('h1').textContent === 'larger'")
    [made, _] = client.jobs().jobs
    assert client.job(made.id).spec == JobSpec.model_validate(
        EXAMPLE_JOB | {"budget": {"seconds": 80}, "name": "larger"}
    )
    page.tab.wait_for(f"location.search === '?job={made.id}'")


def test_a_person_pins_and_vetoes_by_the_dialog_and_withdraws_there(page: Page, client: Client, job_id: str) -> None:
    page.click(".controls", "steer")
    said = page.tab.wait_for(QUESTION)
    assert "learning rate, 1e-8 to 1000" in said and "density, 0.003 to 0.1" in said
    assert page.tab.value_of("document.querySelectorAll('dialog li').length") == 0
    page.tab.value_of("document.querySelector(\"[name='how density']\").value = 'pin'")
    page.tab.value_of("document.querySelector('[name=density]').value = '0.02'")
    page.tab.value_of("document.querySelector(\"[name='how learning_rate']\").value = 'veto above'")
    page.tab.value_of("document.querySelector('[name=learning_rate]').value = '0.5'")
    page.picture("steer")
    page.click("dialog", "steer the job")
    page.tab.wait_for("!document.querySelector('dialog')")

    [held] = client.steering(job_id).steers
    assert held.pin == {"density": 0.02} and held.veto["learning_rate"].model_dump() == {"above": 0.5, "below": None}

    page.click(".controls", "steer")
    assert "density pinned at 0.02, learning rate vetoed above 0.5, by " in page.tab.wait_for(QUESTION)
    page.picture("steered")
    page.click("dialog", "withdraw 1")
    page.tab.wait_for("!document.querySelector('dialog')")
    assert not client.steering(job_id).steers[0].in_force
