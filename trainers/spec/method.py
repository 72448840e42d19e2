"""The record that a method gives of itself: all lists of methods follow from these. Pydantic only."""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from trainers.spec.ranges import Config

#: The parts of a job that offer methods.
Part = Literal["exchange", "sync", "blocks", "activations", "optimizer", "partition"]


#: Those whose methods are built through the registry, so that other packages can add some.
OPEN: tuple[Part, ...] = ("exchange", "sync", "blocks")


class Paper(NamedTuple):
    """A publication; authors by family name, in the paper's order."""

    authors: str
    title: str
    venue: str
    year: int


class Competing(NamedTuple):
    """The options that a kind of exchange has in `exchange: {kind: auto}`.

    A step at the level `as_dense` is expected to teach as much as a dense one, and a step that sends less a share of
    that: the quotient of the levels to this `power`. `benchmarks/suite/option_probes.py` has what both are fitted to.
    """

    level: str | None = None  # the knob that tells options apart: density, rank; None: there is one option
    defaults: tuple[float | None, ...] = ()  # levels that compete unless a job says otherwise
    as_dense: float = 1.0
    power: float | None = None  # nothing is known: what leaves something out is expected to teach a half

    def teaches(self, level: float | None) -> float:
        """Return what a step at `level` is expected to teach, as a share of what a dense one does."""
        if level is None:
            return 1.0
        return 0.5 if self.power is None else float(min(1.0, (level / self.as_dense) ** self.power))


@dataclass(frozen=True)
class Method:
    """A kind that a job can choose at `part`, with everything that others need to know of it.

    The configuration's `kind` names the method, and its docstring is the summary. A job that chooses it says at least
    `least` of its own knobs, and `beside` of other parts. `otherwise` are knobs, by part, that make it go with choices
    that refuse its usual ones.
    """

    part: Part
    config: type[Config]
    implementation: str = ""  # `package.module:name`, imported when a worker first needs it; of parts in `OPEN`
    papers: tuple[Paper, ...] = ()  # none: common practice, or our own
    least: Mapping[str, Any] = field(default_factory=dict)
    beside: Mapping[str, Any] = field(default_factory=dict)
    otherwise: tuple[Mapping[str, Any], ...] = ()
    competing: Competing | None = None  # None: it does not compete in `auto`
    policy: str = ""  # of an exchange under which parameters drift: what becomes of them, as `implementation`

    @property
    def kind(self) -> str:
        """The name in a job."""
        return str(self.config.model_fields["kind"].default)

    @property
    def summary(self) -> str:
        """The first paragraph of the configuration's docstring, on one line."""
        return " ".join((self.config.__doc__ or "").partition("\n\n")[0].split())

    def load(self) -> Any:
        """Import and return the implementation. Raises ImportError or AttributeError if it is not there."""
        return _imported(self.implementation)

    def load_policy(self) -> Any:
        """Import and return the policy, if it has one of its own."""
        return _imported(self.policy) if self.policy else None


def _imported(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)
