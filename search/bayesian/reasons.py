"""Explain why a stage uses its values, in the sentences that the page, the CLI and the schedule file show."""

import math
from collections.abc import Iterator

from search.bayesian.decay import is_decaying
from search.bayesian.probe_costs import has_room_for_wide, least_search, search_cap
from search.bayesian.rewards import client_drifts, fastest_option, scores
from search.bayesian.setup import SearchSetup
from search.bayesian.stage import Stage
from search.budget import spending
from search.curves.events import Event, Signs
from search.surrogate.posterior import Fit
from search.types import MIN_LEARNING_RATE, Band, Forecast, Setting, Values


def number(value: float | str) -> str:
    """Return a value as people read it."""
    return f"{value:.3g}" if isinstance(value, float) else str(value).lower()  # whole, false and true, an option


def level(setup: SearchSetup, value: float) -> str:
    """Return a level by its name in the job; a density is a share in percent."""
    return setting(setup, "level", value)


def setting(setup: SearchSetup, value_name: str, value: Setting, *, side: str = "") -> str:
    """Return a value with its name; or, with `side`, all values on that side of it."""
    is_share = value_name == "level" and setup.space.level_name == "density"
    written = f"{100 * float(value):.3g} %" if is_share else number(value)
    return " ".join(filter(None, [_called(setup, value_name), side, written]))


def _called(setup: SearchSetup, value_name: str) -> str:
    return setup.space.level_name if value_name == "level" else value_name.replace("_", " ")


def name(setup: SearchSetup, values: Values) -> str:
    """Return `values` in words."""
    levels = [] if values.level is None else [level(setup, values.level)]
    further = [f"{each.replace('_', ' ')} {number(value)}" for each, value in values.settings.items()]
    others = ", ".join(levels + further)
    return f"{number(values.learning_rate)}{others and f' at {others}'}"


def too_few_probes(setup: SearchSetup, stage: Stage, least: int) -> str:
    """Return why fewer probes than the `least` number of a wide search came to an end."""
    if has_room_for_wide(setup, stage):
        return f"{len(stage.probes)} probes came to an end, a search needs {least}"
    needed, cap = least_search(setup, stage), search_cap(setup)
    short = [unit for unit, quantity in needed.items() if quantity > cap[unit]]
    most = " and ".join(f"{cap[unit]:.4g} {unit}" for unit in short)
    shortest = " and ".join(f"{needed[unit]:.4g} {unit}" for unit in short)
    enough = " and ".join(f"{_least_budget(setup, unit, needed[unit]):.4g} {unit}" for unit in short)
    return (
        f"a search needs {shortest}, and probes may spend {most} "
        f"(give a budget of {enough}, or raise `max_search_fraction`)"
    )


def _least_budget(setup: SearchSetup, unit: str, needed: float) -> float:
    """Return the smallest budget that lets probes spend `needed`: their share falls as budgets grow."""
    if setup.num_steps is None:
        return needed / setup.search_fraction
    step = spending.caps(setup.budget)[unit] / setup.num_steps
    return step * setup.config.least_budget(math.ceil(needed / step))


def unsearched(setup: SearchSetup, stage: Stage) -> str:
    """Return why a later stage has no probes."""
    if is_decaying(setup, stage.opened):
        return "while the rate decays nothing is searched"
    if stage.is_on_ramp:
        return "while the rate rises to what was found nothing is searched"
    if setup.config.revisit == "stages" or stage.line.events or stage.steered.search_asked:
        return "there is no room for probes"
    if stage.line.before is None:
        return "nothing has happened yet"
    if stage.line.before.started_over:
        return "a run that starts over has its rate"
    return f"nothing happened ({signs_in_words(stage.line.before.signs, is_timed=setup.is_timed)})"


def switch(setup: SearchSetup, stage: Stage, winner: int, probability: float) -> str:
    """Return why the probe `winner` (its index) replaces the incumbent, which it beats with this probability."""
    beats = f"{name(setup, stage.probes[winner].candidate.values)} beats the incumbent {name(setup, stage.incumbent)}"
    losses = f"loss {_tail(stage, winner)} against {_tail(stage, 0)} after the probe"
    return f"{beats} with P={probability:.2f} ({losses})"


