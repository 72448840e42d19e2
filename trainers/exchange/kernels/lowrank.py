"""The passes of a low-rank exchange over a matrix of gradients, each of which reads and writes it at most once.

Symbols: M `(n, m)` a layer's gradient plus residual, r the rank. P `(l, r)` is the factor of its long side,
l = max(n, m), and Q that of its short side, s = min(n, m), held as its transpose `(r, s)`: M is P Q' where it is tall,
and Q P' where it is wide. All tensors are contiguous float32. `project`, `back_project` and `subtract` compute what is
a rank's own; what all must agree on, `rebuild` and `orthogonalize_`, gives the same bits on every kind of CPU.
"""

from itertools import count

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainers.exchange.kernels.compiled import compiled_later

#: Entries that are added and multiplied while they are in the cache (1 MiB).
BLOCK = 2**18
#: Columns of a product that are summed up in the first-level cache.
TILE = 1024
#: A column that has lost all but this share of its length to earlier columns is nothing but their rounding errors.
LEAST_SHARE = 1e-5


def project(gradient: Tensor, residual: Tensor, corrected_out: Tensor, q: Tensor, p_out: Tensor) -> None:
    """Write M = `gradient` + `residual` `(n, m)` to `corrected_out`, and M Q, or M' Q where M is wide, to `p_out`."""
    num_rows, num_columns = gradient.shape
    is_wide = num_columns > num_rows
    wide = q.new_zeros(len(q), num_columns) if is_wide else None
    block = num_rows if gradient.is_cuda else max(1, BLOCK // num_columns)
    for start in range(0, num_rows, block):
        rows = slice(start, start + block)
        torch.add(gradient[rows], residual[rows], out=corrected_out[rows])
        if wide is None:
            torch.mm(corrected_out[rows], q.t(), out=p_out[rows])
        else:
            wide.addmm_(q[:, rows], corrected_out[rows])
    if wide is not None:
        p_out.copy_(wide.t())


def back_project(matrix: Tensor, p: Tensor, q_out: Tensor) -> None:
    """Write M' P, or M P where M is wide, as its transpose to `q_out` `(r, s)`; M is `matrix` `(n, m)`."""
    num_rows, num_columns = matrix.shape
    if num_columns > num_rows:
        q_out.copy_(torch.mm(matrix, p.t().contiguous().t()).t())
    else:
        torch.mm(p.t(), matrix, out=q_out)


def subtract(matrix: Tensor, p: Tensor, q: Tensor) -> None:
    """Take P Q', or Q P', from `matrix` `(n, m)`, in place."""
    row, column = _by_sides(matrix, p, q)
    if matrix.is_cuda:
        matrix.addmm_(row, column, alpha=-1)
    else:
        _subtract(matrix.numpy(), row.numpy(), column.numpy())


def rebuild(p: Tensor, q: Tensor, out: Tensor) -> None:
    """Write P Q', or Q P', to `out` `(n, m)`."""
    row, column = _by_sides(out, p, q)
    if out.is_cuda:
        torch.mm(row, column, out=out)
    else:
        _multiply(row.numpy(), column.numpy(), out.numpy())


def _by_sides(matrix: Tensor, p: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    """Return the factor of the rows `(n, r)` and that of the columns `(r, m)`."""
    num_rows, num_columns = matrix.shape
    return (q.t().contiguous(), p.t().contiguous()) if num_columns > num_rows else (p, q)


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
def _subtract(matrix: NDArray[np.float32], row: NDArray[np.float32], column: NDArray[np.float32]) -> None:
    num_rows, num_columns = matrix.shape
    for i in range(num_rows):
        for start in range(0, num_columns, TILE):
            left = matrix[i, start : start + TILE]
            for k in range(len(column)):
                factor, part = row[i, k], column[k, start : start + TILE]
                for j in range(len(left)):
                    left[j] -= factor * part[j]


@compiled_later
def _multiply(row: NDArray[np.float32], column: NDArray[np.float32], out: NDArray[np.float32]) -> None:
    num_rows, num_columns = out.shape
    for i in range(num_rows):
        for start in range(0, num_columns, TILE):
            product, part = out[i, start : start + TILE], column[0, start : start + TILE]
            factor = row[i, 0]
            for j in range(len(product)):
                product[j] = factor * part[j]
            for k in range(1, len(column)):
                factor, part = row[i, k], column[k, start : start + TILE]
                for j in range(len(product)):
                    product[j] += factor * part[j]


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
