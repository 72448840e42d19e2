"""Machine code for loops, made at their first call: who never calls one does not wait for numba."""

from collections.abc import Callable
from functools import cache, partial, wraps
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

        compiler = partial(numba.njit, nogil=True, error_model="numpy")
        try:
            code: Callable[P, R] = compiler(cache=True)(loop)
        except RuntimeError:  # neither the package's folder nor the home can be written to
            code = compiler()(loop)
        return code

    @wraps(loop)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        return machine_code()(*args, **kwargs)

    return run
