"""Our exchanges between the replicas of a model that FSDP2 shards, in a training script of the user's own.

    mesh = init_device_mesh("cpu", (2, 4), mesh_dim_names=("replicate", "shard"))
    fully_shard(model, mesh=mesh["shard"])
    handle = compress_replicas(model, CompressionConfig(kind="topk", density=0.01))

A replica sums gradients by FSDP's reduce-scatter. Behind it, each rank exchanges its shard with the ranks that have the
same shard in the other replicas. FSDP does that for one group of parameters after the other, and each has an exchange.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from math import ceil, prod
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Shard

from trainers.exchange.buffer import GradientBuffer
from trainers.exchange.node_links import NodeLinks, default_timeout
from trainers.exchange.pacing import Unpaced
from trainers.exchange.topology import Topology
from trainers.methods.build import between_nodes
from trainers.methods.exchange.auto.spec import ExchangeConfig
from trainers.methods.exchange.blockwise.spec import BlockwiseConfig
from trainers.methods.exchange.dense.spec import DenseBase
from trainers.methods.exchange.dgc.spec import DgcConfig
from trainers.methods.exchange.doublesqueeze.spec import DoubleSqueezeConfig
from trainers.methods.exchange.sparse_loco.spec import SparseLoCoConfig
from trainers.own_loop.agreement import check_agreement, named_shapes
from trainers.own_loop.ddp import TYPES, check_config, check_types, exchange_of
from trainers.own_loop.handle import Handle
from trainers.spec.quantized import QuantizedBase
from trainers.spec.sparse import SparseConfig

#: Kinds that look at entries and not at matrices or layers, of which a shard has none.
FLAT = (DenseBase, SparseConfig, QuantizedBase, DoubleSqueezeConfig, BlockwiseConfig, SparseLoCoConfig)


def compress_replicas(
    model: nn.Module, config: ExchangeConfig | Mapping[str, Any], *, seed: int = 0
) -> "CompressedReplicas":
    """Have the replicas of `model` exchange gradients as `config` says, from its next backward on; collective.

    `model` is sharded by `fully_shard` over one dimension of a mesh of all ranks, replicas x shards, whose rows are
    neighbouring ranks. Each shard of each group of parameters decides by itself whether a step is finite: one that is
    not on some replica leaves infinity in that shard on all, and its memory as it was. Other shards may have finite
    gradients, and memories without what they have sent; so leave out a step unless all gradients are finite.

    Raises ValueError for what `compress_gradients` refuses, types of parameters among it, for kinds that look at
    matrices or layers, for `levels`, for the `clip` of `dgc`, for a model that is not sharded like that, with all that
    it trains, and for one that has an all-reduce hook already.
    """
    config = exchange_of(config)
    check_config(config)
    trained = [each for each in model.parameters() if each.requires_grad]
    check_types(trained)
    if not isinstance(config, FLAT):
        raise ValueError(f"`{config.kind}` looks at matrices or layers, and a shard has none: give `topk`")
    if isinstance(config, DgcConfig) and config.clip is not None:
        raise ValueError(
            f"`clip` must be null where a model is sharded, got {config.clip:g}: each shard would be clipped by a norm "
            "of its own; leave it out"
        )
    if config.level_policy != "static":
        raise ValueError(f"`levels` must be `static` where a model is sharded, got `{config.level_policy}`")
    shards = _shards_of(model)
    together = _sharded_together(model)
    own = {name: _own_parameters(modules) for name, modules in together.items()}
    _check_shards(model, {each for parameters in own.values() for each in parameters})
    fsdp_states = {name: together[name][0]._get_fsdp_state() for name, parameters in own.items() if parameters}
    groups = {name: state._fsdp_param_group for name, state in fsdp_states.items()}
    _check_free(groups.values())
    given = {"exchange": config.model_dump(mode="json"), "seed": seed}
    check_agreement(given | {"model": named_shapes(model.named_parameters())}, trained[0].device)
    node_links = _between_replicas(shards, trained[0].device)
    hooks = {}
    for name, group in groups.items():
        hooks[name] = ShardHook(own[name], config, node_links, group=group, num_shards=len(shards), seed=seed)
        together[name][0].set_all_reduce_hook(hooks[name].exchange)  # which all of them share
    peers = range(dist.get_rank() % len(shards), dist.get_world_size(), len(shards))
    return CompressedReplicas(config, hooks, node_links, peers=peers)


def _check_free(groups: Iterable[Any]) -> None:
    """Raise ValueError if one of FSDP's groups of parameters has an all-reduce hook: a second one would replace it."""
    if any(each._all_reduce_hook is not None for each in groups):
        raise ValueError(
            "`model` must have no all-reduce hook, and it has one already, of `compress_replicas` or of somebody else: "
            "shard the model anew"
        )


def _shards_of(model: nn.Module) -> list[int]:
    """Return the ranks that have the shards of this rank's replica."""
    meshes = {each.device_mesh for each in model.parameters() if isinstance(each, DTensor)}
    if len(meshes) == 1 and (mesh := meshes.pop()).ndim == 1:
        ranks: list[int] = mesh.mesh.tolist()
        first = dist.get_rank() // len(ranks) * len(ranks)
        if ranks == list(range(first, first + len(ranks))) and len(ranks) < dist.get_world_size():
            return ranks
    raise ValueError(
        "`model` must be sharded over one dimension of a mesh of replicas x shards, where replicas are neighbouring "
        'ranks: `fully_shard(model, mesh=mesh["shard"])`'
    )


