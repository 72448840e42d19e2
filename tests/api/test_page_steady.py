"""A page that is looked at while its job trains: the reader's zoom stays, and memory does not grow."""

import pytest

pytestmark = pytest.mark.long

READY = "window.__ready && document.getElementById('connection').className === 'live'"
CHART = "[...document.querySelectorAll('.chart')].find((each) => each.checkVisibility())"
NUM_STAGES = "document.querySelectorAll('.card').length"
ROUNDS = 4
STAGES_A_ROUND = 30


def held_by(browser):
    """Return what tells the bytes of JavaScript's heap, the nodes, and the listeners that a page holds."""
    devtools = browser.page.context.new_cdp_session(browser.page)

    def held():
        devtools.send("HeapProfiler.collectGarbage")
        nodes = devtools.send("Memory.getDOMCounters")
        return devtools.send("Runtime.getHeapUsage")["usedSize"], nodes["nodes"], nodes["jsEventListeners"]

    return held


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
    held = held_by(browser)

    def change(number):
        client.edit(reporting.job_id, notes=f"note {number}")
        browser.wait_for(f"document.body.innerText.includes('note {number}')")

    for number in range(ROUNDS):  # until then caches fill
        change(number)
    before = held()
    for number in range(ROUNDS, 3 * ROUNDS):
        change(number)
    heap, nodes, listeners = held()

    assert heap < before[0] + 1_000_000
    assert nodes < before[1] + 200
    assert listeners <= before[2] + 20


def test_a_page_holds_what_it_shows_of_a_job_and_not_all_that_was_reported(browser, client, reporting):
    reporting.start("tuned")
    browser.show(width=1200, height=4000)  # cards are in sight
    browser.open(client.sign_in_link(reporting.job_id))
    browser.wait_for(READY)
    held = held_by(browser)

    def report(number):
        for stage in range(STAGES_A_ROUND * number, STAGES_A_ROUND * (number + 1)):
            reporting.stage("tuned", stage, rate=1.0, density=0.01)
        last = STAGES_A_ROUND * (number + 1) - 1
        browser.wait_for(f"[...document.querySelectorAll('.card h3')].some((it) => it.innerText.includes('{last}:'))")

    report(0)
    before = held()
    for number in range(1, 4):
        report(number)
    heap, nodes, listeners = held()

    assert browser.value_of(NUM_STAGES) == 12
    assert heap < before[0] + 4_000_000
    assert nodes < before[1] + 90 * 3 * STAGES_A_ROUND  # a row of the table of stages has 40; cards that stay had 140
    assert listeners < before[2] + 4 * 3 * STAGES_A_ROUND  # a card has eight
