"""Global top-k: the largest entries of the ranks' sum, merged up a tree. Pydantic only."""

from typing import Literal

from pydantic import Field

from trainers.spec.method import Method, Paper
from trainers.spec.sparse import ByDensity
from trainers.traffic.collectives import Traffic, broadcast, payload_bytes
from trainers.traffic.payload_layout import ValueFormat
from trainers.traffic.sizes import num_selected


class GTopKConfig(ByDensity):
    """Send the largest entries of the sum, merged over a tree of ranks (Shi et al., 2019), and lose nothing."""

    kind: Literal["gtopk"] = "gtopk"
    aggregate: Literal["auto"] = Field("auto", description="up a tree of ranks, and down again")

    def room(self, d: int, density: float) -> int:
        return num_selected(d, density)

    def selected_traffic(self, d: int, num_workers: int, capacity: int) -> Traffic:
        return tree_traffic(d, capacity, self.values, num_workers)


def tree_traffic(d: int, capacity: int, values: ValueFormat, num_workers: int) -> Traffic:
    """Return the traffic of a sum up a tree of ranks, and down again, as the ranks' mean: the first sends none up.

    Either way a payload waits for the one before it, on every level of the tree.
    """
    one_way = broadcast(payload_bytes(d, capacity, values), num_workers)
    return one_way + one_way


METHOD = Method(
    "exchange",
    GTopKConfig,
    "trainers.methods.exchange.gtopk.exchange:build",
    papers=(
        Paper(
            "Shi, Wang, Zhao, Tang, Wang, Tang, Chu",
            "A distributed synchronous SGD algorithm with global top-k sparsification for low bandwidth networks",
            "ICDCS",
            2019,
        ),
    ),
    least={"density": 0.01},
)
