"""`exchange: {kind: auto}`: which exchanges compete, by name. Pydantic only: a job is checked without torch."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, TypeAlias, TypedDict, Unpack

from pydantic import Field, TypeAdapter, ValidationError, field_validator

from trainers.methods import registry
from trainers.methods.exchange.dense.spec import NoneConfig
from trainers.spec.exchange import ExchangeBase
from trainers.spec.link import PerNode
from trainers.spec.method import Competing, Method
from trainers.traffic.buckets import split
from trainers.traffic.collectives import MeanTraffic

#: The kind of option whose ranks train by themselves, and average their parameters once a period.
LOCAL = "local_sgd"
#: Periods: 1 is what `none` does.
SHORTEST, LONGEST = 2, 100_000
#: How they may average: densely, or in few bits with what is left out kept for the next time.
DENSELY, MEETINGS = "none", ("blockwise", "sparse_loco")
#: Optimizers whose ranks may take for their state the mean of all ranks'. `lars` and `schedulefree_plus` keep norms.
AVERAGED = ("sgd", "adamw", "muon", "schedulefree_sgd", "schedulefree_adamw")
#: What local updates are expected to teach, by how they average.
_TAUGHT = {
    DENSELY: Competing(as_dense=1, power=-0.12),
    "blockwise": Competing(as_dense=1, power=-0.12),
    "sparse_loco": Competing(as_dense=0.0025, power=-0.12),
}
#: Where BatchNorm keeps running statistics, what leaves something out teaches less: as much as else to this power.
WITH_BATCH_NORM = 2.0
_COMPETING = {each.kind: each.competing for each in registry.of("exchange") if each.competing is not None}
#: The level of each kind by name; None: it has none. All keep what they do not send, and no momentum of it.
LEVELS: dict[str, str | None] = {kind: competing.level for kind, competing in _COMPETING.items()} | {LOCAL: "period"}
_EXCHANGES: TypeAdapter[Any] = TypeAdapter(registry.union("exchange"))


class Option(NamedTuple):
    """A kind of exchange, at one level. Its name says all of it: `threshold 0.01`, `local_sgd 16 blockwise`."""

    kind: str
    level: float | None = None  # density, rank, or period
    meeting: str = DENSELY  # the exchange in which local updates average

    @property
    def name(self) -> str:
        level = "" if self.level is None else f" {self.level:g}"
        return f"{self.kind}{level}" + (f" {self.meeting}" if self.meeting != DENSELY else "")

    @property
    def teaches(self) -> float:
        """The share of what a dense step teaches that a step is expected to teach."""
        expected = _TAUGHT[self.meeting] if self.kind == LOCAL else _COMPETING[self.kind]
        return expected.teaches(self.level)

    @classmethod
    def parse(cls, name: str) -> "Option":
        """Return the option of that name; raises ValueError if there is none."""
        kind, _, rest = name.strip().partition(" ")
        number, _, meeting = rest.partition(" ")
        has_form = kind in LEVELS and (LEVELS[kind] is None) == (not number)
        if not has_form or meeting not in (("", *MEETINGS) if kind == LOCAL else ("",)):
            known = [f"`{kind}`" if level is None else f"`{kind} <{level}>`" for kind, level in LEVELS.items()]
            known += [f"`{LOCAL} <period> {meeting}`" for meeting in MEETINGS]
            raise ValueError(f"`options` are of the forms {', '.join(known)}, got {name!r}")
        try:
            option = cls(kind, float(f"{float(number):g}") if number else None, meeting or DENSELY)
            option.check()
        except ValueError as error:
            reason = error.errors()[0]["msg"].lower() if isinstance(error, ValidationError) else str(error)
            raise ValueError(f"`options`: {name!r} has no legal {LEVELS[kind]}: {reason}") from error
        return option

    def check(self) -> None:
        """Raise ValueError if the level is not in the range of its kind."""
        if self.kind != LOCAL:
            exchange_of([self], like=NoneConfig())
        elif self.level not in range(SHORTEST, LONGEST + 1):
            raise ValueError(f"it must be a whole number in [{SHORTEST}, {LONGEST}]")


def exchange_of(options: Sequence[Option], *, like: ExchangeBase) -> ExchangeBase:
    """Return the exchange that runs these `options` of one kind, with its defaults and the buckets of `like`.

    Of local updates, which are to have one meeting, it is that.
    """
    is_local = options[0].kind == LOCAL
    kind = options[0].meeting if is_local else options[0].kind
    fields: dict[str, object] = {"kind": kind, "overlap": like.overlap, "bucket_mib": like.bucket_mib}
    levels = sorted({option.level for option in options if option.level is not None})
    if not is_local and (name := LEVELS[kind]):
        fields[name] = levels[0] if len(levels) == 1 else (levels[0], levels[-1])
    exchange: ExchangeBase = _EXCHANGES.validate_python(fields)
    return exchange


def by_kind(options: Sequence[Option]) -> dict[str, list[Option]]:
    """Return the options of each kind, in their order."""
    return {kind: [each for each in options if each.kind == kind] for kind in dict.fromkeys(o.kind for o in options)}


#: What competes unless a job says otherwise, from dense to sparse in either way of sending less.
DEFAULT = (
    *(Option(kind, level) for kind, competing in _COMPETING.items() for level in competing.defaults),
    Option(LOCAL, 4),
    Option(LOCAL, 16),
    *(Option(LOCAL, 16, meeting) for meeting in MEETINGS),
)


class AutoConfig(ExchangeBase):
    """Kinds compete: the controller chooses among `options`, by what they cost and teach on the job's own link."""

    competes: ClassVar[bool] = True
    amplifies_rounding: ClassVar[bool] = True  # as `powersgd` does

    kind: Literal["auto"] = "auto"
    options: tuple[str, ...] | None = Field(
        None,
        max_length=16,
        description="what competes, as `threshold 0.01`: kind, and density, rank or period; of local updates how they "
        "average too, as `local_sgd 16 blockwise`; null: all that fit the job",
    )

    @field_validator("options")
    @classmethod
    def _are_several(cls, options: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if options is None:
            return None
        names = tuple(Option.parse(name).name for name in options)
        if len(set(names)) < len(names):
            raise ValueError(f"`options` must be distinct, got {list(names)}")
        if len(names) < 2:
            raise ValueError(f"`options` must be at least 2, got {list(names)}: {_one_kind(names)}")
        return names


def _one_kind(names: Sequence[str]) -> str:
    """Return what to write where nothing competes."""
    kind, level, meeting = Option.parse(names[0] if names else "none")
    if kind == LOCAL:
        return f"give `sync: {{kind: {kind}, period: {level:g}}}` and `exchange: {{kind: {meeting}}}`"
    knob = "" if level is None else f", {LEVELS[kind]}: {level:g}"
    return f"give `exchange: {{kind: {kind}{knob}}}`"


METHOD = Method(
    "exchange",
    AutoConfig,
    "trainers.methods.exchange.auto.exchange:AutoExchange",
    beside={"controller": {"kind": "bo"}},
)
if TYPE_CHECKING:
    ExchangeConfig: TypeAlias = ExchangeBase
    JobExchange: TypeAlias = ExchangeBase
else:
    #: An exchange that runs by itself, and what a job's `exchange` may be.
    ExchangeConfig, JobExchange = registry.union("exchange"), registry.union("exchange", AutoConfig)


class Beside(TypedDict):
    """The parts of a job that decide whether local updates may compete."""

    optimizer: str  # its kind
    per_node: PerNode
    partition: str  # its kind


def menu(config: ExchangeBase, **beside: Unpack[Beside]) -> tuple[Option, ...]:
    """Return what competes in a job with this exchange; nothing unless it is `auto`."""
    if not isinstance(config, AutoConfig):
        return ()
    if config.options is not None:
        return tuple(map(Option.parse, config.options))
    fits = local_conflict(**beside) is None
    return tuple(option for option in DEFAULT if fits or option.kind != LOCAL)


def options_conflict(config: ExchangeBase, **beside: Unpack[Beside]) -> str | None:
    """Return why options that a job names do not go with its other parts; None: they do, or it names none."""
    named = config.options or () if isinstance(config, AutoConfig) else ()
    local = [name for name in named if Option.parse(name).kind == LOCAL]
    reason = local_conflict(**beside) if local else None
    return reason and f"{reason}: leave out `{local[0]}`, or `options` altogether, which then are those that fit"


def local_conflict(**beside: Unpack[Beside]) -> str | None:
    """Return why local updates cannot compete in such a job; None: they can."""
    optimizer, per_node, partition = beside["optimizer"], beside["per_node"], beside["partition"]
    if optimizer not in AVERAGED:
        return (
            f"after a `{LOCAL}` option workers average what their optimizers hold, which is established for "
            f"{', '.join(f'`{each}`' for each in AVERAGED)}, and not for `{optimizer}`"
        )
    if per_node != 1:
        return f"a `{LOCAL}` option needs workers that each are a node, and `workers.per_node` is {per_node}"
    if partition != "iid":
        return (
            "options are compared by training losses, which workers with data of their own lower fastest while they "
            f"train apart, and `partition` is {partition}"
        )
    return None


def mean_traffic(
    option: Option, shapes: Sequence[Sequence[int]], *, num_workers: int, like: ExchangeBase, num_iterates: int = 1
) -> MeanTraffic:
    """Return the traffic of a step between `num_workers` nodes; `like` says how gradients are cut into buckets.

    Local updates average `num_iterates` vectors of parameters once a period, as it meets: 2 with Schedule-Free.
    """
    is_local = option.kind == LOCAL
    exchange = exchange_of([option], like=like)
    buckets = split([*shapes] * (num_iterates if is_local else 1), exchange)
    sent = exchange.step_traffic(buckets, num_workers, None if is_local else option.level)
    period = option.level if is_local and option.level else 1
    return sent.over(int(period))
