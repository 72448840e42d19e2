"""Jobs by a part of their id, or by their name, as lists show them; without a browser."""

import pytest

from service.job.spec import JobSpec
from tests.api.dashboard.test_page_answers import played
from tests.api.dashboard.test_page_modules import pytestmark as needs_node

pytestmark = needs_node

#: A service's answers to the page, by what is asked for; `moves` are the addresses that the page goes to.
SERVICE = """
  const [moves, lists] = [[], []];
  location.replace = (address) => moves.push(new URL(address, location).search);
  location.assign = location.replace;
  globalThis.fetch = async (address) => {
    const asked = new URL(address, location);
    if (asked.pathname === "/v1/me") return Response.json({ role: "viewer" });
    if (asked.pathname !== "/v1/jobs") return refusal(404, "there is no such job");
    lists.push(asked.search);
    return Response.json(answers[asked.searchParams.get("ref") ?? ""] ?? { jobs: [] });
  };
  const root = document.createElement("main");
  document.body.append(root);
"""


@pytest.fixture
def answers(http, store, job):
    """Three jobs, two of one name, and what the service answers for parts of their ids."""
    ids = [store.add_job(JobSpec.model_validate(job.model_dump() | {"name": name}))[0].id for name in "abb"]

    def listed(**params):
        return http.get("/v1/jobs", params=params | {"archived": "any"}).json()

    return ids, {ref: listed(ref=ref) for ref in (ids[0][-8:], "b", "nothing")} | {"": listed()}


def opened(address, answers):
    script = f"""{SERVICE}
      location.search = "?job={address}&x=bytes";
      await jobPage(root, "{address}", null, () => {{}}).refresh();
      return [moves, root.textContent, lists.length];
    """
    return played(script, ("{ jobPage }", "pages/job/job.js"), answers=answers)


def test_the_end_of_an_id_opens_its_job(answers):
    ids, of = answers

    moves, _, _ = opened(ids[0][-8:], of)

    assert moves == [f"?job={ids[0]}&x=bytes"]


def test_a_name_of_several_jobs_offers_each_of_them(answers):
    ids, of = answers

    moves, said, _ = opened("b", of)

    assert moves == [] and "Several jobs go by b" in said
    assert ids[1] in said and ids[2] in said and ids[0] not in said


def test_a_whole_id_that_is_gone_is_not_looked_for(answers):
    _, of = answers

    moves, said, num_lists = opened("job-" + "0" * 24, of)

    assert (moves, num_lists) == ([], 0) and "There is no job" in said


def added(typed, answers):
    script = f"""{SERVICE}
      comparePage(root, "job-1", new URLSearchParams());
      const form = root.querySelector("form");
      await form.querySelector("input").onfocus();
      form.querySelector("input").value = {typed!r};
      await form.onsubmit({{ preventDefault() {{}} }});
      const offered = form.querySelector("datalist").childNodes.map((each) => each.textContent);
      return [moves, root.querySelector("[role=alert]").textContent, offered];
    """
    return played(script, ("{ comparePage }", "pages/compare/compare.js"), answers=answers)


@pytest.mark.parametrize("arm", ["", ":tuned"])
def test_a_job_is_added_to_a_comparison_by_the_end_of_its_id(answers, arm):
    ids, of = answers

    moves, refused, offered = added(ids[0][-8:] + arm, of)

    [move] = moves
    assert move.startswith(f"?compare=job-1,{ids[0]}{arm}&") and refused == ""
    assert offered == ["b, queued", "b, queued", "a, queued"]


def test_a_job_whose_name_has_commas_and_colons_is_added_to_a_comparison_by_it(answers):
    ids, of = answers
    name = "dense, at 1 Mbit: again"

    [move], refused, _ = added(name, of | {name: of[ids[0][-8:]]})

    assert move.startswith(f"?compare=job-1,{ids[0]}&") and refused == ""


@pytest.mark.parametrize(("typed", "said"), [("b", "Several jobs go by b"), ("nothing", "There is no job nothing")])
def test_what_means_no_job_or_several_is_told_and_not_compared(answers, typed, said):
    moves, refused, _ = added(typed, answers[1])

    assert moves == [] and said in refused


def test_an_address_with_parts_of_ids_compares_their_jobs(answers):
    ids, of = answers
    script = f"""{SERVICE}
      await comparePage(root, part + ":tuned,b", new URLSearchParams()).refresh();
      return moves;
    """

    [move] = played(script, ("{ comparePage }", "pages/compare/compare.js"), answers=of, part=ids[0][-8:])

    assert move.startswith(f"?compare={ids[0]}:tuned,b&")
