"""Our exchanges under torch's DistributedDataParallel, in a training script of the user's own.

    ddp = DistributedDataParallel(model)
    handle = compress_gradients(ddp, CompressionConfig(kind="dgc", density=0.003))

DDP's buckets are told apart by their parameters, since it rebuilds them after its first step. The exchange runs in its
own thread and process group, as in a job: beside backward, from DDP's first bucket on, or after the last.
"""

import concurrent.futures
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Variable
from torch.distributed.device_mesh import DeviceMesh
from torch.futures import Future
from torch.nn import Parameter
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

from trainers.exchange.buffer import GradientBuffer
from trainers.exchange.communication import Communication
from trainers.exchange.exchange import Exchange
from trainers.exchange.node_links import NodeLinks, found
from trainers.exchange.pacing import Unpaced
from trainers.exchange.step_result import Exchanged
from trainers.exchange.topology import Topology
from trainers.methods.build import between_nodes
from trainers.methods.exchange.auto.spec import ExchangeConfig
from trainers.methods.exchange.dense.spec import DenseBase
from trainers.own_loop.agreement import check_agreement, named_shapes
from trainers.own_loop.handle import Handle
from trainers.own_loop.outlet import Hook, check_free, outlet_of
from trainers.spec.exchange import CorrectedConfig, ExchangeBase
from trainers.spec.levels import AccordionConfig
from trainers.spec.ranges import Config
from trainers.spec.refusals import checked
from trainers.spec.two_way import TwoWayConfig
from trainers.traffic import collectives
from trainers.traffic.buckets import Layer

#: What a gradient may be of: float16 has not the range of the mean that comes back.
TYPES = (torch.float32, torch.bfloat16)
#: A step of an exchange that is under way.
Pending = concurrent.futures.Future[Exchanged]
#: So many neighbouring ranks a node, all ranks on one machine, or a mesh of nodes x ranks of a node.
PerNode = int | Literal["auto"] | DeviceMesh


class _Compressed(Config):
    exchange: ExchangeConfig


def CompressionConfig(**fields: object) -> ExchangeBase:
    """Return the exchange of the given `kind` and knobs, for a script of one's own.

    Raises ValueError for what a job would refuse, by the names of the fields.
    """
    return checked(_Compressed, {"exchange": fields}).exchange


def exchange_of(config: ExchangeConfig | Mapping[str, Any]) -> ExchangeBase:
    """Return the exchange that `config` is, or has the fields of. Raises ValueError for what is none."""
    if not isinstance(config, ExchangeBase | Mapping):
        raise ValueError(f"`config` must be a CompressionConfig, or its fields as {{'kind': 'topk'}}, got {config!r}")
    return CompressionConfig(**config) if isinstance(config, Mapping) else config


def compress_gradients(
    model: DistributedDataParallel,
    config: ExchangeConfig | Mapping[str, Any],
    *,
    per_node: PerNode = 1,
    scale: Callable[[], float] = lambda: 1.0,
    seed: int = 0,
) -> "CompressedGradients":
    """Have `model` exchange gradients as `config` says, from its next backward on. All ranks must call this.

    `config` is a `CompressionConfig`, or its fields. `scale` is what the loss was multiplied by (`scaler.get_scale` of
    a GradScaler): memories are kept without it. A step whose gradients are not finite on some rank leaves infinity in
    all gradients and changes no memory, so that the scaler skips it. Backwards inside `model.no_sync()` are no steps:
    have all but a step's last there, or kinds with a direction or a momentum of their own take each for a step.
    `per_node` says which ranks exchange as one. Gradients of bfloat16 parameters are exchanged, and memories kept, in
    float32; the mean is rounded to bfloat16.
    Raises ValueError for a range where a number is needed, for what needs the learning rate or the data, for parameters
    that are neither float32 nor bfloat16, not on one device, or without entries, for embeddings with sparse gradients,
    for nodes that do not hold every rank once, for a memory where DDP finds unused parameters, for a model that has an
    exchange, or somebody else's communication hook, already, and for what is not the same on all ranks.
    """
    config = exchange_of(config)
    check_config(config)
    check_free(model)
    check_unused(model, config)
    check_sparse(model)
    parameters = [each for each in model.parameters() if each.requires_grad]
    check_types(parameters)
    check_entries(model)
    outlet = outlet_of(model)  # before there are groups: it may refuse
    device = parameters[0].device
    given = {"exchange": config.model_dump(mode="json"), "seed": seed, "per_node": plain_per_node(per_node)}
    check_agreement(given | {"model": named_shapes(model.named_parameters())}, device)
    node_links = NodeLinks(topology_of(per_node, device), dist.get_rank(), Unpaced(), device=device)
    node_links.join()
    buffer = GradientBuffer([tuple(each.shape) for each in parameters], config, device)
    exchange = between_nodes(config, buffer, node_links, seed=seed)
    hook = BucketHook(parameters, buffer, exchange, scale=scale, overlaps=can_overlap(model, config, node_links))
    outlet.plug(hook.on_bucket)
    bill_buffers(model, node_links)
    return CompressedGradients(config, hook, exchange, node_links)


