"""The ways in which training samples are divided among workers. Pydantic only."""

from typing import Annotated, Literal

from pydantic import Field

from trainers.spec.method import Method, Paper
from trainers.spec.ranges import Config


class IidPartition(Config):
    """All samples are shuffled in every epoch, and dealt out to the workers."""

    kind: Literal["iid"] = "iid"


class DirichletPartition(Config):
    """Each worker has a fixed share of its own, in which classes are mixed at random (Hsu et al., 2019)."""

    kind: Literal["dirichlet"] = "dirichlet"
    alpha: float = Field(
        ge=1e-3, le=1e6, description="concentration per class: large is nearly iid, 0.1 leaves a worker few classes"
    )


class ByLabelPartition(Config):
    """Samples are sorted by their labels and cut into as many shares as there are workers: fixed, and most unlike."""

    kind: Literal["by_label"] = "by_label"


PartitionConfig = Annotated[IidPartition | DirichletPartition | ByLabelPartition, Field(discriminator="kind")]

METHODS = (
    Method("partition", IidPartition),
    Method(
        "partition",
        DirichletPartition,
        papers=(
            Paper(
                "Hsu, Qi, Brown",
                "Measuring the effects of non-identical data distribution for federated visual classification",
                "arXiv:1909.06335",
                2019,
            ),
        ),
        least={"alpha": 0.3},
    ),
    Method("partition", ByLabelPartition),
)
