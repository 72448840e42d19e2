"""Machine code for loops, made at their first call: who never calls one does not wait for numba."""

from collections.abc import Callable
from functools import cache, wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def compiled(loop: Callable[P, R]) -> Callable[P, R]:
    """Return `loop` over numpy arrays as machine code that runs without the GIL, kept on disk between processes.

    No fast-math: a result is the same on every kind of processor, so ranks that compute it alike agree in every bit.
    """

    @cache
    def machine_code() -> Callable[P, R]:
        import numba

        code: Callable[P, R] = numba.njit(nogil=True, cache=True, error_model="numpy")(loop)
        return code

    @wraps(loop)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        return machine_code()(*args, **kwargs)

    return run
