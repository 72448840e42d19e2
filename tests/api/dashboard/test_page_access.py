"""Every page is accessible: axe-core finds no violation, at two widths, light and dark."""

import os
from pathlib import Path

import pytest

from service.control.store import Store
from service.job.spec import JobSpec
from tests.api.conftest import Reporting

pytestmark = pytest.mark.long

AXE = Path(os.environ.get("WIRETUNE_AXE", Path(__file__).parents[3] / ".axe/node_modules/axe-core/axe.min.js"))
HOW_TO_GET_IT = "needs axe-core: `make test-browser` fetches it where there is `npm`; or name its file in WIRETUNE_AXE"
#: Pages by what they show; each of {words} is a job's id. A page that is not there shows the list.
PAGES = {
    "empty list": "/",
    "list": "/?jobs=all",
    "reference": "/docs",
    "submit": "/?submit=new",
    "cluster": "/?cluster=all",
    "keys": "/?keys=all",
    "audit": "/?audit=all",
    "finished": "/?job={finished}",
    "running": "/?job={running}",
    "failed": "/?job={failed}",
    "queued": "/?job={queued}",
    "missing": "/?job=job-nope",
    "compare": "/?compare={finished},{running},{queued}&baseline=A+dense",
    "compare nothing": "/?compare=job-nope",
}
VIOLATIONS = """axe.run(document, {resultTypes: ['violations']}).then(({violations}) => violations.flatMap(
    ({id, help, nodes}) => nodes.map((node) => `${id}: ${help}: ${node.target.join(' ')}: ${node.failureSummary}`)))"""


def fill(store: Store, job: JobSpec) -> dict[str, str]:
    """Make a job in each state; return their ids."""
    finished, running, failed = (Reporting(store, job.model_copy(update={"name": name})) for name in "abc")
    finished.run_to_the_end()
    for each in (running, failed):
        each.start("tuned")
        each.stage("tuned", 0, rate=1.0, density=0.01)
    failed.finish("failed", "a worker died")
    while store.job(failed.job_id).state == "queued":  # it is tried again
        failed = Reporting(store, job, failed.job_id)
        failed.finish("failed", "a worker died")
    queued = store.add_job(job)[0].id
    return {"finished": finished.job_id, "running": running.job_id, "failed": failed.job_id, "queued": queued}


def test_no_page_has_a_violation(browser, client, store, job):
    if not AXE.is_file():
        pytest.skip(HOW_TO_GET_IT)
    ids, found, axe = None, [], AXE.read_text()
    for name, path in PAGES.items():
        if name != "empty list" and ids is None:
            ids = fill(store, job)
        browser.show(width=1400)
        browser.open(client.sign_in_link() if ids is None else client.url + path.format(**ids or {}))
        browser.wait_for("window.__ready || document.querySelector('section.panel')")
        browser.run("document.querySelectorAll('details.section').forEach((each) => { each.open = true; })")
        for at in range(browser.value_of("document.querySelectorAll('.chart').length")):
            browser.value_of(f"document.querySelectorAll('.chart')[{at}].scrollIntoView()")
            browser.page.wait_for_timeout(20)  # one frame: it is drawn as it comes in sight
        browser.run(axe)
        for width, dark in ((1400, False), (1400, True), (360, False), (360, True)):
            browser.show(width=width, dark=dark)
            where = f"{name} at {width} px, {'dark' if dark else 'light'}"
            found += [f"{where}: {violation}" for violation in browser.value_of(VIOLATIONS)]

    assert not found, "\n".join(found)
