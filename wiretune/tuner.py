"""Run a controller inside a training loop: it sets the values of each step, and rewinds after each probe.

The loop goes on calling `optimizer.step()`, and reports every loss. Rank 0 leads: it tells all ranks when to take a
snapshot, when to restore it, and which values to step with.
"""

import math
import time
from array import array
from collections.abc import Callable, Generator, Sequence
from functools import partial
from itertools import chain, pairwise
from numbers import Integral

import torch
import torch.distributed as dist
from torch import Tensor

from search import strategies
from search.config import Budget, ControllerConfig, ScheduleConfig, StagedConfig
from search.schedule import Schedule
from search.schedule_file import OWN, Entry
from search.space import Axis, SearchSpace, Weights
from search.types import Values
from trainers.methods.exchange.dense.spec import NoneConfig
from trainers.methods.replica_config import ReplicaConfig
from trainers.own_loop.attach import Attached, StepValues
from trainers.own_loop.attachable import check_rates
from trainers.traffic.cost import step_traffic
from trainers.training.model import matrices
from wiretune.gradient_signs import GradientSigns
from wiretune.leader import COMMIT, FIRST, GIVE_UP, PROBE, RESTORE, SNAPSHOT, STOP, Leader, Order, Taken

#: Torch's optimizers whose learning rates the controller knows. Any other is treated like a workload's own.
KINDS = {"SGD": "sgd", "Adam": "adamw", "AdamW": "adamw"}
#: The values of a step that rank 0 sends to all ranks.
TOLD = ("learning_rate", *StepValues._fields)
#: The longest round, in steps, that is timed before a search.
MOST_TIMED = 16
#: A commit may have this many losses in a row that are not finite; with one more, it has diverged.
MOST_LOST = 3
#: Rates on a straight line are stored as one ramp. The tolerance is this share of the line's first rate.
NEAR = 1e-6