def refuse_ranges(config: Config) -> None:
    """Raise ValueError for a range."""
    if ranges := [each.field for each in config.ranges()]:
        raise ValueError(f"`{ranges[0]}` must be one number: nothing searches a range here")


def check_config(config: ExchangeConfig) -> None:
    """Raise ValueError for a range, and for what needs the learning rate or the data: nothing says them in a script."""
    refuse_ranges(config)
    if isinstance(config, CorrectedConfig) and config.lr_corrected:
        raise ValueError("`lr_corrected` must be false: here nothing says what the learning rate is")
    levels = getattr(config, "levels", None)
    if isinstance(levels, AccordionConfig) and (levels.follow_decay or levels.epoch_steps is None):
        raise ValueError("`accordion` needs `follow_decay: false` and `epoch_steps`: rates and epochs are unknown here")
    if isinstance(config, TwoWayConfig) and config.follows_rate:
        raise ValueError(f"`{config.kind}` follows the learning rate, which nothing says here: give `doublesqueeze`")
    if config.drifts:
        raise ValueError(
            f"workers step by themselves under this `{config.kind}`, and meet nowhere here: give it to `attach`"
        )


def check_unused(model: DistributedDataParallel, config: ExchangeBase) -> None:
    """Raise ValueError for a memory where DDP finds unused parameters.

    DDP leaves the gradient of a parameter alone that no rank has used: what a memory has sent for it would be lost.
    """
    keeps_nothing = isinstance(config, DenseBase) or getattr(config, "memory", None) == "none"
    if model.find_unused_parameters and not keeps_nothing:
        raise ValueError(
            f"`find_unused_parameters` must be False: `{config.kind}` sends later what it keeps, and DDP would drop "
            "that for a parameter that no rank has used; where there are some, give `none` or `fp16`"
        )


def can_overlap(model: DistributedDataParallel, config: ExchangeBase, node_links: NodeLinks) -> bool:
    """Return whether ranks exchange a gradient while backward computes it.

    They do not where backward has collectives of its own, and where DDP decides late which parameters have gradients.
    """
    has_others = model.find_unused_parameters or any(isinstance(each, nn.SyncBatchNorm) for each in model.modules())
    return config.overlap and node_links.num_ranks > 1 and not has_others


