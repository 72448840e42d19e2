"""One rank of a data-parallel training run: state, segments, evaluation. Runs under any launcher."""

import gc
import hashlib
import logging
import math
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor

from trainers import filesystem, random_state
from trainers.exchange import pacing
from trainers.exchange.connection import Connection, PeerLost, among_peers
from trainers.exchange.dense import DenseExchange
from trainers.exchange.ledger import Ledger
from trainers.exchange.node_links import NodeLinks, found
from trainers.exchange.topology import Nodes, Topology
from trainers.methods.replica_config import ReplicaConfig
from trainers.methods.sync import build as sync
from trainers.methods.sync.every_step.policy import EveryStep
from trainers.methods.sync.parts import PolicyParts
from trainers.methods.sync.policy import StateParts
from trainers.segment import Evaluation, Purpose, Segment, SegmentResult, Written
from trainers.snapshot import State
from trainers.training import (
    checkpoint,
    equal_weights,
    feed,
    landscape,
    likeness,
    model,
    parts,
    state_handover,
    whole_set,
)
from trainers.training.checkpoint import CheckpointError, Shard
from trainers.training.course import Course
from trainers.training.evaluated_state import EvaluatedState
from trainers.training.landscape import Landscape
from trainers.training.likeness import Likeness
from trainers.training.whole_set import Predictions
from trainers.workload import EvaluatedSet, Workload, evaluated_sets
from trainers.workloads import registry

Backend = Literal["auto", "gloo", "nccl"]

#: The slot of the state between the last step by themselves and the average that follows.
BEFORE_AVERAGE = "before the average"

