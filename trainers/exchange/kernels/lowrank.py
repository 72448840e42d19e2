"""The passes of a low-rank exchange over a matrix of gradients, each of which reads and writes it at most once.

Symbols: M `(n, m)` a layer's gradient plus residual, r the rank. P is the factor of its long side, l = max(n, m), and
Q that of its short side, s = min(n, m); both are held as their transposes, P' `(r, l)` and Q' `(r, s)`. M is P Q' where
it is tall, and Q P' where it is wide. All tensors are contiguous float32. `project` and `take_out` compute what is a
rank's own; what all must agree on, `rebuild`, `multiply` and `orthogonalize_`, gives the same bits on every CPU.
"""

from functools import partial
from itertools import count

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainers.exchange.kernels import operators
from trainers.exchange.kernels.compiled import compiled_later

#: Entries that are added and multiplied while they are in the cache (1 MiB).
BLOCK = 2**18
#: Columns of a product whose factor stays in the first-level cache for all rows.
TILE = 1024
#: A factor that has lost all but this share of its length to earlier ones is nothing but their rounding errors.
LEAST_SHARE = 1e-5


def project(gradient: Tensor, residual: Tensor, corrected_out: Tensor, q: Tensor, p_out: Tensor) -> None:
    """Write M = `gradient` + `residual` `(n, m)` to `corrected_out`, and M Q, or M' Q where M is wide, to `p_out`."""
    num_rows, num_columns = gradient.shape
    is_wide = num_columns > num_rows
    block = num_rows if gradient.is_cuda else max(1, BLOCK // num_columns)
    p_out.zero_()
    for start in range(0, num_rows, block):
        rows = slice(start, start + block)
        torch.add(gradient[rows], residual[rows], out=corrected_out[rows])
        if is_wide:
            p_out.addmm_(q[:, rows], corrected_out[rows])
        else:
            p_out[:, rows] = torch.mm(corrected_out[rows], q.t()).t()


def take_out(matrix: Tensor, p: Tensor, q_out: Tensor) -> None:
    """Write M' P, or M P where M is wide, to `q_out`, and take P Q', or Q P', from M: `matrix` `(n, m)`, in place."""
    is_wide = matrix.shape[1] > matrix.shape[0]
    if matrix.is_cuda:
        torch.mm(p, matrix.t() if is_wide else matrix, out=q_out)
        rows, columns = _by_sides(matrix, p, q_out)
        matrix.addmm_(rows.t(), columns, alpha=-1)
    elif is_wide:
        _take_out_of_rows(matrix.numpy(), p.numpy(), q_out.numpy())
    else:
        torch.mm(p, matrix, out=q_out)
        _subtract(matrix.numpy(), p.numpy(), q_out.numpy())


def rebuild(p: Tensor, q: Tensor, out: Tensor) -> None:
    """Write P Q', or Q P', to `out` `(n, m)`."""
    multiply(*_by_sides(out, p, q), out)


def multiply(rows: Tensor, columns: Tensor, out: Tensor) -> None:
    """Write the product `rows`' `columns` to `out` `(n, m)`; `rows` are `(r, n)` and `columns` `(r, m)`."""
    if operators.needed_for(out):
        torch.mm(rows.t(), columns, out=out)
    else:
        _multiply(rows.numpy(), columns.numpy(), out.numpy())


def _by_sides(matrix: Tensor, p: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    """Return the factor of the rows `(r, n)` and that of the columns `(r, m)`."""
    return (q, p) if matrix.shape[1] > matrix.shape[0] else (p, q)


def orthogonalize_(p: Tensor) -> None:
    """Make the rows of `p` `(r, l)`, r <= l, orthonormal in place (Gram-Schmidt, each row twice).

    A row that is zero, or depends on those before it, becomes another direction, so that a layer without any gradient
    now is not cut off from later ones: P'P = I always.
    """
    if p.is_cuda:
        p.copy_(torch.linalg.qr(p.t()).Q.t())
        return
    rows = p.numpy()
    columns = np.empty((rows.shape[1], len(rows)), dtype=np.float32)
    for index in range(len(p)):
        axes = count()
        while not _orthonormalize_row(rows, columns, index, LEAST_SHARE):
            rows[index] = 0.0
            rows[index, next(axes)] = 1.0


@partial(compiled_later, any_order=True)
def _take_out_of_rows(matrix: NDArray[np.float32], p: NDArray[np.float32], q: NDArray[np.float32]) -> None:
    for i in range(len(matrix)):
        row = matrix[i]
        for k in range(len(p)):
            part, product = p[k], np.float32(0)
            for j in range(len(row)):
                product += row[j] * part[j]
            q[k, i] = product
        for k in range(len(p)):
            part, product = p[k], q[k, i]
            for j in range(len(row)):
                row[j] -= product * part[j]


@compiled_later
def _subtract(matrix: NDArray[np.float32], rows: NDArray[np.float32], columns: NDArray[np.float32]) -> None:
    num_rows, num_columns = matrix.shape
    for start in range(0, num_columns, TILE):
        for i in range(num_rows):
            left = matrix[i, start : start + TILE]
            for k in range(len(columns)):
                factor, part = rows[k, i], columns[k, start : start + TILE]
                for j in range(len(left)):
                    left[j] -= factor * part[j]


@compiled_later
def _multiply(rows: NDArray[np.float32], columns: NDArray[np.float32], out: NDArray[np.float32]) -> None:
    num_rows, num_columns = out.shape
    for start in range(0, num_columns, TILE):
        for i in range(num_rows):
            product, part = out[i, start : start + TILE], columns[0, start : start + TILE]
            factor = rows[0, i]
            for j in range(len(product)):
                product[j] = factor * part[j]
            for k in range(1, len(columns)):
                factor, part = rows[k, i], columns[k, start : start + TILE]
                for j in range(len(product)):
                    product[j] += factor * part[j]


@compiled_later
def _orthonormalize_row(p: NDArray[np.float32], columns: NDArray[np.float32], index: int, least_share: float) -> bool:
    """Make one row of length 1 and orthogonal to those before it; return False if it depends on them.

    `columns` `(l, r)` has the rows before it once more, as columns, and gets this one. So all inner loops run along
    memory, and over sums that do not depend on each other: vectors may add them, each in its own order.
    """
    row, before = p[index], 0.0
    for j in range(len(row)):
        before += np.float64(row[j]) ** 2
    overlaps, left = np.empty(index), np.empty(len(row))
    for _ in range(2):  # once leaves rounding errors as large as what was taken away
        overlaps[:] = 0.0
        for j in range(len(row)):
            entry, column = np.float64(row[j]), columns[j]
            for k in range(index):
                overlaps[k] += column[k] * entry
        left[:] = row
        for k in range(index):
            overlap, part = overlaps[k], p[k]
            for j in range(len(row)):
                left[j] -= overlap * part[j]
        row[:] = left
        after = 0.0
        for j in range(len(row)):
            after += left[j] ** 2
    if not after > least_share**2 * before:
        return False
    scale = 1.0 / np.sqrt(after)
    for j in range(len(row)):
        row[j] *= scale
    columns[:, index] = row
    return True
