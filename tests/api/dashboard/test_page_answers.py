"""A page whose answers are late, refused, or for something no longer requested; without a browser."""

import base64
import gzip
from pathlib import Path

import pytest

from api import plots
from api.http.routes.page import DASHBOARD
from service.errors import UnreadableJob
from service.job.spec import JobSpec
from service.wire.records import MetricPoints
from tests.api.conftest import Reporting
from tests.api.dashboard.test_page_modules import pytestmark as needs_node, run

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
  const told = () => body.childNodes.slice(1).map((each) => each.textContent.trim());
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


@pytest.mark.parametrize(
    ("headers", "told"),
    [
        ({"Content-Length": "2000000"}, ["0 B", "1.5 MB of 2.0 MB", "2.0 MB of 2.0 MB", ""]),
        ({"Content-Length": "999", "Content-Encoding": "gzip"}, ["0 B", "1.5 MB", "2.0 MB", ""]),
    ],
)
def test_a_download_says_how_far_it_is_and_its_button_waits_for_its_end(headers, told):
    script = """
      const asked = heldService();
      document.body.constructor.prototype.click = () => {};
      const { body, update } = files("job-1");
      document.body.append(body);
      update({ version: 1, attempt: 0 }, "running");
      const button = body.querySelector("button");
      button.onclick({ currentTarget: button });
      const found = [];
      const look = async () => { await settled(); found.push([button.disabled, button.parentNode.textContent]); };
      await look();
      let parts = null;
      asked.at(-1)[1](new Response(new ReadableStream({ start: (given) => { parts = given; } }), { headers }));
      for (const bytes of [1500000, 500000]) {
        parts.enqueue(new Uint8Array(bytes));
        await look();
      }
      parts.close();
      await look();
      return found;
    """

    found = played(script, ("{ files }", "pages/job/files.js"), headers=headers)

    assert [is_disabled for is_disabled, _ in found] == [True, True, True, False]
    assert [text.removeprefix("metrics.csv").strip() for _, text in found] == told


@pytest.mark.parametrize("late", ["new Response('of before')", "refusal(404, 'of before')"])
def test_an_answer_that_comes_after_another_attempt_was_chosen_is_not_shown(late):
    found = of_log(f"""
      choose("1");
      await answer({late});
      const addresses = asked.map(([address]) => address);
      await answer(new Response("of this"));
      return [addresses, text.textContent];
    """)

    assert found == [["/v1/jobs/job-1/logs?attempt=1&tail=1000000"], "of this"]


def test_who_turns_back_to_an_attempt_while_its_log_is_fetched_reads_it_once():
    found = of_log("""
      choose("1");
      choose("2");
      await answer(new Response("printed\\n"));
      await answer(new Response("printed\\n"));
      return [text.textContent, told()[1], asked.length];
    """)

    assert found == ["printed", "1 line, 8 B", 0]


def test_the_end_of_a_long_log_comes_first_and_all_of_it_to_whoever_asks():
    found = of_log("""
      const addresses = [];
      const next = async (given) => { addresses.push(asked[0][0].split("attempt=2&")[1]); await answer(given); };
      await next(new Response("last\\n", { headers: { "X-Log-Offset": "63000000" } }));
      const first = told();
      update({ attempt: 2, finished_at: null });
      await next(new Response("later\\n", { headers: { "X-Log-Offset": "63000005" } }));
      const then = told();
      text.focus = () => {};
      body.querySelector("p").querySelector("button").onclick();
      await settled();
      await next(new Response("first\\nlast\\nlater\\n"));
      return [addresses, first, then, told()];
    """)

    addresses, first, then, everything = found
    assert addresses == ["tail=1000000", "offset=63000005", "offset=0"]
    assert first == ["", "the last 1 line of 63.0 MB read all of it", "last"]
    assert then == ["", "the last 2 lines of 63.0 MB read all of it", "last\nlater"]
    assert everything == ["", "3 lines, 17 B", "first\nlast\nlater"]


def test_a_log_that_was_cut_goes_on_where_the_service_says_that_it_ended():
    found = of_log("""
      await answer(new Response("first\\ncut\\nlast\\n", { headers: { "X-Log-Offset": "0", "X-Log-End": "5000000" } }));
      update({ attempt: 2, finished_at: null });
      const [address] = asked[0];
      await answer(new Response("", { headers: { "X-Log-Offset": "5000000", "X-Log-End": "5000000" } }));
      return [address.split("&")[1], told()];
    """)

    assert found == ["offset=5000000", ["", "3 lines, 5.0 MB", "first\ncut\nlast"]]


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

    assert found == [["", "the storage does not answer", "printed"], ["", "1 line, 7 B", "printed"]]


def of_log_under_way(script):
    before = "let now = 0, tick = null; Date.now = () => now; globalThis.setInterval = (act) => { tick = act; };"
    return played(f"{before}{LOG_PANEL}{script}", ("{ logs }", "pages/job/logs.js"))


def test_a_log_is_read_to_its_end_though_the_job_ended_while_an_answer_was_under_way():
    found = of_log_under_way("""
      update({ attempt: 3, finished_at: null });
      await answer(new Response("of another"));
      update({ attempt: 3, finished_at: "2026-01-01T00:00:00Z" });
      await answer(new Response("begun\\n"));
      await answer(new Response("done"));
      return [text.textContent, asked.length];
    """)

    assert found == ["begun\ndone", 0]


def test_a_log_is_followed_for_a_while_after_the_end_and_not_for_ever():
    found = of_log_under_way("""
      await answer(new Response(""));
      now = Date.parse("2026-01-02T00:00:00Z");
      const at = async (seconds) => {
        now += 1000 * seconds;
        tick();
        await settled();
        for (const [, give] of asked.splice(0)) give(new Response(`after ${seconds}\\n`));
        await settled();
      };
      await at(1);
      update({ attempt: 2, finished_at: null });
      await at(2);
      update({ attempt: 2, finished_at: "2026-01-02T00:00:00Z" });
      await at(3);
      await at(26);
      await at(4);
      return text.textContent;
    """)

    assert found.split("\n") == ["after 2", "after 3", "after 26"]


def test_a_log_that_ended_long_ago_is_not_followed_though_the_readers_clock_is_behind():
    found = of_log_under_way("""
      await answer(new Response("done", { headers: { Date: "Fri, 02 Jan 2026 00:00:00 GMT" } }));
      now = 60000;
      tick();
      await settled();
      return asked.length;
    """)

    assert found == 0


