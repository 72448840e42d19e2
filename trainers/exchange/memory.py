"""Memories: what compression left behind, kept for later steps.

A step writes the next state beside the current one, and `commit` takes it over: until all ranks have agreed that a
step was finite, nothing has changed. All tensors are float32 `(d,)`, per rank, never averaged.
"""

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from trainers.exchange.kernels.entries import Entries, Velocity
from trainers.exchange.kernels.operators import compact
from trainers.exchange.kernels.quantile import strided
from trainers.exchange.kernels.scatter import clear, scatter_add, take
from trainers.exchange.kernels.select import MomentumCorrection, select
from trainers.snapshot import Kept
from trainers.spec.sparse import SparseConfig

#: What a memory may be multiplied by at once: float32 still holds the squares of what comes out.
MOST_RISE = 2.0**32


class Selection(NamedTuple):
    """Entries of a bucket that a rank sends, from the start of the bucket; scalars are beside them."""

    entries: Entries
    wanted: Tensor  # int32: entries that qualified, whether or not there was room for them
    is_finite: Tensor  # bool: whether all entries of the corrected gradient were
    note: Tensor  # float32: what the selector tells all ranks with the bucket; they learn the mean

    @classmethod
    def of(cls, entries: Entries, wanted: Tensor | int, is_finite: Tensor) -> "Selection":
        """Return a selection whose selector has no more to say."""
        if isinstance(wanted, int):
            wanted = torch.full_like(is_finite, wanted, dtype=torch.int32)
        return cls(entries, wanted, is_finite, note=torch.zeros_like(is_finite, dtype=torch.float32))


class Memory(Protocol):
    """Corrects a bucket's gradient by what earlier steps did not send, and keeps what this one does not."""

    def select(self, gradient: Tensor, span: slice, *, threshold: Tensor, capacity: int) -> Selection:
        """Return the first `capacity` corrected entries with magnitude >= `threshold`, in one pass; keep the others.

        The threshold is a scalar beside the gradient.
        """

    def corrected(self, gradient: Tensor, span: slice) -> Tensor:
        """Return the corrected gradient of the bucket; all of it is kept until `take` or `take_all`."""

    def sample(self, gradient: Tensor, span: slice, of: int | None = None) -> Tensor:
        """Return evenly spread entries of the corrected gradient, without correcting the others.

        They are as many as the bucket's share of a sample `of` so many entries; None: of the bucket alone.
        """

    def take(self, span: slice, indices: Tensor) -> Entries:
        """Return the corrected entries at `indices`, which are sent and no longer kept."""

    def take_all(self, span: slice) -> None:
        """The whole bucket is sent, none of it is kept."""

    def keep(self, span: slice, errors: Entries) -> None:
        """Of the entries that are sent, `errors` did not go through: keep that too."""

    def receive(self, mean: Tensor, span: slice) -> None:
        """Turn the mean of what the ranks sent into the gradient to step with, in place."""

    def rescale(self, factor: float) -> None:
        """Use the memory times `factor` from the coming step on."""

    def commit(self) -> None:
        """Take over what the step left."""

    def skip(self) -> None:
        """Leave what was kept as if it had not been sent: the step applied nothing, at a rate of 0."""

    def inherit(self, kept: Kept) -> None:
        """Take over this rank's share of an old rank's memory, as `Exchange.inherit` says."""

    def add_owned(self, means: Tensor, span: slice) -> None:
        """Keep `means` too, which an old rank held of the bucket for all."""

    def tensors(self) -> dict[str, Tensor]: ...


class StatePair:
    """A state vector, and the one that the running step writes."""

    def __init__(self, like: Tensor) -> None:
        self.now, self.next = torch.zeros_like(like), torch.zeros_like(like)

    def commit(self) -> None:
        self.now, self.next = self.next, self.now

    def inherit(self, vector: Tensor, kept: Kept) -> None:
        """Add `vector`'s part of the mean over the old ranks."""
        self.now.add_(vector.to(self.now.device), alpha=1 / kept.of)


class MemoryBase:
    """The base of memories: ranks step with the mean as it is, and the memory follows no learning rate."""

    def receive(self, mean: Tensor, span: slice) -> None:
        return

    def rescale(self, factor: float) -> None:
        raise AssertionError("the configuration refuses this")

    def skip(self) -> None:
        return


