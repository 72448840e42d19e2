"""The parts that classifiers share: batches of (inputs, labels), cross-entropy, and accuracy."""

from collections.abc import Mapping

from torch import Tensor, nn
from torch.utils.data import TensorDataset

from trainers.segment import Direction
from trainers.workload import Batch, Workload


class Classification(Workload):
    """Batches are inputs `(b, ...)`, one or several, and labels `(b,)` (int64).

    The model takes the inputs and returns scores `(b, num_classes)`.
    """

    training: TensorDataset
    metrics: Mapping[str, Direction] = {"accuracy": "max"}
    evaluation_batch_size = 1024

    def labels(self) -> Tensor:
        return self.training.tensors[-1]

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        *inputs, labels = batch
        return nn.functional.cross_entropy(model(*inputs), labels)

    def evaluate(self, model: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        *inputs, labels = batch
        scores = model(*inputs)
        hits = (scores.argmax(dim=1) == labels).float()
        return {"loss": nn.functional.cross_entropy(scores, labels), "accuracy": hits.mean()}