def test_ages_go_by_the_clock_of_the_service_whatever_the_readers_says():
    script = """
      const at = Date.parse("2026-01-01T12:00:00Z");
      Date.now = () => at - 3_600_000;
      globalThis.fetch = async () => Response.json({}, { headers: { Date: new Date(at).toUTCString() } });
      const found = [age("2026-01-01T11:30:00Z")];
      await api.cluster();
      return [...found, age("2026-01-01T11:30:00Z")];
    """

    assert played(script, ("{ age }", "units.js"), ("api", "api.js")) == ["just now", "30 min ago"]


def test_a_line_that_a_progress_bar_wrote_again_and_again_shows_what_was_written_last():
    found = of_log("""
      await answer(new Response("first\\r\\n(pid=7) 10 %\\r(pid=7) 20 %\\r\\nlast 1\\rlast 2\\r"));
      return text.textContent;
    """)

    assert found.split("\n") == ["first", "20 %", "last 2"]


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
    return played(f"{LIST}{JOBS}{script}", ("{ jobsPage }", "pages/jobs/jobs.js"), dashboard=DASHBOARD.as_uri())


def of_audit(script):
    return played(f"{LIST}{AUDIT}{script}", ("{ auditPage }", "pages/audit.js"))


@pytest.mark.parametrize(
    ("status", "answer", "headers", "said"),
    [
        (500, {"detail": "it failed", "request_id": "3f2a"}, {}, "it failed (request 3f2a)"),
        (502, "<html>", {"X-Request-ID": "3f2a"}, "502 Bad Gateway (request 3f2a)"),
        (503, {"detail": "busy"}, {}, "busy"),
        (409, {"detail": "it is queued", "request_id": "3f2a"}, {}, "it is queued"),
    ],
)
def test_a_failure_of_the_service_is_told_with_the_request_that_its_log_has(status, answer, headers, said):
    script = """
      const body = typeof answer === "string" ? answer : JSON.stringify(answer);
      globalThis.fetch = async () => new Response(body, { status, headers, statusText: "Bad Gateway" });
      return api.cluster().catch((error) => error.message);
    """

    assert played(script, ("api", "api.js"), status=status, answer=answer, headers=headers) == said


def test_a_job_that_only_another_release_can_read_has_a_page_of_what_is_known_of_it():
    script = """
      globalThis.fetch = async (path) => {
        if (path.includes("snapshot")) return Response.json({ type: unreadable, detail: "no" }, { status: 409 });
        return Response.json(path === "/v1/me" ? { role: "viewer" } : job);
      };
      const root = document.createElement("main");
      document.body.append(root);
      await jobPage(root, "job-1", null, () => {}).refresh();
      return root.textContent;
    """
    job = {"id": "job-1", "name": "digits", "state": "queued", "unreadable": "workers.colour", "labels": {}, "spec": {}}
    job |= {"created_at": "2026-01-01T00:00:00Z", "version": 1, "attempt": 0, "source": None, "finished_at": None}

    unreadable = f"/problems/{UnreadableJob.slug}"
    said = played(script, ("{ jobPage }", "pages/job/job.js"), job=job, unreadable=unreadable)

    assert "this one cannot read it: workers.colour" in said


def test_a_filter_of_the_list_that_gets_no_answer_is_asked_for_again_and_told_of():
    assert of_jobs('archived("true"); await answer(refusal(503, "busy")); return told;') == 1


@pytest.mark.parametrize(
    ("text", "asked", "shown"),
    [
        ("89abcdef", ["text=89abcdef", "ref=89abcdef"], ["2 jobs", "job-0123456789abcdef", "job-2"]),
        ("job-01234567", ["text=job-01234567", "ref=job-01234567"], ["2 jobs", "job-0123456789abcdef", "job-2"]),
        ("job-0123456", ["text=job-0123456"], ["1 job", "job-2"]),  # ids begin with their time: nearly all have it
        ("fade in", ["text=fade+in"], ["1 job", "job-2"]),
    ],
)
def test_a_search_for_a_word_that_may_be_an_id_finds_the_job_of_it_as_well(text, asked, shown):
    rows = [
        {"id": name, "name": name, "state": "queued", "labels": {}, "arms": [], "created_at": "2026-01-01T00:00:00Z"}
        | {"best_validation_loss": None, "result": None, "finished_at": None, "reason": "", "verbs": []}
        | {"progress": {"share": 0, "num_trials": 1, "losses": [], "learning_rate": None, "bytes_sent": 0}}
        for name in ("job-0123456789abcdef", "job-2")
    ]
    script = """
      const root = document.createElement("main");
      const asked = [];
      globalThis.fetch = async (path) => {
        if (path === "/v1/me") return Response.json({ role: "admin", name: "anna", may: [] });
        asked.push(/(text|ref)=[^&]*/.exec(path)[0]);
        const [byId, byText] = rows;
        return Response.json({ jobs: [path.includes("ref=") ? byId : byText], total: 1, next_cursor: null });
      };
      await jobsPage(root, "all", new URLSearchParams({ text }), () => {}).refresh();
      const names = root.querySelector("tbody").childNodes.map((row) => row.querySelector("a").textContent);
      return [asked, [root.querySelector("caption").textContent, ...names]];
    """

    assert played(script, ("{ jobsPage }", "pages/jobs/jobs.js"), rows=rows, text=text) == [asked, shown]


@pytest.mark.parametrize(("arms", "arm", "is_said"), [(["tuned"], "tuned", False), (["tuned", "dense"], "tuned", True)])
def test_a_row_says_whose_rate_it_shows_where_a_job_has_several_arms(arms, arm, is_said):
    progress = {"learning_rate": 0.1, "level": None, "level_name": "density", "arm": arm}
    script = """
      const [, show] = COLUMNS.find(([heading]) => heading === "rate and level");
      const cell = document.createElement("td");
      cell.append(...show(job).filter(Boolean));
      return cell.textContent;
    """

    said = played(script, ("{ COLUMNS }", "pages/jobs/row.js"), job={"arms": arms, "progress": progress})

    assert said == ("lr 0.1of tuned" if is_said else "lr 0.1")


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


JOB = """
  const asked = [], changed = { whole: false, cursor: 9, job: null, report: null };
  for (const part of ["trials", "stages", "schedules", "series"]) changed[part] = [];
  const at = (what) => `/v1/jobs/${id}/${what}`;
  const answers = { "/v1/me": { name: "anna", role: "viewer", may: [] }, [at("snapshot")]: whole,
    [at("events")]: { events: [], next_after: 0 }, [at("metrics/bytes_sent")]: sent };
  globalThis.fetch = async (address) => {
    asked.push(address.replace(at(""), ""));
    const found = answers[address.split("?")[0]] ?? [];
    return typeof found === "number" ? refusal(found, "no") : Response.json(found);
  };
  const root = document.createElement("main");
  document.body.append(root);
"""