class Residual(MemoryBase):
    """Error feedback: the unsent part is added to the next gradient (Karimireddy et al., 2019, Algorithm 1).

    A share `decay` of it is, from one step to the next.
    """

    def __init__(self, like: Tensor, *, decay: float = 1.0) -> None:
        self._residual = StatePair(like)
        self._decay = self._factor = decay

    def select(self, gradient: Tensor, span: slice, *, threshold: Tensor, capacity: int) -> Selection:
        room = Entries.room(capacity, len(gradient), gradient.device)
        kept = self._residual.next[span]
        return Selection.of(room, *select(gradient, self._before(span), threshold, next_residual=kept, room=room))

    def corrected(self, gradient: Tensor, span: slice) -> Tensor:
        return torch.add(gradient, self._before(span), out=self._residual.next[span])

    def sample(self, gradient: Tensor, span: slice, of: int | None = None) -> Tensor:
        return strided(gradient, of) + self._factor * strided(self._residual.now[span], of)

    def take(self, span: slice, indices: Tensor) -> Entries:
        kept = self._residual.next[span]
        taken = take(kept, indices)
        clear(kept, indices)
        return taken

    def take_all(self, span: slice) -> None:
        self._residual.next[span].zero_()

    def keep(self, span: slice, errors: Entries) -> None:
        scatter_add(self._residual.next[span], errors)

    def rescale(self, factor: float) -> None:
        self._factor = self._decay * factor

    def commit(self) -> None:
        self._residual.commit()

    def inherit(self, kept: Kept) -> None:
        self._residual.inherit(kept.tensors["residual"], kept)

    def add_owned(self, means: Tensor, span: slice) -> None:
        self._residual.now[span] += means.to(self._residual.now.device)

    def tensors(self) -> dict[str, Tensor]:
        return {"residual": self._residual.now}

    def _before(self, span: slice) -> Tensor:
        before = self._residual.now[span]
        return before if self._factor == 1.0 else before * self._factor


class Accumulation(MemoryBase):
    """Momentum before compression: velocity is sent, and accumulated where it is not (Lin et al., 2018, section 3)."""

    def __init__(self, like: Tensor, config: SparseConfig) -> None:
        assert config.momentum_correction is not None
        self._correction = MomentumCorrection(config.momentum_correction, config.nesterov, config.masking)
        self._momentum, self._sum = StatePair(like), StatePair(like)  # the paper's u and v

    def select(self, gradient: Tensor, span: slice, *, threshold: Tensor, capacity: int) -> Selection:
        room = Entries.room(capacity, len(gradient), gradient.device)
        now = Velocity(self._momentum.now[span], self._sum.now[span])
        after = Velocity(self._momentum.next[span], self._sum.next[span])
        return Selection.of(room, *self._correction.select(gradient, now, threshold, next_state=after, room=room))

    def corrected(self, gradient: Tensor, span: slice) -> Tensor:
        decay, to_momentum, to_sum = self._correction.factors
        momentum = torch.mul(self._momentum.now[span], decay, out=self._momentum.next[span])
        momentum.add_(gradient, alpha=to_momentum)
        return torch.add(self._sum.now[span], momentum, out=self._sum.next[span]).add_(gradient, alpha=to_sum)

    def sample(self, gradient: Tensor, span: slice, of: int | None = None) -> Tensor:
        decay, to_momentum, to_sum = self._correction.factors
        momentum = decay * strided(self._momentum.now[span], of) + to_momentum * strided(gradient, of)
        return strided(self._sum.now[span], of) + momentum + to_sum * strided(gradient, of)

    def take(self, span: slice, indices: Tensor) -> Entries:
        total = self._sum.next[span]
        taken = take(total, indices)
        clear(total, indices)
        if self._correction.masks:
            clear(self._momentum.next[span], indices)
        return taken

    def take_all(self, span: slice) -> None:
        self._sum.next[span].zero_()
        if self._correction.masks:
            self._momentum.next[span].zero_()

    def keep(self, span: slice, errors: Entries) -> None:
        scatter_add(self._sum.next[span], errors)

    def commit(self) -> None:
        self._momentum.commit()
        self._sum.commit()

    def inherit(self, kept: Kept) -> None:
        self._momentum.inherit(kept.tensors["momentum"], kept)
        self._sum.inherit(kept.tensors["residual"], kept)

    def add_owned(self, means: Tensor, span: slice) -> None:
        self._sum.now[span] += means.to(self._sum.now.device)

    def tensors(self) -> dict[str, Tensor]:
        return {"momentum": self._momentum.now, "residual": self._sum.now}