def _check_shards(model: nn.Module, reduced: Collection[DTensor]) -> None:
    """Raise ValueError for a trained parameter that is not among `reduced`, or is sharded by another than dimension 0.

    Replicas would not exchange the first, and drift apart unseen. A shard of the second is not a part of its rows.
    """
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        if not isinstance(parameter, DTensor) or parameter not in reduced:
            raise ValueError(
                f"`model`: parameter `{name}` must be sharded to be exchanged, and no `fully_shard` has it: call "
                "fully_shard on the module that holds it, or freeze it"
            )
        if parameter.placements != (Shard(0),):
            raise ValueError(
                f"`model`: parameter `{name}` must be sharded by dimension 0, got {parameter.placements}: leave out "
                "`shard_placement_fn`"
            )


def _between_replicas(shards: list[int], device: torch.device) -> NodeLinks:
    """Return links to the ranks that have this rank's shard of other replicas; collective."""
    size = len(shards)
    num_replicas = dist.get_world_size() // size
    node_links = NodeLinks(Topology.stated(num_replicas, 1), dist.get_rank() // size, Unpaced(), device=device)
    for shard in range(size):
        ranks = [replica * size + shard for replica in range(num_replicas)]
        group = dist.new_group(ranks, timeout=default_timeout())
        if shard == dist.get_rank() % size:
            node_links.between.group = group
    return node_links


def _sharded_together(model: nn.Module) -> dict[str, list[Any]]:
    """Return the modules of each call of `fully_shard`, which takes several, by the name of the first."""
    together: dict[Any, dict[str, Any]] = {}
    for name, module in model.named_modules():
        if isinstance(module, FSDPModule):
            together.setdefault(module._get_fsdp_state(), {})[name] = module
    return {next(iter(each)): [*each.values()] for each in together.values()}


def _own_parameters(modules: Sequence[nn.Module]) -> list[DTensor]:
    """Return the trained parameters that FSDP reduces together for `modules`."""
    inside = {each for module in modules for each in module.modules() if isinstance(each, FSDPModule)}
    others = {parameter for each in inside.difference(modules) for parameter in each.parameters()}
    found = dict.fromkeys(parameter for module in modules for parameter in module.parameters())
    return [each for each in found if each.requires_grad and each not in others]  # type: ignore[misc]


class ShardHook:
    """Exchanges this rank's shard of the gradients of `parameters`, flat and padded, as FSDP has them."""

    def __init__(
        self,
        parameters: list[DTensor],
        config: ExchangeConfig,
        node_links: NodeLinks,
        *,
        group: Any,
        num_shards: int,
        seed: int,
    ) -> None:
        device = parameters[0].device
        length = sum(ceil(each.shape[0] / num_shards) * prod(each.shape[1:]) for each in parameters)
        self.has_stepped = False
        self._group = group  # FSDP's, of these parameters
        self._no_loss = torch.zeros((), device=device)  # the script has it
        self._buffer = GradientBuffer([(length,)], config, device)
        self.between = between_nodes(config, self._buffer, node_links, seed=seed)

    def exchange(self, shard: Tensor) -> None:
        """Replace `shard` `(n,)` by its mean over the replicas, in place.

        Raises ValueError for another length, and for a type in which FSDP is to reduce and that cannot hold the mean.
        Raises RuntimeError if the replicas are to exchange nothing in this backward: FSDP calls its hook all the same.
        """
        if not self._group.all_reduce_grads:
            raise RuntimeError(
                "`set_requires_all_reduce(False)` has no effect on an exchange between replicas: accumulate with "
                "`model.set_requires_gradient_sync(False)`, in all backwards of a step but the last"
            )
        if shard.shape != self._buffer.gradient.shape:
            expected = len(self._buffer.gradient)
            raise ValueError(f"a step must use all trained parameters, {expected} entries here, got {len(shard)}")
        if shard.dtype not in TYPES:
            raise ValueError(f"`reduce_dtype` must be torch.float32 or torch.bfloat16, got {shard.dtype}")
        self.has_stepped = True
        self._buffer.expect()
        self._buffer.gradient.copy_(shard)
        self._buffer.finish()
        if self.between.step(self._no_loss, None, 1.0).diverged:
            shard.fill_(torch.inf)
        else:
            shard.copy_(self._buffer.gradient)


class CompressedReplicas(Handle):
    """The handle of one model's exchanges between the replicas that FSDP2 shards."""

    def __init__(
        self, config: ExchangeConfig, hooks: Mapping[str, ShardHook], node_links: NodeLinks, *, peers: Sequence[int]
    ) -> None:
        exchanges = {name: hook.between for name, hook in hooks.items()}
        super().__init__(exchanges, {"exchange": config.model_dump(mode="json")}, node_links, peers=peers)
        self._hooks = hooks

    @property
    def _has_stepped(self) -> bool:
        return any(hook.has_stepped for hook in self._hooks.values())
