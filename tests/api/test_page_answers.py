"""What a page shows while answers are late, refused, or of something that is no longer asked for; without a browser."""

import base64
import gzip
from pathlib import Path

import pytest

from api import plots
from api.http.routes.page import DASHBOARD
from tests.api.test_page_modules import pytestmark as needs_node, run

pytestmark = needs_node

SMALL_DOM = Path(__file__).with_name("small_dom.js")


def played(script, *modules, **given):
    """Return what `script` returns, with the `modules`' names in its scope; `given` are its constants."""
    load = [
        f'const {{ heldService, refusal, seeAll, settled }} = await import("{SMALL_DOM.as_uri()}");',
        *(f'const {names} = await import("{DASHBOARD.as_uri()}/{module}");' for names, module in modules),
    ]
    body = f"console.log(JSON.stringify(await (async () => {{ {script} }})()));\nprocess.exit();"
    return run("\n".join([*load, body]), **given)


LOG_PANEL = """
  const asked = heldService();
  const { body, update } = logs("job-1");
  document.body.append(body);
  const [attempt, text] = [body.querySelector("select"), body.querySelector("pre")];
  const told = () => body.childNodes.slice(1).map((each) => each.textContent);
  const answer = async (given) => { asked.shift()[1](given); await settled(); };
  const choose = async (number) => { attempt.value = number; await attempt.onchange(); };
  update({ attempt: 2, finished_at: "2026-01-01T00:00:00Z" });
  seeAll();
"""
FRAME = '  File "/home/me/model.py", line 3, in loss\n    1 / 0\n'
TRACE = f"Traceback (most recent call last):\n{FRAME}ZeroDivisionError: no\n"


def of_log(script):
    return played(f"{LOG_PANEL}{script}", ("{ logs }", "pages/job/logs.js"), TRACE=TRACE)


def test_nothing_of_an_attempt_stands_under_the_number_of_another():
    found = of_log("""
      await answer(new Response(TRACE));
      const before = told();
      choose("1");
      await settled();
      const meanwhile = told();
      await answer(refusal(404, "its log is gone"));
      return [before, meanwhile, told()];
    """)

    assert "/home/me/model.py:3" in found[0][0] and "4 lines" in found[0][1] and "1 / 0" in found[0][2]
    assert found[1:] == [["", "", ""], ["", "", "its log is gone"]]


@pytest.mark.parametrize("late", ["new Response('of before')", "refusal(404, 'of before')"])
def test_an_answer_that_comes_after_another_attempt_was_chosen_is_not_shown(late):
    found = of_log(f"""
      choose("1");
      await answer({late});
      const addresses = asked.map(([address]) => address);
      await answer(new Response("of this"));
      return [addresses, text.textContent];
    """)

    assert found == [["/v1/jobs/job-1/logs?attempt=1&offset=0"], "of this"]


def test_who_turns_back_to_an_attempt_while_its_log_is_fetched_reads_it_once():
    found = of_log("""
      choose("1");
      choose("2");
      await answer(new Response("printed\\n"));
      await answer(new Response("printed\\n"));
      return [text.textContent, told()[1], asked.length];
    """)

    assert found == ["printed", "1 lines, 8 B", 0]


def test_an_error_of_a_log_goes_once_it_is_read_though_nothing_new_was_printed():
    found = of_log("""
      await answer(new Response("printed"));
      choose("2");
      await answer(refusal(503, "the storage does not answer"));
      const failed = told();
      choose("2");
      await answer(new Response(""));
      return [failed, told()];
    """)

    assert found == [["", "the storage does not answer", "printed"], ["", "1 lines, 7 B", "printed"]]


LIST = """
  const asked = heldService();
  const answer = async (given) => { asked.shift()[1](given); await settled(); };
  let told = 0;
  const root = document.createElement("main");
"""
JOBS = """
  const found = { jobs: [], total: 0, next_cursor: null };
  const page = jobsPage(root, "all", new URLSearchParams(), () => { told += 1; });
  page.refresh();
  await answer(Response.json({ role: "admin", name: "anna", may: [] }));
  await answer(Response.json(found));
  const archived = (value) => root.querySelector("#filter-archived").onchange({ currentTarget: { value } });
"""
AUDIT = """
  const found = { entries: [], next_cursor: null };
  const page = auditPage(root, "all", new URLSearchParams(), () => { told += 1; });
  page.refresh();
  await answer(Response.json(found));
  const outcome = async (value) => {
    root.querySelector("#audit-outcome").onchange({ currentTarget: { value } });
    await settled();
  };
"""


