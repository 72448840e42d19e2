"""The time limits of tests, which follow from the present load of the machine, not from its usual speed."""

import os

#: For what must come. Only a test that fails waits as long.
PATIENCE_S = 120.0


def crowd() -> float:
    """Return how many processes share a processor: by so much everything may take longer. At least 1."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
