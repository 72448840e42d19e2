"""The time that tests allow: it follows from how busy the machine is, never from how fast it usually is."""

import os

#: For what must come. Only a test that fails waits as long.
PATIENCE_S = 120.0


def crowd() -> float:
    """Return how many processes share a processor: by so much everything may take longer. At least 1."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
