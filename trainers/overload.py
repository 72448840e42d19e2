"""Tells that a machine is overloaded: what is late there is not lost, and what does not answer is not gone."""

import os

#: Processes that run, or wait to, for each core: above this, everything takes several times as long as it should.
MOST_PER_CORE = 3.0


def at(load: float, num_cores: int) -> str | None:
    """Return a clause on a machine with this load, the mean number of such processes; None: it is not overloaded."""
    if load <= MOST_PER_CORE * num_cores:
        return None
    return f"the machine is overloaded, load {load:.0f} on {num_cores} core{'s' * (num_cores != 1)}"


def here() -> str | None:
    """Return that of this machine, over the last minute."""
    return at(os.getloadavg()[0], os.cpu_count() or 1)


def explained(why: str, overload: str | None) -> str:
    """Return what went wrong with what may be the cause of it."""
    return why if overload is None else f"{why}; {overload}"