def of_job(script, http, reporting):
    url = f"/v1/jobs/{reporting.job_id}"
    whole, sent = (http.get(f"{url}/{what}").json() for what in ("snapshot", "metrics/bytes_sent"))
    modules = [("{ jobPage }", "pages/job/job.js"), ("api", "api.js")]
    return played(f"{JOB}{script}", *modules, id=reporting.job_id, whole=whole, sent=sent)


@pytest.fixture
def training(reporting):
    reporting.start("tuned")
    reporting.stage("tuned", 0, rate=1.0, density=0.01)
    trial = reporting.trial("tuned")
    reporting.post(MetricPoints(trial_id=trial, name="bytes_sent", steps=(19, 99), seconds=(1, 5), values=(10, 20)))
    return reporting


def test_of_other_series_only_what_is_new_of_trials_that_changed_is_asked_for_until_steps_are_taken_back(
    http, training
):
    found = of_job(
        """
      location.search = "?x=bytes";
      const page = jobPage(root, id, null, () => {});
      await page.refresh();
      answers[at("snapshot")] = { ...changed, trials: [{ ...whole.trials[0] }] };
      const added = { steps: [99, 119], seconds: [5, 6], values: [20, 25], num_points: 2 };
      answers[at("metrics/bytes_sent")] = [{ ...sent[0], ...added }];
      await page.refresh();
      answers[at("snapshot")] = { ...changed };
      await page.refresh();
      answers[at("snapshot")] = whole;
      await page.refresh();
      return asked.filter((address) => address.startsWith("metrics/"));
    """,
        http,
        training,
    )

    everything = "metrics/bytes_sent?max_points=2000"
    new = f"metrics/bytes_sent?trial={training.trial('tuned')}&max_points=2000&first_step=99"
    assert found == [everything, new, everything]


def test_a_series_that_is_held_goes_on_with_its_new_points_also_where_an_answer_was_lost():
    script = """
      const asked = heldService();
      const answer = async (given) => { await settled(); asked.shift()[1](given); await settled(); };
      const points = (trial_id, ...steps) =>
        ({ trial_id, num_points: steps.length, steps, seconds: steps, values: steps.map((step) => 2 * step) });
      const fetchSeries = heldSeries("job-1");
      const [over, running] = ["a", "b"].map((trial_id) => ({ trial_id }));
      const rows = [[over, running], [over, { ...running }]];
      const first = fetchSeries("validation_accuracy", rows[0]);
      await answer(Response.json([points("a", 0, 5), points("b", 0, 5)]));
      const lost = fetchSeries("validation_accuracy", rows[1]).catch((error) => error.message);
      await answer(refusal(503, "busy"));
      const again = fetchSeries("validation_accuracy", rows[1]);
      await answer(Response.json([points("b", 5, 10)]));
      const isSame = again === fetchSeries("validation_accuracy", rows[1]);
      const kept = ({ steps, values, num_points }) => [steps, values, num_points];
      return [(await first).map(kept), await lost, (await again).map(kept), isSame, asked.length];
    """

    first, lost, then, is_same, num_asked = played(script, ("{ heldSeries }", "pages/job/held_series.js"))

    over, short = [[0, 5], [0, 10], 2], [[0, 5], [0, 10], 2]
    assert first == [over, short] and lost == "busy"
    assert then == [over, [[0, 5, 10], [0, 10, 20], 3]] and is_same and num_asked == 0


def test_who_signed_in_with_another_key_sees_what_that_key_may_see_and_do(http, training):
    found = of_job(
        """
      const page = jobPage(root, id, null, () => {});
      const shown = () => [root.textContent.includes("No such job"),
        root.querySelector("[class=buttons]").childNodes.map((button) => button.textContent)];
      answers[at("snapshot")] = 404;
      await page.refresh();
      const found = [shown()];
      answers[at("snapshot")] = whole;
      page.missed();
      await page.refresh();
      found.push(shown());
      answers["/v1/me"] = { name: "bert", role: "admin", may: [] };
      api.forget();
      await page.refresh();
      return [...found, shown()];
    """,
        http,
        training,
    )

    *_, verbs = found
    assert found == [[True, []], [False, ["compare"]], [False, verbs[1]]] and "pause" in verbs[1]


def test_the_list_offers_what_the_key_may_do_with_which_somebody_signed_in_last():
    found = of_jobs("""
      const { forget } = await import(`${dashboard}/api.js`);
      const isOffered = () => root.textContent.includes("New job");
      const before = isOffered();
      forget();
      page.missed();
      page.refresh();
      await answer(Response.json({ role: "admin", name: "bert", may: ["create a job"] }));
      await answer(Response.json(found));
      return [before, isOffered()];
    """)

    assert found == [False, True]


def test_the_form_comes_once_somebody_signed_in_who_may_submit(anonymous):
    components = anonymous.get("/openapi.json").json()["components"]
    script = """
      const root = document.createElement("main");
      let may = [];
      globalThis.fetch = async (path) => Response.json(path === "/v1/me" ? { role: "viewer", may } : { components });
      const page = submitPage(root);
      await page.refresh();
      const before = root.textContent;
      may = ["create a job"];
      api.forget();
      await page.refresh();
      return [before, root.textContent];
    """

    modules = [("{ submitPage }", "pages/submit/submit.js"), ("api", "api.js")]
    before, after = played(script, *modules, components=components)

    assert "submits no jobs" in before and "submits no jobs" not in after


def test_the_table_of_stages_is_written_again_only_where_one_has_changed(http, training):
    found = of_job(
        """
      const page = jobPage(root, id, null, () => {});
      await page.refresh();
      seeAll();
      const caption = root.querySelector("#stages").querySelector("caption").firstChild.firstChild;
      const written = caption.data;
      const refreshed = async (news) => {
        caption.data = "not written again";
        answers[at("snapshot")] = { ...changed, ...news };
        await page.refresh();
        return caption.data === written;
      };
      const [trial, stage] = [whole.trials[0], whole.stages[0]];
      return [await refreshed({ trials: [{ ...trial, step: 120 }] }), await refreshed({ stages: [{ ...stage }] })];
    """,
        http,
        training,
    )

    assert found == [False, True]