def of_jobs(script):
    return played(f"{LIST}{JOBS}{script}", ("{ jobsPage }", "pages/jobs/jobs.js"))


def of_audit(script):
    return played(f"{LIST}{AUDIT}{script}", ("{ auditPage }", "pages/audit.js"))


def test_a_filter_of_the_list_that_gets_no_answer_is_asked_for_again_and_told_of():
    assert of_jobs('archived("true"); await answer(refusal(503, "busy")); return told;') == 1


def test_the_refusal_of_an_earlier_filter_is_not_told_of_the_present_one():
    found = of_jobs("""
      archived("true");
      archived("any");
      const late = asked.shift();
      await answer(Response.json(found));
      late[1](refusal(422, "of before"));
      await settled();
      return [root.textContent.includes("of before"), told];
    """)

    assert found == [False, 0]


def test_a_filter_of_the_audit_log_that_gets_no_answer_is_asked_for_again_and_told_of():
    assert of_audit('await outcome("done"); await answer(refusal(503, "busy")); return told;') == 1


def test_a_filter_that_the_audit_log_does_not_take_is_told_in_its_place():
    script = 'await outcome("done"); await answer(refusal(422, "too long")); return [root.textContent, told];'

    text, told = of_audit(script)

    assert "too long" in text and "for admins" not in text and told == 0


def test_what_a_chosen_axis_needs_and_does_not_get_is_asked_for_again_and_told_of():
    found = played(
        """
      location.search = "?x=bytes";
      const asked = heldService();
      let told = 0;
      const root = document.createElement("main");
      jobPage(root, "job-1", null, () => { told += 1; });
      root.querySelector("#shown-belief").onchange({ currentTarget: { value: "std" } });
      await settled();
      asked[0][1](refusal(503, "busy"));
      await settled();
      return [asked.map(([address]) => address), told];
    """,
        ("{ jobPage }", "pages/job/job.js"),
    )

    assert found == [["/v1/jobs/job-1/metrics/bytes_sent?max_points=2000"], 1]


def test_bytes_that_did_not_come_are_told_of_and_asked_for_again():
    script = """
      const asked = [];
      const { bodies, update } = wire(() => new Promise((found, lost) => asked.push({ found, lost })));
      document.body.append(...bodies);
      seeAll();
      const series = [{ trial_id: "a", steps: [0, 1], seconds: [0, 1], values: [1, 1] }];
      await update([], [], series, { mode: "none" });
      asked[0].lost(new Error("no answer"));
      await settled();
      const told = document.body.querySelector("[role=alert]").textContent;
      document.body.querySelector("[role=alert]").querySelector("button").onclick();
      asked[1].found(series);
      await settled();
      return [told, document.body.querySelector("[role=alert]").textContent];
    """

    assert played(script, ("{ wire }", "pages/job/wire.js")) == ["no answertry again", ""]


CURVES = """
  const drawn = [];
  const waits = globalThis.setTimeout;
  globalThis.setTimeout = (act) => waits(act, 0); // the page waits until a wheel has come to rest
  const rangeOf = (least, most) => ({ "xaxis.range[0]": least, "xaxis.range[1]": most });
  globalThis.Plotly = { react(chart, traces) {
    drawn.push(traces.find((each) => each.x?.length)?.x);
    chart.on = (_, hear) => { globalThis.zoomTo = (...ends) => hear(rangeOf(...ends)); };
  } };
  const choice = { x: "steps", seeds: "mean", smooth: 0, log: true, logx: false, trial: "" };
  const trial = { trial_id: "a", label: "tuned", arm: "tuned", arm_index: 0, is_first_seed: true };
  const points = (steps) => ({ num_points: 1000, steps, seconds: steps, values: steps.map(() => 1) });
  const lossAt = (...steps) => ({ ...trial, name: "loss", ...points(steps) });
  const held = (...steps) => ({ trials: [trial], stages: [], schedules: [], series: [lossAt(...steps)] });
"""


def of_curves(script):
    return played(f"{CURVES}{script}", ("{ curves }", "pages/job/curves.js"))


