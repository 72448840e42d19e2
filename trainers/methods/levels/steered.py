"""Runs an exchange at levels that a policy sets step by step."""

from typing import Any, Protocol, TypeVar

from torch import Tensor

from trainers.exchange.connection import Connection
from trainers.exchange.exchange import Exchange
from trainers.exchange.gradients import Gradients
from trainers.exchange.level import Level
from trainers.exchange.step_result import Exchanged
from trainers.methods.levels.accordion import Accordion
from trainers.methods.levels.regimes import Part
from trainers.methods.levels.warmup import Warmup
from trainers.snapshot import Inheriting, Kept, part_of, tensors_of
from trainers.spec.exchange import ExchangeBase, SteeredConfig
from trainers.spec.levels import AccordionConfig, WarmupConfig
from trainers.traffic.buckets import Bucket


class LevelPolicy(Inheriting, Protocol):
    """Sets the level of each step, the same on all ranks. Its state changes in `commit` alone: a step may be void."""

    def level(self, asked: float, learning_rate: float) -> Level:
        """Return the level of the coming step, whose stage has the level `asked`."""

    def watch(self, bucket: Bucket, gradient: Tensor) -> None:
        """See the bucket's gradient of this rank, or node, before anything is done to it."""

    def commit(self, connection: Connection) -> None:
        """End a step that was finite on all ranks; collective."""


class LayerExchange(Exchange, Protocol):
    """An exchange that can be told a level for each layer."""

    def step(self, loss: Tensor, level: Level | None, learning_rate: float) -> Exchanged: ...


class SteeredExchange:
    """Asks the policy before each step of `inner`, and tells it of each that was finite on all ranks."""

    def __init__(
        self, config: SteeredConfig, inner: LayerExchange, policy: LevelPolicy, connection: Connection
    ) -> None:
        self._inner, self._policy = inner, policy
        self._config, self._connection = config, connection

    @property
    def threshold(self) -> float | None:
        return self._inner.threshold

    def step(self, loss: Tensor, level: float | None, learning_rate: float) -> Exchanged:
        chosen = self._policy.level(self._config.check_level(level), learning_rate)
        outcome = self._inner.step(loss, chosen, learning_rate)
        if not outcome.diverged:
            self._policy.commit(self._connection)
        return outcome

    def tensors(self) -> dict[str, Tensor]:
        return self._inner.tensors() | tensors_of({"levels": self._policy})

    def scalars(self) -> dict[str, Any]:
        return self._inner.scalars() | {"levels": self._policy.scalars()}

    def load_scalars(self, scalars: dict[str, Any]) -> None:
        self._inner.load_scalars(scalars)
        self._policy.load_scalars(scalars["levels"])

    def inherit(self, kept: Kept) -> None:
        self._inner.inherit(kept)
        own = part_of(kept.tensors, "levels")
        self._policy.inherit(Kept(own, kept.scalars["levels"], index=kept.index, of=kept.of))


def level_policy(config: SteeredConfig, buffer: Gradients) -> LevelPolicy:
    """Return what sets the levels of an exchange of the gradients in `buffer`, as `config.levels` says."""
    match config.levels:
        case WarmupConfig():
            return Warmup(config.levels)
        case AccordionConfig():
            # that are judged together, since they have one level
            parts: list[Part] = [[each] for each in buffer.layers] if config.has_layer_levels else [buffer.layers]
            return Accordion(config.levels, parts, buffer.gradient)
    raise AssertionError(f"`{config.levels.kind}` changes no level")


AnyExchange = TypeVar("AnyExchange", bound=ExchangeBase)


def with_epoch(config: AnyExchange, epoch_steps: int | None) -> AnyExchange:
    """Return `config` with `epoch_steps` for the epochs of its levels, if it leaves them open."""
    if not isinstance(config, SteeredConfig) or not isinstance(config.levels, AccordionConfig):
        return config
    return config.model_copy(update={"levels": config.levels.lasting(epoch_steps)})
