"""Which probes a stage can go on from: the last one, whose end is live, and the one that was put aside."""

from service.cluster.opening import STAGE
from service.cluster.reports import Probe
from trainers.group import Group

#: The second and last slot of the ranks' memory.
BEST = "best"


class Ends:
    """Mutable: the ends of a stage's probes that `group` holds; it begins with the stage's snapshot."""

    def __init__(self, group: Group) -> None:
        self._group = group
        group.snapshot(STAGE)
        self._live: Probe | None = None  # None: the live state is the stage's start
        self._aside: Probe | None = None

    @property
    def held(self) -> list[str]:
        """Ids of the probes whose ends are held."""
        return [probe.candidate.id for probe in (self._live, self._aside) if probe is not None]

    def rewind(self, *, leading: str | None) -> None:
        """Go back to the stage's start; the live end is put aside first if its probe is `leading`."""
        if self._live is not None and self._live.candidate.id == leading:
            self._group.snapshot(BEST)
            self._aside = self._live
        if self._live is not None:
            self._group.restore(STAGE)
        self._live = None

    def ended(self, probe: Probe) -> None:
        """Note that the live state is the end of `probe`."""
        self._live = probe

    def go_to(self, promoted: str | None) -> Probe | None:
        """Go to the end of the probe with this id, one of those held, and return it; None: to the stage's start."""
        if self._live is not None and self._live.candidate.id == promoted:
            return self._live
        if self._aside is not None and self._aside.candidate.id == promoted:
            self._group.restore(BEST)
            return self._aside
        self.rewind(leading=None)
        return None