def test_points_of_a_part_that_is_no_longer_looked_at_do_not_take_the_place_of_others():
    found = of_curves("""
      const asked = heldService();
      const shown = curves("job-1", { held: choice }, null);
      document.body.append(shown.loss);
      seeAll();
      await shown.update(held(0, 100, 200, 300));
      zoomTo(0, 100);
      await settled();
      const [early] = asked.splice(0);
      zoomTo(200, 300);
      await settled();
      asked[0][1](Response.json([lossAt(200, 250, 300)]));
      await settled();
      early[1](Response.json([lossAt(0, 50, 100)]));
      await settled();
      return drawn.at(-1);
    """)

    assert found == [0, 100, 200, 250, 300]


def test_bytes_of_an_earlier_state_are_not_drawn_under_a_newer_one():
    found = of_curves("""
      const asked = [];
      const fetchSent = () => new Promise((found) => asked.push(found));
      const shown = curves("job-1", { held: { ...choice, x: "bytes" } }, fetchSent);
      document.body.append(shown.loss);
      seeAll();
      const sent = (...steps) => [{ ...lossAt(...steps), values: steps.map((step) => 10 * step) }];
      shown.update(held(0, 100));
      shown.update(held(0, 100, 200));
      asked[1](sent(0, 100, 200));
      await settled();
      asked[0](sent(0, 100));
      await settled();
      return drawn.at(-1);
    """)

    assert found == [0, 1, 2]


@pytest.mark.parametrize("early", ["Response.json([])", "refusal(503, 'busy')"])
def test_the_newest_list_of_files_stays_for_one_is_asked_for_after_the_other(early):
    found = played(
        f"""
      const asked = heldService();
      const {{ body, update }} = files("job-1");
      document.body.append(body);
      seeAll();
      const lists = () => asked.filter(([address]) => address.endsWith("/artifacts"));
      update({{ version: 1, attempt: 0 }}, "before");
      await settled();
      update({{ version: 2, attempt: 0 }}, "after");
      await settled();
      const atOnce = lists().length;
      lists()[0][1]({early});
      await settled();
      lists()[1][1](Response.json([{{ name: "job-1.log", kind: "log", href: "/", num_bytes: 1, created_at: null }}]));
      await settled();
      return [atOnce, body.textContent];
    """,
        ("{ files }", "pages/job/files.js"),
    )

    assert found[0] == 1 and "1 file;" in found[1] and "busy" not in found[1]


def test_the_attempts_of_a_job_that_was_queued_are_shown_once_it_has_one():
    script = """
      const asked = heldService();
      const { attempts, update } = files("job-1");
      document.body.append(attempts);
      update({ version: 1, attempt: 0 }, "queued");
      seeAll();
      await settled();
      for (const [, answer] of asked) answer(Response.json([]));
      await settled();
      seeAll();
      update({ version: 2, attempt: 1 }, "running");
      seeAll();
      await settled();
      const life = { number: 1, began_at: "2026-01-01T00:00:00Z", ended_at: null };
      asked.findLast(([address]) => address.endsWith("/attempts"))?.[1](Response.json([life]));
      await settled();
      return [attempts.hidden, attempts.querySelector("tbody")?.childNodes.length];
    """

    assert played(script, ("{ files }", "pages/job/files.js")) == [False, 1]


def test_a_refused_download_says_so_though_the_list_of_files_was_drawn_anew():
    script = """
      const asked = heldService();
      const { body, update } = files("job-1");
      document.body.append(body);
      seeAll();
      const log = { name: "job-1.log", kind: "log", href: "/log", num_bytes: 1, created_at: null };
      for (const version of [1, 2]) {
        update({ version, attempt: 0 }, `at ${version}`);
        await settled();
        asked.findLast(([address]) => address.endsWith("/artifacts"))[1](Response.json([log]));
        await settled();
      }
      const button = body.querySelector("td").querySelector("button");
      button.onclick({ currentTarget: button });
      asked.at(-1)[1](refusal(404, "it is gone"));
      await settled();
      return body.querySelector("td").textContent;
    """

    assert "it is gone" in played(script, ("{ files }", "pages/job/files.js"))