def test_a_long_table_of_stages_begins_with_the_newest_of_each_trial():
    script = """
      const { body, update } = stageList();
      document.body.append(body);
      seeAll();
      const stages = (trial_id, count) => Array.from({ length: count }, (_, stage) =>
        ({ trial_id, stage, label: trial_id, level_name: "density", probes: [], values: {} }));
      update([...stages("a", 120), ...stages("b", 3)], { state: "running" });
      const rows = () => body.querySelector("tbody").childNodes.map(({ key }) => key);
      const shown = () => rows().filter((key) => !key.startsWith("note"));
      const newest = shown();
      const more = body.querySelector("button");
      const offer = more.textContent;
      more.onclick();
      return [newest, offer, shown().length, more.hidden];
    """

    newest, offer, num_all, is_hidden = played(script, ("{ stageList }", "pages/job/stages.js"))

    assert newest == [f"a {at}" for at in range(70, 120)] + [f"b {at}" for at in range(3)]
    assert (offer, num_all, is_hidden) == ("show the 70 earlier stages", 123, True)


MAIN = """
  for (const id of ["page", "notice", "connection", "caller", "times", "print", "sign-out"]) {
    const part = document.createElement("div");
    part.setAttribute("id", id);
    document.body.append(part);
  }
  const wait = setTimeout;
  globalThis.setTimeout = (act, ms) => wait(act, ms > 5000 ? ms : 0); // the page is not slow on purpose
  globalThis.addEventListener = () => {};
  location.search = "?job=job-1";
  const asked = [];
  let name = "anna";
  let release = document.body.content = "0.1.0"; // of the service, and of the page
  let say = null;
  const stream = () => new Response(new ReadableStream({ start(parts) {
    say = async (text) => {
      parts.enqueue(new TextEncoder().encode(`${text}\\n\\n`));
      for (let turn = 0; turn < 10; turn += 1) await settled();
    };
  } }));
  globalThis.fetch = async (path) => {
    asked.push(path);
    if (path === "/v1/me") return Response.json({ name, role: "submitter", project: "vision", may: [], release });
    if (path.startsWith("/v1/jobs?")) return Response.json({ jobs: [] });
    return path.startsWith("/v1/events") ? stream() : refusal(404, "there is no such job");
  };
  await import(`${dashboard}/main.js`);
  for (let turn = 0; turn < 10; turn += 1) await settled();
  const part = (id) => document.body.querySelector(`#${id}`);
"""


def of_main(script):
    return played(f"{MAIN}{script}", dashboard=DASHBOARD.as_uri())


def test_a_page_without_a_shared_worker_follows_its_own_job_or_where_that_is_gone_all_in_brief():
    found = of_main("""
      await say("id: 1");
      return [asked.filter((path) => path.includes("/events")), part("connection").textContent];
    """)

    assert found == [["/v1/jobs/job-1/events?brief=true", "/v1/events?brief=true"], "live"]


def test_the_head_names_who_is_signed_in_also_after_another_has_signed_in_elsewhere():
    found = of_main("""
      await say("id: 1");
      const first = part("caller").textContent;
      name = "bert";
      await say('data: {"id": 2, "job_id": null, "kind": "gap"}'); // as after the stream was begun again
      return [first, part("caller").textContent];
    """)

    assert found == ["anna · submitter · project vision", "bert · submitter · project vision"]


def test_a_page_of_another_release_than_the_service_says_so_and_is_loaded_anew_when_somebody_wants_it():
    found = of_main("""
      const again = 'data: {"id": 2, "job_id": null, "kind": "gap"}';
      let loads = 0;
      location.reload = () => { loads += 1; };
      const told = () => part("notice").querySelector("p")?.textContent ?? "";
      await say("id: 1");
      const found = [told()];
      for (release of ["0.2.0", "0.2.0", "0.3.0"]) {
        await say(again);
        found.push(told());
        const [now, later] = part("notice").querySelector("[class=buttons]")?.children ?? [];
        now?.onclick();
        later?.onclick();
      }
      return [found, told(), loads];
    """)

    said = "The service runs release {} now. This page is of 0.1.0."
    assert found == [["", said.format("0.2.0"), "", said.format("0.3.0")], "", 2]


@pytest.mark.parametrize(("issuer", "expected"), [("/v1/sign-in", "/v1/sign-in?to=%2F%3Fjob%3Djob-1"), ("", None)])
def test_the_door_leads_to_the_issuer_where_there_is_one_and_back_to_this_page(issuer, expected):
    script = """
      await say("id: 1");
      document.body.content = issuer;
      let to = null;
      location.assign = (address) => { to = address; };
      globalThis.fetch = async () => refusal(401, "this session is not known here");
      await say('data: {"id": 2, "job_id": null, "kind": "gap"}');
      part("page").querySelector("[class=primary]")?.onclick();
      return [to, part("page").querySelector("#key") !== null];
    """

    assert played(f"{MAIN}{script}", dashboard=DASHBOARD.as_uri(), issuer=issuer) == [expected, True]


def test_the_title_of_a_tab_that_nobody_looks_at_goes_on_and_nothing_of_the_page_is_drawn():
    found = of_main("""
      await say("id: 1");
      const job = { name: "digits", state: "queued", started_at: null, labels: {}, unreadable: "workers.colour" };
      asked.length = 0;
      globalThis.fetch = async (path) => {
        asked.push(path);
        return Response.json(path === "/v1/me" ? {} : { whole: true, cursor: 1, job, trials: [], series: [] });
      };
      const before = part("page").textContent;
      const titles = [];
      const hear = async (event) => {
        await say(`data: ${JSON.stringify(event)}`);
        titles.push(document.title.replace(" – Wiretune", ""));
      };
      document.hidden = true;
      await hear({ kind: "gap", job_id: null }); // as after the stream was begun again
      job.state = "failed";
      await hear({ kind: "loss", job_id: "job-1" });
      await hear({ kind: "job", job_id: "job-1" });
      return [titles, part("page").textContent === before, asked.filter((path) => path !== "/v1/me").length];
    """)

    assert found == [["queued · digits", "queued · digits", "failed · digits"], True, 2]


def test_what_runs_while_nobody_looks_waits_for_its_turn_unless_it_is_urgent():
    script = """
      const due = new Map();
      globalThis.setTimeout = (act, ms) => { due.set(act, ms); return act; };
      globalThis.clearTimeout = (act) => due.delete(act);
      const pass = () => { for (const [act] of due) { due.delete(act); act(); } };
      let runs = 0;
      const ask = unseen(() => { runs += 1; }, 12000);
      ask(true);
      document.hidden = true;
      const found = [due.size];
      for (const isUrgent of [false, false, true, false]) {
        ask(isUrgent);
        found.push([...due.values()]);
      }
      pass();
      ask(false);
      document.hidden = false;
      pass();
      return [...found, runs];
    """

    found = played(script, ("{ unseen }", "live/live.js"))

    assert found == [0, [12000], [12000], [0], [0], 1]


