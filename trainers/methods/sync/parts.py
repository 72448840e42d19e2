"""Everything that a sync policy may be built from, on one rank."""

from dataclasses import dataclass
from functools import cached_property

from trainers.exchange.buffer import GradientBuffer
from trainers.exchange.exchange import Exchange
from trainers.exchange.gradients import Gradients, Pooled
from trainers.exchange.node_links import NodeLinks
from trainers.methods.blocks.blocks import Blocks
from trainers.methods.optimizer.optimizer import Optimizer
from trainers.methods.replica_config import ReplicaConfig
from trainers.methods.sync.shared.averaging import Iterate, Meeting
from trainers.methods.sync.shared.background_thread import AveragingThread
from trainers.methods.sync.shared.local import Alone


@dataclass(frozen=True)
class PolicyParts:
    """The parameters of `optimizer`, whose gradients are in `buffer`, and the ways to exchange either."""

    config: ReplicaConfig
    optimizer: Optimizer
    buffer: GradientBuffer
    node_links: NodeLinks
    blocks: Blocks
    epoch_steps: int | None = None  # of the data; None: it does not end

    @cached_property
    def iterate(self) -> Iterate:
        """The parameters, and what else the optimizer trains, from where they are now."""
        return Iterate(self.optimizer.iterate(), num_parameters=self.buffer.num_elements)

    @cached_property
    def gradients(self) -> Pooled:
        """The gradients of each step, added up within nodes: once, whoever waits for them."""
        return Pooled(self.buffer, self.node_links)

    def exchange(self, gradients: Gradients | None = None) -> Exchange:
        """Return the job's exchange of gradients, for every step; `gradients` is a view of those of this name."""
        return self.blocks.exchange(self.gradients if gradients is None else gradients, self.node_links)

    def alone(self) -> Alone:
        """Return what takes the place of an exchange while a rank trains by itself."""
        return Alone(self.buffer)

    def meeting(self) -> Meeting:
        """Return the job's exchange as one of vectors like the iterate, for when ranks meet."""
        return Meeting(self.config.exchange, self.iterate, self.node_links, seed=self.config.seed)

    def background(self) -> AveragingThread:
        """Return a thread that averages while the ranks train on."""
        return AveragingThread(self.node_links, self.buffer.gradient.device, threads=self.config.threads)
