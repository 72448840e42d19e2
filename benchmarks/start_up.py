"""Measure `import api.http.app` in a fresh process: a user waits for it before the service answers.

    python benchmarks/start_up.py

Goal: 1.5 s.
"""

import statistics
import subprocess
import sys
import time

RUNS = 7


def seconds(statement: str) -> float:
    """Return the wall time of a fresh interpreter that runs `statement`."""
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", statement], check=True)
    return time.perf_counter() - started


def main() -> None:
    for statement in ("pass", "import api.client", "import api.http.app", "import api.cli.main"):
        runs = sorted(seconds(statement) for _ in range(RUNS))
        print(f"{statement:<20} median {statistics.median(runs):.2f} s   min {runs[0]:.2f}   max {runs[-1]:.2f}")


if __name__ == "__main__":
    main()
