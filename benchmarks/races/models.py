"""The two convolutional nets of the races. Images are `(b, 1, 28, 28)` (uint8), scores `(b, 10)`."""

import itertools

from torch import Tensor, nn

from trainers.traffic.shapes import NUM_CLASSES
from trainers.workloads.conv import UnitInterval

Stages = tuple[tuple[int, int], ...]
#: Channels and blocks of each stage of the residual net; every stage but the first halves the image.
STAGES: Stages = ((32, 1), (96, 2), (256, 4))
SMALL_STAGES: Stages = ((16, 1), (32, 2), (64, 3))
GROUPS = 8
LAST_SIDE = 4  # of 28 -> 14 -> 7 -> 4 pixels


def one_large_layer() -> nn.Sequential:
    """Return two convolutions and two layers, of which the first holds 99 % of the 4.85 million parameters."""
    return nn.Sequential(
        UnitInterval(),
        *(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(64 * 7 * 7, 1536), nn.ReLU(), nn.Linear(1536, NUM_CLASSES)),
    )


def residual_net(stages: Stages = STAGES) -> nn.Sequential:
    """Return a residual net: of 4.7 million parameters, most of them in eight layers of 0.3 to 0.6 million each.

    GroupNorm, not BatchNorm: hosts that see different labels have no common statistics of a batch.
    """
    width = stages[0][0]
    layers: list[nn.Module] = [UnitInterval(), nn.Conv2d(1, width, 3, stride=2, padding=1, bias=False)]
    for index, ((inputs, _), (outputs, num_blocks)) in enumerate(itertools.pairwise((stages[0], *stages))):
        for block in range(num_blocks):
            shrinks = index > 0 and block == 0
            layers.append(Residual(inputs if block == 0 else outputs, outputs, stride=2 if shrinks else 1))
    layers += [nn.GroupNorm(GROUPS, outputs), nn.ReLU(), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(outputs * LAST_SIDE**2, NUM_CLASSES))


class Residual(nn.Module):
    """Adds two 3x3 convolutions to their input, with the norms before them (He et al., 2016)."""

    def __init__(self, inputs: int, outputs: int, *, stride: int) -> None:
        super().__init__()
        self.added = nn.Sequential(
            *(nn.GroupNorm(GROUPS, inputs), nn.ReLU(), nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)),
            *(nn.GroupNorm(GROUPS, outputs), nn.ReLU(), nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)),
        )
        same = inputs == outputs and stride == 1
        self.carried = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, images: Tensor) -> Tensor:
        summed: Tensor = self.carried(images) + self.added(images)
        return summed
