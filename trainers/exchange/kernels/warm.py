"""Numba with all that its first machine code imports: half a second, which processes forked from this one save."""

import numba

numba.njit(lambda: None)()
