"""Detect an overloaded machine, where a process that is late or silent need not be dead."""

import os

#: Runnable processes per core. Above this, everything takes several times as long as it should.
MOST_PER_CORE = 3.0


def at(load: float, num_cores: int) -> str | None:
    """Return a clause that says that a machine with this load average is overloaded; None: it is not."""
    if load <= MOST_PER_CORE * num_cores:
        return None
    return f"the machine is overloaded, load {load:.0f} on {num_cores} core{'s' * (num_cores != 1)}"


def here() -> str | None:
    """Return the clause for this machine over the last minute; None: it is not overloaded."""
    return at(os.getloadavg()[0], os.cpu_count() or 1)


def explained(why: str, overload: str | None) -> str:
    """Append an overload, as a possible cause, to the text that says what went wrong."""
    return why if overload is None else f"{why}; {overload}"
