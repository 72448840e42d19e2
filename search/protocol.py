"""The protocol of all strategies. The trial loop knows nothing else about them."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from search.types import Candidate, Course, Decision, Observation, Piece, Spent, Steer, Values

#: Shares of a probe's allowance after which its strategy is asked about it; the last is the whole.
PROBE_PARTS = (0.25, 0.5, 0.75, 1.0)


class Strategy(Protocol):
    """Chooses values stage by stage, while the caller trains and reports. Strategies inherit it.

    In a stage, the caller:

    1. calls `ask` until it returns None. It runs each candidate from the stage's snapshot, and reports it with `tell`.
       Candidates that are `alone` may run side by side, each on one worker; their steps count once.
    2. calls `decide`, and rewinds to the snapshot.
    3. trains the commit with `values(spent)` until `decision.commit_until`.
    4. calls `tell` with the commit's observation (`candidate_id=None`), which closes the stage.

    A decision that `starts_over` has no commit: the caller rewinds to the run's first step, and tells it, as after
    `start_over` below. Only a caller whose space says that it `starts_over` gets one.

    A decision may name a `promoted` probe. Then the probe's steps are the commit's first, and the run goes on from its
    end instead of rewinding. The caller offers only probes whose end it holds: the last one, and the one that was
    `leading` before the next began.

    Meanwhile the caller asks `watch` at points that follow from the budget: after a quarter, a half and three quarters
    of a probe's allowance, and whenever it evaluates the committed line.

    By default a strategy ignores steers, lets every probe and commit run to its end, holds no probe, and does not
    anneal.
    """

    def steer(self, steers: Sequence[Steer]) -> None:
        """Replace the steers in force by `steers`. Called when a stage opens, before its first `ask`.

        By default they are ignored.
        """
        return

    def ask(self) -> Candidate | None:
        """Return the next probe of the open stage, or None when the stage has seen enough."""

    def tell(self, observation: Observation) -> None:
        """Record what a probe or the commit measured."""

    def watch(self, observation: Observation) -> Course:
        """Judge a running probe, or the commit, by its measurements so far.

        Returns:
            `go_on`: a commit may use another rate from its next step on.
            `end`: stop here, and `tell` it.
            `roll_back`, for a commit only: rewind to the stage's snapshot, and `tell` it with `rolled_back`. Its cost
            stays spent. A commit that diverged is rolled back by the caller, whatever the answer.
            `start_over`, for a commit that was said to overfit: rewind to the run's first step, and `tell` it with
            `rolled_back` and `started_over`.
        """
        return "go_on"

    def leading(self) -> str | None:
        """Return the id of the finished probe whose end is worth holding, or None."""
        return None

    def decide(self, held: Collection[str] = ()) -> Decision:
        """Choose the open stage's values; `held` are the probes that may be promoted."""

    def values(self, spent: Spent) -> Values:
        """Return the values of the committed line at these totals, with any decay or annealing applied."""

    def anneals(self, spent: Spent) -> bool:
        """Return whether the rate at these totals would be another one with a larger budget."""
        return False

    def piece(self, spent: Spent) -> Piece | None:
        """Return the straight piece of the rate at these totals; None: rates follow from what is spent."""
        return None

    def state_dict(self) -> Mapping[str, Any]:
        """Return the journal as JSON-compatible data; `from_state_dict` replays it."""
