"""The published local-update methods in one process, worker by worker: the reference for real ranks."""

from collections.abc import Callable, Sequence
from math import floor, sqrt

import numpy as np
from numpy.typing import NDArray
from sync_harness import D, Problem

Array = NDArray[np.float64]
#: Where each worker is after each step, `(steps, workers, D)`.
Traces = Array
Definition = Callable[[Sequence[Problem], Sequence[float]], Traces]


class Workers:
    """All workers' gradients at once: of `x` `(workers, D)`."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.curvature = np.stack([problem.curvature.double().numpy() for problem in problems])
        self.optimum = np.stack([problem.optimum.double().numpy() for problem in problems])
        self.start = np.zeros((len(problems), D))

    def gradients(self, x: Array) -> Array:
        return self.curvature * (x - self.optimum)


def local_sgd(problems: Sequence[Problem], rates: Sequence[float], *, period: int) -> Traces:
    workers, trace = Workers(problems), []
    x = workers.start
    for step, rate in enumerate(rates, start=1):
        x = x - rate * workers.gradients(x)
        if step % period == 0:
            x = np.broadcast_to(x.mean(axis=0), x.shape)
        trace.append(x)
    return np.stack(trace)


class AdamW:
    """All workers' updates at once, each by moments of its own (Loshchilov and Hutter, 2019, Algorithm 2)."""

    def __init__(self, *, betas: tuple[float, float], weight_decay: float) -> None:
        self.betas, self.weight_decay = betas, weight_decay
        self.first, self.second, self.taken = 0.0, 0.0, 0

    def __call__(self, x: Array, gradients: Array, rate: float) -> Array:
        (first, second), self.taken = self.betas, self.taken + 1
        self.first = first * self.first + (1 - first) * gradients
        self.second = second * self.second + (1 - second) * gradients**2
        unbiased = self.first / (1 - first**self.taken)
        scale = np.sqrt(self.second / (1 - second**self.taken)) + 1e-8
        return x - rate * self.weight_decay * x - rate * unbiased / scale


def _descend(x: Array, gradients: Array, rate: float) -> Array:
    return x - rate * gradients


def diloco(
    problems: Sequence[Problem],
    rates: Sequence[float],
    *,
    period: int,
    eta: float,
    mu: float,
    nesterov: bool,
    inner: Callable[[Array, Array, float], Array] = _descend,
) -> Traces:
    workers, trace = Workers(problems), []
    x = workers.start
    anchor, velocity = x[0], np.zeros(D)
    for step, rate in enumerate(rates, start=1):
        x = inner(x, workers.gradients(x), rate)
        if step % period == 0:
            gone = anchor - x.mean(axis=0)
            velocity = mu * velocity + gone
            anchor = anchor - eta * (gone + mu * velocity if nesterov else velocity)
            x = np.broadcast_to(anchor, x.shape)
        trace.append(x)
    return np.stack(trace)


