"""The policy of `exchange: {kind: auto}`: exchange gradients in every step, or train by local updates.

The option in force decides. Before a change from local updates to gradients, the ranks average their parameters and
their optimizers' states. For updates that are linear in both, this is where synchronous training on the same gradients
would be. For Adam's it is the average of Local Adam (Cheng and Glasgow, 2025, "Convergence of distributed adaptive
optimization with local updates").
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from trainers.exchange import two_level
from trainers.exchange.exchange import Exchange
from trainers.exchange.gradients import Gradients
from trainers.exchange.node_links import NodeLinks
from trainers.exchange.step_result import Exchanged
from trainers.methods import build as methods
from trainers.methods.exchange.auto.exchange import AutoExchange
from trainers.methods.exchange.auto.spec import LOCAL, AutoConfig, Option, by_kind, exchange_of
from trainers.methods.optimizer.optimizer import Optimizer
from trainers.methods.sync.local_sgd.policy import LocalSgd
from trainers.methods.sync.local_sgd.spec import LocalSgdConfig
from trainers.methods.sync.parts import PolicyParts
from trainers.methods.sync.policy import PolicyBase, StateParts, Update
from trainers.methods.sync.shared.averaging import Meeting
from trainers.snapshot import scalars_of, tensors_of
from trainers.spec.exchange import ExchangeBase


class LocalUpdates(LocalSgd):
    """Local SGD that averages by one of several exchanges; what one of them keeps joins the next average."""

    def __init__(self, parts: PolicyParts, meeting: Meeting) -> None:
        super().__init__(LocalSgdConfig(), parts, meeting=meeting)
        assert isinstance(meeting.exchange, AutoExchange)
        self._meetings = meeting.exchange

    def meet_by(self, option: Option) -> None:
        """Average as `option` says from the next time on."""
        self._meetings.use(Option(option.meeting))

    @torch.no_grad()
    def release(self) -> None:
        """Apply the residual to this rank's parameters, and reset it to zero."""
        kept = torch.zeros_like(self._anchor)
        self._meetings.release(kept)
        self._iterate.add(kept, -1.0)

    def tensors(self) -> dict[str, Tensor]:
        return super().tensors() | tensors_of({"meetings": self._meetings})

    def scalars(self) -> dict[str, Any]:
        return super().scalars() | scalars_of({"meetings": self._meetings})

    def load_scalars(self, scalars: dict[str, Any]) -> None:
        super().load_scalars(scalars)
        self._meetings.load_scalars(scalars["meetings"])


class AutoSync(PolicyBase):
    """Chooses among the options of a `menu`; `local` runs those of local updates, None: it has none.

    All ranks' `gradients` go through the two levels; `leading` is the upper one's, on a rank that leads its node.
    """

    def __init__(
        self,
        menu: Sequence[Option],
        optimizer: Optimizer,
        node_links: NodeLinks,
        *,
        gradients: Exchange,
        leading: AutoExchange | None,
        local: "LocalUpdates | None",
    ) -> None:
        self._menu, self._option = {option.name: option for option in menu}, Option("")
        self._optimizer, self._node_links = optimizer, node_links
        self.gradients = self.exchange = gradients
        self._leading, self._local = leading, local

    def use(self, option: str | None) -> None:
        """Train by this option from the next step on; collective where ranks have trained by themselves."""
        if option not in self._menu:
            raise ValueError(f"`option` must be one of {list(self._menu)}, got {option!r}")
        chosen = self._menu[option]
        if self._local is not None and chosen.kind != self._option.kind:
            if self._option.kind == LOCAL:
                self._local.release()
                self._agree()
            if chosen.kind == LOCAL:
                self._local.begin()
        if self._local is not None and chosen.kind == LOCAL:
            self._local.meet_by(chosen)
        self._option = chosen
        self._node_links.between.ledger.payload = "parameters" if chosen.kind == LOCAL else "gradient"
        if self._leading is not None:
            self._leading.use(chosen)

    @torch.no_grad()
    def _agree(self) -> None:
        """Average the ranks' parameters and their optimizers' states."""
        held = [tensor for tensor in self._optimizer.tensors().values() if tensor.is_floating_point() and tensor.ndim]
        tensors = [parameter.detach() for parameter in self._optimizer.parameters.values()] + held
        num_workers = self._node_links.topology.num_workers
        torch._foreach_copy_(tensors, self._node_links.average(tensors, "parameters", over=num_workers))

    @property
    def is_apart(self) -> bool:
        return self._option.kind == LOCAL and self._local is not None and self._local.is_apart

    @property
    def steps_to_meeting(self) -> int:
        return self._local.steps_to_meeting if self._option.kind == LOCAL and self._local is not None else 0

    @property
    def steps_since_meeting(self) -> int:
        return self._local.steps_since_meeting if self._option.kind == LOCAL and self._local is not None else 0

    def advance(self, outcome: Exchanged, update: Update) -> Exchanged:
        if self._local is None or self._option.level is None or self._option.kind != LOCAL:
            return outcome
        return self._local.advance(outcome, replace(update, level=None, period=int(self._option.level)))

    def divide(self, trained: StateParts) -> tuple[StateParts, StateParts]:
        return (trained, {}) if self._local is None else ({}, trained | {"sync": self})

    def tensors(self) -> dict[str, Tensor]:
        return {} if self._local is None else self._local.tensors()

    def scalars(self) -> dict[str, Any]:
        return {"option": list(self._option), "local": self._local.scalars() if self._local else {}}

    def load_scalars(self, scalars: dict[str, Any]) -> None:
        self._option = Option(*scalars["option"])
        if self._local is not None:
            self._local.load_scalars(scalars["local"])


def build(auto: AutoConfig, parts: PolicyParts) -> AutoSync:
    """Return the policy of a replica whose exchange is `auto`."""
    config, gradients, node_links = parts.config, parts.gradients, parts.node_links
    kinds = by_kind(config.menu)
    exchanges = {
        kind: methods.exchange(exchange_of(options, like=auto), gradients, node_links.between, seed=config.seed)
        for kind, options in kinds.items()
        if kind != LOCAL
    }
    local = None
    if LOCAL in kinds:
        exchanges[LOCAL] = parts.alone()
        meeting = Meeting(auto, parts.iterate, node_links, seed=config.seed, build=partial(_meetings, kinds[LOCAL]))
        local = LocalUpdates(parts, meeting)
    leading = AutoExchange(exchanges, gradients) if node_links.leads else None
    both = two_level.TwoLevelExchange(leading or two_level.Follower(), gradients, node_links)
    return AutoSync(config.menu, parts.optimizer, node_links, gradients=both, leading=leading, local=local)


def _meetings(
    options: Sequence[Option], auto: ExchangeBase, buffer: Gradients, node_links: NodeLinks, *, seed: int
) -> AutoExchange:
    """Return the exchanges in which local updates average, by their kinds. Each rank is a node."""
    by_meeting = {option.meeting: exchange_of([option], like=auto) for option in options}
    exchanges = {
        kind: methods.exchange(each, buffer, node_links.between, seed=seed) for kind, each in by_meeting.items()
    }
    return AutoExchange(exchanges, buffer)
