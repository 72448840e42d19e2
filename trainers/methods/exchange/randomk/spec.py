"""Random-k: entries drawn at random, the same on all ranks. Pydantic only."""

from typing import Literal

from pydantic import Field

from trainers.spec.method import Method, Paper
from trainers.spec.sparse import ByDensity
from trainers.traffic.collectives import CONTROL_WORDS, Traffic, all_reduce
from trainers.traffic.sizes import WORD_BYTES, num_selected


class RandomKConfig(ByDensity):
    """Send entries drawn at random, the same on all ranks, so that only values travel (Stich et al., 2018)."""

    kind: Literal["randomk"] = "randomk"
    values: Literal["float32"] = Field("float32", description="they are summed on their way")
    aggregate: Literal["auto"] = Field("auto", description="all-reduced: all ranks send the same entries")
    block: bool = Field(False, description="one block of neighbours at a random place, instead of single entries")

    def room(self, d: int, density: float) -> int:
        return num_selected(d, density)

    def selected_traffic(self, d: int, num_workers: int, capacity: int) -> Traffic:
        return values_traffic(capacity, num_workers)


def values_traffic(capacity: int, num_workers: int) -> Traffic:
    """Return the traffic of summing `capacity` entries that all ranks selected alike."""
    return all_reduce(WORD_BYTES * (capacity + CONTROL_WORDS), num_workers)


METHOD = Method(
    "exchange",
    RandomKConfig,
    "trainers.methods.exchange.randomk.exchange:build",
    papers=(Paper("Stich, Cordonnier, Jaggi", "Sparsified SGD with memory", "NeurIPS", 2018),),
    least={"density": 0.01},
)