def test_a_printed_page_fetches_once_what_is_out_of_sight():
    script = """
      const node = document.createElement("section");
      node.checkVisibility = () => true;
      document.querySelectorAll = () => [node];
      const asked = [];
      const look = whenSeen(node, () => asked.push("fetched"));
      const counts = [];
      for (const act of [fetchAll, look, look, fetchAll, seeAll, look]) {
        await act();
        counts.push(asked.length);
      }
      return counts;
    """

    assert played(script, ("{ seeAll: fetchAll, whenSeen }", "pages/job/sight.js")) == [1, 1, 1, 2, 2, 3]


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
  const look = { label: "tuned", arm: "tuned", arm_index: 0, is_first_seed: true };
  const trial = { trial_id: "a", ...look, metric_directions: {} };
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


def test_finer_points_of_steps_that_were_taken_back_go_and_those_of_the_new_steps_come():
    found = of_curves("""
      const asked = heldService();
      const shown = curves("job-1", { held: choice }, null);
      document.body.append(shown.loss);
      seeAll();
      await shown.update(held(0, 100, 200, 300));
      const zoom = async (...steps) => {
        await settled();
        asked.shift()[1](Response.json([lossAt(...steps)]));
        await settled();
        return drawn.at(-1);
      };
      zoomTo(0, 100);
      const before = await zoom(0, 50, 100);
      shown.forget();
      await shown.update(held(0, 90, 200, 300));
      return [before, drawn.at(-1), await zoom(0, 60, 90)];
    """)

    assert found == [[0, 50, 100, 200, 300], [0, 90, 200, 300], [0, 60, 90, 200, 300]]


def test_points_that_come_after_finer_ones_stay_in_the_part_that_is_looked_at():
    found = of_curves("""
      const asked = heldService();
      const shown = curves("job-1", { held: { ...choice, seeds: "each" } }, null);
      document.body.append(shown.loss);
      seeAll();
      const of = (trial_id, ...steps) => ({ ...lossAt(...steps), trial_id });
      const two = (...behind) => ({ ...held(), trials: [trial, { ...trial, trial_id: "b" }],
        series: [of("a", 0, 100, 200, 300), of("b", ...behind)] });
      await shown.update(two(0, 100));
      zoomTo(0, 250);
      await settled();
      asked[0][1](Response.json([of("a", 0, 50, 100, 150, 200, 250), of("b", 0, 50, 100)]));
      await settled();
      await shown.update(two(0, 100, 110, 120, 260));
      return drawn.at(-1);
    """)

    assert found == [0, 50, 100, 150, 200, 250, 300, None, 0, 50, 100, 110, 120, 260]


def test_a_sweep_is_drawn_over_its_parameters_whatever_they_are():
    values = [
        {"optimizer.momentum": 0.25, "exchange": {"kind": "topk"}, "workload.params.bias": True, "precision": None},
        {"optimizer.momentum": 0.75, "exchange": {"kind": "none"}, "workload.params.bias": False, "precision": "bf16"},
        {"optimizer.momentum": 0.5, "exchange": {"kind": "signs"}, "workload.params.bias": True, "precision": "bf16"},
        None,  # it learns from the others
    ]
    common = {"status": "completed", "share": 1, "cost": None, "on_front": False}
    samples = [
        {"arm": f"sample-{at}", "label": f"sample-{at}", "place": at + 1, "sample": {"values": each}, "value": loss}
        | common
        for at, (each, loss) in enumerate(zip(values, [1, 2, 3, None], strict=True))
    ]
    arms = [
        {"arm": "tuned", "label": f"tuned seed {seed}", "place": 5 + seed, "sample": None, "value": 3 - seed} | common
        for seed in (0, 1)
    ]
    found = {"metric": "loss", "cost": None, "ranking": [*samples, *arms], "rungs": [], "saved_share": 0}
    script = """
      const drawn = [];
      globalThis.Plotly = { react: (chart, traces, layout) => { drawn.push([traces, layout]); chart.on = () => {}; } };
      const { bodies, update } = sweep({ held: { param: "" }, choose() {} });
      document.body.append(...bodies);
      update(found, { names: ["tuned", "sample-0", "sample-1", "sample-2", "sample-3"] });
      seeAll();
      await settled();
      return [drawn, bodies[1].querySelector("[role=img]").getAttribute("aria-label")];
    """

    ((traces, layout), *_), label = played(script, ("{ sweep }", "pages/job/sweep.js"), found=found)

    assert layout["xaxis"]["ticktext"] == [*values[0], "loss"]
    heights = {each["name"]: each["y"][:-1] for each in traces}
    assert heights == {
        "tuned seed 0": [None, None, None, None, 1], "tuned seed 1": [None, None, None, None, 0.5],
        "sample-2": [0.5, 0.5, 1, 0, 1], "sample-1": [1, 0, 0, 0, 0.5], "sample-0": [0, 1, 1, 1, 0],
    }  # fmt: skip
    assert label.startswith("Parameters: 5 trials; optimizer.momentum from 0.25 to 0.75, exchange from ")
    assert not any(each["showlegend"] for each in traces)
    assert {note["text"] for note in layout["annotations"]} >= {"true", "null", "bf16", "signs"}


def test_of_an_arm_with_several_seeds_the_ranking_names_each_trial_by_its_own(http, store, job):
    params = {"workload.batch_size": {"choice": [16, 64]}}
    swept = job.model_dump(mode="json") | {"params": params, "sweep": {"samples": 2}, "seeds": [0, 4]}
    script = """
      const page = jobPage(root, id, null, () => {});
      await page.refresh();
      return root.querySelector("#sweep").querySelector("tbody").childNodes.map((row) => row.childNodes[1].textContent);
    """

    begun = Reporting(store, JobSpec.model_validate(swept))
    begun.start("sample-0")
    found = of_job(script, http, begun)

    named = {f"{arm} seed {seed}" for arm in ("tuned", "dense") for seed in (0, 4)}
    assert {*found} == named | {"sample-0 seed 0", "sample-1 seed 0"}


