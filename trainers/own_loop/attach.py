"""Exchange and local updates in a training loop of the user's own, whatever drives it.

    handle = attach(ddp, optimizer, exchange={"kind": "topk", "density": 0.01})
    handle = attach(model, optimizer, sync={"kind": "diloco", "period": 20})

The loop calls `backward()` and `optimizer.step()` as before. DDP's communication hook exchanges gradients, and a hook
of the optimizer counts its steps and lets ranks meet.
"""

import gc
import logging
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple
from weakref import WeakSet, ref

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from trainers.exchange.buffer import LEAD, GradientBuffer
from trainers.exchange.node_links import NodeLinks
from trainers.exchange.pacing import Unpaced
from trainers.exchange.step_result import Exchanged
from trainers.exchange.topology import Topology
from trainers.methods.blocks import blocks
from trainers.methods.exchange.dense.spec import NoneConfig
from trainers.methods.optimizer.optimizer import Optimizer
from trainers.methods.optimizer.spec import OwnOptimizerConfig
from trainers.methods.replica_config import ReplicaConfig
from trainers.methods.sync import build
from trainers.methods.sync.every_step.spec import EveryStepConfig
from trainers.methods.sync.parts import PolicyParts
from trainers.methods.sync.policy import StateParts, Update
from trainers.methods.sync.shared.differing import differing, means_of_differing
from trainers.methods.sync.shared.screen import parts_of_means
from trainers.own_loop.agreement import check_agreement, named_shapes
from trainers.own_loop.attachable import (
    Check,
    Exchanging,
    Syncing,
    check_ddp,
    check_rates,
    check_steps,
    ddp_in,
    follows_rate,
    job_config,
    takes_backwards_for_steps,
    trained_parameters,
)
from trainers.own_loop.ddp import (
    BucketHook,
    PerNode,
    bill_buffers,
    can_overlap,
    check_sparse,
    plain_per_node,
    refuse_ranges,
    topology_of,
)
from trainers.own_loop.handle import Handle, rank
from trainers.own_loop.outlet import Hook, outlet_of
from trainers.own_loop.together import Optimizers, Together, each_of, joined
from trainers.snapshot import Buffers, Image, State, Steps, Tensors
from trainers.training.model import forget_lost, persistent_buffers, replaced_buffer, replaced_parameter

log = logging.getLogger("wiretune.attach")


def attach(
    model: nn.Module,
    optimizer: Optimizers,
    *,
    exchange: Exchanging | None = None,
    sync: Syncing | None = None,
    per_node: PerNode = 1,
    scale: Callable[[], float] | None = None,
    seed: int = 0,
    check_ranges: Check = refuse_ranges,
    check_loop: Check = lambda config: None,
) -> "Attached":
    """Have the ranks that train `model` by `optimizer` exchange as `exchange` and `sync` say. All ranks must call this.

    `model` is a DistributedDataParallel, or has one inside (Accelerate, Lightning, Fabric). With a `sync` that trains
    apart it may be a bare module: rank 0's parameters and buffers become everybody's, and the default process group
    connects the ranks. By default gradients are exchanged densely in every step: nothing changes but that bytes are
    counted. `per_node`, `scale` and `seed` are those of `compress_gradients`. Whoever searches the ranges that
    `check_ranges` lets pass sets the handle's `chosen` before each step. `check_loop` raises ValueError for what does
    not go with the loop. The loop must not clip gradients with an exchange of `attachable.DIRECTIONS`, nor with `cser`
    or `liec_sgd`, whose ranks would drift apart. To resume, attach first, and then load the state of the model, of the
    optimizer and of the handle.

    Of several optimizers a step is one of each. Where ranks train apart, or an exchange takes each backward for a step,
    one that steps twice before the others raises RuntimeError.

    Raises ValueError for what a job would refuse, by the names of the fields, for a range, for what needs the data, for
    what sets rates or gradients of its own, for a model that cannot be exchanged like that, for what is not the same on
    all ranks, and for ranks of `torchrun` without a process group.
    """
    _check_launch()
    optimizer = joined(optimizer)
    _refuse_attached(model, optimizer)
    config = job_config(optimizer, exchange, sync, seed=seed)
    ddp = ddp_in(model)
    check_ranges(config)
    check_loop(config)
    check_ddp(ddp, model, config)
    check_steps(config, optimizer, scale)
    if follows_rate(config):
        check_rates(optimizer, f"`{config.exchange.kind}`")
    parameters = trained_parameters(model, optimizer, config)
    _advise(config, optimizer)
    given = config.model_dump(mode="json", include={"exchange", "sync", "optimizer", "seed"})
    given |= {"per_node": plain_per_node(per_node), "model": named_shapes(model.named_parameters())}
    check_agreement(given, parameters[0].device)
    node_links = _connected(per_node, config, parameters[0].device)
    try:
        return Attached(config, model, ddp, optimizer, node_links, scale=scale or (lambda: 1.0))
    except BaseException:
        node_links.leave()
        raise


