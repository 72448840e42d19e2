"""The next sample of a sweep, learned from the marks of the earlier ones, in one objective or in two.

Marks at all rungs inform one model per objective: the share of the budget is an axis of its own, and a sample is
proposed for the whole budget (share 1), so that what ended early counts for what it was.
"""

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
from search.sweep.draw import features, sobol_points, values_at
from search.sweep.spec import ParamRange, SampleValues, SweepConfig

# BoTorch would compile a kernel at its first use: for a minute, with a lock that stays when the process is killed, and
# to other last digits than where there is no compiler.
logei._load_attempted = True

NUM_CANDIDATES, NUM_DRAWS = 512, 64
#: With fewer finite marks a model says less than the next point of the design.
MIN_MARKS = 4


class Seen(NamedTuple):
    """A mark of a sample with these values at a share of the budget; less is better in both."""

    values: SampleValues
    share: float
    value: float
    cost: float | None = None


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
    points that no sample has yet. With too few marks, or where the numbers fail, it is the design's next point.
    Values that do not fit are passed over, unless none of these points fits.
    """
    points = sobol_points(NUM_CANDIDATES + number, len(params), seed=sweep.seed)
    drawn = [values_at(params, point) for point in points[number:]]
    fitting = [values for values in drawn if fits(values)] or drawn
    fallback = Proposed(fitting[0], "sobol")
    taken = [*(each.values for each in seen), *pending]
    cloud = [values for values in fitting if values not in taken]
    if len(seen) < MIN_MARKS or not cloud:
        return fallback
    try:
        worth = _worth(params, cloud, seen, pending, is_paired=sweep.cost is not None, seed=sweep.seed + number)
    except NUMERICAL_FAILURES:
        return fallback
    if not np.isfinite(worth).any():
        return fallback
    name = "qLogNEI" if sweep.cost is None else "qLogNEHVI"
    return Proposed(cloud[int(np.nanargmax(worth))], name)


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
        outcomes = _outcomes(seen, is_paired=is_paired)
        model = _fitted(known, outcomes)
        whole = known.clone()
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


def _outcomes(seen: Sequence[Seen], *, is_paired: bool) -> Tensor:
    """Return outcomes `(n, 1 or 2)`, turned so that more is better, with mean 0 and deviation 1."""
    rows = [[-each.value, -(each.cost or 0.0)] if is_paired else [-each.value] for each in seen]
    raw = torch.tensor(rows, dtype=torch.float64)
    # A sample that almost diverged is a hundred times off: what is far below the median says "bad", not how bad.
    middle = raw.median(dim=0).values
    spread = (raw - middle).abs().median(dim=0).values.clamp_min(1e-12)
    raw = raw.maximum(middle - 5 * spread)
    return (raw - raw.mean(dim=0)) / raw.std(dim=0).clamp_min(1e-12)


def _fitted(points: Tensor, outcomes: Tensor) -> ModelListGP:
    models = [SingleTaskGP(points, outcomes[:, [axis]], outcome_transform=None) for axis in range(outcomes.shape[1])]
    model = ModelListGP(*models)
    fit_gpytorch_mll(SumMarginalLogLikelihood(model.likelihood, model))
    return model
