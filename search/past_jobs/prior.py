"""Measurements of past runs' wide searches, from which a new run learns. JSON both ways; pydantic only."""

import math
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from pydantic import ConfigDict

from search.types import Value, Values

#: A past search with fewer finite probes has no shape to learn from.
MIN_FINITE = 4


class PastProbe(Value):
    """A probe's reward: the fall of the log loss, comparable within its search alone. None: it diverged."""

    values: Values
    reward: float | None
    variance: float = 0.0


class PastSearch(Value):
    """The wide search of a past run."""

    job: str
    probes: tuple[PastProbe, ...]

    @classmethod
    def of(cls, job: str, decision: Mapping[str, Any]) -> "PastSearch":
        """Read the probes of `decision`, a run's first `search.types.Decision` as JSON.

        Rewards compare within one rung only. It is the last rung with `MIN_FINITE` finite rewards, or else the first.
        """
        reports, rungs = _Card.model_validate(decision).probes, dict[int, list[PastProbe]]()
        for report in reports:
            probe = PastProbe(values=report.candidate.values, reward=_finite(report.reward), variance=report.variance)
            rungs.setdefault(report.candidate.rung, []).append(probe)
        searches = [cls(job=job, probes=tuple(rungs[rung])) for rung in sorted(rungs)]
        whole = [search for search in searches if search.num_finite >= MIN_FINITE]
        return [cls(job=job, probes=()), *searches[:1], *whole][-1]

    @property
    def num_finite(self) -> int:
        """The number of probes that did not diverge."""
        return sum(probe.reward is not None for probe in self.probes)

    def with_values(self, names: Iterable[str]) -> tuple[PastProbe, ...]:
        """Return the probes that set all the values of these names."""
        return tuple(probe for probe in self.probes if all(getattr(probe.values, name) is not None for name in names))


class Prior(Value):
    """The past searches that a run may learn from, all with its optimizer kind; by default none."""

    searches: tuple[PastSearch, ...] = ()

    def tells(self, names: Collection[str]) -> bool:
        """Return whether a past search has enough probes that set all the values of these names."""
        found = (search.with_values(names) for search in self.searches)
        return any(sum(probe.reward is not None for probe in probes) >= MIN_FINITE for probes in found)


NO_PRIOR = Prior()


def _finite(reward: float | None) -> float | None:
    return reward if reward is not None and math.isfinite(reward) else None


class _Known(Value):
    model_config = ConfigDict(extra="ignore")


class _Candidate(_Known):
    values: Values
    rung: int = 0


class _Report(_Known):
    candidate: _Candidate
    reward: float | None
    variance: float = 0.0


class _Card(_Known):
    probes: tuple[_Report, ...] = ()
