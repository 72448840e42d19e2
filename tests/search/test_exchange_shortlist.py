"""The competing exchanges follow the link: one that was left out joins once it pays."""

import json

import pytest

from search import strategies
from search.bayesian.controller import Controller
from search.bayesian.exchange_shortlist import listed
from search.bayesian.setup import SearchSetup
from search.bayesian.stage import CommittedLine, Stage
from search.budget.link import Link, OptionCost, short_list
from search.config import BoConfig, Budget
from search.space import OptionAxis, SearchSpace
from search.types import Values

BYTES = {"none": 400_000, "fp16": 200_000, "threshold 0.01": 8_000, "powersgd 1": 7_900, "threshold 0.001": 800}
FAMILIES = {"threshold 0.01": "threshold", "threshold 0.001": "threshold", "powersgd 1": "powersgd"}
TEACHES = {"threshold 0.01": 0.4, "powersgd 1": 0.4, "threshold 0.001": 0.38}
COMPUTE_S = 0.005


def _costs(link: Link) -> tuple[OptionCost, ...]:
    return tuple(
        OptionCost(
            option=option,
            bytes=sent,
            cost=link.step_s(sent),
            family=FAMILIES.get(option, ""),
            teaches=TEACHES.get(option, 1.0),
        )
        for option, sent in BYTES.items()
    )


def _link(mbps: float) -> Link:
    return Link(compute_s=COMPUTE_S, seconds_per_byte=8e-6 / mbps)


def _space(mbps: float) -> SearchSpace:
    """What a run on this link begins with."""
    link = _link(mbps)
    options, opening = short_list(_costs(link))
    axes = (OptionAxis(options=options),) if len(options) > 1 else ()
    guess = Values(learning_rate=0.1, option=opening)
    return SearchSpace(optimizer="sgd", guess=guess, axes=axes, exchanges=_costs(link), link=link)


def _run(simulated_run, before: float, after: float, *, fraction: float = 0.3):
    """A run of slow learning on a link that changes after its first stage; returns it with its controller."""

    class Run(simulated_run):
        def loss_of(self, values: Values) -> float:
            excess = self.excess
            loss = super().loss_of(values)
            self.excess = excess + (self.excess - excess) / 10
            return loss

    def step_seconds(mbps: float):
        return lambda values: _link(mbps).step_s(BYTES[values.option])

    budget = Budget(seconds=40.0)
    controller = Controller(_space(before), BoConfig(max_search_fraction=fraction), 0, budget=budget)
    run = Run(budget=budget, seconds_per_step=step_seconds(before), bytes_per_step=lambda values: BYTES[values.option])
    run.run_stage(controller)
    run.seconds_per_step = step_seconds(after)
    run.run_stage(controller)  # in which that is an event
    run.search(controller)
    return run, controller


@pytest.fixture(scope="module")
def slowed(simulated_run):
    return _run(simulated_run, 50_000, 50)


def test_an_exchange_of_another_family_is_listed_though_a_denser_one_costs_as_much():
    options, _ = short_list(_costs(_link(100)))

    assert {"threshold 0.01", "powersgd 1"} <= set(options)


def test_what_a_step_spares_is_counted_on_the_link_as_it_becomes():
    spared = {"threshold 0.01": COMPUTE_S / 2}
    exchanges = tuple(
        each.model_copy(update={"spared": spared.get(each.option, 0.0)}) for each in _costs(_link(50_000))
    )
    space = _space(50_000).model_copy(update={"exchanges": exchanges})
    setup = SearchSetup(space=space, config=BoConfig(), budget=Budget(seconds=1.0), seed=0)
    stage = Stage(index=1, incumbent=space.opening, line=CommittedLine(events=("step_time",), link=_link(40_000)))

    [axis] = listed(setup, stage).space.axes

    assert isinstance(axis, OptionAxis) and axis.options == ("none", "threshold 0.01")


def test_what_was_left_out_on_a_fast_link_is_probed_and_used_when_it_becomes_slow(slowed):
    run, controller = slowed
    first, later = ([each.values.option for each, _ in run.history if each.stage == stage] for stage in (0, 2))

    assert set(first) == {"none"}
    assert later[:2] == ["none", "threshold 0.001"]
    assert controller.decide().values.option == "threshold 0.001"


def test_where_the_incumbent_has_become_too_slow_to_probe_the_link_decides(simulated_run):
    _, controller = _run(simulated_run, 50_000, 50, fraction=0.05)
    decision = controller.decide()

    assert decision.values.option == "threshold 0.001"
    assert "suits the link as it has become" in decision.reason


def test_a_journal_in_which_the_link_has_changed_replays_to_the_same_exchanges(slowed):
    decision = slowed[1].decide()
    state = json.loads(json.dumps(dict(slowed[1].state_dict()), allow_nan=False))
    again = strategies.restore(state)

    assert again.decide() == decision
    assert json.loads(json.dumps(dict(again.state_dict()), allow_nan=False)) == state


def test_on_a_link_that_is_stated_the_list_stays(simulated_run):
    space = _space(50_000).model_copy(update={"link": None, "exchanges": ()})
    setup = SearchSetup(space=space, config=BoConfig(), budget=Budget(seconds=1.0), seed=0)

    assert listed(setup, Stage(index=1, incumbent=space.opening, line=CommittedLine(events=("step_time",)))) is setup
