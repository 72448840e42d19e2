"""Memories: what compression left out of a gradient, kept for later steps (error feedback).

A step writes the next state beside the current one, and `commit` makes it current. So nothing changes until all ranks
have agreed that the step was finite. All tensors are float32 `(d,)`, belong to one rank, and are never averaged.
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

#: The largest factor to multiply a memory by at once: the squares of the result still fit float32.
MOST_RISE = 2.0**32


class Selection(NamedTuple):
    """The entries of a bucket that a rank sends. Indices count from the bucket's start; scalars are on its device."""

    entries: Entries
    wanted: Tensor  # int32: entries that qualified, whether or not there was room for them
    is_finite: Tensor  # bool: whether all entries of the corrected gradient were
    note: Tensor  # float32: a number from the selector that travels with the bucket; all ranks get its mean

    @classmethod
    def of(cls, entries: Entries, wanted: Tensor | int, is_finite: Tensor) -> "Selection":
        """Return a selection without a note."""
        if isinstance(wanted, int):
            wanted = torch.full_like(is_finite, wanted, dtype=torch.int32)
        return cls(entries, wanted, is_finite, note=torch.zeros_like(is_finite, dtype=torch.float32))


class Memory(Protocol):
    """Corrects a bucket's gradient by what earlier steps did not send, and keeps what this step does not send."""

    def select(self, gradient: Tensor, span: slice, *, threshold: Tensor, capacity: int) -> Selection:
        """Return the first `capacity` corrected entries with magnitude >= `threshold`, in one pass; keep the others.

        `threshold` is a scalar on the gradient's device.
        """

    def corrected(self, gradient: Tensor, span: slice) -> Tensor:
        """Return the bucket's corrected gradient. The memory keeps all of it until `take`."""

    def sample(self, gradient: Tensor, span: slice, of: int | None = None) -> Tensor:
        """Return evenly spread entries of the corrected gradient, without correcting the others.

        Their number is the bucket's share of a sample of a vector of `of` entries; None: of the bucket alone.
        """

    def take(self, span: slice, indices: Tensor) -> Entries:
        """Return the corrected entries at `indices`, to be sent, and remove them from the memory."""

    def take_all(self, gradient: Tensor, span: slice) -> None:
        """Correct the bucket's gradient in place, and keep nothing of it: all of it is sent."""

    def keep(self, span: slice, errors: Entries) -> None:
        """Keep `errors` too: the part of the sent entries that the message lost."""

    def receive(self, mean: Tensor, span: slice) -> None:
        """Turn the mean of what the ranks sent into the gradient to step with, in place."""

    def rescale(self, factor: float) -> None:
        """Use the memory times `factor` from the coming step on."""

    def commit(self) -> None:
        """Make the state that the step wrote the current one."""

    def skip(self) -> None:
        """Keep the memory as if nothing had been sent: at a rate of 0, the step applied nothing."""

    def inherit(self, kept: Kept) -> None:
        """Take over this rank's share of an old rank's memory, as `Exchange.inherit` says."""

    def add_owned(self, means: Tensor, span: slice) -> None:
        """Keep `means` too, the part of the bucket that an old rank held as owner for all ranks."""

    def tensors(self) -> dict[str, Tensor]: ...


class StatePair:
    """The current state vector `now`, and `next`, which the running step writes."""

    def __init__(self, like: Tensor) -> None:
        self.now, self.next = torch.zeros_like(like), torch.zeros_like(like)

    def commit(self) -> None:
        self.now, self.next = self.next, self.now

    def inherit(self, vector: Tensor, kept: Kept) -> None:
        """Add an old rank's `vector`, divided by the number of old ranks."""
        self.now.add_(vector.to(self.now.device), alpha=1 / kept.of)


class MemoryBase:
    """Base of memories. Ranks step with the mean as it is, and the memory ignores the learning rate."""

    def receive(self, mean: Tensor, span: slice) -> None:
        return

    def rescale(self, factor: float) -> None:
        raise AssertionError("the configuration refuses this")

    def skip(self) -> None:
        return


class Residual(MemoryBase):
    """Error feedback: the residual is added to the next gradient (Karimireddy et al., 2019, Algorithm 1).

    The residual is multiplied by `decay` before each step.
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

    def take_all(self, gradient: Tensor, span: slice) -> None:
        gradient += self._before(span)
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
    """Momentum correction: send the largest accumulated velocities, keep the others (Lin et al., 2018, section 3)."""

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

    def take_all(self, gradient: Tensor, span: slice) -> None:
        gradient.copy_(self.corrected(gradient, span))
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
    """EF21: send how the gradient differs from this rank's estimate of it (Richtarik et al., 2021, Algorithm 2)."""

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

    def take_all(self, gradient: Tensor, span: slice) -> None:
        gradient.copy_(self.corrected(gradient, span))
        self._sent.next[span] += gradient

    def keep(self, span: slice, errors: Entries) -> None:
        scatter_add(self._sent.next[span], errors, -1.0)

    def receive(self, mean: Tensor, span: slice) -> None:
        mean += self._mean.now[span]
        self._mean.next[span].copy_(mean)

    def commit(self) -> None:
        self._sent.commit()
        self._mean.commit()

    def inherit(self, kept: Kept) -> None:
        """Use the old mean as this rank's estimate too, so that the mean of all estimates is unchanged."""
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

    def take_all(self, gradient: Tensor, span: slice) -> None:
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
    """The learning rate that a memory was scaled for: that of the last step whose rate was not 0.

    Karimireddy et al. (2019), Algorithm 1, keep rate x memory, which must not change when the rate does. A step at a
    rate of 0 applies nothing, so the memory stays (`Memory.skip`) until the next rate rescales it. A rate also counts
    as 0 if it would multiply the memory by more than `MOST_RISE`.
    """

    def __init__(self) -> None:
        self.last: float | None = None  # the rate; None: there was no step yet

    def correction(self, rate: float) -> float:
        """Return the factor that keeps rate x memory constant for a step at `rate`; 1 if there is none."""
        return self.last / rate if self.last is not None and self.counts(rate) else 1.0

    def commit(self, rate: float) -> None:
        """Remember `rate`, unless it counts as 0."""
        if self.counts(rate):
            self.last = rate

    def load(self, last: float | None) -> None:
        """Resume from a saved `last`. After None, or the 0 of old checkpoints, the next step corrects nothing."""
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
