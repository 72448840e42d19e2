"""One step's gradient exchange, composed of compressor, memory and wire.

Each step runs one collective of a shape that all ranks know. Loss and a finite flag ride in it, so that all
ranks know the mean loss, and stop at the same step when a loss or gradient is not finite anywhere: then
nothing that outlives the step (parameters, residual) has changed.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from trainers import cost
from trainers.config import ExchangeConfig, ThresholdConfig
from trainers.exchange.aggregate import Wire
from trainers.exchange.buffer import GradientBuffer
from trainers.exchange.compressors.threshold import HardThreshold, sampled_threshold
from trainers.exchange.kernels.sparse import scatter_add, select
from trainers.exchange.memory import Residual
from trainers.segment import Purpose


@dataclass(frozen=True)
class Exchanged:
    """What all ranks know after an exchange."""

    loss: float = float("nan")  # mean over the ranks
    diverged: bool = False  # a loss or a gradient was not finite; the gradient in the buffer is of no use
    density: float | None = None  # mean share of entries sent; None: the exchange has no level


DIVERGED = Exchanged(diverged=True)


class Exchange(Protocol):
    """Replaces the local gradient in the buffer by the mean over the ranks."""

    def step(self, loss: Tensor, level: float | None) -> Exchanged:
        """Exchange the buffer's gradient, which belongs to the scalar `loss`; collective."""

    @property
    def threshold(self) -> float | None:
        """The cut-off in force, if there is one."""

    def tensors(self) -> dict[str, Tensor]:
        """Return the live state of this rank, by name."""

    def scalars(self) -> dict[str, Any]:
        """Return the state outside tensors, JSON-compatible."""

    def load_scalars(self, scalars: dict[str, Any]) -> None: ...


def build(config: ExchangeConfig, buffer: GradientBuffer, wire: Wire) -> Exchange:
    """Return the exchange that `config` describes."""
    if isinstance(config, ThresholdConfig):
        return ThresholdExchange(config, buffer, wire)
    return DenseExchange(buffer, wire)


@dataclass(frozen=True)
class _Reduced:
    is_finite: bool
    loss: float
    wanted: float  # mean share over the ranks


@torch.no_grad()
def _all_reduce(buffer: GradientBuffer, wire: Wire, *, loss: Tensor, wanted: float = 0.0) -> _Reduced:
    """Average the whole buffer over the ranks, with the control words (loss, finite flag, share wanted)."""
    buffer.control[0] = loss
    buffer.control[1] = float(buffer.is_finite() and bool(torch.isfinite(loss)))
    buffer.control[2] = wanted
    parts: dict[Purpose, int] = {
        "gradient": cost.WORD_BYTES * buffer.num_elements,
        "control": cost.WORD_BYTES * cost.CONTROL_WORDS,
    }
    wire.all_reduce_sum(buffer.words, parts)
    mean_loss, num_finite, wanted_sum = buffer.control.tolist()
    buffer.gradient.div_(wire.num_workers)
    return _Reduced(
        is_finite=num_finite == wire.num_workers,
        loss=mean_loss / wire.num_workers,
        wanted=wanted_sum / wire.num_workers,
    )


class DenseExchange:
    """Sends everything in one all-reduce: the trivial compressor and memory."""

    threshold = None

    def __init__(self, buffer: GradientBuffer, wire: Wire) -> None:
        self._buffer, self._wire = buffer, wire

    def step(self, loss: Tensor, level: float | None) -> Exchanged:
        reduced = _all_reduce(self._buffer, self._wire, loss=loss)
        return Exchanged(loss=reduced.loss) if reduced.is_finite else DIVERGED

    def tensors(self) -> dict[str, Tensor]:
        return {}

    def scalars(self) -> dict[str, Any]:
        return {}

    def load_scalars(self, scalars: dict[str, Any]) -> None:
        return


