"""Machine code for loops over numpy arrays, which run without the GIL and are kept on disk between processes.

No fast-math: a result is the same on every kind of processor, so ranks that compute it alike agree in every bit. Loops
that compute what is a rank's own may say that `any_order` of their sums will do; infinities and NaN stay what they are.
"""

from collections.abc import Callable
from functools import cache, partial, wraps
from typing import Any, ParamSpec, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])
P = ParamSpec("P")
R = TypeVar("R")
#: What lets the compiler add with vectors, and multiply and add at once.
ANY_ORDER = frozenset({"reassoc", "nsz", "contract"})


def compiled(loop: F, *, any_order: bool = False) -> F:
    """Return `loop` as machine code. This imports numba: for modules that are imported where a kernel is called."""
    import numba

    jit = partial(numba.njit, nogil=True, error_model="numpy", fastmath=set(ANY_ORDER) if any_order else False)
    try:
        return cast(F, jit(cache=True)(loop))
    except RuntimeError:  # neither the folder of this file nor a home can be written to
        return cast(F, jit()(loop))


def compiled_later(loop: Callable[P, R], *, any_order: bool = False) -> Callable[P, R]:
    """Return `loop` as machine code that is made at the first call: who never calls it does not wait for numba."""

    @cache
    def machine_code() -> Callable[P, R]:
        return compiled(loop, any_order=any_order)

    @wraps(loop)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        return machine_code()(*args, **kwargs)

    return run
