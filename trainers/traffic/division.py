"""Divide a model's parameters into blocks. Pure Python, so that a job can be costed without torch."""

from collections.abc import Sequence

Shape = Sequence[int]


def divide(shapes: Sequence[Shape]) -> tuple[range, ...]:
    """Return the blocks of parameters of these shapes, in the model's order, as ranges of their indices.

    A block is a weight, which has two dimensions or more, and the biases and scales that follow it; those before the
    first weight are in the first block.
    """
    begins = [index for index, shape in enumerate(shapes) if len(shape) > 1] or [0]
    begins[0] = 0
    return tuple(range(start, stop) for start, stop in zip(begins, [*begins[1:], len(shapes)], strict=True))
