"""The one protocol of all strategies: the trial loop knows nothing else about them."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from search.types import Candidate, Course, Decision, Observation, Piece, Spent, Steer, Values

#: Shares of its allowance after which a strategy is asked about a probe, and the whole.
PROBE_PARTS = (0.25, 0.5, 0.75, 1.0)


class Strategy(Protocol):
    """Chooses values stage by stage; the caller trains and reports.

    One stage: `ask` until it returns None, running each candidate from the stage's snapshot and reporting
    it with `tell`. Candidates that are `alone` may be run at a time, each by one worker, with their steps counted once;
    then `decide`, rewind to the snapshot, and train the commit with `values(spent)` until
    `decision.commit_until`; then `tell` the commit's observation (`candidate_id=None`), which closes the stage.

    A decision may name a probe that is `promoted`: its steps are the commit's first, and the run goes on from its end
    instead of rewinding. That is offered only for probes whose end the caller holds: the last one, and whichever was
    `leading` before the next began.

    Meanwhile `watch` is asked at points that follow from the budget: after a quarter, a half and three quarters of a
    probe's allowance, and whenever the committed line is evaluated.
    """

    def steer(self, steers: Sequence[Steer]) -> None:
        """Take over what people say the strategy may use, all of it; called when a stage opens, before its first `ask`.

        One that does not search has nothing to be steered, and takes no notice.
        """

    def ask(self) -> Candidate | None:
        """Return the next probe of the open stage, or None when the stage has seen enough."""

    def tell(self, observation: Observation) -> None:
        """Record what a probe or the commit measured."""

    def watch(self, observation: Observation) -> Course:
        """Judge a running probe, or the commit, by what it has measured so far.

        A commit that goes on may use another rate from its next step on. One that diverged is rolled back by its
        caller, whatever the answer.

        `end`: stop here, and `tell` it. `roll_back`, of a commit only: rewind to the stage's snapshot and `tell` it
        with `rolled_back`; what it cost stays spent.
        """

    def leading(self) -> str | None:
        """Return the id of the finished probe whose end is worth holding, or None."""

    def decide(self, held: Collection[str] = ()) -> Decision:
        """Choose the open stage's values; `held` are the probes that may be promoted."""

    def values(self, spent: Spent) -> Values:
        """Return what the committed line uses at these totals (a decay or an annealing applied)."""

    def anneals(self, spent: Spent) -> bool:
        """Return whether the rate at these totals depends on where the budget ends: a larger one would give another."""

    def piece(self, spent: Spent) -> Piece | None:
        """Return the straight piece that the rate is on at these totals; None: rates follow from what is spent."""

    def state_dict(self) -> Mapping[str, Any]:
        """Return the journal as JSON-compatible data; `from_state_dict` replays it."""
