"""The cluster as users see it."""

from pydantic import Field

from service.wire.base import View


class Placement(View):
    """Workers of one job on one node."""

    job: str | None = Field(description="null: of a project that the caller does not see")
    name: str | None = Field(description="the job's; null: as `job`")
    workers: int
    cpus: float = Field(description="that they take together")
    gpus: float


class NodeView(View):
    """A machine of the cluster."""

    id: str
    name: str
    address: str
    is_head: bool
    cpus: float = Field(description="logical, as Ray counts them")
    gpus: float
    memory_gb: float | None = Field(
        None, description="in billions of bytes, that workers may ask for; null: Ray does not say"
    )
    accelerator: str = Field("", description="the kind of its GPUs, which `workers.accelerator` asks for; empty: none")
    placements: tuple[Placement, ...] = Field(description="training workers that are there now, by job")


class ClusterView(View):
    """The cluster: whether Ray answers, and what runs where."""

    embedded: bool = Field(description="the service starts Ray with the first job, on its own machine")
    reachable: bool
    reason: str = Field("", description="why it is not reachable, for a person")
    version: str = Field(description="of the service")
    ray_version: str | None = Field(description="null: not reachable")
    nodes: tuple[NodeView, ...]