def _check_launch() -> None:
    """Raise ValueError for one of several processes that nothing connects: each would train alone, unnoticed."""
    launched = os.environ.get("WORLD_SIZE", "1")
    if launched.isdigit() and int(launched) > 1 and not dist.is_initialized():
        raise ValueError(
            f"`WORLD_SIZE` is {launched}, and no process group connects these ranks: call "
            "`torch.distributed.init_process_group` before `attach`; to train each process by itself, unset it"
        )


def _advise(config: ReplicaConfig, optimizer: torch.optim.Optimizer) -> None:
    """Log, on rank 0, what `wiretune validate` says of a job that sends AdamW's gradients in too few entries."""
    few, is_adamw = config.exchange.few_entries, any(isinstance(each, torch.optim.AdamW) for each in each_of(optimizer))
    if few is not None and is_adamw and isinstance(config.sync, EveryStepConfig) and rank() == 0:
        log.warning(
            "`AdamW` learns slowly from %.2g of a gradient's entries: give a higher `density`, or "
            "`exchange={'kind': 'powersgd'}`",
            few,
        )


def _connected(per_node: PerNode, config: ReplicaConfig, device: torch.device) -> NodeLinks:
    """Return links between the ranks of the default group, or of this process alone if there is none; collective."""
    topology = topology_of(per_node, device) if dist.is_initialized() else Topology.stated(1, 1)
    node_links = NodeLinks(topology, rank(), Unpaced(), payload=config.sync.payload, device=device)
    node_links.join()
    return node_links


#: What models were attached over, to the end of the process: where a DDP is a group's last holder, torch waits with the
#: GIL for a thread of gloo that may itself wait for the GIL, to let go of a backward's context (2.13).
_GROUPS: set[dist.ProcessGroup] = set()
#: The handles that are not detached. An optimizer holds its own, so that none outlives an optimizer that is let go of.
_ATTACHED = WeakSet["Attached"]()