def check_sparse(model: nn.Module) -> None:
    """Raise ValueError for a trained embedding with sparse gradients, whose entries DDP does not show to a hook."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse and module.weight.requires_grad:
            raise ValueError(
                f"`model`: embedding `{name}` must have dense gradients, which alone can be exchanged under DDP, got "
                "`sparse=True`: leave it out"
            )


def check_types(parameters: Sequence[Parameter], types: Sequence[torch.dtype] = TYPES) -> None:
    """Raise ValueError unless the parameters are of these types, and on one device."""
    found_types, devices = {each.dtype for each in parameters}, {each.device for each in parameters}
    if len(devices) != 1 or not found_types <= {*types}:
        got = sorted(map(str, found_types | devices))
        known = " or ".join(str(each).removeprefix("torch.") for each in types)
        raise ValueError(f"parameters must be {known}, and on one device, got {', '.join(got)}")


def check_entries(model: nn.Module) -> None:
    """Raise ValueError for a trained parameter without entries, which no buffer of gradients has a place for."""
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and not parameter.numel():
            shape = tuple(parameter.shape)
            raise ValueError(
                f"`model`: parameter `{name}` must have entries to be trained, got shape {shape}: freeze it"
            )


def topology_of(per_node: PerNode, device: torch.device) -> Topology:
    """Return the nodes of the ranks of the default group; collective."""
    num_workers = dist.get_world_size()
    if per_node == "auto":
        return found(num_workers, device)
    if isinstance(per_node, int):
        return Topology.stated(num_workers, per_node)
    if per_node.ndim != 2 or per_node.size() != num_workers:
        raise ValueError(
            f"`per_node` must be a mesh of nodes x ranks, {num_workers} together, got {per_node.mesh.tolist()}"
        )
    return Topology.of(per_node.mesh.tolist())


def plain_per_node(per_node: PerNode) -> Any:
    """Return `per_node`, JSON-compatible."""
    return per_node.mesh.tolist() if isinstance(per_node, DeviceMesh) else per_node


def bill_buffers(model: DistributedDataParallel, node_links: NodeLinks) -> RemovableHandle:
    """Bill rank 0's buffers from now on, which DDP broadcasts before forwards; returns what ends that."""

    def bill(ddp: DistributedDataParallel, _: object) -> None:
        if ddp.will_sync_module_buffers():  # type: ignore[no-untyped-call]
            num_bytes = sum(each.nbytes for each in ddp.modules_buffers)
            for connection in (node_links.between, node_links.within):
                connection.charge({"state": num_bytes}, collectives.broadcast)

    return model.register_forward_pre_hook(Hook(bill))


class _Guard:
    """Waits in a backward for its end: torch calls it if backward succeeds, and lets it go in any case.

    Of a backward that fails, torch lets it go before the caller gets the exception.
    """

    def __init__(self, at_end: Callable[[Pending | None], None]) -> None:
        self._at_end = at_end
        self.step: Pending | None = None  # that was begun in this backward

    def __call__(self) -> None:
        return

    def __del__(self) -> None:
        self._at_end(self.step)