def streaming_diloco(
    problems: Sequence[Problem],
    rates: Sequence[float],
    *,
    interval: int,
    flight: int,
    keep: Callable[[Array, Array], Array],
    eta: float,
    mu: float,
    nesterov: bool = True,
) -> Traces:
    """The bench's two tensors in turn, each sent `flight` steps before its average comes.

    `keep` returns what workers have then beyond the anchor, of where they are beyond it, and beyond where they sent.
    """
    workers, trace = Workers(problems), []
    x = workers.start.copy()
    anchor, velocity = x[0].copy(), np.zeros(D)
    fragments = [slice(0, 384), slice(384, D)]
    sent = x
    for step, rate in enumerate(rates, start=1):
        x = x - rate * workers.gradients(x)
        at, since = fragments[(step - 1) // interval % 2], (step - 1) % interval + 1
        if since == interval - flight:
            sent = x
        if since == interval:
            gone = anchor[at] - sent[:, at].mean(axis=0)
            velocity[at] = mu * velocity[at] + gone
            anchor[at] -= eta * (gone + mu * velocity[at] if nesterov else velocity[at])
            x[:, at] = anchor[at] + keep(x[:, at] - anchor[at], x[:, at] - sent[:, at])
        trace.append(x.copy())
    return np.stack(trace)


def accordion_batch(
    problems: Sequence[Problem], rates: Sequence[float], *, factor: int, epoch_steps: int, eta: float
) -> Traces:
    """Epochs are compared one by one, by the first worker's gradients."""
    workers, trace = Workers(problems), []
    x, held, epoch, norms, is_large = workers.start, [], [], [], False
    for rate in rates:
        gradients = workers.gradients(x)
        if is_large:
            held.append(gradients)
        else:
            epoch.append(gradients[0])
            x = x - rate * gradients.mean(axis=0)
        if len(held) == factor:
            x = x - factor * rate * np.mean(held, axis=(0, 1))
            held = []
        if len(epoch) == epoch_steps:
            norms.append(np.linalg.norm(np.sum(epoch, axis=0)))
            is_large = len(norms) > 1 and abs(norms[-2] - norms[-1]) < eta * norms[-2]
            epoch = []
        trace.append(x)
    return np.stack(trace)


def slow_momentum(problems: Sequence[Problem], rates: Sequence[float], *, period: int, beta: float) -> Traces:
    workers, trace = Workers(problems), []
    x = workers.start
    anchor, velocity = x[0], np.zeros(D)
    for step, rate in enumerate(rates, start=1):
        x = x - rate * workers.gradients(x)
        if step % period == 0:
            gamma = np.mean(rates[step - period : step])
            velocity = beta * velocity + (anchor - x.mean(axis=0)) / gamma
            anchor = anchor - gamma * velocity
            x = np.broadcast_to(anchor, x.shape)
        trace.append(x)
    return np.stack(trace)


def stl_sgd(problems: Sequence[Problem], rates: Sequence[float], *, period: int, length: int) -> Traces:
    """SC: rates halve, lengths and periods double from stage to stage."""
    workers, trace = Workers(problems), []
    x, stage, in_stage = workers.start, 0, 0
    for rate in rates:
        x = x - rate / 2**stage * workers.gradients(x)
        in_stage += 1
        if in_stage % (period * 2**stage) == 0 or in_stage == length * 2**stage:
            x = np.broadcast_to(x.mean(axis=0), x.shape)
        if in_stage == length * 2**stage:
            stage, in_stage = stage + 1, 0
        trace.append(x)
    return np.stack(trace)


def stl_sgd_nc(
    problems: Sequence[Problem],
    rates: Sequence[float],
    *,
    period: int,
    length: int,
    gamma: float,
    factor: Callable[[int], int],
) -> Traces:
    """NC where data differ: stage s (from 1) has 1/f of the rate, f times the length, sqrt(f) times the period.

    f = `factor(s)` is 2^(s-1) in option 1 and s in option 2.
    """
    workers, trace = Workers(problems), []
    x, stage, in_stage = workers.start, 1, 0
    center = x[0]
    for rate in rates:
        f = factor(stage)
        x = x - rate / f * (workers.gradients(x) + (x - center) / gamma)
        in_stage += 1
        is_over = in_stage == length * f
        if in_stage % floor(period * sqrt(f)) == 0 or is_over:
            x = np.broadcast_to(x.mean(axis=0), x.shape)
        if is_over:
            stage, in_stage, center = stage + 1, 0, x[0]
        trace.append(x)
    return np.stack(trace)


def vrl_sgd(problems: Sequence[Problem], rates: Sequence[float], *, period: int) -> Traces:
    workers, trace = Workers(problems), []
    x, path = workers.start, 0.0
    drift = np.zeros_like(x)
    for step, rate in enumerate(rates, start=1):
        x, path = x - rate * (workers.gradients(x) - drift), path + rate
        if step % period == 0:
            mean = x.mean(axis=0)
            drift, x, path = drift + (mean - x) / path, np.broadcast_to(mean, x.shape), 0.0
        trace.append(x)
    return np.stack(trace)


def cocod_sgd(problems: Sequence[Problem], rates: Sequence[float], *, period: int) -> Traces:
    workers, trace = Workers(problems), []
    x = begun = workers.start
    for step, rate in enumerate(rates, start=1):
        x = x - rate * workers.gradients(x)
        if step % period == 0:
            x = begun = begun.mean(axis=0) + (x - begun)
        trace.append(x)
    return np.stack(trace)


def overlap_local_sgd(
    problems: Sequence[Problem], rates: Sequence[float], *, period: int, pull: float, beta: float
) -> Traces:
    workers, trace = Workers(problems), []
    x = workers.start
    anchor, velocity = x[0], np.zeros_like(x)
    for step, rate in enumerate(rates, start=1):
        x = x - rate * workers.gradients(x)
        if step % period == 0:
            x = (1 - pull) * x + pull * anchor
            gamma = np.mean(rates[step - period : step])
            velocity = beta * velocity + (anchor - x) / gamma
            anchor = (anchor - gamma * velocity).mean(axis=0)
        trace.append(x)
    return np.stack(trace)
