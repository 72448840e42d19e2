"""Small codes for a vector's entries: rounding to them, packing them into bytes, adding up what they mean.

A code is a uint8 in [0, 2**bits), bits in (1, 2, 4, 8). Packed into B bytes, byte i holds the codes i, i + B, i + 2B
and so on, lowest bits first: whole runs of codes are shifted at once, on any device. Random numbers are SplitMix64's
(Steele et al., OOPSLA 2014), counted by entry, so that one drawn seed gives a CPU and a GPU the same ones.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainers.exchange.kernels.compiled import compiled_later

GOLDEN, FIRST_MIX, SECOND_MIX = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def pack(codes: Tensor, bits: int, packed_out: Tensor) -> None:
    """Write `codes` `(d,)` of `bits` each to `packed_out` `(B,)`, where B = ceil(d bits / 8)."""
    packed_out.zero_()
    for lane, some in enumerate(torch.split(codes, len(packed_out))):
        packed_out[: len(some)].bitwise_or_(some << (bits * lane))


def unpack(packed: Tensor, bits: int, codes_out: Tensor) -> None:
    """Write the codes in `packed` `(B,)` to `codes_out` `(d,)`; the reverse of `pack`."""
    for lane, some in enumerate(torch.split(codes_out, len(packed))):
        torch.bitwise_right_shift(packed[: len(some)], bits * lane, out=some).bitwise_and_(2**bits - 1)


def round_at_random(values: Tensor, scales: Tensor, *, group: int, levels: int, generator: torch.Generator) -> Tensor:
    """Return a code, `levels` + level, for each of `values` `(d,)`, as uint8 `(d,)`.

    The level's mean is `levels` * value / scale, where each run of `group` entries has one of `scales`
    `(ceil(d / group),)`, 0 for a run of zeros; a value beyond its scale gets the last level. Draws one number from
    `generator`, a CPU one.
    """
    seed = int(torch.randint(2**63 - 1, (), generator=generator))
    if values.is_cuda:
        return rounded_by_torch(values, scales.repeat_interleave(group)[: len(values)], levels, seed)
    return torch.from_numpy(_round_at_random(values.numpy(), scales.numpy(), group, levels, seed))


def round_to_nearest(values: Tensor, steps: Tensor, *, group: int, levels: int) -> Tensor:
    """Return a code, `levels` + level, for each of `values` `(d,)`, as uint8 `(d,)`.

    The level is the whole number nearest to value / step, the even one of two, but at most `levels` from zero. Each run
    of `group` entries has one of `steps` `(ceil(d / group),)`. With steps of no more than 11 bits, as in float16, no
    rounding of the quotient moves a level: half-way from one to the next is a float32.
    """
    if values.is_cuda:
        return nearest_by_torch(values, steps.repeat_interleave(group)[: len(values)], levels)
    return torch.from_numpy(_round_to_nearest(values.numpy(), steps.numpy(), group, levels))


def nearest_by_torch(values: Tensor, steps: Tensor, levels: int) -> Tensor:
    """Return the codes of `round_to_nearest` `(d,)`, bit for bit, for one of `steps` `(d,)` per entry."""
    level = (values / steps.where(steps > 0, 1.0)).round_().nan_to_num_(levels).clamp_(-levels, levels)
    return level.add_(levels).to(torch.uint8)


def add_levels(codes: Tensor, steps: Tensor, out: Tensor, *, group: int, zero: float) -> None:
    """Add (code - `zero`) * step to `out` `(d,)` in place; each run of `group` entries has one of `steps`."""
    if out.is_cuda:
        added_by_torch(codes, steps.repeat_interleave(group)[: len(out)], out, zero)
    else:
        edges = np.arange(len(steps) + 1) * group
        _add_levels(codes.numpy(), steps.numpy(), edges, np.float32(zero), out.numpy())


def add_levels_between(codes: Tensor, steps: Tensor, out: Tensor, *, edges: Tensor, zero: float) -> None:
    """Do what `add_levels` does for runs of any length: run i is that from `edges[i]` to `edges[i + 1]`.

    `edges` `(n + 1,)` is on the CPU, from 0 to d.
    """
    if out.is_cuda:
        lengths = edges.diff().to(out.device)
        added_by_torch(codes, steps.repeat_interleave(lengths, output_size=len(out)), out, zero)
    else:
        _add_levels(codes.numpy(), steps.numpy(), edges.numpy(), np.float32(zero), out.numpy())


def add_either(codes: Tensor, lows: Tensor, highs: Tensor, out: Tensor, *, edges: Tensor) -> None:
    """Add the low number of its run to each of `out` `(d,)` whose code is 0, and the high one to others, in place.

    Runs are those of `add_levels_between`, and `lows` and `highs` `(n,)`.
    """
    if out.is_cuda:
        lengths = edges.diff().to(out.device)
        low, high = (each.repeat_interleave(lengths, output_size=len(out)) for each in (lows, highs))
        out.add_(torch.where(codes.bool(), high, low))
    else:
        _add_either(codes.numpy(), lows.numpy(), highs.numpy(), edges.numpy(), out.numpy())


def added_by_torch(codes: Tensor, steps: Tensor, out: Tensor, zero: float) -> None:
    """Do what `add_levels` does, bit for bit, for one of `steps` `(d,)` per entry."""
    out.add_((codes.float() - zero) * steps)  # bytes less a whole number stay bytes, and wrap around


def rounded_by_torch(values: Tensor, scales: Tensor, levels: int, seed: int) -> Tensor:
    """Return the codes of `round_at_random` `(d,)`, bit for bit, for one of `scales` `(d,)` per entry."""
    place = torch.arange(len(values), device=values.device)
    mixed = seed + place * _signed(GOLDEN)
    mixed = (mixed ^ _shifted(mixed, 30)) * _signed(FIRST_MIX)
    mixed = (mixed ^ _shifted(mixed, 27)) * _signed(SECOND_MIX)
    chance = _shifted(mixed, 40).float() * 2.0**-24  # in [0, 1)
    position = (values.abs() / scales.where(scales > 0, 1.0)).clamp(max=1.0) * levels
    level = position.floor()
    level = level + (chance < position - level)
    return level.where(values >= 0, -level).add(levels).to(torch.uint8)


def _signed(bits: int) -> int:
    """Return the int64 of these 64 bits."""
    return bits - 2**64


def _shifted(numbers: Tensor, by: int) -> Tensor:
    """Return `numbers` shifted right with zeros coming in, as for unsigned numbers."""
    return torch.bitwise_and(numbers >> by, 2 ** (64 - by) - 1)


@compiled_later
def _round_at_random(
    values: NDArray[np.float32], scales: NDArray[np.float32], group: int, levels: int, seed: int
) -> NDArray[np.uint8]:
    codes = np.empty(len(values), np.uint8)
    for run in range(len(scales)):
        start = run * group
        mine, some = values[start : start + group], codes[start : start + group]
        scale = scales[run] if scales[run] > 0 else np.float32(1.0)
        first = np.uint64(seed) + np.uint64(start) * np.uint64(GOLDEN)
        for i in range(len(mine)):
            mixed = first + np.uint64(i) * np.uint64(GOLDEN)
            mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(FIRST_MIX)
            mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(SECOND_MIX)
            chance = np.float32(mixed >> np.uint64(40)) * np.float32(2.0**-24)
            position = min(abs(mine[i]) / scale, np.float32(1.0)) * np.float32(levels)
            level = np.int32(position)
            level += np.int32(chance < position - np.float32(level))
            some[i] = levels + (level if mine[i] >= 0 else -level)
    return codes


@compiled_later
def _round_to_nearest(
    values: NDArray[np.float32], steps: NDArray[np.float32], group: int, levels: int
) -> NDArray[np.uint8]:
    codes, most = np.empty(len(values), np.uint8), np.float32(levels)
    for run in range(len(steps)):
        mine, some = values[run * group : (run + 1) * group], codes[run * group : (run + 1) * group]
        step = steps[run] if steps[run] > 0 else np.float32(1.0)
        for i in range(len(mine)):
            level = np.rint(mine[i] / step)
            level = level if level < most else most  # NaN too: a code must not spill into its neighbours
            level = level if level > -most else -most
            some[i] = np.int32(level + most)
    return codes


@compiled_later
def _add_levels(
    codes: NDArray[np.uint8],
    steps: NDArray[np.float32],
    edges: NDArray[np.int64],
    zero: np.float32,
    out: NDArray[np.float32],
) -> None:
    for run in range(len(steps)):
        mine, sums = codes[edges[run] : edges[run + 1]], out[edges[run] : edges[run + 1]]
        step = steps[run]
        for i in range(len(mine)):
            sums[i] += (np.float32(mine[i]) - zero) * step


@compiled_later
def _add_either(
    codes: NDArray[np.uint8],
    lows: NDArray[np.float32],
    highs: NDArray[np.float32],
    edges: NDArray[np.int64],
    out: NDArray[np.float32],
) -> None:
    for run in range(len(lows)):
        mine, sums = codes[edges[run] : edges[run + 1]], out[edges[run] : edges[run + 1]]
        low, high = lows[run], highs[run]
        for i in range(len(mine)):
            sums[i] += high if mine[i] else low