class BucketHook:
    """DDP's communication hook: it gives each bucket to `exchange`, and takes the mean back.

    `scale` is what the loss was multiplied by; `learning_rate` and `level` are those of the step to come. With
    `once_a_step` a second exchange raises RuntimeError, unless the first was not finite, or `stepped` was set since.

    With `overlaps` the exchange starts at DDP's first bucket. It starts at the last in the first two backwards, between
    which DDP makes its buckets anew, and as long as buckets come from several tasks of autograd, as under reentrant
    checkpointing: a guard sees the end of one task. If backward ends before the last bucket, the exchange is cut off,
    and DDP itself refuses to go on.
    """

    def __init__(
        self,
        parameters: Sequence[Parameter],
        buffer: GradientBuffer,
        exchange: Exchange,
        *,
        scale: Callable[[], float],
        learning_rate: Callable[[], float] = lambda: 1.0,
        level: Callable[[], float | None] = lambda: None,
        once_a_step: bool = False,
        overlaps: bool = False,
    ) -> None:
        device = parameters[0].device
        self.last: Exchanged | None = None
        self.stepped = True  # whether the optimizer has used the last finite gradient
        self._once_a_step = once_a_step
        self._no_loss = torch.zeros((), device=device)  # the script has it
        self._scale, self._learning_rate, self._level = scale, learning_rate, level
        self._buffer, self._exchange = buffer, exchange
        self._layers = {id(each): layer for each, layer in zip(parameters, buffer.layers, strict=True)}
        self._communication = Communication(buffer, device, threads=torch.get_num_threads())
        self._waiting: list[tuple[list[tuple[Layer, Tensor]], Tensor, Future[Tensor]]] = []
        self._overlaps = overlaps
        self._tasks = set[int]()  # of autograd, that this backward's buckets have come from
        self._num_in_one_task = 0  # backwards in a row whose buckets came from one
        self._is_cut_off = False  # the exchange that began in this backward
        self._factor = 1.0  # what this backward's loss was multiplied by
        self._step: Pending | None = None  # that runs beside backward

    def on_bucket(self, bucket: dist.GradBucket) -> Future[Tensor]:  # type: ignore[name-defined]
        """Take DDP's bucket; its future is done when the whole gradient has been exchanged."""
        if bucket.index() == 0:
            self._begin()
        elif self._is_cut_off:
            raise RuntimeError(
                "backward computes a part of the model again in a task of its own, as it did not in the steps before: "
                "give `exchange={'overlap': False}`, or checkpoint with `use_reentrant=False`"
            )
        self._tasks.add(torch._C._current_graph_task_id())
        parts = [
            (self._layers[id(parameter)], _laid_out(gradient, parameter))
            for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True)
        ]
        for layer, gradient in parts:
            taken = self._buffer.of(layer).view(layer.shape).copy_(gradient)
            if self._factor != 1.0:  # else the same bits, for one more pass over them
                taken.div_(self._factor)
            if self._step is not None:
                self._buffer.arrive(layer)
        future: Future[Tensor] = Future()
        self._waiting.append((parts, bucket.buffer(), future))
        if bucket.is_last():
            self._finish()
        return future

    def _begin(self) -> None:
        """Take up a new backward, and begin to exchange its gradient if that can go beside it."""
        if self._once_a_step and not self.stepped:
            raise RuntimeError(
                "a second backward has come before `optimizer.step()`, and this exchange goes on from what all "
                "backwards of a step add up to: have those before the last inside `model.no_sync()`, attach all "
                "optimizers of the model, and leave out `model.join()`"
            )
        # A backward before this one may have failed half-way.
        self._waiting, self._tasks, self._is_cut_off = [], set(), False
        self._factor = self._scale()
        if self._overlaps and self._num_in_one_task >= 2:
            guard = _Guard(self._cut_off)
            Variable._execution_engine.queue_callback(guard)
            guard.step = self._step = self._start()

    def _start(self) -> Pending:
        level, rate = self._level(), self._learning_rate()
        return self._communication.start(lambda: self._exchange.step(self._no_loss, level, rate))

    def _cut_off(self, step: Pending | None) -> None:
        """End `step` if it still waits for buckets: its backward has ended, and no more will come."""
        if step is not None and step is self._step:
            self._step, self._is_cut_off = None, True
            self._buffer.abort()

    def _finish(self) -> None:
        """Wait until the gradient is exchanged, and give DDP its buckets back."""
        step = self._start() if self._step is None else self._step
        self._step, self._num_in_one_task = None, self._num_in_one_task + 1 if len(self._tasks) == 1 else 0
        self._buffer.finish()
        waiting, self._waiting = self._waiting, []
        self.last = self._communication.outcome(step)
        self.stepped = self.last.diverged
        for parts, words, future in waiting:
            for layer, gradient in parts:
                if self.last.diverged:
                    gradient.fill_(torch.inf)
                else:
                    torch.mul(self._buffer.of(layer).view(layer.shape), self._factor, out=gradient)
            future.set_result(words)


def _laid_out(gradient: Tensor, parameter: Parameter) -> Tensor:
    """Return a bucket's `gradient` with its entries where DDP puts them, in the order of the parameter in memory.

    The bucket has a view of it in the order of its shape, which is another one for `channels_last`, or a transpose. DDP
    keeps to that where the parameter has gaps.
    """
    if parameter.is_contiguous() or parameter.stride() != torch.empty_like(parameter, device="meta").stride():
        return gradient
    return gradient.as_strided(parameter.shape, parameter.stride())


class CompressedGradients(Handle):
    """The handle of one model's exchange under DDP."""

    def __init__(self, config: ExchangeConfig, hook: BucketHook, exchange: Exchange, node_links: NodeLinks) -> None:
        super().__init__({"exchange": exchange}, {"exchange": config.model_dump(mode="json")}, node_links)
        self._hook = hook

    @property
    def last(self) -> Exchanged | None:
        """The outcome of the last step; None before the first."""
        return self._hook.last

    @property
    def _has_stepped(self) -> bool:
        return self.last is not None