def _refuse_attached(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Raise ValueError for what has a handle: a second one would count each step again, and average again."""
    own = {*each_of(optimizer)}
    if any(not own.isdisjoint(each_of(each.optimizer)) for each in _ATTACHED):
        raise ValueError("`optimizer` must not be attached twice: first `detach` the handle that it has")
    if any(each._model is model for each in _ATTACHED):
        gc.collect()  # an optimizer and its handle hold each other
    if any(each._model is model for each in _ATTACHED):
        raise ValueError(
            "`model` must not be attached twice: first `detach` the handle that it has, or, if it is a bare module, "
            "drop that handle and the optimizer that it was attached with"
        )


class StepValues(NamedTuple):
    """The values that a search sets besides the learning rate. None: the configuration's own."""

    level: float | None = None  # of the exchange
    period: int | None = None
    outer_learning_rate: float | None = None
    outer_momentum: float | None = None


class Attached(Handle):
    """The handle of one model's exchange. Parameters and optimizer may differ by rank: each saves them, too.

    What is not finite on one rank is so on all: a step leaves infinite gradients, which a GradScaler skips, and an
    average leaves parameters that are not a number. No memory changes then. With `max_z` that rank goes on
    from the average of the others instead.
    """

    def __init__(
        self,
        config: ReplicaConfig,
        model: nn.Module,
        ddp: DistributedDataParallel | None,
        optimizer: torch.optim.Optimizer,
        node_links: NodeLinks,
        *,
        scale: Callable[[], float],
    ) -> None:
        self.last: Exchanged | None = None  # outcome of the last step; None before the first
        self.chosen = StepValues()  # of the step to come
        self.before_detach: Callable[[], None] = lambda: None  # ends a search, whose probe would stay
        self.own: dict[str, Tensor] = {}  # this rank's parameters and buffers, while the model is lent the mean
        self.config, self.optimizer, self._model = config, optimizer, model
        self.scale = scale  # what the loss is multiplied by
        # DDP's own all-reduce is all that is asked for
        self._is_plain = isinstance(config.exchange, NoneConfig) and node_links.share == 1
        parameters = {name: each for name, each in model.named_parameters() if each.requires_grad}
        self._held = {name: each.detach() for name, each in model.named_parameters()}  # frozen ones too
        self._trained = {name: self._held[name] for name in parameters}
        self._parameters = [*self._trained.values()]
        self._frozen = [each for each in model.parameters() if not each.requires_grad]
        # Detached, which tells `.data = ...`; a sparse one has no place in memory.
        self._buffers = {
            name: each.detach() if each.layout is torch.strided else each for name, each in model.named_buffers()
        }
        if ddp is None and node_links.num_ranks > 1:
            self._take_over(node_links)
        names = {parameter: name for name, parameter in parameters.items()}
        self._wrapped = Optimizer(OwnOptimizerConfig(), optimizer, names, brought=())
        buffer = self._gradient_buffer()
        parts = PolicyParts(config, self._wrapped, buffer, node_links, blocks.build(config, model, buffer))
        self._sync, self._steps = build.build(parts), Steps()
        shared, own = self._sync.divide({})
        super().__init__(
            shared | own | {"exchange": self._sync.exchange, "steps": self._steps},
            config.model_dump(mode="json", include={"exchange", "sync"}),
            node_links,
        )
        self._state = self._whole_state()
        overlaps = ddp is not None and can_overlap(ddp, config.exchange, node_links)
        self._hook = self._bucket_hook(buffer, overlaps=overlaps)
        self._reduces = False  # whether DDP all-reduces the next backward
        self._undo: list[Callable[[], None]] = []
        self._enter_loop(ddp)

    def _take_over(self, node_links: NodeLinks) -> None:
        """Take over rank 0's parameters and buffers, where they differ; collective."""
        everything = self._held | self._buffers
        for name in differing(everything, node_links):
            node_links.tell(everything[name], "state")

    def _whole_state(self) -> State:
        """Return what a snapshot keeps: the exchange's memory, all parameters, buffers, and the optimizer."""
        own: StateParts = {
            **self._parts,
            "parameters": Tensors(self._trained),
            "buffers": Buffers(dict(self._model.named_buffers())),
            "optimizer": self._wrapped,
            "frozen": Tensors({name: each for name, each in self._held.items() if name not in self._trained}),
        }
        # A base model is frozen as an averaged teacher is, and may fill the device.
        return State(shared={}, own=own, on_host=["frozen"])

    def _bucket_hook(self, buffer: GradientBuffer, *, overlaps: bool) -> BucketHook:
        """Return what exchanges the gradients of a backward, which it collects in `buffer`."""
        return BucketHook(
            [each for each in self._model.parameters() if each.requires_grad],
            buffer,
            self._sync.gradients,
            scale=self.scale,
            learning_rate=self._rate,
            level=lambda: self.chosen.level,
            once_a_step=takes_backwards_for_steps(self.config.exchange) and not self.config.averages_parameters,
            overlaps=overlaps,
        )

    def _enter_loop(self, ddp: DistributedDataParallel | None) -> None:
        """Follow the loop's backwards and steps from now on."""
        if ddp is not None:
            self._enter_ddp(ddp)
            self._undo.append(bill_buffers(ddp, self.node_links).remove)
        if isinstance(self.optimizer, Together):
            is_strict = self.config.parameters_may_differ or takes_backwards_for_steps(self.config.exchange)
            self._undo.append(self.optimizer.follow(is_strict=is_strict))
        self._undo.append(self.optimizer.register_step_post_hook(self._advance).remove)
        _ATTACHED.add(self)

    def _gradient_buffer(self) -> GradientBuffer:
        """Return the buffer that the hook fills. Where nothing goes through the hook, it has shapes and no memory."""
        shapes, device = [tuple(each.shape) for each in self._parameters], self._parameters[0].device
        words = None
        if self.config.averages_parameters or self._is_plain:  # torch refuses to write to these
            words = torch.zeros((), device=device).expand(LEAD + sum(map(math.prod, shapes)))
        return GradientBuffer(shapes, self.config.exchange, device, words=words)

    def set_level(self, level: float) -> None:
        """Exchange at `level` from the next step on, on every rank alike; a schedule's `on_level` calls it.

        Raises ValueError if it is no level of this exchange, or if this one has none.
        """
        self.chosen = self.chosen._replace(level=self.config.exchange.check_level(level))

    def set_values(self, values: Mapping[str, Any]) -> None:
        """Meet by this `period`, `outer_learning_rate` and `outer_momentum` from the next step on, on every rank alike.

        What `values` do not name is the configuration's. A schedule's `on_values` calls it. Raises ValueError for
        another value, and for what does not fit `sync`.
        """
        names = StepValues._fields[1:]  # without the level
        if others := sorted(values.keys() - {*names}):
            raise ValueError(f"`values` may name {', '.join(names)}, got `{others[0]}`, which nothing attached takes")
        if wrong := self.config.setting_conflict(values, optimizer=self.config.optimizer.kind):
            raise ValueError(f"`values` do not fit: {wrong}")
        self.chosen = StepValues(level=self.chosen.level, **values)

    def _enter_ddp(self, ddp: DistributedDataParallel) -> None:
        """Take the place of DDP's all-reduce, unless that is all that is asked for.

        Raises ValueError for sparse gradients where they cannot be exchanged.
        """

        def note_forward(*_: object) -> None:
            # Under the condition of DDP's own forward.
            if torch.is_grad_enabled() and ddp.require_backward_grad_sync:
                self._reduces = True

        held = ref(self)  # what a parameter under DDP holds, no garbage collector sees

        def count(_: Tensor) -> None:
            if (handle := held()) is not None:
                handle._count()

        _GROUPS.add(ddp.process_group)
        averages_parameters = self.config.averages_parameters
        if self._is_plain and not averages_parameters:
            self._undo.append(ddp.register_forward_hook(Hook(note_forward)).remove)
            trained = [each for each in ddp.parameters() if each.requires_grad]
            self._undo += [each.register_hook(count).remove for each in trained]  # type: ignore[no-untyped-call]
            return
        if not averages_parameters:
            check_sparse(ddp)
        outlet = outlet_of(ddp)
        outlet.plug(_keep if averages_parameters else self._hook.on_bucket)
        broadcasts, is_silenced = ddp.broadcast_buffers, False
        if averages_parameters:
            ddp.broadcast_buffers = False  # buffers are each rank's own, as in a job
            if ddp.find_unused_parameters and not ddp.static_graph:
                # As in `no_sync`, or DDP would sum which parameters were used in each backward, hook or not. The hook
                # stays: Lightning's manual optimization turns this on after each forward.
                is_silenced, ddp.require_backward_grad_sync = True, False

        def undo() -> None:
            outlet.unplug()
            ddp.broadcast_buffers = broadcasts
            if is_silenced:
                ddp.require_backward_grad_sync = ddp.require_forward_param_sync = True

        self._undo.append(undo)

    def _count(self) -> None:
        """Bill the all-reduce of a backward, at its first gradient."""
        if self._reduces:
            self._reduces = False
            self.node_links.charge_sum({"gradient": sum(each.nbytes for each in self._parameters)})

    def _rate(self) -> float:
        rates = [group.get("lr") for group in self.optimizer.param_groups]  # None: the optimizer sets its own
        return max(1.0 if rate is None else float(rate) for rate in rates)  # 0 says that nothing was applied

    def _advance(self, *_: object) -> None:
        """Count a step of the optimizer, and let the ranks meet if it is time to.

        Raises RuntimeError if the model trains what it did not when it was attached: nobody exchanges that. So it does
        at an average, if the model has replaced a parameter.
        """
        if any(each.requires_grad for each in self._frozen):
            raise RuntimeError(
                "a parameter that was frozen when the model was attached is trained now, and ranks would not exchange "
                "it: `detach`, and attach the model again, in a new DistributedDataParallel if it has one"
            )
        self.keep()  # who trains on from what it was lent goes on from there
        self._steps.taken += 1
        self._hook.stepped = True
        stepped = self._hook.last or Exchanged(loss=0.0)
        update = Update(self._steps.taken, self._rate(), *self.chosen)
        if self._sync.will_meet(update):
            self._check_parameters(self._trained)
        self.last = self._sync.advance(stepped, update)
        if self.last.diverged and not stepped.diverged:  # else some ranks would train on beside one that is lost
            torch._foreach_mul_(self._parameters, math.nan)
        if self.last.is_left_out:
            self._wrapped.forget_lost()
            forget_lost(self._model)

    @torch.no_grad()
    def is_sound(self) -> bool:
        """Return whether this rank's trained parameters are finite, and no buffer has a NaN; a mask may be infinite."""
        of_buffers = (each for each in self._buffers.values() if each.layout is torch.strided)
        is_lost = any(bool(each.isnan().any()) for each in of_buffers)
        return not is_lost and all(bool(each.isfinite().all()) for each in self._parameters)

    def settle(self) -> None:
        """Wait for an average that is under way. Before that nobody may use `node_links`, whose groups it uses."""
        self._sync.settle()

    def average(self) -> None:
        """Give all ranks the mean of their parameters and buffers, where these differ; collective."""
        self._put(self.means())

    @torch.no_grad()
    def means(self) -> dict[str, Tensor]:
        """Return by name the means of what differs between the ranks, as a job evaluates them; collective.

        Besides trained parameters that is an averaged teacher, which is frozen, and what a `state_dict` holds of
        floating-point buffers.
        """
        self.settle()
        if not self.config.parameters_may_differ:
            return {}
        trained: dict[str, Tensor] = {}
        if self._sync.is_apart:
            self._check_parameters(self._trained)
            [(parts, over)] = parts_of_means(
                self.config.sync, self.node_links, [self._parameters], over=self._num_copies
            )
            trained |= zip(self._trained, self.node_links.average(parts, "state", over=over), strict=True)
        frozen = {name: each for name, each in self._held.items() if name not in self._trained}
        return trained | self._means_of_differing(frozen, self._model)

    @property
    def _num_copies(self) -> int:
        """The ranks, or nodes, over which parameters are averaged."""
        return self.node_links.copies if self.config.exchange.drifts else self.node_links.topology.num_workers

    def _means_of_differing(self, parameters: Mapping[str, Tensor], module: nn.Module) -> dict[str, Tensor]:
        """Return by name the means of what differs of `parameters`, and of the buffers of `module`; collective."""
        dense = {name: each for name, each in persistent_buffers(module).items() if each.layout is torch.strided}
        num_ranks = self.node_links.topology.num_workers
        return means_of_differing(parameters, self.config.sync, self.node_links, over=self._num_copies) | (
            means_of_differing(dense, self.config.sync, self.node_links, over=num_ranks)
        )

    @torch.no_grad()
    def _put(self, tensors: Mapping[str, Tensor]) -> None:
        """Overwrite parameters and buffers by `tensors` of their names."""
        live = self._held | dict(self._model.named_buffers())
        for name, tensor in tensors.items():
            live[name].copy_(tensor)

    def lend(self) -> None:
        """Lend the model the mean of the ranks, as `averaged` does, until `take_back`; collective.

        What is this rank's own is in `own` meanwhile, by name.
        """
        if not self.own:
            means, live = self.means(), self._held | dict(self._model.named_buffers())
            self.own = {name: live[name].clone() for name in means}
            self._put(means)

    def take_back(self) -> None:
        """Go on from where this rank was before the model was lent the mean."""
        self._put(self.own)
        self.keep()

    def keep(self) -> None:
        """Leave the model what it has now: `take_back` changes nothing then."""
        self.own = {}

    @contextmanager
    def averaged(self, *others: nn.Module) -> Iterator[None]:
        """Lend the model the mean of the ranks' parameters and buffers, to evaluate it or to save it; collective.

        `others` are lent theirs, too: modules that follow the model, such as an `AveragedModel`. Of their tensors, only
        those of floating point that differ between ranks change. Raises ValueError for what is no module.
        """
        for each in others:
            if not isinstance(each, nn.Module):
                raise ValueError(f"`others` must be modules, got {type(each).__name__}")
        was_lent, own = bool(self.own), list[tuple[Tensor, Tensor]]()
        self.lend()
        try:
            for each in others:
                own += self._lend_to(each)
            yield
        finally:
            for live, before in reversed(own):
                live.copy_(before)
            if not was_lent:
                self.take_back()

    @torch.no_grad()
    def _lend_to(self, other: nn.Module) -> list[tuple[Tensor, Tensor]]:
        """Put the means of the ranks in `other`; returns each tensor that has changed, with a copy from before."""
        if not self.config.parameters_may_differ:
            return []
        held = {name: each.detach() for name, each in other.named_parameters()}
        live = held | dict(other.named_buffers())
        means = self._means_of_differing(held, other)
        own = [(live[name], live[name].clone()) for name in means]
        for name, mean in means.items():
            live[name].copy_(mean)
        return own

    def detach(self) -> None:
        """Leave model and optimizer to themselves, with the mean of the ranks' parameters and buffers; collective.

        A DistributedDataParallel averages gradients by torch's `allreduce_hook` from then on. Model and optimizer can
        be attached anew. The exchange's memory is freed with this handle. A search ends as by the `stop` of its tuner;
        a warning says so if its probe cannot be taken back. A second call does nothing.
        """
        if self not in _ATTACHED:
            return
        try:
            self._end_search()
            self.average()
        finally:  # a model that cannot be put back is left to itself, too
            for undo in self._undo:
                undo()
            self._undo.clear()
            _ATTACHED.discard(self)
            self.node_links.leave()

    def _end_search(self) -> None:
        try:
            self.before_detach()
        except RuntimeError as error:
            log.warning("%s", error)

    def snapshot(self, slot: str) -> None:
        """Keep a copy of model, optimizer and memories in memory under the name `slot`.

        Raises RuntimeError if the model has replaced a buffer or a parameter, as `restore` does.
        """
        self._check_buffers()
        self._check_parameters(self._held)
        self._state.snapshot(slot)

    def image(self, slot: str) -> Image:
        """Return a copy of what is kept under the name `slot`, to be saved."""
        return self._state.image(slot)

    def put(self, slot: str, image: Image) -> None:
        """Keep under the name `slot` what `image` returned of this model in another run."""
        self._state.put(slot, image)

    def forget(self, slot: str) -> None:
        """Free the memory of `slot`, if there is such a one."""
        self._state.forget(slot)

    @property
    def _has_stepped(self) -> bool:
        return self.last is not None

    def _settings(self) -> dict[str, Any]:
        return self.chosen._asdict()

    def _set(self, own: Mapping[str, Any]) -> None:
        chosen = {name: own[name] for name in StepValues._fields if name in own}  # earlier releases have fewer
        self.chosen = self.chosen._replace(**chosen)
        self._hook.stepped = True

    def restore(self, slot: str) -> None:
        """Go back to the copy in `slot`; KeyError if there is none."""
        self._check_buffers()
        self._check_parameters(self._held)
        self._state.restore(slot)
        self._hook.stepped = True

    def _check_buffers(self) -> None:
        """Raise RuntimeError if the model put another tensor in a buffer's place: the state holds the first one."""
        if why := replaced_buffer(self._model, self._buffers):
            raise RuntimeError(why)

    def _check_parameters(self, held: Mapping[str, Tensor]) -> None:
        """Raise RuntimeError if a parameter has its values elsewhere than where they are `held`, and averaged."""
        if why := replaced_parameter(self._model, held):
            raise RuntimeError(why)


def _keep(bucket: dist.GradBucket) -> Future[Tensor]:  # type: ignore[name-defined]
    """Leave DDP the rank's own gradient."""
    future: Future[Tensor] = Future()
    future.set_result(bucket.buffer())
    return future
