import torch
from sklearn.datasets import load_breast_cancer
from torch import nn
from torch.utils.data import TensorDataset, random_split

from wiretune import Workload


class Tumours(Workload):
    def __init__(self, hidden: int = 256):
        inputs, labels = map(torch.tensor, load_breast_cancer(return_X_y=True))  # 569 x 30
        inputs = ((inputs - inputs.mean(dim=0)) / inputs.std(dim=0)).float()
        self.training, self.validation = random_split(TensorDataset(inputs, labels), [0.8, 0.2])
        self.hidden = hidden

    def model(self):
        return nn.Sequential(nn.Linear(30, self.hidden), nn.ReLU(), nn.Linear(self.hidden, 2))

    def loss(self, model, batch):
        return nn.functional.cross_entropy(model(batch[0]), batch[1])


class Measured(Tumours):
    metrics = {"accuracy": "max"}  # noqa: RUF012  (more is better)

    def loss(self, model, batch):
        outputs = model(batch[0])
        certainty = outputs.softmax(dim=1).amax(dim=1).mean()
        return nn.functional.cross_entropy(outputs, batch[1]), {"certainty": certainty}

    def evaluate(self, model, batch):
        outputs, labels = model(batch[0]), batch[1]
        return {
            "loss": nn.functional.cross_entropy(outputs, labels),
            "accuracy": (outputs.argmax(dim=1) == labels).float().mean(),
        }
