"""Propose the next sample of a sweep from the marks of earlier ones, in one objective or two.

Marks of all rungs inform one model per objective. The share of the budget is an axis of its own, and a sample is
proposed for the whole budget (share 1), so samples that ended early count at their share.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from botorch.acquisition.logei import qLogNoisyExpectedImprovement
from botorch.acquisition.multi_objective import logei
from botorch.acquisition.multi_objective.logei import qLogNoisyExpectedHypervolumeImprovement
from botorch.acquisition.objective import LinearMCObjective
from botorch.fit import fit_gpytorch_mll
from botorch.models import ModelListGP, SingleTaskGP
from botorch.sampling.normal import SobolQMCNormalSampler
from botorch.utils.multi_objective.hypervolume import infer_reference_point
from botorch.utils.multi_objective.pareto import is_non_dominated
from gpytorch.mlls import SumMarginalLogLikelihood
from torch import Tensor

from search.surrogate.model import NUMERICAL_FAILURES, quiet_and_single_threaded
from search.sweep.draw import combinations, features, sobol_points, values_at
from search.sweep.spec import ParamRange, SampleValues, SweepConfig

# BoTorch would compile a kernel at its first use: for a minute, with a lock that stays when the process is killed, and
# to other last digits than where there is no compiler.
logei._load_attempted = True

NUM_CANDIDATES, NUM_DRAWS = 512, 64
#: With fewer marks, or fewer finite ones among them, a model says less than the next point of the design.
MIN_MARKS, MIN_FINITE_MARKS = 4, 2


class Seen(NamedTuple):
    """A mark of a sample with these values at a share of the budget; less is better in both."""

    values: SampleValues
    share: float
    value: float | None  # None: it diverged or failed, or was not finite
    cost: float | None = None  # None: it is not known, or no objective


class Proposed(NamedTuple):
    """The values of a sample, and the rule that drew them."""

    values: SampleValues
    drawn_by: str


def propose(
    params: Mapping[str, ParamRange],
    sweep: SweepConfig,
    number: int,
    *,
    seen: Sequence[Seen],
    pending: Sequence[SampleValues] = (),
    fits: Callable[[SampleValues], bool] = lambda _: True,
) -> Proposed:
    """Return the values of sample `number`: a pure function of what is given.

    Maximises qLogNEHVI where there are costs (Daulton et al., 2021; Ament et al., 2023), else qLogNEI, over 512
    points that no sample has yet. With too few marks, or where the numbers fail, it is the first of them.
    Values that do not fit are passed over, unless nothing fits; values come again when there are no others.
    """
    points = sobol_points(NUM_CANDIDATES + number, len(params), seed=sweep.seed)
    drawn = [values_at(params, point) for point in points[number:]]
    taken = [*(each.values for each in seen), *pending]
    cloud = _new_values(params, drawn, taken, fits)
    if not cloud:
        return Proposed(next(filter(fits, (*drawn, *taken)), drawn[0]), "sobol")
    fallback = Proposed(cloud[0], "sobol")
    if len(seen) < MIN_MARKS or sum(each.value is not None for each in seen) < MIN_FINITE_MARKS:
        return fallback
    try:
        worth = _worth(params, cloud, seen, pending, is_paired=sweep.cost is not None, seed=sweep.seed + number)
    except NUMERICAL_FAILURES:
        return fallback
    if not np.isfinite(worth).any():
        return fallback
    name = "qLogNEI" if sweep.cost is None else "qLogNEHVI"
    return Proposed(cloud[int(np.nanargmax(worth))], name)


def _new_values(
    params: Mapping[str, ParamRange],
    drawn: Sequence[SampleValues],
    taken: Sequence[SampleValues],
    fits: Callable[[SampleValues], bool],
) -> list[SampleValues]:
    """Return what fits and is not `taken` of `drawn`; where none of these is, of all combinations of few values."""
    if not any(map(fits, (*taken, *drawn))):  # an earlier release has accepted a job that fits no more
        return [values for values in drawn if values not in taken]
    of_drawn = [values for values in drawn if values not in taken and fits(values)]
    return of_drawn or [values for values in combinations(params) if values not in taken and fits(values)]


def _worth(
    params: Mapping[str, ParamRange],
    cloud: Sequence[SampleValues],
    seen: Sequence[Seen],
    pending: Sequence[SampleValues],
    *,
    is_paired: bool,
    seed: int,
) -> np.ndarray:
    """Return the acquisition at each of `cloud`."""
    with quiet_and_single_threaded(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        known = _inputs(params, ((each.values, each.share) for each in seen))
        outcomes = outcomes_of(seen, is_paired=is_paired)
        model = _fitted(known, outcomes)
        whole = known[[each.value is not None for each in seen]]  # what diverged is on no front
        whole[:, -1] = 1.0
        candidates = _inputs(params, ((values, 1.0) for values in cloud)).unsqueeze(1)
        waiting = _inputs(params, ((values, 1.0) for values in pending)) if pending else None
        sampler = SobolQMCNormalSampler(torch.Size([NUM_DRAWS]), seed=seed)
        with torch.no_grad():
            baseline = torch.unique(whole, dim=0)
            means = model.posterior(baseline).mean
            if is_paired:
                front = means[is_non_dominated(means)]
                acquisition = qLogNoisyExpectedHypervolumeImprovement(
                    model, infer_reference_point(front), baseline, sampler=sampler, X_pending=waiting,
                    prune_baseline=True,
                )  # fmt: skip
            else:
                acquisition = qLogNoisyExpectedImprovement(
                    model, baseline, sampler=sampler, X_pending=waiting, prune_baseline=True,
                    objective=LinearMCObjective(torch.ones(1, dtype=torch.float64)),
                )  # fmt: skip
            return np.asarray(acquisition(candidates).numpy())


def _inputs(params: Mapping[str, ParamRange], rows: Iterable[tuple[SampleValues, float]]) -> Tensor:
    """Return features `(n, d + 1)`, the share of the budget last."""
    return torch.tensor([[*features(params, values), share] for values, share in rows], dtype=torch.float64)


def outcomes_of(seen: Sequence[Seen], *, is_paired: bool) -> Tensor:
    """Return outcomes `(n, 1 or 2)`, more is better, with mean 0 and deviation 1; NaN: the cost is not known."""
    columns = [_goodness(seen), _cheapness(seen)] if is_paired else [_goodness(seen)]
    return torch.stack([_standardised(column) for column in columns], dim=1)


def _goodness(seen: Sequence[Seen]) -> Tensor:
    """Return the values turned so that more is better; what is far off, or diverged, is bad, but not how much."""
    raw = torch.tensor([math.nan if each.value is None else -each.value for each in seen], dtype=torch.float64)
    # A sample that almost diverged is a hundred times off: what is far below the median says "bad", not how bad.
    middle = raw.nanmedian()
    spread = (raw - middle).abs().nanmedian()
    spread = spread if spread > 0 else raw[~raw.isnan()].std(correction=0)  # where most values are equal
    raw = raw.maximum(middle - 5 * spread)
    finite = raw[~raw.isnan()]
    below = max(float(finite.max() - finite.min()) / 2, float(finite.std())) or 1.0
    return raw.nan_to_num(nan=float(finite.min()) - below)


def _cheapness(seen: Sequence[Seen]) -> Tensor:
    """Return the costs of a whole budget turned so that more is better: no cost diverges, so each counts as it is."""
    costs = [math.nan if each.cost is None else -each.cost / each.share for each in seen]
    return torch.tensor(costs, dtype=torch.float64)


def _standardised(column: Tensor) -> Tensor:
    known = column[~column.isnan()]
    return (column - known.mean()) / known.std().clamp_min(1e-12)


def _fitted(points: Tensor, outcomes: Tensor) -> ModelListGP:
    known = [(column, ~column.isnan()) for column in outcomes.unbind(dim=1)]
    model = ModelListGP(
        *(SingleTaskGP(points[rows], column[rows].unsqueeze(-1), outcome_transform=None) for column, rows in known)
    )
    fit_gpytorch_mll(SumMarginalLogLikelihood(model.likelihood, model))
    return model
