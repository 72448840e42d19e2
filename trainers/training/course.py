"""The steps of a rank, one after the other: batches, backward, exchange, update, and what the sync policy does then."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from trainers import random_state
from trainers.exchange.node_links import NodeLinks
from trainers.exchange.step_result import Exchanged, mean_density
from trainers.methods.sync.policy import SyncPolicy, Update
from trainers.segment import Segment, SegmentResult, StepTimes
from trainers.traffic import collectives
from trainers.training import feed, model
from trainers.training.parts import TrainingParts
from trainers.training.passes import Forward
from trainers.training.peak_memory import peak_bytes
from trainers.training.stopwatch import RoundWait, Stopwatch
from trainers.workload import WorkloadError


def is_trained(index: int, pace: float) -> bool:
    """Return whether a rank that trains the share `pace` of its steps trains number `index`; the first one it does."""
    return index == 0 or math.floor(index * pace) > math.floor((index - 1) * pace)


class Step(NamedTuple):
    """The result of a step on this rank."""

    outcome: Exchanged
    scale: Tensor  # of the gradient
    alignment: Tensor
    own: Mapping[str, Tensor]  # the workload's own numbers, means over this rank's micro-batches


class TakenStep(NamedTuple):
    """A step that a rank has taken, or left out at its own pace, which came to the same as the one before."""

    step: Step
    seconds: float
    waited: float  # as `RoundWait` tells it


class Course:
    """Takes steps with `parts` as `sync` says. Mutable: the parts, and what a step that is left out came to.

    `rank` says whose samples it trains on; what is sent is in the ledgers of `node_links`.
    """

    def __init__(self, parts: TrainingParts, sync: SyncPolicy, node_links: NodeLinks, rank: int) -> None:
        self._parts, self._sync, self._node_links, self._rank = parts, sync, node_links, rank
        self._stopwatch = Stopwatch(parts.communication, node_links, parts.device)
        self._round_wait = RoundWait()
        self._held: tuple[Exchanged, Update] | None = None  # the step after which the ranks are to meet
        self._last: Step | None = None  # None: the next step is trained whatever the pace
        self._period: int | None = None  # of the last segment
        self._round_steps: int | None = None  # of the last round that has ended; None: the next one may be longer

    @property
    def _number(self) -> int:
        """The number of the coming step, from 0."""
        return self._parts.steps.taken

    def forget_last(self) -> None:
        """Train the next step whatever the pace: the state has become another one than the last step left."""
        self._last = self._round_steps = None

    def run(self, segment: Segment, begin: int, *, until_average: bool, pace: float) -> SegmentResult:
        """Take the segment's steps from number `begin` on, as `Replica.run` says."""
        first_step, self._held, before = self._number, None, self._stopwatch.read()
        taken: list[TakenStep] = []
        diverged = False
        self._use(segment)
        self._parts.alignment.begin_if_moved()
        round_start = self._number - self._sync.steps_since_meeting
        self._parts.feed.leave_out(lambda step: not is_trained(self._place_in_round(step - round_start), pace))
        with self._parts.random.scope():
            for index in range(begin, segment.num_steps):
                started, waited_s = time.monotonic(), self._stopwatch.waited_s
                step = self._taken(segment, index, may_meet=not until_average, pace=pace)
                diverged = step.outcome.diverged
                if diverged:
                    break
                if not taken:
                    self._check_model()
                has_met = not self._sync.steps_since_meeting
                waited = self._round_wait.count(self._stopwatch.waited_s - waited_s, ends_round=has_met)
                taken.append(TakenStep(step, time.monotonic() - started, waited))
                if self._held is not None:
                    break
        self._parts.feed.leave_out(lambda step: False)
        return self._result(segment, taken, before, first_step=first_step, diverged=diverged)

    def _place_in_round(self, index: int) -> int:
        """Return the place of the step that is `index` steps after a round's first, if rounds are as long as the last.

        Batches of the next round are fetched before it begins.
        """
        return index % self._round_steps if self._round_steps else index

    def meet(self) -> SegmentResult:
        """Meet the other ranks after the last step, as `run` was told to leave it; returns that step's result."""
        assert self._held is not None
        started, before = time.monotonic(), self._stopwatch.read()
        outcome = self._advanced(*self._held)
        took = time.monotonic() - started
        times = None if outcome.diverged else self._stopwatch.since(before, took)
        return SegmentResult(
            first_step=self._number - 1,
            losses=() if outcome.diverged else (outcome.loss,),
            step_seconds=() if outcome.diverged else (took,),
            waits=() if times is None else (self._round_wait.count(times.exposed, num_steps=0, ends_round=True),),
            times=times,
            bytes_sent=(self._node_links.between.ledger.take(),),
            bytes_within=(self._node_links.within.ledger.take(),),
            bytes_dense=0,
            density=outcome.density,
            threshold=self._sync.exchange.threshold,
            diverged=outcome.diverged,
        )

    def _result(
        self, segment: Segment, taken: Sequence[TakenStep], before: StepTimes, *, first_step: int, diverged: bool
    ) -> SegmentResult:
        """Return this rank's view of the steps `taken` since the times `before`."""
        dense_step = collectives.dense_step(self._parts.buffer.num_elements, len(self._node_links.topology.nodes))
        steps, seconds = [each.step for each in taken], tuple(each.seconds for each in taken)
        return SegmentResult(
            first_step=first_step,
            losses=tuple(step.outcome.loss for step in steps),
            step_seconds=seconds,
            waits=tuple(each.waited for each in taken) if self._stopwatch.times_steps else (),
            gradient_scales=_numbers([step.scale for step in steps]),
            alignments=_numbers([step.alignment for step in steps]),
            own={name: _numbers([step.own[name] for step in steps]) for name in (steps[0].own if steps else ())},
            bytes_sent=(self._node_links.between.ledger.take(),),
            bytes_within=(self._node_links.within.ledger.take(),),
            bytes_dense=(len(taken) + diverged) * dense_step.bytes,
            density=mean_density([step.outcome for step in steps]),
            threshold=self._sync.exchange.threshold,
            times=self._stopwatch.since(before, sum(seconds)),
            saved_bytes=self._parts.saved.num_bytes,
            memory_bytes=peak_bytes(self._parts.device),
            batch_samples=self._batch_samples(segment),
            diverged=diverged,
            steps_to_meeting=self._sync.steps_to_meeting,
            meets=self._held is not None,
        )

    def _batch_samples(self, segment: Segment) -> int | None:
        if self._parts.feed.epoch_steps is None:
            return None
        return (segment.batch_size or self._parts.workload.batch_size) * self._parts.config.accumulate

    def _use(self, segment: Segment) -> None:
        """Have each part of training use what `segment` chooses; raises ValueError if a searched value is missing."""
        for each in self._parts.config.ranges():
            if getattr(segment, each.name) is None:
                raise ValueError(f"`{each.name}` must be given where it is searched, got None for {list(each.pair)}")
        self._parts.optimizer.set_options(segment)
        self._parts.activations.use(segment.gamma)
        self._parts.blocks.use(segment.share)
        self._sync.use(segment.option)
        if segment.period != self._period:
            self._period, self._round_steps = segment.period, None

    def _check_model(self) -> None:
        """Raise WorkloadError if a buffer or parameter has another tensor's values: the state holds the first one.

        So it does if the model has unfrozen or frozen a parameter, unless each step draws what it trains.
        """
        net, held = self._parts.model, self._parts.parameters.tensors()
        if why := model.replaced_buffer(net, self._parts.buffers.tensors()) or model.replaced_parameter(net, held):
            raise WorkloadError(why)
        trained = self._parts.optimizer.parameters
        if not self._parts.config.blocks.leaves_out and (why := model.changed_training(net, trained)):
            raise WorkloadError(why)

    def _taken(self, segment: Segment, index: int, *, may_meet: bool, pace: float) -> Step:
        """Train the segment's step number `index`, or leave it out, as `pace` says, and come to what the last one did.

        Without `may_meet` an average that is due after it is held back.
        """
        if self._last is None or is_trained(self._sync.steps_since_meeting, pace):
            step = self._train_step(segment, index, may_meet=may_meet)
        else:
            rate = self._parts.optimizer.set_learning_rate(self._asked_rate(segment, index), self._number)
            step = self._last._replace(
                outcome=self._count(self._last.outcome, segment, rate, may_meet=may_meet, is_trained=False)
            )
        self._last = step
        return step

    def _train_step(self, segment: Segment, index: int, *, may_meet: bool) -> Step:
        asked, factors = self._asked_rate(segment, index), self._parts.blocks.draw(self._number)
        learning_rate = self._parts.optimizer.set_learning_rate(asked, self._number, factors)
        outcome, own = self._exchanged(segment, learning_rate, is_first=index == 0)
        scale, alignment = self._parts.blocks.gradient_scale(), self._parts.alignment.measure()
        if not outcome.diverged:
            if not outcome.is_held:
                self._update(outcome.loss)
            outcome = self._count(outcome, segment, learning_rate, may_meet=may_meet)
        return Step(outcome, scale, alignment, own)

    def _asked_rate(self, segment: Segment, index: int) -> float:
        """Return the rate of the segment's step number `index`, before the optimizer's warm-up."""
        return self._sync.learning_rate(segment.learning_rate_at(index), self._number)

    def _exchanged(
        self, segment: Segment, learning_rate: float, *, is_first: bool
    ) -> tuple[Exchanged, Mapping[str, Tensor]]:
        """Fill the gradient buffer by this rank's micro-batches, and replace it by what the policy steps with.

        What the `is_first` step keeps for backward is counted. Returns the exchange's result, and the workload's own
        numbers: they are not exchanged here, since each rank's answer brings them.
        """
        parts, accumulate = self._parts, self._parts.config.accumulate
        parts.buffer.clear()
        total, own = torch.zeros((), device=parts.device), dict[str, Tensor]()
        for micro in range(accumulate):
            forward = partial(parts.passes.forward, feed.Place(self._number, self._rank, micro), segment.batch_size)
            with parts.buffer.untouched():
                loss, numbers = self._counted(forward) if is_first else forward()
            loss = loss / accumulate
            total += loss.detach()
            own = {name: own.get(name, 0.0) + each / accumulate for name, each in numbers.items()}
            if micro < accumulate - 1:
                parts.passes.backward(loss)
        # Of the last micro-batch, whose gradients are sent while they are computed.
        with parts.communication.beside(
            partial(self._sync.gradients.step, total, segment.level, learning_rate)
        ) as pending:
            parts.passes.backward(loss)
        return parts.communication.outcome(pending), own

    def _counted(self, forward: Callable[[], Forward]) -> Forward:
        """Return `forward()`, and count what it keeps for backward, unless it refuses to be watched.

        The transforms of torch.func do. Then it runs again, uncounted, from the buffers and random state before it.
        """
        saved, device = self._parts.saved, self._parts.device
        if saved.is_refused:
            return forward()
        buffers = [(buffer, buffer.clone()) for buffer in self._parts.buffers.tensors().values()]
        states = random_state.present(device)
        try:
            with saved.counted():
                return forward()
        except RuntimeError as error:
            if "saved tensor hooks" not in str(error):
                raise
        saved.is_refused = True
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)
        random_state.enforce(states, device)
        return forward()

    def _update(self, loss: float) -> None:
        """Step with the gradient in the buffer, which is that of `loss`."""
        self._sync.amend(self._parts.buffer.gradient)
        clip = self._parts.config.clip
        clipped = 1.0 if clip is None else self._parts.buffer.clip(clip)
        with self._parts.alignment.following():
            self._parts.optimizer.step(loss, clipped=clipped)

    def _count(
        self, outcome: Exchanged, segment: Segment, learning_rate: float, *, may_meet: bool, is_trained: bool = True
    ) -> Exchanged:
        """Count the step with this outcome, and meet the other ranks if that is due; returns what is known then."""
        self._parts.steps.taken += 1
        outer = segment.outer_learning_rate, segment.outer_momentum
        update = Update(self._number, learning_rate, segment.level, segment.period, *outer, is_trained=is_trained)
        if may_meet or not self._sync.will_meet(update):
            return self._advanced(outcome, update)
        self._held = (outcome, update)
        return outcome

    def _advanced(self, outcome: Exchanged, update: Update) -> Exchanged:
        """Have the policy do what is due after the step; returns what is known then."""
        was_apart, averages = self._sync.is_apart, self._sync.will_meet(update)
        if averages:
            self._round_steps = self._sync.steps_since_meeting + 1
        with self._stopwatch.averaging():
            met = self._sync.advance(outcome, update)
        if was_apart or averages or self._sync.is_apart:  # the update was one rank's own
            self._parts.alignment.begin()
        if not self._sync.is_apart:  # else each rank would have an average of its own
            self._parts.average.follow(self._number)
        if met.is_left_out:
            self._parts.optimizer.forget_lost()
            model.forget_lost(self._parts.model)
        return met


def _numbers(scalars: Sequence[Tensor]) -> tuple[float, ...]:
    """Return the scalars on the host, which waits for a device once."""
    return tuple(torch.stack([*scalars]).tolist()) if scalars else ()