@pytest.mark.parametrize(
    ("choices", "expected"),
    [
        ([{"kind": "topk", "density": 0.1}, {"kind": "topk", "density": 0.01}], ["density 0.01", "density 0.1"]),
        ([{"kind": "none"}, {"kind": "topk", "density": 0.1}, None], ["null", "none", "topk"]),
        (
            [
                {"kind": "sgd", "rate": 0.1},
                {"kind": "adamw", "rate": 0.1, "decay": 1},
                {"kind": "adamw", "rate": 0.01, "decay": 1},
            ],
            ["adamw, 0.01", "adamw, 0.1", "sgd, 0.1"],
        ),
        ([{"kind": "topk", "at": [1, 2]}, {"kind": "topk", "at": [1, 3]}], ["at [1,2]", "at [1,3]"]),
        (
            ["a/folder/of/runs/1/new/last.pt", "a/folder/of/runs/2/new/last.pt"],
            ["1: a/folder/of/runs/…/last.pt", "2: a/folder/of/runs/…/last.pt"],
        ),
    ],
)
def test_no_two_choices_of_a_sweep_read_alike_beside_their_axis(choices, expected):
    found = played(
        "return [...shortChoices(choices).values()]", ("{ shortChoices }", "charts/sweep.js"), choices=choices
    )

    assert found == expected and len(set(found)) == len(choices)


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


PANEL = """
  const { panel } = await import(`${dashboard}/charts/panel.js`);
  const { logAxis } = await import(`${dashboard}/charts/look.js`);
  const layouts = [];
  let change = null;
  globalThis.Plotly = {
    react(chart, _, layout) {
      layouts.push(layout);
      chart.on = (name, hear) => { change = hear; };
      chart._fullLayout ??= { ...layout, yaxis: { type: "log", autorange: true } };
    },
    relayout(_, fields) { layouts.push({ ...layouts.at(-1), ...fields }); },
  };
  const { body, draw } = panel("Loss");
  document.body.append(body);
  const figure = (uirevision) => () => ({ traces: [], label: "", rows: [], columns: [],
    layout: { uirevision, yaxis: logAxis([0.1, 100], String) } });
  const chart = body.querySelector("[role=img]");
  seeAll();
"""


def of_panel(script, before=""):
    return played(f"{before}{PANEL}{script}", dashboard=DASHBOARD.as_uri())


def test_a_data_table_has_the_newest_rows_of_each_trial_and_says_which_file_has_all():
    found = of_panel("""
      const rows = ["a", "b"].flatMap((trial_id) => Array.from({ length: 600 }, (_, step) => ({ trial_id, step })));
      const columns = [["point", (row) => `${row.trial_id} ${row.step}`, ""]];
      await draw(() => ({ traces: [], label: "two", columns, rows, layout: {} }));
      body.querySelector("[aria-label=data table: Loss]").onclick();
      const lines = body.querySelector("tbody").childNodes.map((row) => row.textContent);
      return [lines.length, lines[0], lines.at(-1), body.querySelector("caption").textContent];
    """)

    assert found == [500, "a 350", "b 599", "two; the newest 500 of 1200 rows, of which the CSV has all"]


def test_a_choice_takes_effect_and_reaches_the_address_later_where_the_browser_takes_no_more_changes_of_it():
    script = """
      const [addresses, changes] = [[], []];
      let isFull = true;
      history.replaceState = (_, __, address) => {
        if (isFull) throw new Error("SecurityError");
        addresses.push(address);
      };
      const { choose } = choices({ smooth: 0, log: true }, (name) => changes.push(name));
      choose("smooth", 0.5);
      isFull = false;
      choose("log", false);
      return [changes, addresses];
    """

    assert played(script, ("{ choices }", "pages/job/choices.js")) == [["smooth", "log"], ["?smooth=0.5&log=0"]]


def test_a_zoomed_logarithmic_axis_has_ticks_in_sight_until_the_whole_is_shown_again():
    found = of_panel("""
      const ticks = () => layouts.at(-1)["yaxis.tickvals"] ?? layouts.at(-1).yaxis.tickvals;
      const found = [];
      const show = async (uirevision) => { layouts.length = 0; await draw(figure(uirevision)); found.push(ticks()); };
      const zoom = (axis, fields) => {
        chart._fullLayout.yaxis = axis;
        change(fields);
        found.push(ticks());
      };
      await show("loss");
      const range = [Math.log10(2.2), Math.log10(3.1)];
      zoom({ type: "log", autorange: false, range }, { "yaxis.range[0]": range[0], "yaxis.range[1]": range[1] });
      await show("loss");
      const relaid = layouts.length;
      await show("another axis");
      chart._fullLayout.uirevision = "loss";
      await show("loss");
      zoom({ type: "log", autorange: true }, { "yaxis.autorange": true });
      return [found, relaid, layouts.some(({ yaxis }) => "write" in yaxis)];
    """)

    whole, part = [0.1, 1, 10, 100], [2.2, 2.4, 2.6, 2.8, 3]
    assert found == [[whole, part, part, whole, part, whole], 1, False]


@pytest.mark.parametrize(("pointer", "modes"), [("coarse", [False, "zoom", "zoom"]), ("fine", ["zoom", "zoom"])])
def test_a_finger_on_a_chart_scrolls_the_page_until_the_reader_asks_for_zoom(pointer, modes):
    found = of_panel(
        """
      await draw(figure("a"));
      body.querySelector("[aria-label=zoom: Loss]")?.onclick();
      await draw(figure("b"));
      return layouts.map(({ dragmode }) => dragmode);
    """,
        before="""
      globalThis.matchMedia = (asked) => ({ matches: asked === `(pointer: ${pointer})`, addEventListener() {} });
    """.replace("${pointer}", pointer),
    )

    assert found == modes


def test_a_chart_library_that_did_not_load_is_asked_for_again_and_the_chart_drawn():
    found = of_panel("""
      const scripts = [];
      document.getElementById = () => { scripts.push({ remove() {} }); return scripts.at(-1); };
      const first = draw(figure("a"));
      scripts[0].onerror();
      await first;
      const told = body.textContent.includes("The chart library did not load.");
      body.querySelector("[class=quiet]").parentNode.querySelector("button").onclick();
      scripts[1].onload();
      await settled();
      return [told, layouts.length, body.textContent.includes("did not load")];
    """)

    assert found == [True, 1, False]


