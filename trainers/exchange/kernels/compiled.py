"""Machine code for loops over numpy arrays, which run without the GIL and are kept on disk between processes.

No fast-math: a result is the same on every kind of processor, so ranks that compute it alike agree in every bit.
"""

from collections.abc import Callable
from functools import cache, wraps
from typing import Any, ParamSpec, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])
P = ParamSpec("P")
R = TypeVar("R")


def compiled(loop: F) -> F:
    """Return `loop` as machine code. This imports numba: for modules that are imported where a kernel is called."""
    import numba

    try:
        return cast(F, numba.njit(nogil=True, cache=True, error_model="numpy")(loop))
    except RuntimeError:  # neither the folder of this file nor a home can be written to
        return cast(F, numba.njit(nogil=True, error_model="numpy")(loop))


def compiled_later(loop: Callable[P, R]) -> Callable[P, R]:
    """Return `loop` as machine code that is made at the first call: who never calls it does not wait for numba."""

    @cache
    def machine_code() -> Callable[P, R]:
        return compiled(loop)

    @wraps(loop)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        return machine_code()(*args, **kwargs)

    return run
