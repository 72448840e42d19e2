import math

import pytest
import torch
from torch import Tensor

from trainers.exchange.factors import starting_factor
from trainers.exchange.kernels.lowrank import orthogonalize_, project, rebuild, take_out
from trainers.traffic.sizes import is_worth_factors


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def approximated(matrix: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Return one worker's approximation of `matrix` `(n, m)`, and what it leaves behind."""
    left, mean, p = torch.empty_like(matrix), torch.empty_like(matrix), torch.empty(rank, max(matrix.shape))
    q = starting_factor(min(matrix.shape), rank, seed=1)

    project(matrix, torch.zeros_like(matrix), left, q, p)
    orthogonalize_(p)
    take_out(left, p, q)
    rebuild(p, q, mean)

    return mean, left


@pytest.mark.parametrize("shape", [(7, 5), (5, 7), (6, 6), (300, 2000), (2000, 300)])  # the last: blocks of rows, tiles
def test_the_passes_are_what_their_formulas_say(shape: tuple[int, int]):
    gradient, residual, q = normal(*shape), 3 * normal(*shape), normal(3, min(shape))
    corrected, mean = torch.empty(shape), torch.empty(shape)
    p, next_q = torch.empty(3, max(shape)), torch.empty(3, min(shape))

    project(gradient, residual, corrected, q, p)
    left = corrected.clone()
    take_out(left, p, next_q)
    rebuild(p, next_q, mean)

    tall = corrected if shape[0] >= shape[1] else corrected.T
    assert torch.equal(corrected, gradient + residual)
    close(p, (tall @ q.T).T)
    close(next_q, p @ tall)
    close(mean, p.T @ next_q if shape[0] >= shape[1] else next_q.T @ p)
    close(left, corrected - mean)


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5 * expected.abs().max().item())


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e15])
@pytest.mark.parametrize(
    "rows",
    [
        normal(8, 64),
        normal(4, 4),
        torch.zeros(5, 5),
        normal(1, 50).expand(6, 50),
        normal(5, 2) @ normal(2, 40),
        torch.eye(6)[[0, 0, 1, 1, 1]],
        torch.tensor([[float("nan"), float("inf")], [1.0, 2.0]]),
    ],
    ids=["any", "square", "zero", "equal", "dependent", "axes twice", "not finite"],
)
def test_orthogonalized_rows_are_orthonormal(rows: Tensor, scale: float):
    p = (scale * rows).contiguous()

    orthogonalize_(p)

    torch.testing.assert_close(p @ p.T, torch.eye(len(p)), rtol=0, atol=1e-5)


def _orthogonalized_one_by_one(rows: Tensor) -> Tensor:
    """Return what Gram-Schmidt makes of independent `rows`, with every sum in float64 and in the order of its terms."""
    done = rows.numpy().copy()
    for index, row in enumerate(done):
        for _ in range(2):
            overlaps = [sum(float(a) * float(b) for a, b in zip(each, row, strict=True)) for each in done[:index]]
            left = [float(entry) for entry in row]
            for overlap, each in zip(overlaps, done, strict=False):
                left = [entry - overlap * float(part) for entry, part in zip(left, each, strict=True)]
            row[:] = left
        row[:] = [float(entry) * (1.0 / math.sqrt(sum(each**2 for each in left))) for entry in row]
    return torch.from_numpy(done)


def test_every_processor_orthogonalizes_with_the_same_bits():
    p = normal(19, 70)  # more than a vector has lanes, and no multiple of them
    expected = _orthogonalized_one_by_one(p)

    orthogonalize_(p)

    assert torch.equal(p, expected)


def test_orthogonalized_rows_span_what_they_spanned():
    rows = normal(4, 40)
    p = rows.clone()

    orthogonalize_(p)

    torch.testing.assert_close((rows @ p.T) @ p, rows, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("rank", "own"), [(3, 3), (3, 1), (4, 0), (12, 12)])  # the last: full rank, dense
def test_a_matrix_of_no_higher_rank_is_exact(rank: int, own: int):
    matrix = normal(12, own) @ normal(own, 30)

    mean, left = approximated(matrix, rank)

    close(mean, matrix)
    assert left.norm() <= 1e-5 * matrix.norm()


def test_no_more_is_left_than_there_was():
    matrix = normal(60, 90)

    mean, left = approximated(matrix, 2)

    assert torch.linalg.matrix_rank(mean) <= 2
    assert left.norm() < matrix.norm()


def test_the_starting_factor_leaves_the_model_s_random_numbers_alone():
    before = torch.get_rng_state()

    factor = starting_factor(10, 2, seed=5)

    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(factor, starting_factor(10, 2, seed=5))
    assert not torch.equal(factor, starting_factor(10, 2, seed=6))


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((512, 9408), True),
        ((16, 1, 3, 3), False),
        ((64, 32, 3, 3), True),
        ((16, 16), False),
        ((512,), False),
        ((), False),
    ],
)
def test_factors_are_worth_it_where_they_are_less_than_half_of_a_matrix(shape: tuple[int, ...], expected: bool):
    assert is_worth_factors(shape, rank=4) is expected
