"""Two-way compression as published, with one server for all entries: the reference for real ranks."""

from collections.abc import Sequence

import numpy as np
from local_definitions import Array, Traces, Workers
from sync_harness import D, Problem


def signs(values: Array, block: int) -> Array:
    """Return what is sent of `values` `(..., D)`: of each block the signs, times the mean magnitude."""
    blocks = np.split(values, range(block, D, block), axis=-1)
    sent = [np.where(each >= 0, 1.0, -1.0) * np.abs(each).mean(axis=-1, keepdims=True) for each in blocks]
    return np.concatenate(sent, axis=-1)


def integers(values: Array, block: int, *, bits: int) -> Array:
    """Return what is sent of `values` `(..., D)`, float32: of each block whole numbers, times the least scale."""
    most, sent = 2 ** (bits - 1) - 1, []
    for each in np.split(values, range(block, D, block), axis=-1):
        wanted = np.abs(each).max(axis=-1, keepdims=True) / np.float32(most)
        nearest = wanted.astype(np.float16)
        scale = np.where(nearest < wanted, np.nextafter(nearest, np.float16(np.inf)), nearest).astype(np.float32)
        sent.append(scale * np.clip(np.rint(each / np.where(scale > 0, scale, 1)), -most, most))
    return np.concatenate(sent, axis=-1)


def double_squeeze(
    problems: Sequence[Problem], rates: Sequence[float], *, block: int, follows: bool = False, momentum: float = 0.0
) -> Traces:
    """Return dist-EF-SGD where errors follow the rate, and else DoubleSqueeze."""
    workers, trace = Workers(problems), []
    x = error = velocity = workers.start
    of_server, before = np.zeros(D), 0.0
    for rate in rates:
        ratio = before / rate if follows else 1.0
        gradients = workers.gradients(x)
        velocity, before = momentum * velocity + gradients, rate
        corrected = gradients + momentum * velocity + ratio * error
        sent = signs(corrected, block)
        total = sent.mean(axis=0) + ratio * of_server
        got = signs(total, block)
        error, of_server, x = corrected - sent, total - got, x - rate * got
        trace.append(x)
    return np.stack(trace)


def cser(problems: Sequence[Problem], rates: Sequence[float], *, block: int, period: int) -> Traces:
    """Return CSER with errors in the units of parameters, as published."""
    workers, trace = Workers(problems), []
    x = error = workers.start
    for step, rate in enumerate(rates, start=1):
        gradients = workers.gradients(x)
        sent = signs(gradients, block)
        unsent = gradients - sent
        x, error = x - rate * (sent.mean(axis=0) + unsent), error - rate * unsent
        if step % period == 0:
            reset = signs(error, block)
            x, error = x - reset + reset.mean(axis=0), error - reset
        trace.append(x)
    return np.stack(trace)


def liec_sgd(problems: Sequence[Problem], rates: Sequence[float], *, block: int, period: int) -> Traces:
    workers, trace = Workers(problems), []
    x = workers.start
    of_server, before = np.zeros(D), 0.0
    for step, rate in enumerate(rates, start=1):
        gradients, of_server, before = workers.gradients(x), of_server * before / rate, rate
        if step % period:
            sent = signs(gradients, block)
            total = sent.mean(axis=0) + of_server
            got = signs(total, block)
            of_server, x = total - got, x - rate * (got + gradients - sent)
        else:
            x = np.broadcast_to(x.mean(axis=0) - rate * (gradients.mean(axis=0) + of_server), x.shape)
            of_server = np.zeros(D)
        trace.append(x)
    return np.stack(trace)
