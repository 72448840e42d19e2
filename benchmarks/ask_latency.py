"""How long the controller thinks before a probe, by the number of probes it has seen.

python benchmarks/ask_latency.py
"""

import math
import statistics
import time

from search.config import BoConfig, Budget
from search.controller import Controller
from search.space import Axis, SearchSpace
from search.types import Candidate, Observation, Spent, Values

RUNS, PROBES = 5, 16


def observe(candidate: Candidate, spent: Spent) -> Observation:
    """Return what a smooth, noiseless problem would answer: best at a rate of 1 and a density of 2 %."""
    rate, level = candidate.values.learning_rate, candidate.values.level or 0.02
    speed = 0.05 / (1 + math.log10(rate) ** 2 + math.log10(level / 0.02) ** 2)
    losses = tuple(2.3 * math.exp(-speed * step) for step in range(20))
    return Observation(
        candidate_id=candidate.id, losses=losses, step_seconds=(0.01,) * 20, bytes_sent=1000, spent=spent
    )


def ask_milliseconds(seed: int) -> list[float]:
    """Return the time of each ask of one wide search."""
    space = SearchSpace(
        optimizer="schedulefree_sgd",
        guess=Values(learning_rate=0.1, level=0.02),
        axes=(Axis(name="level", low=0.003, high=0.1),),
    )
    config = BoConfig(wide_probes=PROBES, max_search_fraction=0.9)
    controller, times = Controller(space, config, seed, budget=Budget(steps=10_000)), []
    for index in range(PROBES):
        started = time.perf_counter()
        candidate = controller.ask()
        times.append(1e3 * (time.perf_counter() - started))
        if candidate is None:
            break
        controller.tell(observe(candidate, Spent(steps=20 * (index + 1), bytes=1000 * (index + 1))))
    return times


def main() -> None:
    ask_milliseconds(seed=99)  # loads what is loaded once
    runs = [ask_milliseconds(seed) for seed in range(RUNS)]
    for seen in (0, 6, 8, 10, 12, 15):
        times = [run[seen] for run in runs if len(run) > seen]
        print(f"after {seen:>2} probes: median {statistics.median(times):6.1f} ms   max {max(times):6.1f} ms")


if __name__ == "__main__":
    main()
