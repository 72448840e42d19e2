"""The papers of the methods that a job can choose: the one place where they are named in full.

Keyed like the job: by part, then by kind. What a kind does, and its knobs, are said where its configuration is.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from trainers.methods.exchange.dgc import spec as dgc
from trainers.methods.exchange.signsgd import spec as signsgd
from trainers.methods.exchange.threshold import spec as threshold
from trainers.methods.exchange.topk import spec as topk
from trainers.spec.method import Paper


class Note(NamedTuple):
    """The source of a kind, and the least that a job has to say to use it, besides the kind."""

    papers: tuple[Paper, ...] = ()  # none: common practice, or our own
    least: Mapping[str, Any] = MappingProxyType({})
    beside: Mapping[str, Any] = MappingProxyType({})  # other parts of the job that it needs
    otherwise: tuple[Mapping[str, Any], ...] = ()  # knobs, by part, for where these do not go with another choice


class Composed(NamedTuple):
    """A published method that is not a kind: kinds with certain knobs, or of several parts."""

    name: str
    part: str
    summary: str
    papers: tuple[Paper, ...]
    job: dict[str, Any]
    otherwise: tuple[Mapping[str, Any], ...] = ()  # as of a note


_ACCORDION = Paper(
    "Agarwal, Wang, Lee, Venkataraman, Papailiopoulos",
    "Adaptive gradient communication via critical learning regime identification",
    "MLSys",
    2021,
)
_JOINTSPAR = Paper(
    "Liu, Mozafari", "Communication-efficient distributed learning for large batch optimization", "ICML", 2022
)
_LARS = Paper("You, Gitman, Ginsburg", "Large batch training of convolutional networks", "arXiv:1708.03888", 2017)
_SCHEDULE_FREE = Paper("Defazio, Yang, Mehta, Mishchenko, Khaled, Cutkosky", "The road less scheduled", "NeurIPS", 2024)

#: Optimizers for methods that do not go with the job's own default, `schedulefree_sgd`.
_SGD = {"optimizer": {"kind": "sgd"}}

_SYNCS = {
    "every_step": Note(),
    "local_sgd": Note((Paper("Stich", "Local SGD converges fast and communicates little", "ICLR", 2019),)),
    "accordion_batch": Note((_ACCORDION,), {"epoch_steps": 100}),
    "stl_sgd": Note(
        (
            Paper(
                "Shen, Cheng, Liu, Xu",
                "STL-SGD: speeding up local SGD with stagewise communication period",
                "AAAI",
                2021,
            ),
        )
    ),
    "vrl_sgd": Note(
        (
            Paper(
                "Liang, Shen, Liu, Pan, Chen, Cheng",
                "Variance reduced local SGD with lower communication complexity",
                "arXiv:1912.12844",
                2019,
            ),
        ),
        beside=_SGD,
    ),
    "cocod_sgd": Note(
        (
            Paper(
                "Shen, Xu, Liu, Liang, Cheng",
                "Faster distributed deep net training: computation and communication decoupled stochastic gradient "
                "descent",
                "IJCAI",
                2019,
            ),
        )
    ),
    "overlap_local_sgd": Note(
        (
            Paper(
                "Wang, Liang, Joshi",
                "Overlap local-SGD: an algorithmic approach to hide communication delays in distributed SGD",
                "ICASSP",
                2020,
            ),
        )
    ),
}

_OPTIMIZERS = {
    "sgd": Note(),
    "lars": Note((_LARS,)),
    "adamw": Note((Paper("Loshchilov, Hutter", "Decoupled weight decay regularization", "ICLR", 2019),)),
    "muon": Note(
        (
            Paper(
                "Jordan, Jin, Boza, You, Cesista, Newhouse, Bernstein",
                "Muon: an optimizer for hidden layers in neural networks",
                "kellerjordan.github.io/posts/muon",
                2024,
            ),
            Paper("Liu, Su et al.", "Muon is scalable for LLM training", "arXiv:2502.16982", 2025),
        )
    ),
    "schedulefree_sgd": Note((_SCHEDULE_FREE,)),
    "schedulefree_adamw": Note((_SCHEDULE_FREE,)),
    "own": Note(),
    "auto": Note(beside={"controller": {"kind": "bo"}}),
}

_PARTITIONS = {
    "iid": Note(),
    "dirichlet": Note(
        (
            Paper(
                "Hsu, Qi, Brown",
                "Measuring the effects of non-identical data distribution for federated visual classification",
                "arXiv:1909.06335",
                2019,
            ),
        ),
        {"alpha": 0.3},
    ),
    "by_label": Note(),
}

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
    "polynomial": Note((_LARS,)),
    "off": Note(),
    "schedule": Note(
        least={
            "schedule": {
                "optimizer": "sgd",
                "num_steps": 100,
                "entries": [{"step": 0, "num_steps": 100, "learning_rate": 0.1}],
            }
        },
        beside=_SGD,
        otherwise=tuple({"controller": {"schedule": {"optimizer": kind}}} for kind in _OPTIMIZERS),
    ),
}

NOTES: dict[str, dict[str, Note]] = {
    "sync": _SYNCS,
    "blocks": {"all": Note(), "jointspar": Note((_JOINTSPAR,), beside=_SGD)},
    "activations": {
        "keep": Note(),
        "dropit": Note(
            (
                Paper(
                    "Chen, Xu, Wang, Cheng, Yao",
                    "DropIT: dropping intermediate tensors for memory-efficient DNN training",
                    "ICLR",
                    2023,
                ),
            )
        ),
    },
    "optimizer": _OPTIMIZERS,
    "partition": _PARTITIONS,
    "controller": _CONTROLLERS,
}

_CAT = Paper(
    "Khirirat, Magnusson, Aytekin, Johansson",
    "A flexible framework for communication-efficient machine learning",
    "AAAI",
    2021,
)
#: What a message costs CAT unless a job says otherwise.
_LINK = {"kind": "link"}
_SECONDS = {"budget": {"seconds": 60}}


def _cat(name: str, summary: str, policy: dict[str, Any], **knobs: str) -> Composed:
    exchange = {"kind": "topk", "density": 0.1, **knobs, "levels": {"kind": "cat", **policy}}
    measures = policy.get("cost", _LINK) == _LINK  # which takes a clock
    return Composed(name, "levels", summary, (_CAT,), {"exchange": exchange} | (_SECONDS if measures else {}))


#: `levels` of an exchange, and what CAT may take for the cost of a message.
_LEVELS = (
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
        (_ACCORDION,),
        {"exchange": {"kind": "powersgd", "rank": 1, "levels": {"kind": "accordion", "critical": 4}}},
        ({"exchange": {"levels": {"critical": 0.1}}},),  # of a density
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
)

COMPOSED = (
    *_LEVELS,
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
        (
            Paper(
                "Bernstein, Wang, Azizzadenesheli, Anandkumar",
                "signSGD: compressed optimisation for non-convex problems",
                "ICML",
                2018,
            ),
        ),
        {"exchange": {"kind": "signsgd", "feedback": False}},
    ),
    Composed(
        "slow_momentum",
        "sync",
        "Momentum of what averaging the parameters changes (SlowMo): `slow_momentum` of `local_sgd`.",
        (
            Paper(
                "Wang, Tantia, Ballas, Rabbat",
                "SlowMo: improving communication-efficient distributed SGD with slow momentum",
                "ICLR",
                2020,
            ),
        ),
        {"sync": {"kind": "local_sgd", "slow_momentum": 0.5}},
    ),
    Composed(
        "jointspar_lars",
        "blocks",
        "Drawn blocks under LARS, whose rate is divided by a block's chance outside of the trust ratio.",
        (_JOINTSPAR, _LARS),
        {"blocks": {"kind": "jointspar"}, "optimizer": {"kind": "lars"}},
    ),
)
