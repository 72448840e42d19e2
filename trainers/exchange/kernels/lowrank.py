"""The passes of a low-rank exchange over a matrix of gradients, each of which reads and writes it once.

Symbols: M `(n, m)` a layer's gradient plus residual, r the rank, P `(n, r)`, Q `(m, r)`. Q is held as its transpose
`(r, m)`: M lies in memory by rows, and BLAS multiplies by rows several times faster. All tensors are contiguous
float32. `project` and `back_project` compute what is summed over the ranks afterwards; what every rank computes for
itself and all must agree on, `rebuild` and `orthogonalize_`, gives the same bits on every kind of CPU.
"""

from itertools import count

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainers.exchange.kernels.compiled import compiled_later

#: Entries that are added and multiplied while they are in the cache (1 MiB).
BLOCK = 2**18
#: Columns of the mean that are summed up in the first-level cache.
TILE = 1024
#: A column that has lost all but this share of its length to earlier columns is nothing but their rounding errors.
LEAST_SHARE = 1e-5


def project(gradient: Tensor, residual: Tensor, corrected_out: Tensor, q: Tensor, p_out: Tensor) -> None:
    """Write M = `gradient` + `residual` `(n, m)` to `corrected_out`, P = M Q to `p_out` `(n, r)`; `q` is `(r, m)`."""
    num_rows = len(gradient) if gradient.is_cuda else max(1, BLOCK // gradient.shape[1])
    parts = (torch.split(tensor, num_rows) for tensor in (gradient, residual, corrected_out, p_out))
    for some_gradient, some_residual, some_corrected, some_p in zip(*parts, strict=True):
        torch.add(some_gradient, some_residual, out=some_corrected)
        torch.mm(some_corrected, q.t(), out=some_p)


def back_project(matrix: Tensor, p: Tensor, q_out: Tensor) -> None:
    """Write Q = M' P, as its transpose, to `q_out` `(r, m)`; M is `matrix` `(n, m)`, `p` is `(n, r)`."""
    torch.mm(p.t(), matrix, out=q_out)


def rebuild(matrix: Tensor, p: Tensor, q: Tensor, next_residual: Tensor, mean_out: Tensor) -> None:
    """Write the mean P Q' to `mean_out` `(n, m)` and M - P Q' to `next_residual` `(n, m)`, or in place of `matrix`.

    `matrix` is this rank's M `(n, m)`; `p` `(n, r)` and `q` `(r, m)` are the same on all ranks.
    """
    if matrix.is_cuda:
        torch.mm(p, q, out=mean_out)
        torch.sub(matrix, mean_out, out=next_residual)
    else:
        _rebuild(*(tensor.numpy() for tensor in (matrix, p, q, next_residual, mean_out)))


def orthogonalize_(p: Tensor) -> None:
    """Make the columns of `p` `(n, r)`, r <= n, orthonormal in place (Gram-Schmidt, each column twice).

    A column that is zero, or depends on those before it, becomes another direction, so that a layer without any
    gradient now is not cut off from later ones: P'P = I always.
    """
    if p.is_cuda:
        p.copy_(torch.linalg.qr(p).Q)
        return
    columns = p.numpy()
    for index in range(p.shape[1]):
        axes = count()
        while not _orthonormalize_column(columns, index, LEAST_SHARE):
            columns[:, index] = 0.0
            columns[next(axes), index] = 1.0


@compiled_later
def _rebuild(
    matrix: NDArray[np.float32],
    p: NDArray[np.float32],
    q: NDArray[np.float32],
    next_residual: NDArray[np.float32],
    mean_out: NDArray[np.float32],
) -> None:
    num_rows, num_columns = matrix.shape
    for i in range(num_rows):
        for start in range(0, num_columns, TILE):
            mean, row = mean_out[i, start : start + TILE], q[0, start : start + TILE]
            factor = p[i, 0]
            for j in range(len(mean)):
                mean[j] = factor * row[j]
            for k in range(1, len(q)):
                factor, row = p[i, k], q[k, start : start + TILE]
                for j in range(len(mean)):
                    mean[j] += factor * row[j]
            mine, left = matrix[i, start : start + TILE], next_residual[i, start : start + TILE]
            for j in range(len(mean)):
                left[j] = mine[j] - mean[j]


@compiled_later
def _orthonormalize_column(p: NDArray[np.float32], index: int, least_share: float) -> bool:
    """Make one column of length 1 and orthogonal to those before it; return False if it depends on them."""
    before = 0.0
    for i in range(len(p)):
        before += np.float64(p[i, index]) ** 2
    overlaps = np.empty(index)
    for _ in range(2):  # once leaves rounding errors as large as what was taken away
        overlaps[:] = 0.0
        for i in range(len(p)):
            for k in range(index):
                overlaps[k] += np.float64(p[i, k]) * p[i, index]
        after = 0.0
        for i in range(len(p)):
            left = np.float64(p[i, index])
            for k in range(index):
                left -= overlaps[k] * p[i, k]
            p[i, index] = left
            after += left**2
    if not after > least_share**2 * before:
        return False
    scale = 1.0 / np.sqrt(after)
    for i in range(len(p)):
        p[i, index] *= scale
    return True
