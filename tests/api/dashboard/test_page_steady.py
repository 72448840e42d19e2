"""A page that stays open while its job trains: the reader's zoom stays, and memory does not grow."""

import time
from typing import NamedTuple

import pytest

pytestmark = pytest.mark.long

READY = "window.__ready && document.getElementById('connection').className === 'live'"
CHART = "[...document.querySelectorAll('.chart')].find((each) => each.checkVisibility())"
NUM_STAGES = "document.querySelectorAll('.card').length"
ROUNDS = 4
STAGES_A_ROUND = 30


class Held(NamedTuple):
    """What a page holds: the bytes of JavaScript's heap, nodes, and listeners."""

    heap: int
    nodes: int
    listeners: int

    def is_within(self, most: "Held") -> bool:
        return all(held <= bound for held, bound in zip(self, most, strict=True))


class Holding:
    """Asks the browser what its page holds."""

    def __init__(self, browser):
        self._browser = browser
        self._devtools = browser.page.context.new_cdp_session(browser.page)

    def held(self):
        self._devtools.send("HeapProfiler.collectGarbage")
        nodes = self._devtools.send("Memory.getDOMCounters")
        heap = self._devtools.send("Runtime.getHeapUsage")["usedSize"]
        return Held(heap, nodes["nodes"], nodes["jsEventListeners"])

    def settles_within(self, most):
        """Return once the page holds no more than `most`; a chart that is being drawn holds more for a moment."""
        end = time.monotonic() + 30
        while not (held := self.held()).is_within(most):
            assert time.monotonic() < end, f"{held} stays above {most}"
            self._browser.page.wait_for_timeout(500)


def test_the_readers_zoom_stays_while_points_come(browser, client, reporting):
    reporting.start("tuned")
    reporting.stage("tuned", 0, rate=1.0, density=0.01)
    browser.show(width=1200)
    browser.open(client.sign_in_link(reporting.job_id))
    browser.wait_for(f"{READY} && {CHART}._fullLayout")
    browser.value_of(f"Plotly.relayout({CHART}, {{'xaxis.range[0]': 1, 'xaxis.range[1]': 2}}).then(() => null)")

    reporting.stage("tuned", 1, rate=0.5, density=0.01)
    browser.wait_for(f"{NUM_STAGES} === 2 && Math.max(...{CHART}._fullData.flatMap((each) => each.x)) > 6")

    assert browser.value_of(f"{CHART}._fullLayout.xaxis.range") == [1, 2]


def test_a_page_that_changes_again_and_again_holds_no_more_for_it(browser, client, reporting):
    reporting.start("tuned")
    reporting.stage("tuned", 0, rate=1.0, density=0.01)
    browser.show(width=1200)
    browser.open(client.sign_in_link(reporting.job_id))
    browser.wait_for(f"{READY} && {CHART}._fullLayout")
    holding = Holding(browser)

    def change(number):
        client.edit(reporting.job_id, notes=f"note {number}")
        browser.wait_for(f"document.body.innerText.includes('note {number}')")

    for number in range(ROUNDS):  # until then caches fill
        change(number)
    before = holding.held()
    for number in range(ROUNDS, 3 * ROUNDS):
        change(number)

    holding.settles_within(Held(before.heap + 1_000_000, before.nodes + 200, before.listeners + 20))


def test_a_page_holds_what_it_shows_of_a_job_and_not_all_that_was_reported(browser, client, reporting):
    reporting.start("tuned")
    browser.show(width=1200, height=4000)  # cards are in sight
    browser.open(client.sign_in_link(reporting.job_id))
    browser.wait_for(READY)
    holding = Holding(browser)

    def report(number):
        for stage in range(STAGES_A_ROUND * number, STAGES_A_ROUND * (number + 1)):
            reporting.stage("tuned", stage, rate=1.0, density=0.01)
        last = STAGES_A_ROUND * (number + 1) - 1
        browser.wait_for(f"[...document.querySelectorAll('.card h3')].some((it) => it.innerText.includes('{last}:'))")

    report(0)
    before = holding.held()
    for number in range(1, 4):
        report(number)

    assert browser.value_of(NUM_STAGES) == 12
    num_stages = 3 * STAGES_A_ROUND
    # A row of the table of stages has 40 nodes, cards that stayed had 140; a card has eight listeners.
    most = Held(before.heap + 4_000_000, before.nodes + 90 * num_stages, before.listeners + 4 * num_stages)
    holding.settles_within(most)
