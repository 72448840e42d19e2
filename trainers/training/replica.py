"""One rank of a data-parallel training run: state, segments, evaluation. Runs under any launcher."""

import gc
import hashlib
import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from datetime import timedelta
from functools import partial
from typing import Literal, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from trainers import filesystem, random_state
from trainers.exchange import pacing
from trainers.exchange.buffer import GradientBuffer
from trainers.exchange.communication import Communication
from trainers.exchange.connection import Connection, PeerLost, among_peers
from trainers.exchange.dense import DenseExchange
from trainers.exchange.ledger import Ledger
from trainers.exchange.node_links import NodeLinks, found
from trainers.exchange.step_result import Exchanged, mean_density
from trainers.exchange.topology import Nodes, Topology
from trainers.methods.activations.dropit.dropit import Activations, SavedTensors
from trainers.methods.blocks import blocks
from trainers.methods.optimizer import optimizers
from trainers.methods.optimizer.spec import contenders
from trainers.methods.replica_config import ReplicaConfig
from trainers.methods.sync import build as sync
from trainers.methods.sync.every_step.policy import EveryStep
from trainers.methods.sync.parts import PolicyParts
from trainers.methods.sync.policy import StateParts, Update
from trainers.segment import Evaluation, Purpose, Segment, SegmentResult, StepTimes, Written
from trainers.snapshot import Buffers, RandomState, State, Steps, Tensors
from trainers.spec.exchange import group_conflict
from trainers.traffic import collectives
from trainers.training import checkpoint, feed, landscape, model, state_handover
from trainers.training.alignment import Alignment
from trainers.training.checkpoint import CheckpointError, Shard
from trainers.training.evaluated_state import EvaluatedState
from trainers.training.landscape import Landscape
from trainers.training.passes import Passes
from trainers.training.peak_memory import peak_bytes
from trainers.training.stopwatch import RoundWait, Stopwatch
from trainers.workload import Workload, WorkloadError
from trainers.workloads import registry

Backend = Literal["auto", "gloo", "nccl"]

#: The slot of the state between the last step by themselves and the meeting that follows.
BEFORE_MEETING = "before the meeting"

log = logging.getLogger("wiretune.replica")


def is_trained(index: int, pace: float) -> bool:
    """Return whether a rank that trains the share `pace` of its steps trains number `index`; the first one it does."""
    return index == 0 or math.floor(index * pace) > math.floor((index - 1) * pace)


class Step(NamedTuple):
    """The result of a step on this rank."""

    outcome: Exchanged
    scale: Tensor  # of the gradient
    alignment: Tensor
    own: Mapping[str, Tensor]  # the workload's own numbers, means over this rank's micro-batches


class Taken(NamedTuple):
    """A step that a rank has taken, or left out at its own pace, which came to the same as the one before."""

    step: Step
    seconds: float
    waited: float  # as `RoundWait` tells it


