"""A sweep on the page: its best value so far, and how much each parameter tells about it; without a browser."""

import math

import numpy as np
import pytest
from scipy.stats import f_oneway, spearmanr

from tests.api.dashboard.test_page_answers import played
from tests.api.dashboard.test_page_job_modules import call
from tests.api.dashboard.test_page_modules import pytestmark as needs_node

pytestmark = needs_node

RANDOM = np.random.default_rng(0)


def of_importance(expression, **given):
    return call("charts/importance.js", f"it.{expression}", **given)


@pytest.mark.parametrize("digits", [0, 1, 6])  # few digits: many equal values
def test_a_rank_correlation_is_that_of_scipy_without_its_sign(digits):
    xs = np.round(RANDOM.normal(size=40), digits).tolist()
    ys = np.round(RANDOM.normal(size=40) - xs, digits).tolist()

    found = of_importance("rankCorrelation(xs, ys)", xs=xs, ys=ys)

    assert found == pytest.approx(abs(spearmanr(xs, ys).statistic))


def test_the_share_of_variance_is_that_behind_the_f_test():
    groups = [RANDOM.normal(mean, size=size).tolist() for mean, size in ((0, 5), (1, 9), (3, 4))]
    names = [str(at) for at, group in enumerate(groups) for _ in group]

    found = of_importance("varianceShare(names, ys)", names=names, ys=[y for group in groups for y in group])

    ratio = f_oneway(*groups).statistic * 2 / 15  # by the degrees of freedom, between over within
    assert found == pytest.approx(ratio / (1 + ratio))


@pytest.mark.parametrize(
    ("xs", "ys"),
    [([1, 2], [1, 2]), ([1, 1, 1], [1, 2, 3]), ([1, 2, 3], [5, 5, 5]), ([], [])],
)
def test_an_importance_that_is_not_defined_is_none(xs, ys):
    assert of_importance("rankCorrelation(xs, ys)", xs=xs, ys=ys) is None
    assert of_importance("varianceShare(xs, ys)", xs=xs, ys=ys) is None


def test_a_choice_that_each_sample_made_alone_has_no_importance():
    assert of_importance("varianceShare(names, [1, 2, 3])", names=["a", "b", "c"]) is None


@pytest.mark.parametrize("scale", [lambda x: x, math.exp, lambda x: -x])
def test_numbers_are_judged_by_their_order_alone_and_the_most_important_comes_first(scale):
    samples = [
        {"values": {"noise": (7 * at) % 5, "rate": scale(at), "kind": {"kind": "ab"[at % 2]}}, "value": at**3}
        for at in range(6)
    ]

    found = of_importance("importances(samples)", samples=samples)

    assert found[0]["path"] == "rate"
    assert {each["path"]: each["measure"] for each in found} == {
        "rate": "rank correlation", "noise": "rank correlation", "kind": "share of variance"
    }  # fmt: skip
    assert found[0]["importance"] == pytest.approx(1) and all(0 <= each["importance"] < 1 for each in found[1:])


def swept(values, *, direction="min", pruned=()):
    """Return a report on samples with these values, in their order; the ranking is not."""
    ranking = [
        {
            "arm": f"sample-{at}", "label": f"sample-{at}", "trial_id": str(at), "place": 1, "value": value, "share": 1,
            "sample": {"values": {"rate": at}}, "status": "pruned" if at in pruned else "completed", "cost": None,
            "on_front": False,
        }
        for at, value in enumerate(values)
    ]  # fmt: skip
    arm = ranking[0] | {"arm": "tuned", "label": "tuned", "trial_id": "tuned", "sample": None, "value": 0.0}
    found = {"metric": "f1", "direction": direction, "cost": None, "rungs": [], "saved_share": 0}
    return found | {"ranking": [arm, *ranking[::-1]]}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"values": [3, 5, 2, 4]}, [3, 3, 2, 2]),
        ({"values": [3, 5, 2, 4], "direction": "max"}, [3, 5, 5, 5]),
        ({"values": [3, 1, 2, None], "pruned": [1]}, [3, 3, 2]),
        ({"values": [3, 2, 4], "pruned": [0]}, [2, 2]),
    ],
)
def test_the_best_so_far_is_of_samples_with_their_whole_budget_in_their_order(given, expected):
    found = call("charts/sweep.js", "it.bestSoFarChart(found)", found=swept(**given))

    _, line = found["traces"]
    assert line["y"] == expected
    assert line["x"] == sorted(line["x"])


