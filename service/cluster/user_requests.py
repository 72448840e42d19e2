"""Requests of the user to a run under way, as far as its sink has heard."""

from collections.abc import Callable

from search.types import Candidate, Course, Observation
from service.cluster.reporter import Stopped
from service.cluster.reports import Sink
from service.wire.records import Control


class UserRequests:
    """A stop ends what runs at the next point where it can end well; a pause ends it with `Stopped`."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def is_stop(self) -> bool:
        """Return whether the run is to end as if its budget were spent."""
        return self._sink.asked() is Control.STOP

    def is_pause(self) -> bool:
        """Return whether the run is to leave a checkpoint and end."""
        return self._sink.asked() is Control.PAUSE

    def check(self) -> None:
        """Raise what must end a search at once: a paused one is made anew, from the checkpoint before it."""
        self._sink.report()
        if self.is_pause():
            self.leave()

    def leave(self) -> None:
        """End the run, whose last checkpoint is known."""
        raise Stopped(Control.PAUSE, "told to pause")

    def asking(self, ask: Callable[[], Candidate | None]) -> Callable[[], Candidate | None]:
        """Return `ask`, which has no more candidates once the run is to stop."""
        return lambda: None if self.is_stop() else ask()

    def watching(self, watch: Callable[[Observation], Course]) -> Callable[[Observation], Course]:
        """Return `watch`, which ends every probe once the run is to stop."""
        return lambda observation: "end" if self.is_stop() else watch(observation)
