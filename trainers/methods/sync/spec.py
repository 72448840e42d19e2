"""The policies that keep the workers' parameters together. Pydantic only: a job is checked without torch."""

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from trainers.methods.exchange.auto.spec import AutoConfig, JobExchange
from trainers.methods.levels.spec import RegimeConfig
from trainers.spec.exchange import Period
from trainers.spec.ranges import Config, Conflict
from trainers.spec.two_way import DriftingConfig

Coefficient = Annotated[float, Field(ge=0, lt=1)]


#: What the bytes of a policy are billed as.
Payload = Literal["gradient", "parameters"]


class EveryStepConfig(Config):
    """Gradients are exchanged in every step, so parameters never differ."""

    kind: Literal["every_step"] = "every_step"
    payload: ClassVar[Payload] = "gradient"


class LocalUpdatesConfig(Config):
    """The base of local updates: workers train by themselves for a while and then average their parameters."""

    payload: ClassVar[Payload] = "parameters"
    period: Period | tuple[Period, Period] = Field(8, description="steps from one averaging to the next")


class LocalSgdConfig(LocalUpdatesConfig):
    """Average the parameters every `period` steps (Stich, 2019), optionally with slow momentum (Wang et al., 2020)."""

    kind: Literal["local_sgd"] = "local_sgd"
    slow_momentum: Coefficient = Field(0.0, description="momentum of what averaging changes; 0: plain averages")


class StlSgdConfig(LocalUpdatesConfig):
    """Local SGD in stages of falling rates and growing periods (Shen et al., 2021)."""

    kind: Literal["stl_sgd"] = "stl_sgd"
    first_stage: int = Field(100, ge=1, description="steps of the first stage")
    growth: Literal["double", "linear"] = Field(
        "double",
        description="double: each stage halves the rate and is twice as long (SC, and NC option 1); linear: stage s "
        "has 1/s of the first rate and s times its length (NC option 2)",
    )
    gamma: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description="NC: each stage also minimises ||x - x_s||^2 / (2 gamma), x_s being where it began; None: SC",
    )
    data: Literal["auto", "iid", "non_iid"] = Field(
        "auto",
        description="the period grows as the rate falls (iid), or as its square root does (non_iid); auto: as the "
        "job's partition says",
    )

    def conflicts(self) -> Iterator[Conflict]:
        yield from super().conflicts()
        if self.growth == "linear" and self.gamma is None:
            yield Conflict(
                "/gamma", None, "`growth: linear` is for non-convex problems: it needs `gamma`, a number > 0"
            )


class VrlSgdConfig(LocalUpdatesConfig):
    """Local SGD whose workers correct what their own data draw them to (Liang et al., 2019)."""

    kind: Literal["vrl_sgd"] = "vrl_sgd"


class BehindConfig(LocalUpdatesConfig):
    """The base of policies that average while the workers train on."""


class CocodSgdConfig(BehindConfig):
    """Average while the workers train on, and add what they did meanwhile (Shen et al., 2019)."""

    kind: Literal["cocod_sgd"] = "cocod_sgd"


class OverlapLocalSgdConfig(BehindConfig):
    """Pull the workers to an anchor, which is averaged while they train on (Wang, Liang and Joshi, 2020)."""

    kind: Literal["overlap_local_sgd"] = "overlap_local_sgd"
    period: Period | tuple[Period, Period] = Field(2, description="steps from one averaging to the next")
    pull: float = Field(0.6, gt=0, le=1, description="how far a worker goes to the anchor: 1 is all the way")
    momentum: Coefficient = Field(0.7, description="of the anchor")


class AccordionBatchConfig(RegimeConfig):
    """Exchange every gradient in critical regimes, and then those of `factor` steps as one (Agarwal et al., 2021)."""

    kind: Literal["accordion_batch"] = "accordion_batch"
    payload: ClassVar[Payload] = "gradient"
    factor: int = Field(8, ge=2, le=1024, description="by which batch and learning rate grow")


SyncConfig = Annotated[
    EveryStepConfig
    | LocalSgdConfig
    | StlSgdConfig
    | VrlSgdConfig
    | CocodSgdConfig
    | OverlapLocalSgdConfig
    | AccordionBatchConfig,
    Field(discriminator="kind"),
]


def sync_conflict(sync: SyncConfig, exchange: JobExchange, optimizer: str) -> str | None:
    """Return why `sync` does not go with `exchange`, or with the optimizer of this kind; None: it does."""
    if isinstance(sync, EveryStepConfig):
        return None
    if optimizer == "auto":
        return (
            f"optimizers that compete start from one state of all workers, which under `{sync.kind}` have parameters "
            "or batches of their own: give `sync: {kind: every_step}`, or one `optimizer`, as `{kind: sgd}`"
        )
    if isinstance(exchange, AutoConfig):
        return (
            f"`auto` chooses itself how often workers meet, and `{sync.kind}` says it too: leave `sync` out, or give "
            "one `exchange`, as `{kind: none}`"
        )
    if isinstance(sync, AccordionBatchConfig):
        return _changes_more_than_the_batch(exchange)
    if isinstance(sync, LocalSgdConfig | StlSgdConfig):
        return _does_not_compress(sync.kind, exchange)
    if not exchange.is_exact:
        return (
            f"`{sync.kind}` averages exactly, and `{exchange.kind}` does not: give `exchange: {{kind: none}}`, or "
            "`sync: {kind: local_sgd}`, which compresses"
        )
    if isinstance(sync, VrlSgdConfig) and optimizer.startswith("schedulefree"):
        return (
            f"`vrl_sgd` corrects one iterate, and `{optimizer}` trains two: give `optimizer: {{kind: sgd}}`, or "
            "`sync: {kind: local_sgd}`"
        )
    return None


def _changes_more_than_the_batch(exchange: JobExchange) -> str | None:
    """Return why the batch cannot change as well."""
    if isinstance(exchange, DriftingConfig):
        return (
            f"`accordion_batch` holds gradients, and `{exchange.kind}` applies them on each worker: give "
            "`exchange: {kind: doublesqueeze}`, or `sync: {kind: every_step}`"
        )
    if exchange.level_policy == "static":
        return None
    return (
        f"`accordion_batch` changes the batch, and `levels: {{kind: {exchange.level_policy}}}` the level: give "
        "`levels: {kind: static}`, or `sync: {kind: every_step}`"
    )


def _does_not_compress(kind: str, exchange: JobExchange) -> str | None:
    """Return why `exchange` cannot compress differences of parameters, none of which may be left out for good."""
    if exchange.level_policy != "static":
        reason: str | None = f"`levels: {{kind: {exchange.level_policy}}}` is about gradients of every step"
    else:
        reason = exchange.difference_conflict()
    if reason is None:
        return None
    return (
        f"`{kind}` compresses differences of parameters, and {reason}: give `exchange: {{kind: topk, density: 0.01}}` "
        "or another one with `memory: residual`, or `{kind: none}`"
    )