def test_samples_that_were_pruned_have_no_part_in_an_importance():
    whole = swept([0, 1, 2, 3])
    other = swept([0, 1, 2, 3, -9], pruned=[4])

    one, two = (call("charts/sweep.js", "it.importancesOf(found)", found=each) for each in (whole, other))

    assert one == two and one[0]["importance"] == pytest.approx(1)


@pytest.mark.parametrize(
    ("values", "axis", "along"),
    [
        ([1, 2, 3], None, [1, 2, 3]),
        ([1e-4, 1e-3, 1e-1], "log", [1e-4, 1e-3, 1e-1]),
        ([{"kind": "topk"}, {"kind": "none"}, {"kind": "topk"}], "category", ["topk", "none", "topk"]),
    ],
)
def test_the_metric_is_drawn_over_a_parameter_on_the_scale_of_its_values(values, axis, along):
    found = swept([3, 2, 1])
    for each, value in zip(found["ranking"][:0:-1], values, strict=True):
        each["sample"] = {"values": {"rate": value}}

    chart = call("charts/sweep.js", "it.parameterChart(found, 'rate')", found=found)

    [trace] = chart["traces"]
    assert (trace["x"], trace["y"]) == (along, [3, 2, 1])
    assert chart["layout"]["xaxis"].get("type") == axis


def test_the_parameter_that_the_reader_chooses_is_drawn_and_first_the_most_important():
    found = swept([3, 1, 2, 5])
    for at, each in enumerate(found["ranking"][1:]):
        each["sample"] = {"values": {"noise": [1, 0, 3, 2][at], "rate": each["value"]}}
    script = """
      const chosen = { param: "" };
      const drawn = new Map();
      Plotly.react = (chart, traces, layout) => drawn.set(chart.getAttribute("aria-label").split(":")[0], layout);
      const { bodies, update, show } = sweep({ held: chosen, choose: (name, value) => { chosen[name] = value; } });
      document.body.append(...bodies);
      await update(found, { names: ["tuned"] });
      seeAll();
      await settled();
      const over = () => drawn.get("One parameter").xaxis.title.text;
      const first = over();
      const choice = document.body.querySelector("select");
      choice.value = "noise";
      choice.onchange({ currentTarget: choice });
      await show();
      await settled();
      return [first, over(), [...drawn.keys()].includes("Importance of parameters")];
    """

    assert played(script, ("{ sweep }", "pages/job/sweep.js"), found=found) == ["rate", "noise", True]


@pytest.mark.parametrize(("source", "links"), [("job-1", ["/?clone=job-1&trial=sample-1", None]), (None, [None, None])])
def test_a_ranked_sample_is_cloned_by_whoever_may(source, links):
    found = swept([3, 1])
    found["ranking"][-1]["sample"] = {"values": None}  # not drawn yet
    script = """
      const { bodies, update } = sweep({ held: { param: "" }, choose: () => {} });
      document.body.append(...bodies);
      await update(found, { names: ["tuned"] }, source);
      const linkOf = (name) => bodies[0].querySelector(`[aria-label=clone ${name}]`);
      return ["sample-1", "sample-0"].map((name) => linkOf(name)?.getAttribute("href") ?? null);
    """

    assert played(script, ("{ sweep }", "pages/job/sweep.js"), found=found, source=source) == links