class ThresholdExchange:
    """Hard threshold with error feedback over one padded all-gather; dense where that sends fewer bytes."""

    def __init__(self, config: ThresholdConfig, buffer: GradientBuffer, wire: Wire) -> None:
        self._buffer, self._wire = buffer, wire
        self._compressor = HardThreshold(config, buffer.num_elements)
        self._residual = Residual(buffer.gradient)

    @property
    def threshold(self) -> float | None:
        return self._compressor.state.threshold

    @torch.no_grad()
    def step(self, loss: Tensor, level: float | None) -> Exchanged:
        compressor = self._compressor
        level = compressor.check_level(level)
        self._residual.add_to(self._buffer.gradient)
        if compressor.sends_all(level):
            return self._dense(loss, level=level)
        if compressor.config.search == "absolute":
            compressor.use_absolute(level)
        elif compressor.needs_calibration(level) and not self._calibrate(level):
            return DIVERGED
        if cost.prefers_dense(compressor.state.capacity, self._buffer.num_elements, self._wire.num_workers):
            return self._dense(loss, level=level)
        return self._sparse(loss)

    def _calibrate(self, level: float) -> bool:
        """Agree on lambda for `level`; returns whether all gradients were finite."""
        buffer = self._buffer
        estimate = sampled_threshold(buffer.gradient, level) if buffer.is_finite() else float("nan")
        agreed = self._wire.mean(estimate)
        if agreed != agreed:
            return False
        self._compressor.calibrate(level, agreed)
        return True

    def _dense(self, loss: Tensor, *, level: float) -> Exchanged:
        d, compressor = self._buffer.num_elements, self._compressor
        is_asked_for = compressor.sends_all(level)
        wanted = 1.0 if is_asked_for else self._share_wanted()
        reduced = _all_reduce(self._buffer, self._wire, loss=loss, wanted=wanted)
        if not reduced.is_finite:
            return DIVERGED
        self._residual.clear()
        if is_asked_for:
            compressor.forget(level)
        else:
            compressor.observe(most_wanted=reduced.wanted * d, mean_wanted=reduced.wanted * d)
        return Exchanged(loss=reduced.loss, density=1.0)

    def _share_wanted(self) -> float:
        hits = select(self._buffer.gradient, self._compressor.state.threshold)
        return len(hits) / self._buffer.num_elements

    def _sparse(self, loss: Tensor) -> Exchanged:
        corrected, capacity = self._buffer.gradient, self._compressor.state.capacity
        is_finite = self._buffer.is_finite() and bool(torch.isfinite(loss))
        hits = select(corrected, self._compressor.state.threshold)
        # A capacity that is too small leaves entries to the residual; the next one fits what was wanted.
        sent = hits[:capacity]
        rows = self._gather(_Header(len(hits), loss.item(), is_finite), corrected, sent)
        headers = [_Header.unpack(row) for row in rows[:, : cost.CONTROL_WORDS].cpu()]
        if not all(header.is_finite for header in headers):
            return DIVERGED
        self._residual.keep_unsent(corrected, sent)
        counts = [min(header.wanted, capacity) for header in headers]
        _average_rows(corrected, rows[:, cost.CONTROL_WORDS :], counts)
        wanted = [header.wanted for header in headers]
        self._compressor.observe(most_wanted=max(wanted), mean_wanted=sum(wanted) / len(wanted))
        return Exchanged(
            loss=sum(header.loss for header in headers) / len(headers),
            density=sum(counts) / len(counts) / self._buffer.num_elements,
        )

    def _gather(self, header: "_Header", corrected: Tensor, sent: Tensor) -> Tensor:
        """Return all ranks' payloads (int32): rows of [header | indices (capacity) | value bits (same)]."""
        capacity, start = self._compressor.state.capacity, cost.CONTROL_WORDS
        payload = torch.zeros(start + 2 * capacity, dtype=torch.int32, device=corrected.device)
        payload[:start] = header.pack()
        payload[start : start + len(sent)] = sent
        values = payload[start + capacity :].view(torch.float32)
        values[: len(sent)] = corrected[sent]
        parts: dict[Purpose, int] = {
            "control": cost.WORD_BYTES * cost.CONTROL_WORDS,
            "gradient": cost.ENTRY_BYTES * len(sent),
            "padding": cost.ENTRY_BYTES * (capacity - len(sent)),
        }
        return self._wire.all_gather(payload, parts)

    def tensors(self) -> dict[str, Tensor]:
        return {"residual": self._residual.values}

    def scalars(self) -> dict[str, Any]:
        return self._compressor.scalars()

    def load_scalars(self, scalars: dict[str, Any]) -> None:
        self._compressor.load_scalars(scalars)


@dataclass(frozen=True)
class _Header:
    """The control words of a sparse payload."""

    wanted: int  # entries that reached the threshold, whether or not there was room for them
    loss: float
    is_finite: bool

    def pack(self) -> Tensor:
        loss_bits = torch.tensor([self.loss]).view(torch.int32).item()
        return torch.tensor([self.wanted, loss_bits, self.is_finite], dtype=torch.int32)

    @classmethod
    def unpack(cls, words: Tensor) -> "_Header":
        wanted, _, flag = words.tolist()
        return cls(wanted, words[1:2].view(torch.float32).item(), bool(flag))


def _average_rows(out: Tensor, rows: Tensor, counts: list[int]) -> None:
    """Overwrite `out` `(d,)` by the mean of the sparse `rows` `(N, 2 x capacity)`, filled up to `counts`."""
    capacity = rows.shape[1] // 2
    out.zero_()
    # One rank after the other: the order of additions, and with it every bit, is the same everywhere.
    for row, count in zip(rows, counts, strict=True):
        scatter_add(out, row[:count], row[capacity : capacity + count].view(torch.float32))
    out.div_(len(rows))