def test_the_metric_that_the_reader_chose_last_is_drawn_and_no_earlier_one_over_it():
    found = of_curves("""
      const asked = [];
      const fetchSeries = (name) => new Promise((answer) => asked.push({ name, answer }));
      const how = { ...choice, metric: "accuracy" };
      const shown = curves("job-1", { held: how }, fetchSeries);
      document.body.append(shown.loss);
      seeAll();
      const metric_directions = { f1: "max", accuracy: "max" };
      const measured = { ...trial, outcome: null, metric_directions, validation_metrics: {} };
      shown.update({ ...held(0, 100), trials: [measured] });
      const offered = shown.loss.querySelector("select").options.map((each) => each.value);
      how.metric = "f1";
      shown.show();
      asked[1].answer([{ ...lossAt(0, 50, 100), name: "validation_f1" }]);
      await settled();
      asked[0].answer([{ ...lossAt(0, 30), name: "validation_accuracy" }]);
      await settled();
      return [offered, asked.map(({ name }) => name), drawn, shown.loss.querySelector("h2").textContent];
    """)

    offered, names = ["loss", "accuracy", "f1"], ["validation_accuracy", "validation_f1"]
    assert found == [offered, names, [[0, 50, 100]], "Validation f1"]


def test_the_menu_offers_every_recorded_series_and_draws_it_under_its_own_name():
    found = of_curves("""
      const asked = [];
      const fetchSeries = async (name) => { asked.push(name); return [{ ...lossAt(0, 50), name }]; };
      const how = { ...choice, metric: "own_aux" };
      const shown = curves("job-1", { held: how }, fetchSeries, async () => ["memory_bytes", "own_aux"]);
      document.body.append(shown.loss);
      seeAll();
      const measured = { ...trial, metric_directions: { f1: "max" }, validation_metrics: {} };
      await shown.update({ ...held(0, 100), trials: [measured] });
      await settled();
      const offered = shown.loss.querySelector("select").options.map((each) => each.value);
      return [offered, asked, drawn.at(-1), shown.loss.querySelector("h2").textContent];
    """)

    assert found == [["loss", "f1", "memory_bytes", "own_aux"], ["own_aux"], [0, 50], "own_aux"]


def test_each_number_of_a_models_own_has_a_small_chart_with_its_newest_value():
    script = """
      const asked = [];
      const recorded = (name) => ({ ...lossAt(0, 50), name, values: [0.5, 0.75] });
      const fetchSeries = async (name) => { asked.push(name); return [recorded(name)]; };
      const { body, update } = ownNumbers({ held: choice }, fetchSeries, async () => ["memory_bytes", "own_aux"]);
      document.body.append(body);
      await update(held(0, 100));
      const unseen = asked.length;
      seeAll();
      await settled();
      return [body.hidden, unseen, asked, body.querySelector("article").querySelector("h2").textContent, drawn.at(-1)];
    """

    found = played(f"{CURVES}{script}", ("{ ownNumbers }", "pages/job/own_numbers.js"))

    assert found == [False, 0, ["own_aux"], "own_aux, now 0.7500", [0, 50]]


def test_the_names_of_recorded_series_are_asked_for_when_a_trial_takes_its_first_steps():
    found = played(
        """
      const asked = heldService();
      const names = recordedNames("job-1");
      const none = await names([{ step: 0 }, { step: 0 }]);
      const first = names([{ step: 5 }, { step: 0 }]);
      asked.at(-1)[1](Response.json(["loss", "validation_loss", "insurance_validation_loss", "own_aux", "density"].map(
        (name) => ({ name, num_points: name === "density" ? 0 : 3 }))));
      const found = [await first, await names([{ step: 9 }, { step: 0 }])];
      return [none, ...found, asked.map(([address]) => address)];
    """,
        ("{ recordedNames }", "pages/job/recorded.js"),
    )

    assert found == [[], ["own_aux"], ["own_aux"], ["/v1/jobs/job-1/metrics"]]


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


def test_probes_of_a_search_under_way_have_a_card_until_it_is_decided():
    script = """
      const asked = heldService();
      const { body, update } = decisions("job-1", { held: { trial: "", belief: "mean" }, choose() {} });
      document.body.append(body);
      const trial = { trial_id: "a", label: "tuned", level_name: "density", calibration: { num_outcomes: 0 } };
      const told = (probe_id, stage, loss) =>
        ({ kind: "probe", data: { trial_id: "a", stage, probe_id, learning_rate: 0.1, loss, status: "ok" } });
      const list = body.querySelector("[class=cards]");
      const cards = () => list.childNodes.map((each) => each.querySelector("h3").textContent);
      const isHidden = () => body.hidden;
      await update([trial], [], true);
      const found = [isHidden()];
      await update([trial], [], true, new Set(["a"]));
      seeAll();
      await settled();
      const [[address, answer]] = asked.splice(0);
      const events = [told("0-0", 0, 1), told("1-0", 1, 2), told("1-1", 1, null), told("1-1", 1, null)];
      answer(Response.json({ events, next_after: 9 }));
      for (let turn = 0; turn < 5; turn += 1) await settled();
      found.push(isHidden(), address, cards(), body.querySelector("[role=img]").getAttribute("aria-label"));
      const values = { learning_rate: 0.1, values: {}, level: null };
      const rest = { forecast: null, z_score: null, forecast_weight: null, num_earlier: 0, tax: {}, closed: false };
      const decided = { trial_id: "a", stage: 1, ...values, ...rest, reason: "the best", probes: [], refused: [] };
      await update([trial], [decided], true, new Set(["a"]));
      found.push(cards());
      return found;
    """

    was_hidden, is_hidden, address, cards, label, then = played(script, ("{ decisions }", "pages/job/decisions.js"))

    assert (was_hidden, is_hidden) == (True, False)
    assert address == "/v1/jobs/job-1/events?kind=probe&after=0&limit=500"
    assert cards == ["Stage 1: searching, 2 probes so far"]  # a later attempt told again of one
    assert label == "Loss of the probes so far: the lowest loss so far is 2.0000"
    assert then == ["Stage 1: learning rate 0.1"]


@pytest.mark.parametrize(
    ("told", "shown"),
    [
        (["1-0", "1-1", "1-2", "1-0"], ["1-0"]),  # the search began anew
        (["1-0", "1-1", "1-2", "1-1"], ["1-0", "1-1"]),  # it went on behind the first probe
        (["1-0", "1-1", "1-0", "1-1"], ["1-0", "1-1"]),  # it was decided
        (["0-0", "0-1", "1-0"], ["1-0"]),
    ],
)
def test_probes_of_a_search_that_was_given_up_are_not_those_of_the_one_under_way(told, shown):
    script = """
      const data = (probe_id, at) => ({ trial_id: "a", stage: Number(probe_id[0]), probe_id, at });
      const events = told.map((...each) => ({ kind: "probe", data: data(...each) }));
      globalThis.fetch = async () => Response.json({ events, next_after: 9 });
      const { probes } = (await searches("job-1")()).get("a");
      return probes.map(({ name, at }) => [name, at]);
    """

    probes = played(script, ("{ searches }", "pages/job/searching.js"), told=told)

    assert [name for name, _ in probes] == shown
    assert probes[-1][1] == len(told) - 1  # as it was told last