class Differences(MemoryBase):
    """EF21: ranks send how their gradient differs from what was sent before (Richtarik et al., 2021, Algorithm 2)."""

    def __init__(self, like: Tensor) -> None:
        self._sent, self._mean = StatePair(like), StatePair(like)  # this rank's estimate, and the mean of all ranks'
        self._difference = torch.zeros_like(like)

    def select(self, gradient: Tensor, span: slice, *, threshold: Tensor, capacity: int) -> Selection:
        difference, room = self.corrected(gradient, span), Entries.room(capacity, len(gradient), gradient.device)
        selected = compact(difference, threshold, room)
        return Selection.of(self.take(span, room.indices), *selected)

    def corrected(self, gradient: Tensor, span: slice) -> Tensor:
        self._sent.next[span].copy_(self._sent.now[span])
        return torch.sub(gradient, self._sent.now[span], out=self._difference[span])

    def sample(self, gradient: Tensor, span: slice, of: int | None = None) -> Tensor:
        return strided(gradient, of) - strided(self._sent.now[span], of)

    def take(self, span: slice, indices: Tensor) -> Entries:
        taken = take(self._difference[span], indices)
        scatter_add(self._sent.next[span], taken)
        return taken

    def take_all(self, span: slice) -> None:
        self._sent.next[span] += self._difference[span]

    def keep(self, span: slice, errors: Entries) -> None:
        scatter_add(self._sent.next[span], errors, -1.0)

    def receive(self, mean: Tensor, span: slice) -> None:
        mean += self._mean.now[span]
        self._mean.next[span].copy_(mean)

    def commit(self) -> None:
        self._sent.commit()
        self._mean.commit()

    def inherit(self, kept: Kept) -> None:
        """Take the old ranks' mean for this one's estimate too: then the mean of all estimates is that again."""
        if kept.index == 0:
            for pair in (self._sent, self._mean):
                pair.now.copy_(kept.tensors["mean"])

    def add_owned(self, means: Tensor, span: slice) -> None:
        return  # these are differences to the old estimates, which are gone

    def tensors(self) -> dict[str, Tensor]:
        return {"sent": self._sent.now, "mean": self._mean.now}


class Nothing(MemoryBase):
    """No memory: entries that are not sent are lost."""

    def __init__(self, like: Tensor) -> None:
        self._corrected = torch.zeros_like(like)

    def select(self, gradient: Tensor, span: slice, *, threshold: Tensor, capacity: int) -> Selection:
        room = Entries.room(capacity, len(gradient), gradient.device)
        return Selection.of(room, *select(gradient, None, threshold, next_residual=None, room=room))

    def corrected(self, gradient: Tensor, span: slice) -> Tensor:
        return self._corrected[span].copy_(gradient)

    def sample(self, gradient: Tensor, span: slice, of: int | None = None) -> Tensor:
        return strided(gradient, of).clone()

    def take(self, span: slice, indices: Tensor) -> Entries:
        return take(self._corrected[span], indices)

    def take_all(self, span: slice) -> None:
        return

    def keep(self, span: slice, errors: Entries) -> None:
        return

    def rescale(self, factor: float) -> None:
        return

    def commit(self) -> None:
        return

    def inherit(self, kept: Kept) -> None:
        return

    def add_owned(self, means: Tensor, span: slice) -> None:
        return

    def tensors(self) -> dict[str, Tensor]:
        return {}


class FollowedRate:
    """The learning rate that a memory counts at: that of the last step whose rate was not 0.

    Karimireddy et al. (2019), Algorithm 1, keep rate x memory, which a change of the rate leaves as it was. At a rate
    of 0 nothing of a memory is applied, however long it became: it stays (`Memory.skip`), and the next rate corrects
    it. A rate is as good as 0 that would multiply the memory by more than `MOST_RISE`.
    """

    def __init__(self) -> None:
        self.last: float | None = None  # the rate; None: there was no step yet

    def correction(self, rate: float) -> float:
        """Return the factor that keeps rate x memory as it was, for a step at `rate`; 1 where nothing does."""
        return self.last / rate if self.last is not None and self.counts(rate) else 1.0

    def commit(self, rate: float) -> None:
        """Count at `rate` from now on, if a memory can."""
        if self.counts(rate):
            self.last = rate

    def load(self, last: float | None) -> None:
        """Go on from a saved `last`; None, and 0, which was saved once: the next step corrects nothing."""
        self.last = last or None

    def counts(self, rate: float) -> bool:
        """Return whether a step at `rate` applies what it sends."""
        return rate > 0 and (self.last is None or self.last <= MOST_RISE * rate)


def build(config: SparseConfig, like: Tensor) -> Memory:
    """Return the memory that `config` asks for, for gradients like `like` `(d,)`."""
    if config.momentum_correction is not None:
        return Accumulation(like, config)
    match config.memory:
        case "residual":
            return Residual(like)
        case "ef21":
            return Differences(like)
        case "none":
            return Nothing(like)