class Replica:
    """Rank `rank` of `num_workers`. All ranks must be told the same things in the same order.

    `device` is a torch device, or `auto`: this rank's GPU where there is one, else the CPU. `workload` saves building
    the one that `config` describes.
    """

    def __init__(
        self,
        config: ReplicaConfig,
        rank: int,
        num_workers: int,
        *,
        device: str = "auto",
        workload: Workload | None = None,
    ) -> None:
        self.config, self.rank, self.num_workers = config, rank, num_workers
        if device == "auto":
            device = f"cuda:{rank % torch.cuda.device_count()}" if torch.cuda.is_available() else "cpu"
        self.device = torch.device(device)
        self.workload = workload or registry.build(config.workload)
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)  # where a model is built that asks for "cuda"
        built = model.build(self.workload, config.seed, device=self.device, weights_url=config.workload.weights)
        self.model = built.to(self.device)
        apart = config.blocks.leaves_out
        optimizer = contenders(config.optimizer)[0]  # of several, until `Group.rebuild` is told another
        self._optimizer = optimizers.build(optimizer, self.workload, self.model, apart=apart)
        if message := group_conflict(config.exchange, self._optimizer.config, self._optimizer.brought):
            raise WorkloadError(message)
        self._alignment = Alignment(list(self._optimizer.parameters.values()))
        self._buffer = GradientBuffer.behind(list(self._optimizer.parameters.values()), config.exchange)
        self._buffers = Buffers(dict(self.model.named_buffers()))
        self._parameters = Tensors(dict(self.model.named_parameters()))
        self._communication = Communication(self._buffer, self.device, threads=config.threads)
        self._activations, self._saved = Activations(config.activations, self.model), SavedTensors(self.model)
        self._feed = feed.build(self.workload, config, num_workers)
        self._passes = Passes(config, self.workload, self.model, self._feed, self.device)
        self._blocks = blocks.build(config, self.model, self._buffer, epoch_steps=self._feed.epoch_steps)
        self._single = EveryStep(DenseExchange(self._buffer, Connection(1, pacing.Unpaced(), Ledger())))
        self._uploads = ThreadPoolExecutor(1, thread_name_prefix="upload")
        self._upload: Future[list[Shard]] | None = None  # the last that was begun
        self._round_wait = RoundWait()
        self._steps = Steps()
        # Distinct per rank and job, so that e.g. dropout masks differ; torch mixes the bits.
        self._random = RandomState(config.seed * 65_536 + rank, self.device)
        self.backend = "none"  # until connected
        self._present: Sequence[int] = range(num_workers)  # the ranks that this one is connected with, itself included
        self._held: tuple[Exchanged, Update] | None = None  # the step after which the ranks are to meet
        self._last: Step | None = None  # None: it is another's
        self._steps_of_round = 0  # since `meet`
        self._arrange(Topology.stated(num_workers, config.workers_per_node))

    def _settle(self, topology: Topology) -> None:
        """Have the ranks on these nodes; memories begin anew, and slots are lost, where that changes anything."""
        if topology != self._topology:
            self._arrange(topology)

    def _arrange(self, topology: Topology) -> None:
        """Build what depends on which ranks share a node: connections, exchange, and the state that it is part of."""
        self._topology = topology
        self._buffer.part()
        link = pacing.build(self.config.link)
        self._node_links = NodeLinks(topology, self.rank, link, payload=self.config.sync.payload)
        self._stopwatch = Stopwatch(self._communication, self._node_links, self.device)
        self._sync = sync.build(
            PolicyParts(
                self.config,
                self._optimizer,
                self._buffer,
                self._node_links,
                self._blocks,
                epoch_steps=self._feed.epoch_steps,
            )
        )
        self._exchange = self._sync.exchange
        trained: StateParts = {"parameters": self._parameters, "optimizer": self._optimizer}
        shared, own = self._sync.divide(trained)
        own |= {"buffers": self._buffers, "exchange": self._exchange, "random": self._random}
        frozen = self._parameters.tensors().keys() - self._optimizer.parameters.keys()  # which may fill the device
        on_host = [f"parameters.{name}" for name in frozen]
        self._state = State(shared=shared | self._blocks.parts() | {"steps": self._steps}, own=own, on_host=on_host)
        self._evaluated = EvaluatedState(
            self.config,
            self.model,
            self._parameters,
            self._optimizer,
            self._passes,
            self._sync,
            self._node_links,
            may_differ="parameters" not in shared,
        )

    @property
    def step(self) -> int:
        """Optimizer steps taken."""
        return self._steps.taken

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Of the trained parameters, in the order in which their gradients lie side by side."""
        return [tuple(parameter.shape) for parameter in self._optimizer.parameters.values()]

    @property
    def nodes(self) -> Nodes:
        """The ranks of each node."""
        return self._topology.nodes

    def fingerprint(self) -> str:
        """Return a hash that tells this training task from others; to be asked for before the first step."""
        return model.fingerprint(self.model, self.workload)

    @property
    def has_batch_norm(self) -> bool:
        """Return whether the model has layers whose running statistics follow the training."""
        return bool(model.norms_that_track(self.model))

    def matrices(self) -> tuple[int, float, bool] | None:
        """Return how many matrices are trained, their scale as `model.matrices` has it, and whether the model is new.

        To be asked for before the first step. It is not new after a start from weights that were trained before, where
        the job says so, or where its weights do.
        """
        trained = list(self._optimizer.parameters.values())
        found = model.matrices(trained)
        return found and (*found, self.config.workload.is_new and not model.looks_trained(trained))

    def landscape(self) -> Landscape | None:
        """Return what this rank's first batches tell of the loss before any step, as `landscape.measured` has it.

        None where that says nothing of a run: where steps train some blocks alone, or gradients are not finite.
        Statistics of the model's buffers change: snapshot first.
        """
        if self.config.blocks.leaves_out:
            return None
        parameters = list(self._optimizer.parameters.values())

        def slope(number: int) -> tuple[float, list[Tensor]]:
            self._random.begin(self._fresh_seed())  # as often as it is asked, the same draws
            total = 0.0
            self._buffer.clear()
            with self._random.scope(), torch.enable_grad():
                for micro in range(self.config.accumulate):
                    loss = self._passes.forward(feed.Place(number, self.rank, micro)).loss / self.config.accumulate
                    total += loss.item()
                    # As a step does: `torch.autograd.grad` is refused where reentrant checkpointing recomputes.
                    self._passes.backward(loss)
            slopes = [torch.zeros_like(each) if each.grad is None else each.grad.to_dense() for each in parameters]
            self._buffer.clear()
            return total, slopes

        return landscape.measured(parameters, slope, math.ceil(landscape.NUM_BATCHES / self.num_workers))

    def connect(self, init_method: str, present: Sequence[int] | None = None, *, backend: Backend = "auto") -> None:
        """Set the process up for training, and join the other ranks at `init_method` (a torch URL).

        `present` are those that join, in ascending order; None: all. The others are away: means are taken over those
        that are there. `auto` is NCCL when each rank has its own GPU of this machine, else gloo. Leaves the ranks
        joined before; raises PeerLost if the others do not come. Where nodes are to be found, and are others than
        before, memories begin anew and slots are lost.
        """
        self.close()
        self._present = range(self.num_workers) if present is None else present
        torch.set_num_threads(self.config.threads)
        if backend == "auto":
            has_own_gpu = self.device.type == "cuda" and torch.cuda.device_count() >= self.num_workers
            backend = "nccl" if has_own_gpu else "gloo"
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)  # where NCCL looks for tensors that lie in host memory
        with among_peers():
            dist.init_process_group(
                backend,
                init_method=init_method,
                rank=self._present.index(self.rank),
                world_size=len(self._present),
                timeout=timedelta(seconds=self.config.collective_timeout_s),
            )
        self.backend = backend
        if self.config.workers_per_node == "auto":
            self._settle(found(self.num_workers, self.device))
        num_present = None if len(self._present) == self.num_workers else len(self._present)
        self._node_links.join(num_present=num_present, timeout_s=self.config.collective_timeout_s)

    def close(self) -> None:
        """Leave the other ranks, if this one has joined any."""
        with suppress(PeerLost):  # whose loss may be why
            self._sync.settle()
        if dist.is_initialized():
            dist.destroy_process_group()

    def take_bytes(self) -> dict[Purpose, int]:
        """Return the bytes by purpose that no result has reported: those of calls that failed. Counts from 0 again."""
        self._node_links.within.ledger.take()
        return self._node_links.between.ledger.take()

    # -- state ----------------------------------------------------------------------------------------------

    def snapshot(self, slot: str) -> None:
        """Keep a copy of the whole state in memory under the name `slot`."""
        self._state.snapshot(slot)

    def restore(self, slot: str) -> None:
        """Go back to the copy in `slot`; KeyError if there is none."""
        self._state.restore(slot)
        self._last = None

    def forget(self, slot: str) -> None:
        """Free the memory of `slot`, if there is such a one."""
        self._state.forget(slot)

    def reset(self) -> None:
        """Go back to the state before the first step, which follows from the configuration; slots stay."""
        fresh = Replica(self.config, self.rank, self.num_workers, device=str(self.device), workload=self.workload)
        fresh._settle(self._topology)
        self._state.copy_from(fresh._state)
        del fresh
        gc.collect()  # its parts hold each other, and would stay on the device beside this one

    def save(self, url: str) -> list[Shard]:
        """Write this rank's part of a checkpoint at the folder `url`; `commit_manifest` completes it."""
        return checkpoint.write(url, checkpoint.packed(self._state, rank=self.rank))

    def begin_save(self, url: str) -> None:
        """Begin to write this rank's part of a checkpoint: of the present state, while training goes on."""
        self._upload = self._uploads.submit(checkpoint.write, url, checkpoint.packed(self._state, rank=self.rank))

    def saved(self, within_s: float = 0.0) -> list[Shard] | None:
        """Return what `begin_save` has written; None: it is not done within so many seconds. Raises what ended it."""
        assert self._upload is not None, "no save was begun"
        try:
            return self._upload.result(within_s)
        except TimeoutError:  # of this wait, or the storage's own
            return self._upload.result() if self._upload.done() else None

    def load(self, url: str) -> None:
        """Go back to the checkpoint at the folder `url`; raises CheckpointError if it is damaged.

        One of other nodes, or of another number of workers, is shared out (`Exchange.inherit`, `Buffers.inherit`); what
        is drawn at random then follows from the step.
        """
        manifest = checkpoint.read_manifest(url)
        if manifest.order == "groups" and self._optimizer.reorders and self._keeps_vectors:
            raise CheckpointError(
                f"{url} is of an earlier release, which kept what `exchange` and `sync` remember in the order of the "
                "parameter groups; it is in the model's order now: finish the job with that release, or begin anew"
            )
        if manifest.nodes == self.nodes:
            with torch.no_grad():
                checkpoint.load(url, self._state, manifest, rank=self.rank)
            return
        if "sync" in self._state.own:
            raise CheckpointError(f"{url} goes on with nodes {manifest.nodes} alone: each has what others cannot take")
        log.warning("%s was saved on nodes %s, now %s: what they kept is shared out", url, manifest.nodes, self.nodes)
        self.reset()
        with torch.no_grad():
            checkpoint.inherit(
                url,
                self._state.shared,
                manifest,
                of_ranks={"buffers": self._buffers},
                of_nodes={"exchange": self._exchange},
            )
        self._random.begin(self._fresh_seed())

    @property
    def _keeps_vectors(self) -> bool:
        """True if the state has vectors of all gradients or parameters, which only their order tells apart."""
        parts = self._state.shared | self._state.own
        return any(parts[name].tensors() for name in ("exchange", "sync") if name in parts)

    def export(self, url: str) -> Written:
        """Write the evaluated iterate as the safetensors file `url` (rank 0), under the model's own names."""
        sha256 = None
        with model.lent(self.model, self._evaluated.tensors(self.step, self.rank, num_present=len(self._present))):
            if self.rank == self._present[0]:
                # copies, by every name that the model has: `load_state_dict(strict=True)` takes them
                tensors = {name: value.clone() for name, value in model.named_state(self.model).items()}
                content = checkpoint.weights(tensors)
                filesystem.write(url, content)
                sha256 = hashlib.sha256(content).hexdigest()
        between, within = self._node_links.between.ledger, self._node_links.within.ledger
        return Written(sha256=sha256, bytes_sent=(between.take(),), bytes_within=(within.take(),))

    # -- training -------------------------------------------------------------------------------------------

    def run(self, segment: Segment, begin: int = 0, *, until_meeting: bool = False, pace: float = 1.0) -> SegmentResult:
        """Take the segment's steps from number `begin` on; returns this rank's view of them.

        Losses are means over all ranks. With `until_meeting` it ends where ranks that have trained apart are to meet,
        which `meet` then does. A rank with a `pace` below 1 trains this share of a round's steps, the first one
        included, and leaves out the others, whose results are those of the one before.
        """
        first_step, self._held, before = self.step, None, self._stopwatch.read()
        taken: list[Taken] = []
        diverged = False
        self._use(segment)
        if not begin:
            self._alignment.begin()
        round_start = self.step - self._steps_of_round
        self._feed.leave_out(lambda step: not is_trained(step - round_start, pace))
        with self._random.scope():
            for index in range(begin, segment.num_steps):
                started, waited_s = time.monotonic(), self._stopwatch.waited_s
                if self._last is None or is_trained(self._steps_of_round, pace):
                    step = self._train_step(segment, index, may_meet=not until_meeting)
                else:
                    rate = self._optimizer.set_learning_rate(self._asked_rate(segment, index), self.step)
                    outcome = self._last.outcome
                    outcome = self._count(outcome, segment, rate, may_meet=not until_meeting, is_trained=False)
                    step = self._last._replace(outcome=outcome)
                self._last, self._steps_of_round = step, self._steps_of_round + 1
                diverged = step.outcome.diverged
                if diverged:
                    break
                if not taken:
                    self._check_model()
                has_met = not self._sync.steps_since_meeting
                waited = self._round_wait.count(self._stopwatch.waited_s - waited_s, ends_round=has_met)
                taken.append(Taken(step, time.monotonic() - started, waited))
                if self._held is not None:
                    break
        self._feed.leave_out(lambda step: False)
        if self._held is not None:  # outside of the scope, which puts down what comes next at random when it ends
            self._state.snapshot(BEFORE_MEETING)
        return self._result(segment, taken, before, first_step=first_step, diverged=diverged)

    def _result(
        self, segment: Segment, taken: Sequence[Taken], before: StepTimes, *, first_step: int, diverged: bool
    ) -> SegmentResult:
        """Return this rank's view of the steps `taken` since the times `before`."""
        dense_step = collectives.dense_step(self._buffer.num_elements, len(self.nodes))
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
            threshold=self._exchange.threshold,
            times=self._stopwatch.since(before, sum(seconds)),
            saved_bytes=self._saved.num_bytes,
            memory_bytes=peak_bytes(self.device),
            batch_samples=self._batch_samples(segment),
            diverged=diverged,
            steps_to_meeting=self._sync.steps_to_meeting,
            meets=self._held is not None,
        )

    def _use(self, segment: Segment) -> None:
        """Have each part of training use what `segment` chooses; raises ValueError if a searched value is missing."""
        for each in self.config.ranges():
            if getattr(segment, each.name) is None:
                raise ValueError(f"`{each.name}` must be given where it is searched, got None for {list(each.pair)}")
        self._optimizer.set_options(segment)
        self._activations.use(segment.gamma)
        self._blocks.use(segment.share)
        self._sync.use(segment.option)

    def _batch_samples(self, segment: Segment) -> int | None:
        if self._feed.epoch_steps is None:
            return None
        return (segment.batch_size or self.workload.batch_size) * self.config.accumulate

    def meet(self) -> SegmentResult:
        """Meet the other ranks after the last step, as `run` was told to leave it; returns that step's result.

        After PeerLost, `restore(BEFORE_MEETING)` undoes whatever was done of it.
        """
        assert self._held is not None
        started, before = time.monotonic(), self._stopwatch.read()
        outcome, self._steps_of_round = self._advanced(*self._held), 0
        took = time.monotonic() - started
        times = None if outcome.diverged else self._stopwatch.since(before, took)
        return SegmentResult(
            first_step=self.step - 1,
            losses=() if outcome.diverged else (outcome.loss,),
            step_seconds=() if outcome.diverged else (took,),
            waits=() if times is None else (self._round_wait.count(times.exposed, num_steps=0, ends_round=True),),
            times=times,
            bytes_sent=(self._node_links.between.ledger.take(),),
            bytes_within=(self._node_links.within.ledger.take(),),
            bytes_dense=0,
            density=outcome.density,
            threshold=self._exchange.threshold,
            diverged=outcome.diverged,
        )

    def give_state(self, to: int) -> None:
        """Send the state, and all slots, to the present rank number `to`, which takes it. Raises PeerLost."""
        state_handover.give(self._state, self._node_links.between, to, without=BEFORE_MEETING)

    def take_state(self, source: int) -> None:
        """Take the state, and all slots, that the present rank number `source` gives; raises PeerLost.

        This rank's memory of what it did not send, and what it draws from, stay its own.
        """
        state_handover.take(self._state, self._node_links.between, source)
        self._last = None

    def run_alone(self, segment: Segment) -> SegmentResult:
        """Take the segment's steps as a single worker, which exchanges nothing; returns what came of them.

        Samples and random numbers are those of rank 0, so that from one state the result is the same on every rank.
        Parameters differ between ranks afterwards, until all of them go back to a slot or a checkpoint.
        """
        with self._as_single_worker():
            self._random.begin(self._fresh_seed())
            return self.run(segment).model_copy(update={"bytes_dense": 0})

    @contextmanager
    def _as_single_worker(self) -> Iterator[None]:
        rank, sync = self.rank, self._sync
        self.rank, self._sync = 0, self._single
        try:
            with self._buffer.apart():
                yield
        finally:
            self.rank, self._sync = rank, sync

    def _fresh_seed(self) -> int:
        """Return the seed of what this rank draws from here on, where that is to follow from the step alone."""
        return feed.seed_of((self.config.seed, self.step, self.rank, self.num_workers, 0))

    def _check_model(self) -> None:
        """Raise WorkloadError if a buffer or parameter has another tensor's values: the state holds the first one.

        So it does if the model has unfrozen or frozen a parameter, unless each step draws what it trains.
        """
        buffers, parameters = self._buffers.tensors(), self._parameters.tensors()
        if why := model.replaced_buffer(self.model, buffers) or model.replaced_parameter(self.model, parameters):
            raise WorkloadError(why)
        trained = self._optimizer.parameters
        if not self.config.blocks.leaves_out and (why := model.changed_training(self.model, trained)):
            raise WorkloadError(why)

    def _train_step(self, segment: Segment, index: int, *, may_meet: bool = True) -> Step:
        """Take a step; without `may_meet` a meeting that is due after it is held back."""
        asked, factors = self._asked_rate(segment, index), self._blocks.draw(self.step)
        learning_rate = self._optimizer.set_learning_rate(asked, self.step, factors)
        outcome, own = self._exchanged(segment, learning_rate, is_first=index == 0)
        scale = self._blocks.gradient_scale()
        alignment = self._alignment.measure()
        if not outcome.diverged:
            if not outcome.is_held:
                self._update(outcome.loss)
            outcome = self._count(outcome, segment, learning_rate, may_meet=may_meet)
        return Step(outcome, scale, alignment, own)

    def _asked_rate(self, segment: Segment, index: int) -> float:
        """Return the rate of the segment's step number `index`, before the optimizer's warm-up."""
        return self._sync.learning_rate(segment.learning_rate_at(index), self.step)

    def _count(
        self, outcome: Exchanged, segment: Segment, learning_rate: float, *, may_meet: bool, is_trained: bool = True
    ) -> Exchanged:
        """Count the step with this outcome, and meet the other ranks if that is due; returns what is known then."""
        self._steps.taken += 1
        outer = segment.outer_learning_rate, segment.outer_momentum
        update = Update(self.step, learning_rate, segment.level, segment.period, *outer, is_trained=is_trained)
        if may_meet or not self._sync.will_meet(update):
            return self._advanced(outcome, update)
        self._held = (outcome, update)
        return outcome

    def _advanced(self, outcome: Exchanged, update: Update) -> Exchanged:
        """Have the policy do what is due after the step; returns what is known then."""
        was_apart = self._sync.is_apart
        with self._stopwatch.averaging():
            met = self._sync.advance(outcome, update)
        if was_apart or self._sync.is_apart:  # the update was one rank's own
            self._alignment.begin()
        if met.is_left_out:
            self._optimizer.forget_lost()
            model.forget_lost(self.model)
        return met

    def _update(self, loss: float) -> None:
        """Step with the gradient in the buffer, which is that of `loss`."""
        self._sync.amend(self._buffer.gradient)
        if self.config.clip is not None:
            self._buffer.clip(self.config.clip)
        with self._alignment.following():
            self._optimizer.step(loss)

    def _exchanged(
        self, segment: Segment, learning_rate: float, *, is_first: bool
    ) -> tuple[Exchanged, Mapping[str, Tensor]]:
        """Fill the gradient buffer by this rank's micro-batches, and replace it by what the policy steps with.

        What the `is_first` step keeps for backward is counted. Returns the exchange's result, and the workload's own
        numbers: they are not exchanged here, since each rank's answer brings them.
        """
        self._buffer.clear()
        total, own = torch.zeros((), device=self.device), dict[str, Tensor]()
        for micro in range(self.config.accumulate):
            with self._buffer.untouched(), self._saved.counted() if is_first else nullcontext():
                place = feed.Place(self.step, self.rank, micro)
                loss, numbers = self._passes.forward(place, segment.batch_size)
                loss = loss / self.config.accumulate
            total += loss.detach()
            own = {name: own.get(name, 0.0) + each / self.config.accumulate for name, each in numbers.items()}
            if micro < self.config.accumulate - 1:
                self._passes.backward(loss)
        # Of the last micro-batch, whose gradients are sent while they are computed.
        with self._communication.beside(
            partial(self._sync.gradients.step, total, segment.level, learning_rate)
        ) as pending:
            self._passes.backward(loss)
        return self._communication.outcome(pending), own

    # -- evaluation -----------------------------------------------------------------------------------------

    @torch.no_grad()
    def evaluate(self) -> Evaluation:
        """Evaluate on the validation set, shared out among the ranks; does not disturb training."""
        names = ("loss", *self.workload.metrics)
        num_samples = len(self.workload.validation)
        sums = torch.zeros(len(names), dtype=torch.float64)
        evaluated = self._evaluated.tensors(self.step, self.rank, num_present=len(self._present))
        untouched = model.untouched(self.model, besides=evaluated)
        lent = model.lent(self.model, evaluated)
        with untouched, model.evaluating(self.model), lent, random_state.seeded(0, self.device):
            share = torch.arange(num_samples)[self._present.index(self.rank) :: len(self._present)]
            for indices in torch.split(share, self.workload.evaluation_batch_size):
                if len(indices):  # a set smaller than the ranks leaves some without a share
                    sums += len(indices) * self._passes.measure(indices, names)
        self._node_links.all_reduce_sum(sums, {"control": sums.nbytes})
        means = dict(zip(names, (sums / num_samples).tolist(), strict=True))
        return Evaluation(
            loss=means.pop("loss"),
            metrics=means,
            num_samples=num_samples,
            bytes_sent=(self._node_links.between.ledger.take(),),
            bytes_within=(self._node_links.within.ledger.take(),),
        )


def _numbers(scalars: Sequence[Tensor]) -> tuple[float, ...]:
    """Return the scalars on the host, which waits for a device once."""
    return tuple(torch.stack([*scalars]).tolist()) if scalars else ()
