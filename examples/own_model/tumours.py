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
