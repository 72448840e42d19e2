"""Keep the ends of probes that a stage can continue from: the live one, and one put aside."""

import math

from pydantic import BaseModel, ConfigDict

from search.types import Candidate
from service.cluster import segment_length
from service.cluster.measured import Probe, Pushed
from service.cluster.slots import BEST, STAGE
from trainers.training.group import Group


class Push(BaseModel):
    """A segment of a probe, with all that a later attempt needs to train it again."""

    model_config = ConfigDict(frozen=True)

    num_steps: int
    started_s: float
    ended_s: float | None = None  # None: written by an earlier release
    bytes_sent: int
    learning_rate: float | None = None  # None: the candidate's own, in all steps
    final_learning_rate: float | None = None


class End(BaseModel):
    """The end of a probe, and the pushes that lead there from the stage's start."""

    model_config = ConfigDict(frozen=True)

    candidate: Candidate
    seconds: float
    pushes: tuple[Push, ...]


class Held(BaseModel):
    """The ends that a stage could continue from. `live` None: the live state is the stage's start."""

    model_config = ConfigDict(frozen=True)

    live: End | None = None
    aside: End | None = None


class Ends:
    """The ends of a stage's probes that `group` holds. Mutable; creating it takes the stage's snapshot.

    In a search that an earlier attempt began, it inherits that attempt's ends, but not in memory. Such an end is `lost`
    until it is trained again, from the same state and therefore to the same bits.
    """

    def __init__(self, group: Group, held: Held | None = None) -> None:
        self._group = group
        group.snapshot(STAGE)
        self.held = held or Held()
        self._pushed: dict[str, list[Pushed]] = {}  # by probe whose end is in memory

    @property
    def ids(self) -> list[str]:
        """The ids of the probes whose ends are held."""
        return [end.candidate.id for end in (self.held.live, self.held.aside) if end is not None]

    def rewind(self, *, leading: str | None) -> None:
        """Return to the stage's start. If the live end's probe is `leading`, put it aside first."""
        live, aside = self.held.live, self.held.aside
        is_in_memory = live is not None and not self._is_lost(live)
        if live is not None and live.candidate.id == leading:
            aside = live
            if is_in_memory:
                self._group.snapshot(BEST)
        if is_in_memory:
            self._group.restore(STAGE)
        self.held = Held(aside=aside)

    def ended(self, probe: Probe) -> None:
        """Record that the live state is the end of `probe`."""
        pushes = tuple(
            Push(
                num_steps=each.segment.num_steps,
                started_s=each.started_s,
                ended_s=each.ended_s,
                bytes_sent=each.bytes_sent,
                learning_rate=each.segment.learning_rate,
                final_learning_rate=each.segment.final_learning_rate,
            )
            for each in probe.pushed
        )
        end = End(candidate=probe.candidate, seconds=probe.seconds, pushes=pushes)
        self.held = Held(live=end, aside=self.held.aside)
        self._pushed = {name: pushed for name, pushed in self._pushed.items() if name in self.ids}
        self._pushed[probe.candidate.id] = list(probe.pushed)

    def lost(self, promoted: str | None) -> End | None:
        """Return the end of the probe `promoted` if it must be trained again, else None."""
        found = (end for end in (self.held.live, self.held.aside) if end is not None and end.candidate.id == promoted)
        return next((end for end in found if self._is_lost(end)), None)

    def regain(self, end: End) -> list[Pushed]:
        """Train the probe again from the stage's start. Return its segments with their new results."""
        self._group.restore(STAGE)
        values, pushed = end.candidate.values, []
        for push in end.pushes:
            segment = segment_length.segment(values, values, push.num_steps)
            if push.learning_rate is not None:
                rates = {"learning_rate": push.learning_rate, "final_learning_rate": push.final_learning_rate}
                segment = segment.model_copy(update=rates)
            ended_s = math.inf if push.ended_s is None else push.ended_s
            pushed.append(Pushed(segment, self._group.run(segment), push.started_s, ended_s, push.bytes_sent))
        self.held = Held(live=end)
        self._pushed[end.candidate.id] = pushed
        return pushed

    def go_to(self, promoted: str | None) -> tuple[End, list[Pushed]] | None:
        """Go to the end of the probe `promoted`, which is in memory, and return it; None: to the stage's start.

        The end put aside is forgotten, so the checkpoint that would restore it on lost workers may be removed.
        """
        live, aside = self.held.live, self.held.aside
        if live is not None and live.candidate.id == promoted:
            found = live
        elif aside is not None and aside.candidate.id == promoted:
            self._group.restore(BEST)
            found = aside
        else:
            self.rewind(leading=None)
            found = None
        self._group.forget(BEST)
        return None if found is None else (found, self._pushed[found.candidate.id])

    def _is_lost(self, end: End) -> bool:
        return end.candidate.id not in self._pushed
