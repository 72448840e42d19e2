"""The communication hook of a DistributedDataParallel, which torch registers once and never lets go of."""

from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import ref

import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel


class Hook:
    """A hook of a model, which copies and pickles of the model have not: `call` is of this one alone."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    def __call__(self, *given: Any) -> Any:
        return self._call(*given)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return partial, (_pass,)


def _pass(*_: object) -> None:
    """Do nothing."""


#: Takes a `torch.distributed.GradBucket`; its future has the bucket's words `(n,)` when they are exchanged.
Send = Callable[[dist.GradBucket], Future[Tensor]]  # type: ignore[name-defined]


class Outlet:
    """Sends the buckets of one DistributedDataParallel by what is plugged in, else by torch's `allreduce_hook`.

    It holds nothing of an exchange that was unplugged. The model holds it, so that both are freed together, and a copy
    of the model has none.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._all_reduce: Send = partial(allreduce_hook, group)
        self.send: Send = self._all_reduce

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        return type(None), ()  # what a copied or pickled model has in its place

    @property
    def is_free(self) -> bool:
        """True while nothing is plugged in."""
        return self.send is self._all_reduce

    def plug(self, send: Send) -> None:
        """Send buckets by `send` from now on."""
        self.send = send

    def unplug(self) -> None:
        """Average buckets by torch's `allreduce_hook` again."""
        self.send = self._all_reduce


class _BucketHook:
    """Gives `outlet` the buckets of torch's reducer. A copied or pickled model names torch's own hook in its place."""

    def __init__(self, outlet: Outlet) -> None:
        self._held = ref(outlet)  # what the reducer holds, no garbage collector sees
        self.__name__ = self.__qualname__ = "wiretune"  # torch asks for them

    def __call__(self, _: None, bucket: dist.GradBucket) -> Future[Tensor]:  # type: ignore[name-defined]
        outlet = self._held()
        assert outlet is not None  # the model is in its backward
        return outlet.send(bucket)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return partial, (allreduce_hook,)


#: The attribute of a model that is its outlet.
_NAME = "_wiretune_outlet"


def _outlet_in(ddp: DistributedDataParallel) -> Outlet | None:
    return vars(ddp).get(_NAME)


def check_free(ddp: DistributedDataParallel) -> None:
    """Raise ValueError if `ddp` has an exchange."""
    if (outlet := _outlet_in(ddp)) is not None and not outlet.is_free:
        raise ValueError(
            "`model` must have one exchange, and it has one already: first `detach` the handle of `attach`; "
            "`compress_gradients` stays, so wrap the module in a new DistributedDataParallel"
        )


def outlet_of(ddp: DistributedDataParallel) -> Outlet:
    """Return the outlet of `ddp`, whose hook is registered at the first call.

    Raises ValueError if somebody else has registered one.
    """
    outlet = _outlet_in(ddp)
    if outlet is None:
        outlet = Outlet(ddp.process_group)
        try:
            ddp.register_comm_hook(None, _BucketHook(outlet))
        except RuntimeError as error:
            raise ValueError(
                "`model` must have no communication hook, and somebody has registered one, of which torch takes one "
                "alone: wrap the module in a new DistributedDataParallel"
            ) from error
        vars(ddp)[_NAME] = outlet
    return outlet