def keep(setup: SearchSetup, stage: Stage, winner: int, *, probability: float, gain: float, has_signal: bool) -> str:
    """Return why the incumbent stays, though the probe `winner` (its index) did best."""
    config, stays = setup.config, f"{name(setup, stage.incumbent)} stays"
    if winner == 0:
        rivals = len(stage.probes) - 1
        if not rivals:
            return f"{stays}: there was no room for a rival's probe"
        return f"{stays}: none of {rivals} others did better (loss {_tail(stage, 0)} after the probe)"
    rival = name(setup, stage.probes[winner].candidate.values)
    if not has_signal:
        return f"{stays}: no probe got below the loss that it started from"
    if probability < config.switch_probability:
        return f"{stays}: {rival} is better only with P={probability:.3f}, less than {config.switch_probability:g}"
    return f"{stays}: {rival} gains only {100 * gain:.2g} %, less than {100 * config.min_gain:g} %"


def of_model(setup: SearchSetup) -> str:
    """Return what the usual rate follows from."""
    space = setup.space
    if setup.traits.told_by == "sharpness" and space.sharpness is not None and space.first_loss is not None:
        return f"for a loss of {number(space.first_loss)} and a sharpness of {number(space.sharpness)}"
    return "for such weights" if setup.traits.told_by == "weights" else f"for `{setup.space.optimizer}`"


def out_of_range(setup: SearchSetup, told: float) -> str:
    """Return which end of the range stands in for the usual rate `told`, and why; empty if it lies in the range.

    A lower end that no person has set shows that the loss is too sharp for any rate: its unit is at fault.
    """
    low, high = setup.space.min_learning_rate, setup.space.max_learning_rate
    if low <= told <= high:
        return ""
    side = "lowest" if told < low else "highest"
    remedy = ": scale inputs and targets, or give `clip`" if told < low == MIN_LEARNING_RATE else ""
    return f"the {side} rate that may be used ({number(told)} is usual {of_model(setup)}{remedy})"


def from_probes(stage: Stage) -> str:
    """Return how many probes there were, and in which range of rates."""
    rates = [probe.candidate.values.learning_rate for probe in stage.probes]
    return f"from {len(rates)} probes between {number(min(rates))} and {number(max(rates))}"


def steers(setup: SearchSetup, stage: Stage) -> Iterator[str]:
    """Yield who steers the stage, and how."""
    for steer in stage.steered.steers:
        if steer.pin:
            yield f"{steer.by} pinned {', '.join(setting(setup, *each) for each in steer.pin.items())}"
        if steer.veto:
            yield f"{steer.by} vetoed {', '.join(_vetoed(setup, *each) for each in steer.veto.items())}"
        if steer.search_now:
            yield f"{steer.by} asked for a search"


def _vetoed(setup: SearchSetup, value_name: str, veto: Band | tuple[bool | str, ...]) -> str:
    if not isinstance(veto, Band):
        return " and ".join(setting(setup, value_name, each) for each in veto)
    sides = [("above", veto.above), ("below", veto.below)]
    return " and ".join(setting(setup, value_name, limit, side=side) for side, limit in sides if limit is not None)


def remarks(setup: SearchSetup, stage: Stage, chosen: Values, fit: Fit | None) -> Iterator[str]:
    """Yield the other reasons for a choice: the optimizer, drift, steers, a rollback, events, past jobs, a fallback."""
    if stage.index == 0:
        yield setup.space.chosen_because
    yield _without_average(setup, stage)
    yield _drifting(stage)
    yield _lasting(stage.decisive, chosen)
    yield from steers(setup, stage)
    yield stage.note
    before = stage.line.before
    if setup.config.revisit != "stages" and before and not before.diverged:  # the note says what diverged
        yield " and ".join(_event(event, before.signs) for event in stage.line.events)
    if num_jobs := len(stage.prior.searches):
        weight = f", weight {fit.surrogate.expected.weight:.2f}" if fit else ""
        yield f"prior from {num_jobs} job{'s' * (num_jobs > 1)}{weight}"
    if fit:
        yield fit.surrogate.note


