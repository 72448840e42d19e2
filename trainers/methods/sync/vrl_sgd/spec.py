"""VRL-SGD: local SGD with corrected drift. Pydantic only."""

from typing import Literal

from trainers.methods.optimizer.spec import num_iterates
from trainers.spec.exchange import ExchangeBase
from trainers.spec.method import Method, Paper
from trainers.spec.sync import LocalUpdatesConfig


class VrlSgdConfig(LocalUpdatesConfig):
    """Local SGD whose workers correct what their own data draw them to (Liang et al., 2019)."""

    kind: Literal["vrl_sgd"] = "vrl_sgd"

    def conflict(self, exchange: ExchangeBase, optimizer: str) -> str | None:
        if message := super().conflict(exchange, optimizer):
            return message
        if num_iterates(optimizer) > 1:
            return (
                f"`vrl_sgd` corrects one iterate, and `{optimizer}` trains two: give `optimizer: {{kind: sgd}}`, or "
                "`sync: {kind: local_sgd}`"
            )
        return None


METHOD = Method(
    "sync",
    VrlSgdConfig,
    "trainers.methods.sync.vrl_sgd.policy:VrlSgd",
    papers=(
        Paper(
            "Liang, Shen, Liu, Pan, Chen, Cheng",
            "Variance reduced local SGD with lower communication complexity",
            "arXiv:1912.12844",
            2019,
        ),
    ),
    beside={"optimizer": {"kind": "sgd"}},
)
