"""The controller: one wide search, then a trust region around the incumbent, on events or at every stage.

The controller is a fold over its journal of what was asked, told and decided. A restored controller applies the journal
as it stands and computes nothing again, so it agrees with what was acted upon, on any machine. Journal and memory hold
the same summary of each observation, so both decide from the same numbers.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic import BaseModel, TypeAdapter

from search.bayesian import promotion
from search.bayesian.decay import commit_decay, decay_factor, is_decaying, probe_decay
from search.bayesian.decision import awakens, choose, ramp_steps
from search.bayesian.early_stopping import course_of, events_of, falls_far, signs_of
from search.bayesian.exchange_shortlist import listed
from search.bayesian.link_rule import follow_link, with_best_density
from search.bayesian.next_stage import next_stage
from search.bayesian.probe_costs import (
    StepCosts,
    has_room_for_wide,
    is_too_slow,
    probe_allowance,
    too_expensive,
    too_slow,
)
from search.bayesian.proposals import propose
from search.bayesian.refinement import raise_of
from search.bayesian.reports import commit_forecast, probe_reports
from search.bayesian.setup import SearchSetup
from search.bayesian.stage import CommittedLine, Ramp, Stage
from search.bayesian.steering import RATE, Steering, heard, require_names, steered_setup, steered_stage, steering_of
from search.bayesian.usual_rate import begins_as_usual
from search.budget import spending
from search.config import Budget, SearchConfig, WideConfig
from search.curves.calibration import learned_weight
from search.curves.curve_summary import Ending, Reading
from search.curves.events import Signs
from search.past_jobs.prior import NO_PRIOR, Prior
from search.protocol import Strategy
from search.space import SearchSpace
from search.surrogate.posterior import on_grid
from search.types import Candidate, Course, Decision, Observation, Refusal, Spent, Steer, Tax, Values

FORMAT = "wiretune.controller/3"
#: The events of the journal by name, each with the type of its value.
EVENTS: dict[str, TypeAdapter[Any]] = {
    "steer": TypeAdapter(tuple[Steer, ...]),
    "ask": TypeAdapter(Candidate),
    "refuse": TypeAdapter(Refusal),
    "tell": TypeAdapter(Reading),
    "decide": TypeAdapter(Decision),
    "awakens": TypeAdapter(bool),
    "rise": TypeAdapter(float),
    "close": TypeAdapter(Ending),
}


class Controller(Strategy):
    """The strategy that searches in stages. The caller may `ask` for several candidates before it `tell`s the first."""

    def __init__(
        self,
        space: SearchSpace,
        config: SearchConfig,
        seed: int,
        *,
        budget: Budget,
        prior: Prior = NO_PRIOR,
        has_grown: bool = False,
    ) -> None:
        """Begin a run at its first step. `has_grown`: it began with a smaller budget.

        Raises:
            ValueError: `space` names an unknown optimizer, or a guess outside its range, or outside that of `config`.
        """
        space = with_best_density(_narrowed(space, config), budget)
        space.check_guess()
        self._space = space  # as it was given; the setup's space follows the link
        self._free = SearchSetup(space=space, config=config, budget=budget, seed=seed, has_grown=has_grown)
        self._setup = self._free  # with steers
        self._prior = prior
        self._stage = Stage(
            index=0,
            incumbent=self._setup.opening,
            has_incumbent=not isinstance(config, WideConfig),
            is_paired=space.rewinds_data,
            teaching=dict(space.teaching),
            prior=prior,
            line=CommittedLine(link=space.link),
        )
        self._costs = StepCosts(self._setup)
        self._spent, self._search = Spent(), Spent()
        self._journal: list[dict[str, Any]] = []
        self._steers: tuple[Steer, ...] = ()
        self._voided: frozenset[int] = frozenset()  # of steers whose pinned rate failed
        self._searched: frozenset[int] = frozenset()  # of steers whose search was made

    # -- the protocol ------------------------------------------------------------------------------

    def steer(self, steers: Sequence[Steer]) -> None:
        """Replace the steers in force by `steers`, when a stage opens.

        Raises:
            ValueError: the open stage has been asked for a probe, or is decided; or a steer names an unknown value.
        """
        if tuple(steers) == self._steers:
            return
        require_names(steers, level_name=self._space.level_name)
        if self._stage.candidates or self._stage.decision is not None:
            raise ValueError(f"stage {self._stage.index} is open: `steer` before its first `ask`.")
        self._record("steer", tuple(steers))

    def ask(self) -> Candidate | None:
        """Return the next probe of the open stage, or None when the stage has seen enough.

        Raises:
            ValueError: the stage is decided and its commit is not told yet.
        """
        stage = self._stage
        if stage.decision is not None:
            raise ValueError(f"stage {stage.index} is decided: `tell` its commit before the next `ask`.")
        candidate = self._next_candidate()
        if candidate is not None:
            self._record("ask", candidate)
        return candidate

    def tell(self, observation: Observation) -> None:
        """Record what a probe, or the commit, measured; a commit closes the stage.

        Raises:
            ValueError: no such probe is running, or no commit is.
        """
        self._check_runs(observation.candidate_id)
        if observation.candidate_id is None:
            signs = signs_of(self._setup, self._stage, observation)
            events = () if observation.started_over else events_of(self._setup, self._stage, observation, signs)
            self._record("close", Ending.of(observation, signs, events))
        else:
            candidate = next(each for each in self._stage.pending if each.id == observation.candidate_id)
            period = 1 if candidate.alone else self._setup.space.period_of_option(candidate.values.option)
            self._record("tell", Reading.of(observation, period=period))

    def watch(self, observation: Observation) -> Course:
        """Judge a running probe, or the commit. A commit that goes on may get a higher rate.

        Returns:
            `end` for a probe that is not worth finishing, and for a commit with an event; `roll_back` for a commit
            that diverges, or does worse than without its switch; `start_over` for one that overfits; else `go_on`.

        Raises:
            ValueError: no such probe is running, or no commit is.
        """
        self._check_runs(observation.candidate_id)
        course = course_of(self._setup, self._stage, observation, costs=self._costs, search=self._search)
        if observation.candidate_id is None and course == "go_on":
            # only a model that is being awakened rises by its signs, and they take as long to read as the course
            signs = signs_of(self._setup, self._stage, observation) if self._stage.course.awakens else Signs()
            rise = raise_of(self._setup, self._stage, observation, signs)
            if rise != self._stage.course.rise:
                self._record("rise", rise)
        return course

    def leading(self) -> str | None:
        """Return the id of the probe that would be promoted if the stage were decided now, or None."""
        return promotion.leading(self._setup, self._stage)

    def decide(self, held: Collection[str] = ()) -> Decision:
        """Choose the open stage's values. Asked again, the answer is the same.

        `held`: the probes whose end the caller can go on from. If the winner is one of them, its steps are kept.
        """
        if self._stage.decision is None:
            decision, rises = self._decide(held), awakens(self._setup, self._stage)
            self._record("decide", decision)
            if rises:
                self._record("awakens", True)
        assert self._stage.decision is not None
        return self._stage.decision

    def values(self, spent: Spent) -> Values:
        """Return the values of the committed line at these totals, with the rate's ramp, rise and decay applied.

        Steps across the end of a ramp go straight to its rate.
        """
        decision = self._stage.decision
        chosen = self._stage.incumbent if decision is None else decision.values
        rate = self._setup.clip_rate(chosen.learning_rate * self._stage.course.rise)
        ramp = 1.0 if self._stage.is_pinned else self._stage.course.ramp.factor(spent.steps)
        return chosen.model_copy(update={"learning_rate": rate * ramp * decay_factor(self._setup, spent)})

    def anneals(self, spent: Spent) -> bool:
        """Return whether the rate at these totals depends on where the budget ends."""
        return is_decaying(self._setup, spent)

    def state_dict(self) -> Mapping[str, Any]:
        """Return the journal as JSON-compatible data."""
        setup = self._setup
        return {
            "format": FORMAT,
            "kind": setup.config.kind,
            "config": _to_json(setup.config),
            "space": _to_json(self._space),
            "budget": _to_json(setup.budget),
            "has_grown": setup.has_grown,
            "seed": setup.seed,
            "prior": _to_json(self._prior),
            "events": list(self._journal),
        }

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any]) -> "Controller":
        """Restore a controller from `state_dict`'s answer.

        Raises:
            ValueError: `state` has another format.
        """
        if state.get("format") != FORMAT:
            raise ValueError(f"`format` must be {FORMAT!r}, got {state.get('format')!r}.")
        controller = cls(
            SearchSpace.model_validate(state["space"]),
            TypeAdapter(SearchConfig).validate_python(state["config"]),
            state["seed"],
            budget=Budget.model_validate(state["budget"]),
            prior=Prior.model_validate(state["prior"]),
            has_grown=state.get("has_grown", False),  # an earlier release has not said
        )
        for event in state["events"]:
            [(what, told)] = event.items()
            controller._journal.append(event)
            controller._apply(what, EVENTS[what].validate_python(told))
        return controller

    # -- the fold ----------------------------------------------------------------------------------

    def _record(self, what: str, value: Any) -> None:
        """Write an event into the journal, and apply it just as a restored controller will."""
        # by way of text: NaN and infinity become strings, as strict JSON requires
        self._journal.append({what: json.loads(EVENTS[what].dump_json(value))})
        self._apply(what, value)

    def _apply(self, what: str, value: Any) -> None:
        match what:
            case "steer":
                self._apply_steer(value)
            case "ask":
                self._stage.candidates.append(value)
            case "refuse":
                self._stage.refused.append(value)
            case "tell":
                self._apply_tell(value)
            case "decide":
                self._apply_decide(value)
            case "awakens":
                self._stage.course = replace(self._stage.course, awakens=value)
            case "rise":
                self._stage.course = replace(self._stage.course, rise=value)
            case "close":
                self._apply_close(value)

    def _apply_tell(self, reading: Reading) -> None:
        before = spending.later(self._spent, reading.searched_from)  # an evaluation in between is not charged to it
        took, self._spent = spending.minus(reading.spent, before), reading.spent
        self._search = spending.plus(self._search, took)
        self._stage.readings[reading.candidate_id] = reading
        candidate = next(each for each in self._stage.candidates if each.id == reading.candidate_id)
        if candidate.origin == "wide":
            self._stage.search_coarse = spending.plus(self._stage.search_coarse, took)
        if not candidate.alone:  # a step of one worker costs less than one of all
            self._costs.record(self._setup, candidate.values, reading)
        if is_too_slow(self._setup, self._stage, reading):
            self._stage.too_slow[candidate.id] = too_slow(self._setup, self._stage, candidate, reading)

    def _apply_decide(self, decision: Decision) -> None:
        kept = promotion.cost(None if decision.promoted is None else self._stage.readings[decision.promoted])
        self._search = spending.minus(self._search, kept)
        self._stage.decision, self._stage.decided = decision, spending.minus(self._spent, kept)
        ramp = Ramp(decision.ramp_steps) if decision.ramp_steps else self._stage.course.ramp
        ramp = ramp.begun(self._spent.steps)  # after the steps of a promoted probe
        self._stage.course = replace(self._stage.course, ramp=ramp)

    def _apply_close(self, ending: Ending) -> None:
        self._spent = ending.spent
        self._searched |= {steer.id for steer in self._stage.steered.steers if steer.search_now}
        if ending.has_failed:  # a pinned rate that failed is dropped: nobody may be there to withdraw it
            self._voided |= {steer.id for steer in self._stage.steered.steers if RATE in steer.pin}
        self._stage = next_stage(self._setup, self._stage, ending, search=self._search)
        self._free = listed(self._free, self._stage)
        self._steer_stage()

    def _apply_steer(self, steers: tuple[Steer, ...]) -> None:
        self._steers = steers
        self._steer_stage()

    def _steering(self) -> Steering:
        level_name = self._space.level_name
        return steering_of(heard(self._steers, level_name=level_name, voided=self._voided, done=self._searched))

    def _steer_stage(self) -> None:
        """Apply the steers to the stage that opens."""
        steering = self._steering()
        self._setup = steered_setup(self._free, steering)
        self._stage = steered_stage(self._stage, self._free.space, steering)

    # -- what is new -------------------------------------------------------------------------------

    def _next_candidate(self) -> Candidate | None:
        """Return the next probe that fits the cap, or None. Proposals that do not fit are refused."""
        setup, stage = self._setup, self._stage
        if (
            stage.is_pinned
            or stage.is_on_ramp
            or is_decaying(setup, self._spent)
            or (not stage.has_incumbent and not has_room_for_wide(setup, stage))
        ):
            return None
        while not stage.is_full and (proposal := propose(setup, stage)) is not None:
            allowance = probe_allowance(
                setup, stage, self._costs, proposal=proposal, search=self._search, spent=self._spent
            )
            if allowance is not None:
                return Candidate(
                    id=f"{stage.index}-{len(stage.candidates)}",
                    stage=stage.index,
                    values=proposal.values,
                    allowance=allowance,
                    origin=proposal.origin,
                    rung=proposal.rung,
                    decay=probe_decay(setup, proposal),
                    # coarse probes need neither the exchange nor more than one worker's batch
                    alone=proposal.origin == "wide" and setup.space.num_alone > 1,
                )
            if stage.pending:  # a running probe may leave room
                return None
            self._record("refuse", too_expensive(setup, stage, self._costs, proposal))
        return None

    def _decide(self, held: Collection[str]) -> Decision:
        setup, stage = self._setup, self._stage
        choice = choose(setup, stage)
        choice = follow_link(setup, stage, choice)
        winner = promotion.winner(setup, stage, choice.values)
        over = falls_far(setup, stage, choice.values, self._spent)
        promoted = winner if winner and winner.candidate.id in held and not over else None
        kept = promotion.cost(promoted.reading if promoted else None)
        start = spending.minus(self._spent, kept)
        part = setup.commit_part(stage.index, stage.line.num_taken_back, start)
        commit = spending.scale(spending.remaining(setup.budget, start), part)
        decay = commit_decay(setup, start, part)
        new_ramp = ramp_steps(setup, stage)
        is_on_ramp = new_ramp > 0 or stage.is_on_ramp  # no probe can forecast such a commit
        reports = probe_reports(setup, stage, commit=commit, choice=choice)
        searched = spending.minus(self._search, kept)
        search = spending.minus(searched, stage.search_before)
        budget_share = spending.fraction_spent(setup.budget, searched)
        return Decision(
            stage=stage.index,
            values=choice.values,
            reason=f"{choice.reason}; so the run starts over" if over else choice.reason,
            switched=choice.values != stage.incumbent,
            is_usual=begins_as_usual(setup, stage),
            probability=choice.probability,
            forecast=None if is_on_ramp else commit_forecast(setup, stage, choice.values, commit=commit, decay=decay),
            steers=stage.steered.steers,
            promoted=promoted.candidate.id if promoted else None,
            starts_over=over,
            commit_until=spending.commit_end(setup.budget, start, part),
            ramp_steps=new_ramp,
            probes=reports,
            refused=(*stage.too_slow.values(), *stage.refused),
            search_seconds=search.seconds,
            search_steps=search.steps,
            tax=Tax(budget_share=budget_share, cap_share=budget_share / setup.search_fraction),
            forecast_weight=learned_weight(stage.line.outcomes),
            num_earlier=sum(len(earlier) for earlier in stage.line.history),
            posterior=None if choice.fit is None else on_grid(choice.fit, choice.values),
        )

    # -- the open stage ----------------------------------------------------------------------------

    def _check_runs(self, candidate_id: str | None) -> None:
        running = [candidate.id for candidate in self._stage.pending]
        if candidate_id is None and self._stage.decision is None:
            raise ValueError(f"stage {self._stage.index} has no commit yet: `decide` first.")
        if candidate_id is not None and candidate_id not in running:
            raise ValueError(f"`candidate_id` must be one of {running}, got {candidate_id!r}.")


def _to_json(value: BaseModel) -> Any:
    # by way of text: NaN and infinity become strings, as strict JSON requires
    return json.loads(value.model_dump_json())


def _narrowed(space: SearchSpace, config: SearchConfig) -> SearchSpace:
    if config.stated_rates is None:
        return space
    low, high = config.stated_rates
    return space.model_copy(
        update={
            "min_learning_rate": max(low, space.min_learning_rate),
            "max_learning_rate": min(high, space.max_learning_rate),
        }
    )
