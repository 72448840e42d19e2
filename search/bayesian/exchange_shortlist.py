"""Choose the exchanges that compete after the link has changed, or workers have drifted apart."""

from dataclasses import replace

from search.bayesian.setup import SearchSetup
from search.bayesian.stage import Stage
from search.budget.link import short_list
from search.space import OptionAxis


def listed(setup: SearchSetup, stage: Stage) -> SearchSetup:
    """Return `setup` with the exchanges that compete from `stage` on, which is about to open.

    They change after workers drifted apart, for good, and after the step time changed. Exchanges that were tried lately
    stay.
    """
    if "client_drift" in stage.line.events:
        return without_drift(setup)
    found = _short_list(setup, stage)
    if found is None:
        return setup
    tried = {score.values.option for scores in stage.line.history for score in scores}
    wanted = {*found[0], stage.incumbent.option, *tried}
    dense_first = sorted(setup.space.exchanges, key=lambda each: -each.bytes)
    options = tuple(each.option for each in dense_first if each.option in wanted)
    competing = [OptionAxis(options=options)] if len(options) > 1 else []
    axes = (*setup.space.ranges, *competing)
    return replace(setup, space=setup.space.model_copy(update={"axes": axes}))


def without_drift(setup: SearchSetup) -> SearchSetup:
    """Return `setup` with the synchronous exchanges alone, with which workers train as one."""
    space, kept = setup.space, setup.space.synchronous
    competing = [OptionAxis(options=kept)] if len(kept) > 1 else []
    exchanges = tuple(each for each in space.exchanges if space.period_of_option(each.option) == 1)
    guess = space.guess if space.guess.option in kept else space.guess.model_copy(update={"option": kept[0]})
    menu = tuple(option for option in space.menu if space.period_of_option(option) == 1)
    told = {"axes": (*space.ranges, *competing), "exchanges": exchanges, "guess": guess, "menu": menu, "periods": ()}
    return replace(setup, space=space.model_copy(update=told))


def promising(setup: SearchSetup, stage: Stage) -> str | None:
    """Return the exchange that a run would open with on the link as it is now; None: the link has not changed."""
    found = _short_list(setup, stage)
    return None if found is None else found[1]


def _short_list(setup: SearchSetup, stage: Stage) -> tuple[tuple[str, ...], str] | None:
    link, exchanges = stage.line.link, setup.space.exchanges
    if link is None or not exchanges or "step_time" not in stage.line.events:
        return None
    costs = [each.model_copy(update={"cost": link.step_s(each.bytes) - each.spared}) for each in exchanges]
    return short_list(costs)
