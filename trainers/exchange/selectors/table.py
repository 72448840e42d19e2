"""Which selector runs which kind."""

from collections.abc import Sequence

from trainers.exchange.config import (
    AdaCompConfig,
    DgcConfig,
    GTopKConfig,
    RandomKConfig,
    SparseKind,
    ThresholdConfig,
    TopKConfig,
)
from trainers.exchange.selectors.at_random import AtRandom
from trainers.exchange.selectors.by_bins import ByBins
from trainers.exchange.selectors.by_count import ByCount, Dgc
from trainers.exchange.selectors.by_efficiency import ByEfficiency
from trainers.exchange.selectors.by_threshold import ByThreshold
from trainers.exchange.selectors.globally import Globally
from trainers.exchange.selectors.selector import Selector
from trainers.methods.levels.spec import CatConfig
from trainers.traffic.buckets import Bucket


def build(config: SparseKind, buckets: Sequence[Bucket], *, seed: int) -> Selector:
    """Return the selector that `config` describes; what it draws at random follows from `seed`."""
    match config:
        case ThresholdConfig():
            return ByThreshold(config, buckets)
        case TopKConfig() if isinstance(config.levels, CatConfig):
            return ByEfficiency(config, config.levels, buckets, seed=seed)
        case TopKConfig() if config.scope == "global":
            return Globally(config, buckets)
        case TopKConfig():
            return ByCount(config, exact=config.selection == "exact", by_layer=config.scope == "layer")
        case RandomKConfig():
            return AtRandom(config, seed=seed)
        case DgcConfig():
            return Dgc(config)
        case GTopKConfig():
            return ByCount(config, exact=True, by_layer=False)
        case AdaCompConfig():
            return ByBins(config, buckets)
