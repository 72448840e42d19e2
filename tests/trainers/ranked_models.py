"""Workloads with metrics of the whole validation set; the tests name them in a job."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from own_models import Regression, samples
from sklearn.datasets import load_breast_cancer
from torch import Tensor, nn
from torch.utils.data import TensorDataset, random_split

from trainers.segment import Direction
from trainers.workload import Workload


class Ranked(Workload):
    """Tumours, ranked by how likely they are benign; 2 and 3 ranks validate on different numbers of them."""

    evaluation_batch_size = 16
    metrics: Mapping[str, Direction] = {"auc": "max", "accuracy": "max"}

    def __init__(self) -> None:
        inputs, labels = map(torch.tensor, load_breast_cancer(return_X_y=True))
        inputs = ((inputs - inputs.mean(dim=0)) / inputs.std(dim=0)).float()
        self.training, self.validation = random_split(TensorDataset(inputs, labels), [456, 113])

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(30, 16), nn.ReLU(), nn.Linear(16, 2))

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    def evaluate(self, model: nn.Module, batch: Any) -> Mapping[str, Tensor]:
        outputs, labels = model(batch[0]), batch[1]
        loss = nn.functional.cross_entropy(outputs, labels)
        return {"loss": loss, "accuracy": (outputs.argmax(dim=1) == labels).float().mean()}

    def predictions(self, model: nn.Module, batch: Any) -> Mapping[str, Tensor]:
        outputs = model(batch[0])
        return {"scores": outputs[:, 1] - outputs[:, 0], "labels": batch[1]}

    def compute_metrics(self, predictions: Mapping[str, Tensor]) -> Mapping[str, float]:
        return {"auc": auc(predictions["scores"], predictions["labels"])}


def auc(scores: Tensor, labels: Tensor) -> float:
    """Return the share of pairs of both classes in which the higher score has label 1; equal scores count half."""
    margins = scores[labels == 1].unsqueeze(1) - scores[labels == 0]
    return ((margins > 0).double() + 0.5 * (margins == 0).double()).mean().item()


class Echo(Regression):
    """Predicts the samples themselves, in several types. It measures whether all come back, in their order."""

    evaluation_batch_size = 4
    metrics: Mapping[str, Direction] = {"mae": "min", "is_whole": "max"}

    def __init__(self, count: int = 50) -> None:
        super().__init__()
        self.validation = TensorDataset(*samples(1, count))

    def predictions(self, model: nn.Module, batch: Any) -> Mapping[str, Tensor]:
        inputs, targets = batch
        return {
            "inputs": inputs,
            "flags": targets > 0,
            "doubles": targets.squeeze(1).double(),
            "halves": inputs.bfloat16(),
            "turns": torch.complex(inputs, -inputs).conj(),
            "columns": inputs.T.contiguous().T,
            "nothing": inputs[:, :0],
        }

    def compute_metrics(self, predictions: Mapping[str, Tensor]) -> Mapping[str, float]:
        expected = dict(Echo.predictions(self, nn.Identity(), self.validation.tensors))
        expected["halves"] = expected["halves"].float()
        is_whole = predictions.keys() == expected.keys() and all(
            predictions[name].dtype == each.dtype and torch.equal(predictions[name], each)
            for name, each in expected.items()
        )
        return {"is_whole": float(is_whole)}


class Tight(Echo):
    """The second batch ever does not fit on a GPU."""

    num_calls = 0

    def predictions(self, model: nn.Module, batch: Any) -> Mapping[str, Tensor]:
        self.num_calls += 1
        if self.num_calls == 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB.")
        return super().predictions(model, batch)


class Drawing(Echo):
    """Its metric is drawn, as that of a bootstrap."""

    def compute_metrics(self, predictions: Mapping[str, Tensor]) -> Mapping[str, float]:
        return {"is_whole": torch.rand(()).item()}


class Diverged(Echo):
    """Its loss is not finite, and a metric of its predictions cannot be computed."""

    def evaluate(self, model: nn.Module, batch: Any) -> Mapping[str, Tensor]:
        return {**super().evaluate(model, batch), "loss": torch.tensor(float("nan"))}

    def compute_metrics(self, predictions: Mapping[str, Tensor]) -> Mapping[str, float]:
        raise ValueError("Input contains NaN.")


class ByRank(Echo):
    """Its predictions are as wide as a rank's number."""

    def predictions(self, model: nn.Module, batch: Any) -> Mapping[str, Tensor]:
        rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
        return {"errors": torch.zeros(len(batch[0]), rank + 1)}


class OnlyPredictions(Regression):
    predictions = Echo.predictions


class OnlyComputed(Regression):
    compute_metrics = Echo.compute_metrics


class Unnamed(Echo):
    metrics: Mapping[str, Direction] = {}
    evaluate = Workload.evaluate


class Apart(Regression):
    """Has data of its own under the name of a method that it does not need."""

    def __init__(self) -> None:
        super().__init__()
        self.predictions = torch.zeros(3)  # type: ignore[assignment,method-assign]


#: What `predictions` makes of the errors `(b,)`, and what `compute_metrics` returns, for a fault.
PREDICTIONS: dict[str, Callable[[Tensor], Any]] = {
    "a mean": lambda errors: {"errors": errors.mean()},
    "a row too few": lambda errors: {"errors": errors[1:]},
    "lists": lambda errors: {"errors": errors.tolist()},
    "sparse": lambda errors: {"errors": errors.to_sparse()},
    "no name": lambda errors: errors,
    "no tensor": lambda errors: {},
    "as wide as the batch": lambda errors: {"errors": errors.unsqueeze(1).expand(-1, len(errors))},
}
COMPUTED: dict[str, Any] = {
    "what `evaluate` returns": {"mae": 1.0, "worst": 1.0},
    "too little": {},
    "too much": {"worst": 1.0, "f1": 0.5},
    "a text": {"worst": "much"},
    "a vector": {"worst": torch.ones(2)},
    "a number": 0.5,
}


class Misused(Regression):
    """Each `fault` is one way to return what cannot be used."""

    evaluation_batch_size = 20
    metrics: Mapping[str, Direction] = {"mae": "min", "worst": "min"}

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault

    def evaluate(self, model: nn.Module, batch: Any) -> Mapping[str, Tensor]:
        measured = dict(super().evaluate(model, batch))
        if self.fault == "now and then" and len(batch[0]) < 20:
            measured["worst"] = measured["mae"]
        if self.fault == "no loss":
            del measured["loss"]
        return measured

    def predictions(self, model: nn.Module, batch: Any) -> Any:
        errors = (model(batch[0]) - batch[1]).abs().squeeze(1)
        return PREDICTIONS.get(self.fault, lambda errors: {"errors": errors})(errors)

    def compute_metrics(self, predictions: Mapping[str, Tensor]) -> Any:
        return COMPUTED.get(self.fault, {"worst": predictions["errors"].max()})
