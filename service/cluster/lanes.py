"""The lanes of a trial, its worker groups. The first trains the main line, and all of them probe side by side."""

from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ALL_COMPLETED, FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from search.budget.link import StepCost
from search.config import Budget
from search.loop import endings, pacing
from search.loop.pacing import ProbePart
from search.types import Candidate, Course, Observation, Spent, Values
from service.cluster import segment_length
from service.cluster.clock import TrainingClock
from service.cluster.measured import Measured, Probe, Pushed
from service.cluster.probe_ends import Ends, Held
from service.cluster.slots import STAGE
from trainers.training import likeness
from trainers.training.group import Group, Recovery


class Lane:
    """A worker group, the checkpoint whose state it `holds` in memory, and the probe ends it holds."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.holds: str | None = None
        self.ends: Ends

    def hold(self, checkpoint: str, held: Held | None = None) -> None:
        """Keep the current state, which is that of `checkpoint`, as the start of probes; `held` is as in `Ends`."""
        self.ends = Ends(self.group, held)
        self.holds = checkpoint

    def rewind(self, checkpoint: str, *, leading: str | None = None) -> None:
        """Return to the state of `checkpoint`, from memory or, the first time, storage; `leading` is as in `Ends`."""
        if self.holds != checkpoint:
            self.group.load(checkpoint)
            self.hold(checkpoint)
        self.ends.rewind(leading=leading)


def probe_alone(group: Group, candidates: Sequence[Candidate], *, opened: Spent) -> list[Probe]:
    """Train each candidate on its own worker, without an exchange, and return to the stage's start.

    These probes are short, so they are not watched. Each trains the steps of its allowance.
    """
    clock = TrainingClock(group)
    steps = [each.allowance.steps or each.allowance.min_steps for each in candidates]
    segments = [
        segment_length.segment(each.values, each.values, num) for each, num in zip(candidates, steps, strict=True)
    ]
    results = group.run_alone(segments)
    seconds = clock.seconds()
    group.restore(STAGE)
    probes = []
    for candidate, segment, result in zip(candidates, segments, results, strict=True):
        measured = Measured()
        measured.add(result)
        pushed = Pushed(segment, result, opened.seconds, ended_s=opened.seconds + seconds, bytes_sent=opened.bytes)
        probes.append(Probe(candidate, measured, seconds=seconds, pushed=[pushed], is_cut=False))
    return probes


class ProbeRun:
    """A probe on one lane. It changes nothing else: the caller puts it on the bill."""

    def __init__(self, group: Group, candidate: Candidate, *, opened: Spent, budget: Budget) -> None:
        self._group, self._candidate, self._opened, self._budget = group, candidate, opened, budget
        self._measured = Measured()
        self._pushed: list[Pushed] = []
        self._clock = TrainingClock(group)
        self._cost: StepCost | None = None

    def run(self, *, watch: Callable[[Observation], Course], check: Callable[[], None]) -> Probe:
        """Train the candidate until it has spent its allowance, diverges, or `watch` ends it.

        `check` is called before every push; an exception from it ends the probe.
        """
        is_cut = False
        for part in pacing.probe_parts(self._candidate.allowance, self._opened, self._budget):
            self._train(part, check)
            is_cut = endings.is_cut(self._measured.observation(self._candidate.id, self._spent()), watch, part)
            if self._measured.diverged or is_cut:
                break
        seconds = self._clock.seconds()
        return Probe(self._candidate, self._measured, seconds=seconds, pushed=self._pushed, is_cut=is_cut)

    def _train(self, part: ProbePart, check: Callable[[], None]) -> None:
        while not self._measured.diverged:
            missing = part.least - self._measured.num_steps
            if missing <= 0 and pacing.is_reached(part.until, self._spent(), self._cost):
                return
            most = missing if missing > 0 else pacing.NO_LIMIT
            check()
            self._push(segment_length.next_push(part.until, self._spent(), self._cost, most=most))

    def _push(self, num_steps: int) -> None:
        segment = segment_length.segment(self._values_after(0), self._values_after(num_steps - 1), num_steps)
        started_s = self._spent().seconds
        result = self._group.run(segment)
        self._measured.add(result)
        spent = self._spent()
        self._pushed.append(Pushed(segment, result, started_s, ended_s=spent.seconds, bytes_sent=spent.bytes))
        self._cost = segment_length.cost_of(result, self._cost)

    def _values_after(self, num_steps: int) -> Values:
        """Return the values of the step `num_steps` further on. A finalist's rate falls as a run's does."""
        measured = self._measured
        own = Spent(steps=measured.num_steps, bytes=measured.bytes_sent, seconds=self._clock.seconds())
        return pacing.probe_values(self._candidate, own, self._cost, num_steps)

    def _spent(self) -> Spent:
        """Return the run's totals when the probe opened, plus the probe's own."""
        opened, measured = self._opened, self._measured
        return Spent(
            steps=opened.steps + measured.num_steps,
            bytes=opened.bytes + measured.bytes_sent,
            seconds=opened.seconds + self._clock.seconds(),
        )


def side_by_side(
    lanes: Sequence[Lane],
    *,
    ask: Callable[[], Sequence[Candidate]],
    probe: Callable[[Lane, Sequence[Candidate]], Sequence[Probe]],
    in_rounds: bool,
) -> Generator[tuple[Iterator[Sequence[Probe]], list[Candidate]], None, None]:
    """Probe the candidates that `ask` gives, on all lanes, until it gives none. Yield what ended, and what still runs.

    A lane gets one candidate, or several for its workers to train alone. With `in_rounds`, all probes that run together
    end before any is yielded, in the order in which they were asked for: no result depends on which lane is faster.
    Otherwise a free lane gets the next candidates at once. Closing the generator waits for running probes.
    """
    running: dict[Future[Sequence[Probe]], tuple[Lane, Sequence[Candidate]]] = {}
    with ThreadPoolExecutor(len(lanes), thread_name_prefix="lane") as pool:
        while True:
            busy = [lane for lane, _ in running.values()]
            free = [lane for lane in lanes if lane not in busy]
            # ask for all before any starts, since watching a probe reads what `ask` writes
            asked = list(zip(free, iter(ask, ()), strict=False))
            running |= {pool.submit(probe, *each): each for each in asked}
            if not running:
                return
            # no timeout: every call to a group has one
            done, _ = wait(running, return_when=ALL_COMPLETED if in_rounds else FIRST_COMPLETED)
            ended = [future for future in running if future in done]
            for future in ended:
                del running[future]
            yield (
                (future.result() for future in ended),
                [candidate for _, candidates in running.values() for candidate in candidates],
            )


def for_a_lane(ask: Callable[[], Candidate | None], num_workers: int) -> Callable[[], tuple[Candidate, ...]]:
    """Return a function that gives a lane its next candidates: one for all workers together, or one for each alone."""
    kept: list[Candidate] = []  # already asked for, to give to the next lane

    def next_candidates() -> tuple[Candidate, ...]:
        asked: list[Candidate] = []
        while len(asked) < num_workers and (candidate := kept.pop() if kept else ask()) is not None:
            if asked and not candidate.alone:
                kept.append(candidate)
                break
            asked.append(candidate)
            if not candidate.alone:
                break
        return tuple(asked)

    return next_candidates


def require_equal(groups: Sequence[Group]) -> None:
    """Raise WorkloadError unless all lanes have built the same model and data."""
    likeness.require_alike("the lanes", [group.built for group in groups])


def recovered(groups: Sequence[Group]) -> Recovery:
    """Return the total cost of lost workers on all lanes so far."""
    spent = [group.recovery for group in groups]
    return Recovery(
        repairs=sum(each.repairs for each in spent),
        seconds=sum(each.seconds for each in spent),
        bytes=sum(each.bytes for each in spent),
        absences=groups[0].recovery.absences,  # several lanes have no absences: such a job waits for its workers
    )