log = logging.getLogger("wiretune.replica")


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
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)  # where data and models are built that ask for "cuda"
        with random_state.seeded(0, self.device):  # as a split may be drawn there
            self.workload = workload or registry.build(config.workload)
        self.parts = parts.build(config, self.workload, rank, num_workers, device=self.device)
        self.model = self.parts.model
        self._uploads = ThreadPoolExecutor(1, thread_name_prefix="upload")
        self._upload: Future[list[Shard]] | None = None  # the last that was begun
        self._has_warned = False  # of weights that differ between the ranks
        self.backend = "none"  # until connected
        self._present: Sequence[int] = range(num_workers)  # the ranks that this one is connected with, itself included
        self._arrange(Topology.stated(num_workers, config.workers_per_node))

    def _settle(self, topology: Topology) -> None:
        """Have the ranks on these nodes; memories begin anew, and slots are lost, where that changes anything."""
        if topology != self._topology:
            self._arrange(topology)

    def _arrange(self, topology: Topology) -> None:
        """Build what depends on which ranks share a node: connections, exchange, and the state that it is part of."""
        self._topology = topology
        link = pacing.build(self.config.link)
        self._node_links = NodeLinks(topology, self.rank, link, payload=self.config.sync.payload)
        made = self.parts
        policy_parts = PolicyParts(
            self.config, made.optimizer, made.buffer, self._node_links, made.blocks, epoch_steps=made.feed.epoch_steps
        )
        self._sync = sync.build(policy_parts)
        self._exchange = self._sync.exchange
        self._course = Course(made, self._sync, self._node_links, self.rank)
        trained: StateParts = {
            "parameters": made.parameters,
            "optimizer": made.optimizer,
            "alignment": made.alignment,
        }
        shared, own = self._sync.divide(trained)
        own |= {"buffers": made.buffers, "exchange": self._exchange, "random": made.random}
        frozen = made.parameters.tensors().keys() - made.optimizer.parameters.keys()  # which may fill the device
        on_host = [f"parameters.{name}" for name in frozen]
        shared |= made.blocks.parts() | {"steps": made.steps, "average": made.average}
        #: The state of this rank, which checkpoints and slots hold.
        self.state = State(shared=shared, own=own, on_host=on_host)
        self._evaluated = EvaluatedState(made, self._sync, self._node_links, may_differ="parameters" not in shared)

    @property
    def step(self) -> int:
        """Optimizer steps taken."""
        return self.parts.steps.taken

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Of the trained parameters, in the order in which their gradients lie side by side."""
        return [tuple(parameter.shape) for parameter in self.parts.optimizer.parameters.values()]

    @property
    def nodes(self) -> Nodes:
        """The ranks of each node."""
        return self._topology.nodes

    def fingerprint(self) -> str:
        """Return a hash that tells this training task from others; to be asked for before the first step."""
        return model.fingerprint(self.model, self.workload)

    def likeness(self) -> Likeness:
        """Return what all ranks must have alike, as `likeness.of` has it; to be asked for before the first step."""
        return likeness.of(self.model, self.workload, self.device)

    @property
    def has_batch_norm(self) -> bool:
        """Return whether the model has layers whose running statistics follow the training."""
        return bool(model.norms_that_track(self.model))

    def matrices(self) -> tuple[int, float, bool] | None:
        """Return how many matrices are trained, their scale as `model.matrices` has it, and whether the model is new.

        To be asked for before the first step. It is not new after a start from weights that were trained before, where
        the job says so, or where its weights do.
        """
        trained = list(self.parts.optimizer.parameters.values())
        found = model.matrices(trained)
        return found and (*found, self.config.workload.is_new and not model.looks_trained(trained))

    def landscape(self) -> Landscape | None:
        """Return what this rank's first batches tell of the loss before any step, as `landscape.measured` has it.

        None where that says nothing of a run: where steps train some blocks alone, or gradients are not finite.
        Statistics of the model's buffers change: snapshot first.
        """
        if self.config.blocks.leaves_out:
            return None
        parameters = list(self.parts.optimizer.parameters.values())

        def slope(number: int) -> tuple[float, list[Tensor]]:
            self.parts.random.begin(self._fresh_seed(self.rank))  # as often as it is asked, the same draws
            total = 0.0
            self.parts.buffer.clear()
            with self.parts.random.scope(), torch.enable_grad():
                for micro in range(self.config.accumulate):
                    loss = self.parts.passes.forward(feed.Place(number, self.rank, micro)).loss / self.config.accumulate
                    total += loss.item()
                    # As a step does: `torch.autograd.grad` is refused where reentrant checkpointing recomputes.
                    self.parts.passes.backward(loss)
            slopes = [torch.zeros_like(each) if each.grad is None else each.grad.to_dense() for each in parameters]
            self.parts.buffer.clear()
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
        self.state.snapshot(slot)

    def restore(self, slot: str) -> None:
        """Go back to the copy in `slot`; KeyError if there is none."""
        self.state.restore(slot)
        self._course.forget_last()

    def forget(self, slot: str) -> None:
        """Free the memory of `slot`, if there is such a one."""
        self.state.forget(slot)

    def reset(self) -> None:
        """Go back to the state before the first step, which follows from the configuration; slots stay."""
        fresh = Replica(self.config, self.rank, self.num_workers, device=str(self.device), workload=self.workload)
        fresh._settle(self._topology)
        self.state.copy_from(fresh.state)
        del fresh
        gc.collect()  # its parts hold each other, and would stay on the device beside this one
        self._course.forget_last()

    def save(self, url: str) -> list[Shard]:
        """Write this rank's part of a checkpoint at the folder `url`; `commit_manifest` completes it."""
        return checkpoint.write(url, checkpoint.packed(self.state, rank=self.rank))

    def begin_save(self, url: str) -> None:
        """Begin to write this rank's part of a checkpoint: of the present state, while training goes on."""
        self._upload = self._uploads.submit(checkpoint.write, url, checkpoint.packed(self.state, rank=self.rank))

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
        if manifest.order == "groups" and self.parts.optimizer.reorders and self._keeps_vectors:
            raise CheckpointError(
                f"{url} is of an earlier release, which kept what `exchange` and `sync` remember in the order of the "
                "parameter groups; it is in the model's order now: finish the job with that release, or begin anew"
            )
        if manifest.nodes == self.nodes:
            with torch.no_grad():
                checkpoint.load(url, self.state, manifest, rank=self.rank)
            self._course.forget_last()
            return
        if "sync" in self.state.own:
            raise CheckpointError(f"{url} goes on with nodes {manifest.nodes} alone: each has what others cannot take")
        log.warning("%s was saved on nodes %s, now %s: what they kept is shared out", url, manifest.nodes, self.nodes)
        self.reset()
        with torch.no_grad():
            checkpoint.inherit(
                url,
                self.state.shared,
                manifest,
                of_ranks={"buffers": self.parts.buffers},
                of_nodes={"exchange": self._exchange},
            )
        self.parts.random.begin(self._fresh_seed(self.rank))

    @property
    def _keeps_vectors(self) -> bool:
        """True if the state has vectors of all gradients or parameters, which only their order tells apart."""
        parts = self.state.shared | self.state.own
        return any(parts[name].tensors() for name in ("exchange", "sync") if name in parts)

    def export(self, url: str, *, averaged: bool = False) -> Written:
        """Write what `evaluate` looks at as the safetensors file `url` (rank 0), under the model's own names."""
        sha256 = None
        with model.lent(self.model, self._state_to_evaluate(averaged=averaged)):
            if self.rank == self._present[0]:
                # copies, by every name that the model has: `load_state_dict(strict=True)` takes them
                tensors = {name: value.clone() for name, value in model.named_state(self.model).items()}
                content = checkpoint.weights(tensors)
                filesystem.write(url, content)
                sha256 = hashlib.sha256(content).hexdigest()
        between, within = self._node_links.between.ledger, self._node_links.within.ledger
        return Written(sha256=sha256, bytes_sent=(between.take(),), bytes_within=(within.take(),))

    # -- training -------------------------------------------------------------------------------------------

    def run(self, segment: Segment, begin: int = 0, *, until_average: bool = False, pace: float = 1.0) -> SegmentResult:
        """Take the segment's steps from number `begin` on; returns this rank's view of them.

        Losses are means over all ranks. With `until_average` it ends where ranks that have trained apart are to meet,
        which `meet` then does. A rank with a `pace` below 1 trains this share of a round's steps, the first one
        included, and leaves out the others, whose results are those of the one before.
        """
        result = self._course.run(segment, begin, until_average=until_average, pace=pace)
        if result.meets:
            self.state.snapshot(BEFORE_AVERAGE)
        return result

    def meet(self) -> SegmentResult:
        """Meet the other ranks after the last step, as `run` was told to leave it; returns that step's result.

        After PeerLost, `restore(BEFORE_AVERAGE)` undoes whatever was done of it.
        """
        return self._course.meet()

    def give_state(self, to: int) -> None:
        """Send the state, and all slots, to the present rank number `to`, which takes it. Raises PeerLost."""
        state_handover.give(self.state, self._node_links.between, to, without=BEFORE_AVERAGE)

    def take_state(self, source: int) -> None:
        """Take the state, and all slots, that the present rank number `source` gives; raises PeerLost.

        This rank's memory of what it did not send, and what it draws from, stay its own.
        """
        state_handover.take(self.state, self._node_links.between, source)
        self._course.forget_last()

    def run_alone(self, segment: Segment) -> SegmentResult:
        """Take the segment's steps as a single worker, which exchanges nothing; returns what came of them.

        Samples and random numbers are those of rank 0, so that from one state the result is the same on every rank.
        Parameters differ between ranks afterwards, until all of them go back to a slot or a checkpoint.
        """
        sync = EveryStep(DenseExchange(self.parts.buffer, Connection(1, pacing.Unpaced(), Ledger())))
        self.parts.random.begin(self._fresh_seed(rank=0))
        alone = Course(self.parts, sync, self._node_links, rank=0)
        result = alone.run(segment, 0, until_average=False, pace=1.0)
        return result.model_copy(update={"bytes_dense": 0, "threshold": self._exchange.threshold})

    def _fresh_seed(self, rank: int) -> int:
        """Return the seed of what `rank` draws from here on, where that is to follow from the step alone."""
        return feed.seed_of((self.config.seed, self.step, rank, self.num_workers, 0))

    # -- evaluation -----------------------------------------------------------------------------------------

    def _state_to_evaluate(self, *, averaged: bool) -> dict[str, Tensor]:
        return self._evaluated.tensors(self.step, self.rank, num_present=len(self._present), averaged=averaged)

    @torch.no_grad()
    def evaluate(self, *, averaged: bool = False, on: EvaluatedSet = "validation") -> Evaluation:
        """Evaluate on a data set, shared out among the ranks; does not disturb training.

        `averaged` evaluates the average of the weights, if there is one yet.
        """
        names = ("loss", *self.workload.metrics)
        num_samples = len(evaluated_sets(self.workload)[on])
        evaluated = self._state_to_evaluate(averaged=averaged)
        has_average = self.parts.average.has_states
        # Not remembered: a replaced worker would not know of it, and all ranks must take the same.
        at_once = min(self.workload.samples_at_once, math.ceil(num_samples / len(self._present)))
        while (found := self._measured(evaluated, names, on, num_samples, at_once)) is None:
            refused, at_once = at_once, max(1, at_once // 2)
            log.warning(
                "evaluating %d samples at once takes more memory than a GPU has; trying %d, as every evaluation will: "
                "a smaller `evaluation_batch_size` of the workload saves the failed tries",
                refused,
                at_once,
            )
        sums, predictions = found
        means = dict(zip(names, (sums / num_samples).tolist(), strict=True))
        means |= self._metrics_of_whole_set(predictions, num_samples, means["loss"])
        return Evaluation(
            loss=means.pop("loss"),
            metrics=means,
            num_samples=num_samples,
            averaged=averaged and has_average,
            has_average=has_average,
            bytes_sent=(self._node_links.between.ledger.take(),),
            bytes_within=(self._node_links.within.ledger.take(),),
        )

    def _measured(
        self, evaluated: Mapping[str, Tensor], names: Sequence[str], on: EvaluatedSet, num_samples: int, at_once: int
    ) -> tuple[Tensor, list[Predictions]] | None:
        """Return the sums over the samples of `on` of what `names` say, and this rank's predictions; collective.

        The sums are `(len(names),)` in float64, and 0 for what `compute_metrics` returns. A forward pass takes
        `at_once` samples, as many on all ranks: a metric may depend on it. None if a rank ran out of its GPU's memory.
        Raises OutOfMemoryError if it did so with a single sample, and WorkloadError if ranks have other parameters.
        """
        sums = torch.zeros(len(names) + 1, dtype=torch.float64)  # the last: ranks that ran out of memory
        predictions: list[Predictions] = []
        share = torch.arange(num_samples)[self._present.index(self.rank) :: len(self._present)]
        # The weights are lent before the modes change: a module that merges its adapters merges these.
        lent, evaluating = model.lent(self.model, evaluated), model.evaluating(self.model)
        with lent, evaluating, model.untouched(self.model) as bits, random_state.seeded(0, self.device):
            try:
                # A set smaller than the ranks leaves some without a share.
                parts = [part for part in torch.split(share, at_once) if len(part)]
                for part, found in zip(parts, self.parts.passes.measured(on, parts, names), strict=True):
                    sums[:-1] += len(part) * found.means
                    predictions.append(found.predictions)
            except torch.OutOfMemoryError as error:
                if at_once == 1 or len(share) == 1:
                    raise torch.OutOfMemoryError(f"an evaluation of one sample: {error}") from error
                sums[-1] = 1
        told = equal_weights.moments(bits, is_known=self._evaluated.may_differ or self._has_warned)
        words = torch.cat([sums, told])
        self._node_links.all_reduce_sum(words, {"control": words.nbytes})
        if equal_weights.differ(words[-len(told) :], len(self._present)):
            by_entry = self.device.type == "cpu" and not self.config.amplifies_rounding
            with model.lent(self.model, evaluated):
                weights = dict(self.model.named_parameters())
                equal_weights.require_close(weights, self._node_links, refuses=by_entry and on == "validation")
            self._has_warned = True
        sums = words[: len(sums)]
        return None if sums[-1] else (sums[:-1], predictions)

    def _metrics_of_whole_set(self, predictions: list[Predictions], num_samples: int, loss: float) -> dict[str, float]:
        """Return the metrics that the workload computes from all predictions, if it has any; collective."""
        passes = self.parts.passes
        if not passes.predicts:
            return {}
        with random_state.seeded(0, self.device):
            return whole_set.metrics(
                self.workload,
                predictions,
                self._node_links,
                num_samples=num_samples,
                evaluated=passes.evaluated,
                loss=loss,
            )
