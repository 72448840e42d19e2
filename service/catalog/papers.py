"""Papers of the controllers and of composed methods. Every other method names its own papers."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from trainers.methods import registry
from trainers.methods.blocks.jointspar import spec as jointspar
from trainers.methods.exchange.dgc import spec as dgc
from trainers.methods.exchange.signsgd import spec as signsgd
from trainers.methods.exchange.threshold import spec as threshold
from trainers.methods.exchange.topk import spec as topk
from trainers.methods.optimizer.spec import LARS
from trainers.methods.sync.local_sgd import spec as local_sgd
from trainers.spec.levels import ACCORDION
from trainers.spec.method import Paper


class Note(NamedTuple):
    """The source of a kind, and the fields that a job must state to use it, besides the kind."""

    papers: tuple[Paper, ...] = ()  # empty: common practice, or our own
    least: Mapping[str, Any] = MappingProxyType({})
    beside: Mapping[str, Any] = MappingProxyType({})  # other parts of the job that it needs
    otherwise: tuple[Mapping[str, Any], ...] = ()  # knobs by part, to try if these do not combine with another choice


class Composed(NamedTuple):
    """A published method that is not a single kind: it needs certain knobs, or kinds of several parts."""

    name: str
    part: str
    summary: str
    papers: tuple[Paper, ...]
    job: dict[str, Any]
    otherwise: tuple[Mapping[str, Any], ...] = ()  # as in `Note`


_CONTROLLERS = {
    "bo": Note(),
    "sobol": Note(),
    "local": Note(),
    "autolrs": Note(
        (
            Paper(
                "Jin, Zhou, Zhao, Zhu, Guo, Canini, Krishnamurthy",
                "AutoLRS: automatic learning-rate schedule by Bayesian optimization on the fly",
                "ICLR",
                2021,
            ),
        )
    ),
    "fixed": Note(),
    "cosine": Note(
        (Paper("Loshchilov, Hutter", "SGDR: stochastic gradient descent with warm restarts", "ICLR", 2017),)
    ),
    "linear": Note(),
    "polynomial": Note((LARS,)),
    "off": Note(),
    "schedule": Note(
        least={
            "schedule": {
                "optimizer": "sgd",
                "num_steps": 100,
                "entries": [{"step": 0, "num_steps": 100, "learning_rate": 0.1}],
            }
        },
        beside={"optimizer": {"kind": "sgd"}},
        otherwise=(
            *({"controller": {"schedule": {"optimizer": method.kind}}} for method in registry.of("optimizer")),
            # for exchanges that return a direction, which take no other optimizer
            {
                "controller": {"schedule": {"optimizer": "from_exchange"}},
                "optimizer": {"kind": "from_exchange"},
            },
        ),
    ),
}

NOTES: dict[str, dict[str, Note]] = {"controller": _CONTROLLERS}

_CAT = Paper(
    "Khirirat, Magnusson, Aytekin, Johansson",
    "A flexible framework for communication-efficient machine learning",
    "AAAI",
    2021,
)
#: CAT's default cost of a message.
_LINK = {"kind": "link"}
_SECONDS = {"budget": {"seconds": 60}}


def _cat(name: str, summary: str, policy: dict[str, Any], **knobs: str) -> Composed:
    exchange = {"kind": "topk", "density": 0.1, **knobs, "levels": {"kind": "cat", **policy}}
    measures = policy.get("cost", _LINK) == _LINK  # measuring the link needs a clock
    return Composed(name, "levels", summary, (_CAT,), {"exchange": exchange} | (_SECONDS if measures else {}))


COMPOSED = (
    # level policies of an exchange, and CAT's costs of a message
    Composed(
        "warmup",
        "levels",
        "The density falls to its level over the first steps: `levels: {kind: warmup}` of an exchange with a density.",
        dgc.METHOD.papers,
        {"exchange": {"kind": "topk", "density": 0.01, "levels": {"kind": "warmup", "steps": 50}}},
    ),
    Composed(
        "calibrated",
        "levels",
        "A hard threshold of 1 / (2 sqrt(k)) for k expected entries: `levels: {kind: calibrated}` of `threshold`.",
        threshold.METHOD.papers,
        {"exchange": {"kind": "threshold", "density": 0.01, "hold": "run", "levels": {"kind": "calibrated"}}},
    ),
    Composed(
        "accordion",
        "levels",
        "More is sent while gradients change fast: `levels: {kind: accordion}` of any exchange with a level.",
        (ACCORDION,),
        {"exchange": {"kind": "powersgd", "rank": 1, "levels": {"kind": "accordion", "critical": 4}}},
        ({"exchange": {"levels": {"critical": 0.1}}},),  # for exchanges whose level is a density
    ),
    _cat("cat", "As many entries as promise the most descent per second on the job's link.", {"cost": _LINK}),
    _cat("cat_payload", "CAT where a message costs its bits.", {"cost": {"kind": "payload"}}),
    _cat("cat_affine", "CAT where a message costs its bits, and a fixed amount.", {"cost": {"kind": "affine"}}),
    _cat("cat_packet", "CAT where a message costs its packets, and a fixed amount.", {"cost": {"kind": "packet"}}),
    _cat("cat_signs", "CAT of signs, with one length for all entries of a message.", {}, values="sign"),
    _cat(
        "cat_drawn",
        "CAT of entries drawn at random, large ones most often, so that their mean is right.",
        {"variant": "drawn"},
        memory="none",
    ),
    # methods of other parts
    Composed(
        "error_feedback",
        "memory",
        "What is not sent is added to the next gradient: `memory: residual` of a sparse exchange.",
        (signsgd.ERROR_FEEDBACK, *topk.METHOD.papers),
        {"exchange": {"kind": "topk", "density": 0.01, "memory": "residual"}},
    ),
    Composed(
        "ef21",
        "memory",
        "Differences to what was sent before are sent: `memory: ef21` of a sparse exchange.",
        (
            Paper(
                "Richtarik, Sokolov, Fatkhullin",
                "EF21: a new, simpler, theoretically better, and practically faster error feedback",
                "NeurIPS",
                2021,
            ),
        ),
        {"exchange": {"kind": "topk", "density": 0.01, "memory": "ef21"}},
    ),
    Composed(
        "majority_sign",
        "exchange",
        "The sign that most workers have: `signsgd` without feedback.",
        (signsgd.MAJORITY,),
        {"exchange": {"kind": "signsgd", "feedback": False}},
    ),
    Composed(
        "slow_momentum",
        "sync",
        "Momentum of what averaging the parameters changes (SlowMo): `slow_momentum` of `local_sgd`.",
        (local_sgd.SLOW_MOMENTUM,),
        {"sync": {"kind": "local_sgd", "slow_momentum": 0.5}},
    ),
    Composed(
        "jointspar_lars",
        "blocks",
        "Drawn blocks under LARS, whose rate is divided by a block's chance outside of the trust ratio.",
        (jointspar.PAPER, LARS),
        {"blocks": {"kind": "jointspar"}, "optimizer": {"kind": "lars"}},
    ),
)
