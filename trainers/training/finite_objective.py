"""Say why a workload is refused whose objective is not finite, although its training loss is."""

from trainers.segment import Evaluation

_UNDEFINED = (
    "; if it is undefined on some batches, such as those of a single class, give the workload a larger "
    "`evaluation_batch_size`, compute it for the whole set in `compute_metrics`, or return a finite number for them"
)


def value_of(evaluation: Evaluation, metric: str) -> float:
    """Return the evaluation's `loss`, or one of the workload's metrics."""
    return evaluation.loss if metric == "loss" else evaluation.metrics[metric]


def why_not_finite(evaluation: Evaluation, metric: str) -> str:
    """Return why `metric`, as `evaluation` found it of a new model, cannot rank the states of a run, and what to do."""
    return (
        f"the validation {metric}, the objective, is {value_of(evaluation, metric)} before the first step and after a "
        "few, although the training loss is finite: look in `validation` for values that are not finite or too large, "
        f"and in `evaluate` for a division by 0{'' if metric == 'loss' else _UNDEFINED}"
    )