def test_a_page_leads_to_its_visible_parts_and_once_to_the_one_that_its_address_names(http, training):
    found = of_job(
        """
      location.hash = "#bill";
      const page = jobPage(root, id, null, () => {});
      const seen = [];
      root.querySelector("#bill").scrollIntoView = () => seen.push("bill");
      await page.refresh();
      await page.refresh();
      const links = root.querySelector("[class=parts]").childNodes;
      return [links.map((each) => [each.textContent, each.getAttribute("href")]), seen];
    """,
        http,
        training,
    )

    links, seen = found
    assert seen == ["bill"]
    assert all(each in links for each in (["Progress", "#progress"], ["Loss", "#loss"], ["History", "#history"]))
    assert "Ranking" not in [name for name, _ in links]  # it is no sweep


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


def test_a_timeline_is_made_when_somebody_looks_and_before_its_events_are_there():
    script = """
      heldService();
      const { body, update } = timeline("job-1");
      document.body.append(body);
      const label = () => body.querySelector("[role=img]").getAttribute("aria-label");
      const trial = { trial_id: "a", label: "tuned", seconds: 2, step: 10, bill: { repairs: 0, absences: {} } };
      update([trial], [], { version: 1 });
      await settled();
      const unseen = label();
      seeAll();
      await settled();
      return [unseen, label()];
    """

    found = played(script, ("{ timeline }", "pages/job/timeline.js"))

    assert found == ["Timeline", "Timeline: 0 blocks, 0 events"]


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


@pytest.mark.parametrize(
    ("first", "gap", "expected"),
    [
        ({"version": 1}, True, ""),  # of this job nothing is gone
        ({"version": 7}, True, "Pauses, attempts and repairs before Jan 1, 2026"),
        (None, True, "Pauses, attempts and repairs are gone."),
        ({"version": 7}, False, ""),
    ],
)
def test_a_timeline_says_what_of_its_job_is_gone(first, gap, expected):
    script = """
      const data = { ...first, state: "paused", clocks: {} };
      const told = first ? [{ kind: "job", at: "2026-01-01T00:00:00Z", data }] : [];
      globalThis.fetch = async () => Response.json({ events: told, next_after: 7, gap });
      const { body, update } = timeline("job-1");
      document.body.append(body);
      seeAll();
      const trial = { trial_id: "a", label: "tuned", seconds: 2, step: 10, bill: { repairs: 0, absences: {} } };
      await update([trial], [], { version: 9 });
      await settled();
      return body.querySelector("[class=fact]")?.textContent ?? "";
    """

    said = played(script, ("{ timeline }", "pages/job/timeline.js"), first=first, gap=gap)

    assert said.startswith(expected) and bool(said) is bool(expected)


def test_a_history_has_each_state_with_its_reason_and_leaves_out_edits():
    script = """
      globalThis.fetch = async () => Response.json({ events: told, next_after: 9, gap: false });
      const { history, update } = timeline("job-1");
      document.body.append(history);
      seeAll();
      update([], [], { version: 4 });
      for (let turn = 0; turn < 5; turn += 1) await settled();
      return history.querySelector("tbody").childNodes.map((row) => row.childNodes.map((cell) => cell.textContent));
    """
    states = [("queued", "", 0), ("running", "", 1), ("running", "", 1), ("cancelled", "cancelled by olga", 1)]
    told = [
        {
            "id": at,
            "kind": "job",
            "at": "2026-01-01T00:00:00Z",
            "data": {"state": state, "reason": reason, "attempt": attempt},
        }
        for at, (state, reason, attempt) in enumerate(states)
    ]
    told.insert(2, {"id": 8, "kind": "repair", "at": "2026-01-01T00:00:00Z", "data": {"trial_id": "a"}})

    rows = played(script, ("{ timeline }", "pages/job/timeline.js"), told=told)

    assert [row[1:] for row in rows] == [
        ["cancelled", "1", "cancelled by olga"],
        ["running", "1", "–"],
        ["queued", "–", "–"],
    ]


def test_a_file_of_a_clone_does_not_claim_that_the_job_it_was_made_of_is_gone(client, http, reporting):
    made = http.post(f"/v1/jobs/{reporting.job_id}:clone", json={"budget": {"seconds": 90}}).json()["job"]["id"]
    plot = plots.plot(client, [made])
    script = """
      for (const id of ["held", "library", "page", "made", "times", "print"]) {
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


def test_the_page_of_keys_says_what_each_role_may_do():
    script = f"""
      {LIST}
      keysPage(root, "all", null, () => {{}});
      return root.querySelector("dl").childNodes.map((each) => each.textContent);
    """

    assert played(script, ("{ keysPage }", "pages/keys.js"))[:4] == [
        *("viewer", "looks"),
        *("submitter", "submits jobs, and changes its own"),
    ]


@pytest.mark.parametrize(
    ("may", "said", "has_button"),
    [
        (["create keys", "create keys of their own"], "Of everybody.", True),
        (["create keys of their own"], "Yours. The command “wiretune keys create” makes others.", False),
        ([], "Yours.", False),  # an issuer named them
    ],
)
def test_the_page_of_keys_says_where_those_who_may_make_their_own_alone_do_so(may, said, has_button):
    script = f"""
      {LIST}
      keysPage(root, "all", null, () => {{}}).refresh();
      await answer(Response.json([]));
      await answer(Response.json({{ role: "submitter", name: "anna", may, key: "key-2" }}));
      const tools = root.querySelector("[class=tools]");
      return [tools.querySelector("span").textContent, Boolean(tools.querySelector("button"))];
    """

    assert played(script, ("{ keysPage }", "pages/keys.js"), may=may) == [said, has_button]


def test_a_page_without_a_clipboard_says_how_to_copy():
    script = """
      globalThis.navigator = {};
      const { body } = specification();
      body.querySelector("button").onclick();
      return body.querySelector("button").textContent;
    """

    assert played(script, ("{ specification }", "pages/job/specification.js")) == "select it, and copy it by hand"