class Tuner:
    """Search while the loop trains. Call `report` once a step, after `optimizer.step()`, until it `is_over`.

    While it `is_probing`, the next step will be taken back: evaluate and save at other steps. A commit can be rolled
    back too: `num_taken_back` counts the steps undone that way. On rank 0, `decisions` are the decisions so far.

    Args:
        handle: what `attach` returns without a controller.
        config: the controller's configuration.
        budget: the run ends with it. Its seconds count from now on.
        seed: of the controller's random draws.
        batch_size: samples that a rank trains in a step; None: not known.
        pretrained: whether the model was trained before.
        clock: returns seconds.
    """

    def __init__(
        self,
        handle: Attached,
        config: ControllerConfig,
        *,
        budget: Budget,
        seed: int,
        batch_size: int | None = None,
        pretrained: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.handle, self.is_over, self.is_probing, self.num_taken_back = handle, False, False, 0
        self._clock = clock
        check_rates(handle.optimizer, "a controller")
        groups = handle.optimizer.param_groups
        guess = float(groups[0]["lr"])
        if not guess > 0:
            raise ValueError(f"`optimizer` must have a positive learning rate in its first group, got {guess}")
        if budget.counts_bytes_alone and len(handle.node_links.topology.nodes) == 1:
            raise ValueError(
                f"`bytes` must not be the only cap, got {budget.bytes}: one node sends nothing, so the run would never "
                "end; add `seconds` or `steps`"
            )
        # The rates of an `own` schedule multiply those of all groups, as in a job.
        multiplies = isinstance(config, ScheduleConfig) and config.schedule.optimizer == OWN
        self._ratios = [float(group["lr"]) / (1.0 if multiplies else guess) for group in groups]
        kind = KINDS.get(type(handle.optimizer).__name__, OWN)
        if batch_size is not None and not (isinstance(batch_size, Integral) and batch_size >= 1):
            raise ValueError(f"`batch_size` must be a whole number of at least 1, got {batch_size!r}")
        samples = batch_size and batch_size * handle.node_links.topology.num_workers
        found = matrices(chain.from_iterable(group["params"] for group in groups))
        space = space_of(
            handle.config,
            kind,
            guess,
            budget=budget,
            batch_size=samples,
            weights=found and Weights(*found, is_new=not pretrained),
            dense_bytes=self._dense_bytes(),
        )
        self._opening = space.opening
        self._kind, self._unit = space.optimizer, guess if space.optimizer == OWN and not multiplies else 1.0
        self._committed = array("d")  # the values of each step that stays, in a row: a run may have millions of steps
        build = partial(strategies.build, config, seed=seed, budget=budget)
        asks_for_length = isinstance(config, StagedConfig) and budget.steps is None  # the run's length in steps
        num_timed = steps_to_time(space) if asks_for_length else 0
        interval = space.period_of(space.opening) // handle.config.sync.num_parts
        leader = Leader(build, space, budget, clock=clock, num_timed=num_timed, interval=interval)
        self.decisions = leader.decisions
        self._orders = leader.orders()
        self._taken: Taken | None = None  # the answer to the last order
        self._last_loss, self._num_lost = math.nan, 0  # the last finite loss; how many since then were not finite
        self._sent = handle.node_links.between.ledger.total  # by this rank so far: joining is not part of any step
        trains_apart = handle.config.sync.payload == "parameters" or handle.config.exchange.drifts
        self._signs = GradientSigns(handle.optimizer, trains_apart=trains_apart)
        self._course = self._follow()
        next(self._course, None)

    def _dense_bytes(self) -> int:
        """Return the bytes that a node sends in a step with a dense exchange."""
        num_entries = sum(each.numel() for group in self.handle.optimizer.param_groups for each in group["params"])
        num_nodes = len(self.handle.node_links.topology.nodes)
        return step_traffic([(num_entries,)], num_workers=num_nodes, exchange=NoneConfig()).bytes

    def report(self, loss: Tensor | float) -> None:
        """Record the `loss` of a step on this rank, a scalar, and set the values of the next step.

        At the end of each part of a probe or commit, the call is collective, and may take model and optimizer back to
        where the probe or commit began. After the budget's last step it does nothing.

        Raises:
            RuntimeError: on all ranks, once, when a second commit in a row diverges by the same decision, or in its
                first step.
        """
        try:
            self._course.send(torch.as_tensor(loss).item())
        except StopIteration:
            return

    def stop(self) -> None:
        """End the search at this step, when a loop ends early; collective.

        The steps of an open probe are taken back. The model is then the committed one, and the optimizer has the
        values of its last step.
        """
        if self.is_over:
            return
        self._course.close()
        self.handle.settle()
        if self.is_probing:
            self.handle.restore("stage")
            last = [*self._committed[-len(TOLD) :]]
            self._set(values_of(last) if last else self._opening)
        self._end()

    def schedule(self) -> Schedule:
        """Return the values of all steps kept so far, without probes and rolled-back steps.

        A loop can follow the schedule without a search. All ranks have it.

        Raises:
            RuntimeError: no step is committed yet.
        """
        if not self._committed:
            raise RuntimeError("no step is committed yet, so there is no schedule: ask again when the tuner is over")
        steps = [values_of(list(row)) for row in zip(*[iter(self._committed)] * len(TOLD), strict=True)]
        return Schedule(optimizer=self._kind, num_steps=len(steps), entries=entries_of(steps, unit=self._unit))

    def _follow(self) -> Generator[None, float, None]:
        """Carry out the orders of rank 0; `send` takes the loss of each step."""
        num_kept = 0  # the length of `_committed` at the snapshot
        kept_loss = math.nan  # at the snapshot
        while (order := self._ordered())[0] not in (STOP, GIVE_UP):
            task, steps = order
            self.is_probing = task == PROBE
            if task == SNAPSHOT:
                self.handle.snapshot("stage")
                num_kept, kept_loss = len(self._committed), self._last_loss
            elif task == RESTORE:
                self.handle.restore("stage")
                self._signs.begin()
                self._last_loss, self._num_lost = kept_loss, 0
                self.num_taken_back += (len(self._committed) - num_kept) // len(TOLD)
                del self._committed[num_kept:]
            losses, times = list[float](), [self._clock()]
            for values in steps:
                self._set(values)
                losses.append(self._told((yield), task))
                times.append(self._clock())
                if task == COMMIT:
                    self._committed.extend(number_of(values, name) for name in TOLD)
            if losses and not math.isfinite(kept_loss):
                kept_loss = losses[0]  # of the first probe, before its first update
            self._taken = self._mean(losses, [after - before for before, after in pairwise(times)])
        self._end()
        if order[0] == GIVE_UP:
            [failed] = order[1]
            raise RuntimeError(
                "the loss was not finite in two commits in a row, the second decided at a learning rate of "
                f"{failed.learning_rate:.3g}: look at the loss and the data; the model is where the last commit that "
                "trained has ended"
            )

    def _end(self) -> None:
        self.is_over, self.is_probing = True, False
        self._signs.end()
        self.handle.forget("stage")

    def _told(self, loss: float, task: int) -> float:
        """Return a step's `loss` as the leader gets it.

        A commit survives a loss that is not finite if the parameters are: a batch was bad, or a GradScaler skipped the
        step. The last finite loss then takes its place. A probe ends with such a loss, which costs little.
        """
        if math.isfinite(loss):
            self._last_loss, self._num_lost = loss, 0
            return loss
        self._num_lost += 1
        is_alone = task == COMMIT and self._num_lost <= MOST_LOST
        return self._last_loss if is_alone and self.handle.is_sound() else loss

    def _set(self, values: Values) -> None:
        for group, ratio in zip(self.handle.optimizer.param_groups, self._ratios, strict=True):
            rate = values.learning_rate * ratio
            if isinstance(group["lr"], Tensor):  # in place: a compiled or captured step holds the tensor
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate
        self.handle.chosen = StepValues(*(getattr(values, name) for name in StepValues._fields))

    def _ordered(self) -> Order:
        """Return rank 0's next order, on all ranks."""
        task, steps = STOP, list[Values]()
        if not dist.is_initialized() or dist.get_rank() == 0:
            try:
                task, steps = self._orders.send(self._taken)
            except StopIteration:
                task, steps = STOP, []
        self.handle.settle()
        head = torch.tensor([task, len(steps)])
        self.handle.node_links.tell(head)
        rows = [[number_of(values, name) for name in TOLD] for values in steps]
        told = torch.tensor(rows or [[0.0] * len(TOLD)] * int(head[1]), dtype=torch.float64)
        if len(told):
            self.handle.node_links.tell(told)
        return int(head[0]), [values_of(row) for row in told.tolist()]

    def _mean(self, losses: list[float], step_seconds: list[float]) -> Taken:
        """Return the measurements of the steps: means over the ranks, and bytes as a mean over the nodes."""
        links, sent = self.handle.node_links, self.handle.node_links.between.ledger.total
        series = (losses, step_seconds, *self._signs.take(len(losses)))
        sums = torch.tensor([*chain(*series), sent - self._sent], dtype=torch.float64)
        self._sent = sent
        self.handle.settle()
        links.all_reduce_sum(sums, {"control": sums.nbytes})
        means = (sums[:-1] / links.topology.num_workers).reshape(len(series), -1).tolist()
        return Taken._make([*means, round(sums[-1].item() / len(links.topology.nodes))])


def space_of(
    config: ReplicaConfig,
    kind: str,
    guess: float,
    *,
    budget: Budget,
    batch_size: int | None = None,
    weights: Weights | None = None,
    dense_bytes: int | None = None,
) -> SearchSpace:
    """Return the search space of a loop that trains by `config` with an optimizer of this `kind`, at the rate `guess`.

    `batch_size`: samples that all ranks together train in a step; `weights`: those before the first step;
    `dense_bytes`: sent by a node in a step without compression. None: not known.
    """
    ranges, level = config.searched(counts_traffic=budget.counts_traffic)
    return SearchSpace(
        optimizer="from_exchange" if config.optimizer.kind == "from_exchange" else kind,
        guess=Values(learning_rate=guess, level=level),
        level_name=config.exchange.level_name,
        period=config.period,
        batch_size=batch_size,
        weights=weights,
        dense_bytes=dense_bytes if config.follows_link else None,
        rewinds_data=False,
        axes=tuple(Axis(name=each.name, low=each.low, high=each.high) for each in ranges),
    )


def steps_to_time(space: SearchSpace) -> int:
    """Return how many steps to time before the search: whole rounds of local updates; 0: a round is too long."""
    period = space.period_of(space.opening)
    return period * math.ceil(FIRST / period) if period <= MOST_TIMED else 0


def entries_of(steps: Sequence[Values], *, unit: float) -> list[Entry]:
    """Return the values of `steps` as the entries of a schedule, with rates in multiples of `unit`.

    Neighbouring steps become one entry while their rates lie on a line, within `NEAR`, and all else is the same.
    """
    entries = list[Entry]()
    start = 0
    for end in range(1, len(steps) + 1):
        if end < len(steps) and _is_in_line(steps[start], steps[start + 1], steps[end], end - start):
            continue
        first, last = steps[start], steps[end - 1]
        is_level = first.learning_rate == last.learning_rate
        entries.append(
            Entry(
                step=start,
                num_steps=end - start,
                learning_rate=first.learning_rate / unit,
                final_learning_rate=None if is_level else last.learning_rate / unit,
                level=first.level,
                values=first.further,
            )
        )
        start = end
    return entries


def _is_in_line(first: Values, second: Values, later: Values, distance: int) -> bool:
    """Return whether `later`, at this `distance` from `first`, lies on the line from it through `second`."""
    rate = first.learning_rate + distance * (second.learning_rate - first.learning_rate)
    is_near = abs(later.learning_rate - rate) <= NEAR * first.learning_rate
    return is_near and later.model_copy(update={"learning_rate": first.learning_rate}) == first


def number_of(values: Values, name: str) -> float:
    """Return a value as a number, NaN if it is not searched."""
    value = getattr(values, name)
    return math.nan if value is None else value


def values_of(row: Sequence[float]) -> Values:
    """Return the values of a step from the row that rank 0 sent to all ranks."""
    return Values.model_validate({name: value for name, value in zip(TOLD, row, strict=True) if not math.isnan(value)})
