"""Which optimizer goes with exchanges that leave workers with parameters of their own. Pydantic only."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from trainers.exchange.config import CserConfig, DriftingConfig
from trainers.exchange.options import JobExchange
from trainers.spec.ranges import first

if TYPE_CHECKING:
    from trainers.methods.optimizer.spec import JobOptimizer, OptimizerConfig


def unfit(exchange: JobExchange, optimizer: "JobOptimizer", *, clip: float | None) -> str | None:
    """Return why `exchange` does not go with the optimizer, or with clipping; None: it does.

    What workers apply by themselves must cancel out, so the update must be linear in each worker's own gradient, with
    the same factor, and remember nothing of it that no meeting resets.
    """
    if not isinstance(exchange, DriftingConfig):
        return None
    if clip is not None:
        return (
            f"with `{exchange.kind}` each worker has a gradient of its own, and `clip` {clip:g} would scale each by "
            "another factor: give `clip: null`, or `exchange: {kind: doublesqueeze}`"
        )
    if isinstance(exchange, CserConfig):
        fits, needed = _is_plain(optimizer) and not _decays(optimizer), "momentum: 0.0, weight_decay: 0.0"
    else:
        fits, needed = _is_plain(optimizer) or optimizer.kind == "schedulefree_sgd", "momentum: 0.0"
    if fits:
        return None
    return (
        f"with `{exchange.kind}` each worker steps by a gradient of its own, and under this `{optimizer.kind}` what "
        f"workers apply apart would not cancel out: give `optimizer: {{kind: sgd, {needed}}}`, or "
        "`exchange: {kind: doublesqueeze}`"
    )


def unfit_groups(
    exchange: JobExchange, optimizer: "OptimizerConfig", groups: Iterable[Mapping[str, Any]]
) -> str | None:
    """Return why `exchange` does not go with the options that a workload's parameter groups bring; None: it does."""
    for group in groups:
        brought = {name: group[name] for name in ("momentum", "weight_decay") if name in group}
        if message := unfit(exchange, optimizer.model_copy(update=brought), clip=None):
            given = ", ".join(f"{name} {value:g}" for name, value in brought.items())
            return f"a parameter group of the workload brings {given}: {message}"
    return None


def _is_plain(optimizer: "JobOptimizer") -> bool:
    """Whether a step is the learning rate times the gradient, and decay."""
    return optimizer.kind == "sgd" and optimizer.momentum == 0


def _decays(optimizer: "JobOptimizer") -> bool:
    return optimizer.kind == "sgd" and bool(first(optimizer.weight_decay))