def _without_average(setup: SearchSetup, stage: Stage) -> str:
    """Return how many probes ended before workers that train apart had averaged, as the cap had no room for that."""
    periods = [
        (setup.space.period_of(probe.candidate.values), probe.reading.num_steps)
        for probe in stage.probes
        if probe.candidate.origin != "wide" and not probe.reading.is_cut and not probe.reading.diverged
    ]
    short = [period for period, num_steps in periods if period > 1 and num_steps <= period]
    if not short:
        return ""
    few = f"{len(short)} of {len(periods)} probes" if len(short) < len(periods) else "the probes"
    return f"{few} saw no average: the cap on the search has no room for {max(short) + 1} steps each"


def _drifting(stage: Stage) -> str:
    """Return the exchanges with which workers drift apart, and how much higher the loss of their average is."""
    return " and ".join(
        f"under {option}, workers drift apart: the loss of their average is {rise:.2g} higher"
        for option, rise in client_drifts(stage.decisive).items()
    )


def _lasting(stage: Stage, chosen: Values) -> str:
    """Return the exchange whose probe got lower than the chosen one's, which is expected to overtake it."""
    rewards = [(score.reward, score.values.option or "") for score in scores(stage) if score.reward is not None]
    fastest = fastest_option(stage)
    if not rewards or max(rewards)[1] != chosen.option or fastest in (None, chosen.option):
        return ""
    return f"{fastest} got lower in its probe, and is expected to teach less for its cost in the long run"


def _tail(stage: Stage, index: int) -> str:
    losses = stage.probes[index].reading.losses
    half = losses[len(losses) // 2 :]
    return number(sum(half) / len(half))


def signs_in_words(signs: Signs, *, is_timed: bool) -> str:
    """Return the signs that were looked at, with numbers."""
    parts = [_step_words(signs)] if is_timed and signs.step is not None else []
    if signs.gradient_drift is not None:
        parts.append(f"gradient scale {signs.gradient_drift:.2g}x")
    if signs.loss is not None:
        parts.append(f"loss {signs.loss:.3g}")
    if signs.forecast is not None:
        parts.append(_forecast_words(signs.forecast))
    return ", ".join(parts) or f"{signs.num_steps} steps are too few to tell"


def _event(event: Event, signs: Signs) -> str:
    """Return `event` in words, with numbers."""
    match event:
        case "step_time":
            return f"the step time changed ({_step_words(signs)})"
        case "gradient_scale":
            return f"the gradient's scale jumped {signs.gradient_jump:.2g}x"
        case "plateau":
            assert signs.forecast is not None
            return f"no progress at loss {signs.loss:.3g}, {_forecast_words(signs.forecast)}"
        case "client_drift":
            return f"workers drift apart: the loss of their average is {signs.client_drift:.2g} higher than their own"
        case "divergence" if signs.is_dead:
            return f"the net is dead at loss {signs.loss:.3g}: gradient scale {signs.gradient_drift or 0.0:.2g}x"
        case "divergence":
            origin = signs.start if signs.has_diverged else signs.best
            of_all = ", the best of the run" if origin == signs.best else ""
            return f"the loss rose to {signs.loss:.3g} from {origin:.3g}{of_all}"


def _step_words(signs: Signs) -> str:
    step, reference = signs.step, signs.reference
    assert step is not None
    if reference is None:
        return f"step {1e3 * step.seconds:.3g} ms"
    words = f"step {1e3 * step.seconds:.3g} ms against {1e3 * reference.seconds:.3g}"
    if step.waited is None or reference.waited is None:
        return words
    return f"{words}, wait {1e3 * step.waited:.3g} against {1e3 * reference.waited:.3g}"


def _forecast_words(forecast: Forecast) -> str:
    return f"forecast {forecast.mean:.3g} ± {forecast.std:.2g}"