@pytest.mark.parametrize("num_events", [0, 499, 500, 501, 1000])
@pytest.mark.parametrize("page", [500, 10_000])  # of the service; of a file, which answers with all that it holds
def test_a_timeline_has_every_event_once_however_many_pages_they_fill(num_events, page):
    script = """
      globalThis.fetch = async (path) => {
        const asked = new URL(path, "http://page.invalid").searchParams;
        const after = page > 500 ? 0 : Number(asked.get("after"));
        const events = told.slice(after, after + page);
        return Response.json({ events, next_after: after + events.length });
      };
      const { body, update } = timeline("job-1");
      document.body.append(body);
      seeAll();
      const trial = { trial_id: "a", label: "tuned", seconds: 2, step: 10, bill: { repairs: 0, absences: {} } };
      await update([trial], [], { version: 1 });
      for (let turn = 0; turn < 5; turn += 1) await settled();
      return body.querySelector("[role=img]").getAttribute("aria-label");
    """
    told = [{"kind": "repair", "data": {"trial_id": "a", "seconds": 1, "repairs": at}} for at in range(num_events)]

    label = played(script, ("{ timeline }", "pages/job/timeline.js"), told=told, page=page)

    assert label.endswith(f" {num_events} events")


def test_events_of_a_timeline_are_asked_for_one_after_the_other_and_drawn_once():
    script = """
      const asked = heldService();
      const { body, update } = timeline("job-1");
      document.body.append(body);
      seeAll();
      const pause = { kind: "job", data: { state: "paused", reason: "", clocks: { a: 1 } } };
      const answer = async (events) => {
        asked.shift()[1](Response.json({ events, next_after: 7 }));
        await settled();
      };
      const trial = { trial_id: "a", label: "tuned", seconds: 2, step: 10, bill: { repairs: 0, absences: {} } };
      update([trial], [], { version: 1 });
      await settled();
      update([trial], [], { version: 2 });
      await settled();
      const atOnce = asked.length;
      await answer([pause]);
      const addresses = asked.map(([address]) => address);
      await answer([]);
      return [atOnce, addresses, body.querySelector("[role=img]").getAttribute("aria-label")];
    """

    at_once, addresses, label = played(script, ("{ timeline }", "pages/job/timeline.js"))

    assert at_once == 1 and label.endswith("1 events")
    assert addresses == ["/v1/jobs/job-1/events?kind=job&kind=repair&after=7&limit=500"]


def test_a_file_of_a_clone_does_not_claim_that_the_job_it_was_made_of_is_gone(client, http, reporting):
    made = http.post(f"/v1/jobs/{reporting.job_id}:clone", json={"budget": {"seconds": 90}}).json()["job"]["id"]
    plot = plots.plot(client, [made])
    script = """
      for (const id of ["held", "library", "page", "made"]) {
        const part = document.createElement("div");
        part.setAttribute("id", id);
        part.textContent = { held: JSON.stringify(given), library }[id] ?? "";
        document.body.append(part);
      }
      await import(`${dashboard}/offline.js`);
      seeAll();
      await settled();
      return document.body.querySelector("#specification").textContent;
    """

    given = {"page": plot.page, "of": plot.of, "made": "now", "answers": plot.answers}
    library = base64.b64encode(gzip.compress(b"")).decode()
    said = played(script, given=given, library=library, dashboard=DASHBOARD.as_uri())

    assert f"A clone of {reporting.job_id}: this file does not have it" in said and "kind: digits-mlp" in said


def test_a_list_of_keys_that_did_not_come_after_a_change_is_asked_for_again_and_told_of():
    found = played(
        f"""
      {LIST}
      const key = {{ id: "key-1", name: "ci", created_at: "2026-01-01T00:00:00Z", created_by: "anna" }};
      keysPage(root, "all", null, () => {{ told += 1; }}).refresh();
      await answer(Response.json([key]));
      await answer(Response.json({{ role: "admin", name: "anna", may: [], key: "key-2" }}));
      root.querySelector("[aria-label=revoke ci]").onclick();
      document.body.querySelector("form").onsubmit({{ preventDefault() {{}} }});
      await answer(Response.json({{}}));
      await answer(refusal(503, "busy"));
      return told;
    """,
        ("{ keysPage }", "pages/keys.js"),
    )

    assert found == 1


def test_a_page_without_a_clipboard_says_how_to_copy():
    script = """
      globalThis.navigator = {};
      const { body } = specification();
      body.querySelector("button").onclick();
      return body.querySelector("button").textContent;
    """

    assert played(script, ("{ specification }", "pages/job/specification.js")) == "select it, and copy it by hand"
