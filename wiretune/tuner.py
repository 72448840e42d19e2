"""Run a controller inside a training loop: it sets the values of each step, and rewinds after each probe.

The loop goes on calling `optimizer.step()`, and reports every loss. Rank 0 leads: it tells all ranks when to take a
snapshot, when to restore it, and which values to step with.
"""

import math
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from inspect import GEN_CLOSED, getgeneratorstate
from itertools import chain
from numbers import Integral
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from search.config import Budget, ControllerConfig, ScheduleConfig, StagedConfig
from search.loop.orders import Order, Taken, Task
from search.loop.pacing import FIRST_PUSH
from search.schedule import KINDS, Schedule
from search.schedule_file import OWN
from search.space import Axis, SearchSpace, Weights
from search.types import Decision, Values
from trainers.methods.exchange.dense.spec import NoneConfig
from trainers.methods.replica_config import ReplicaConfig
from trainers.own_loop.attach import Attached, StepValues
from trainers.own_loop.attachable import check_rates
from trainers.own_loop.handle import rank
from trainers.snapshot import Image
from trainers.traffic.cost import step_traffic
from trainers.training.model import looks_trained, matrices
from wiretune.committed import TOLD, CommittedValues, num_steps_in, row_of, values_of
from wiretune.gradient_signs import GradientSigns
from wiretune.leader import TIMED_PART, Leader
from wiretune.step_check import StepCheck

#: The options of an optimizer that its schedule keeps, by the kind that it has there.
OPTIONS_OF = {
    "sgd": ("momentum", "nesterov", "weight_decay"),
    "adamw": ("betas", "weight_decay"),
    "from_exchange": ("weight_decay",),
}
#: The longest round, in steps, that is timed before a search.
MOST_TIMED = 16
#: A probe or commit may have this many losses in a row that are not finite; with one more, it has diverged.
MOST_LOST = 3
#: Of `Tuner.state_dict`.
FORMAT = "wiretune.tuner/1"


@dataclass
class Progress:
    """Mutable: what this rank has of the orders so far."""

    num_steps: int = 0  # of the loop, probes included
    num_taken_back: int = 0
    last_loss: float = math.nan  # the last finite one
    num_lost: int = 0  # losses since then, which were not finite
    num_kept: int = 0  # committed steps at the snapshot
    kept_loss: float = math.nan  # the last finite loss then
    losses: list[float] = field(default_factory=list)  # of the order under way, whose steps are these
    step_seconds: list[float] = field(default_factory=list)


class Moment(NamedTuple):
    """The moment at which a rank has saved its part of a search. Parts that were saved together have the same one."""

    is_refused: int  # 1: there is none, since the state does not fit the rank
    num_steps: int = 0  # of the loop
    num_committed: int = 0
    num_open: int = 0  # steps of the order that was under way
    is_over: int = 0

    def __str__(self) -> str:
        end = "the end at " if self.is_over else ""
        return f"{end}step {self.num_steps}, {self.num_committed} committed,"


class Tuner:
    """Search while the loop trains. Call `report` once a step, after `optimizer.step()`, until it `is_over`.

    While it `is_probing`, the next step will be taken back: evaluate and save at other steps. A commit can be rolled
    back too: `num_taken_back` counts the steps undone that way. To resume, each rank saves its `state_dict`.

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
        self.handle, self.is_over, self.is_probing = handle, False, False
        self._clock = clock
        guess = guess_of(handle.optimizer)
        check_ends(budget, num_nodes=len(handle.node_links.topology.nodes))
        check_batch_size(batch_size)
        # The rates of an `own` schedule multiply those of all groups, as in a job.
        multiplies = isinstance(config, ScheduleConfig) and config.schedule.optimizer == OWN
        rates = [float(group["lr"]) for group in handle.optimizer.param_groups]
        self._ratios = rates if multiplies else [rate / guess for rate in rates]
        space = self._space(guess, budget, batch_size=batch_size, pretrained=pretrained)
        self._opening = self._values = space.opening
        self._kind, self._unit = space.optimizer, guess if space.optimizer == OWN and not multiplies else 1.0
        self._committed = CommittedValues()
        if isinstance(config, StagedConfig):
            config = config.model_copy(update={"promote": False})  # nobody here holds the end of a probe
        self._leader = self._lead(config, space, budget, seed=seed)
        self._orders = self._leader.orders()
        self._taken: Taken | None = None  # the answer to the last order
        self._progress = Progress()
        self._search = searched(config, budget, space)
        self._sent = handle.node_links.between.ledger.total  # by this rank so far: joining is not part of any step
        self._signs = GradientSigns(
            handle.optimizer, parameters_may_differ=handle.config.parameters_may_differ, scale=handle.scale
        )
        self._check = StepCheck(handle.optimizer)
        self._course = self._follow()
        next(self._course, None)
        handle.before_detach = self.stop

    @property
    def num_taken_back(self) -> int:
        """The committed steps that were undone, since their commit was rolled back."""
        return self._progress.num_taken_back

    @property
    def decisions(self) -> list[Decision]:
        """The decisions so far, on rank 0."""
        return self._leader.loop.decisions

    def _space(self, guess: float, budget: Budget, *, batch_size: int | None, pretrained: bool) -> SearchSpace:
        """Return the search space, with what is known of the model before its first step."""
        handle = self.handle
        parameters = list(chain.from_iterable(group["params"] for group in handle.optimizer.param_groups))
        found = matrices(parameters)
        return space_of(
            handle.config,
            KINDS.get(type(handle.optimizer).__name__, OWN),
            guess,
            budget=budget,
            batch_size=batch_size and batch_size * handle.node_links.topology.num_workers,
            weights=found and Weights(*found, is_new=not (pretrained or looks_trained(parameters))),
            dense_bytes=self._dense_bytes(),
        )

    def _lead(self, config: ControllerConfig, space: SearchSpace, budget: Budget, *, seed: int) -> Leader:
        """Return rank 0's part: the strategy that `config` describes, and how many steps it times first."""
        from search import strategies  # here, since BoTorch loads for seconds: loops without a controller need none

        return Leader(
            partial(strategies.build, config, seed=seed, budget=budget),
            space,
            budget,
            clock=self._clock,
            num_timed=num_timed(config, space, budget),
            interval=space.period_of(space.opening) // self.handle.config.sync.num_parts,
        )

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
            ValueError: `loss` is not one number.
            RuntimeError: on all ranks, once, when commits in a row diverge so that no rate is at fault: two by the
                same decision or in their first steps, or three after 10 steps or more, or six, the last no later than
                the first; or the optimizer has not stepped since the last report; or an earlier `report` has failed.
        """
        number = number_of(loss)
        if self.is_over:
            return
        self._check_alive()
        self._check.check_report()
        with suppress(StopIteration):  # after the budget's last step
            self._course.send(number)

    def stop(self) -> None:
        """End the search at this step, when a loop ends early; collective.

        The steps of an open probe are taken back. The model is then the committed one, and the optimizer has the
        values of its last step.

        Raises:
            RuntimeError: once, if that fails, as when the model has replaced a buffer. The search has ended then, too.
        """
        if self.is_over:
            return
        self._course.close()
        try:
            self.handle.settle()
            if self.is_probing:
                self._check_groups()
                self._rewind(Task.RESTORE)
                self._set(self._committed.at(len(self._committed) - 1) if self._committed else self._opening)
        except Exception as error:
            self._end()
            raise RuntimeError(
                f"the search has ended, and model and optimizer are not as they were committed: {error}"
            ) from error
        self._end()

    def set_again(self) -> None:
        """Give the optimizer the values of the next step again, after something else has set its rates."""
        self._set(self._values)

    def _check_alive(self) -> None:
        """Raise RuntimeError if an error or an interrupt has ended the search within a `report`."""
        if getgeneratorstate(self._course) == GEN_CLOSED and not self.is_over:
            raise RuntimeError(
                "an earlier `report` has failed, and the search cannot go on from there: call `stop()` on all ranks, "
                "or attach again and load the last state"
            )

    def schedule(self) -> Schedule:
        """Return the values of all steps kept so far, without probes and rolled-back steps.

        A loop can follow the schedule without a search. All ranks have it.

        Raises:
            RuntimeError: no step is committed yet.
        """
        if not self._committed:
            remedy = "the search ended before its first commit" if self.is_over else "ask again when the tuner is over"
            raise RuntimeError(f"no step is committed yet, so there is no schedule: {remedy}")
        entries = self._committed.entries(unit=self._unit)
        return Schedule(
            optimizer=self._kind,
            num_steps=len(self._committed),
            entries=entries,
            optimizer_options=options_of(self.handle.optimizer.param_groups, self._kind),
        )

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's part of the search, the handle's state included: tensors, and what JSON has.

        Each rank saves its own at the same step, beside the states of model and optimizer.

        Raises:
            RuntimeError: the last step was a probe's, which is taken back: save while `is_probing` is false; or an
                earlier `report` has failed.
        """
        self._check_alive()
        if self.is_probing:
            raise RuntimeError("a probe is under way, whose steps are taken back: save while `is_probing` is false")
        self.handle.settle()
        leads = rank() == 0 and not self.is_over
        return {
            "format": FORMAT,
            "handle": self.handle.state_dict(),
            "search": self._search,
            "is_over": self.is_over,
            "loop": self._leader.loop.state_dict() if leads else None,
            "progress": asdict(self._progress),
            "committed": torch.tensor(self._committed.numbers, dtype=torch.float64),
            "bytes_sent": self.handle.node_links.between.ledger.total - self._sent,
            "stage": None if self.is_over else vars(self.handle.image("stage")),
            "signs": self._signs.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where this rank, of as many ranks, has saved `state`; collective.

        The tuner is new, and model and optimizer have their states of then. The next step gets the same values, unless
        a cap of the budget has grown: then the search and the rate's decay go on towards the new end.

        Raises:
            ValueError: on all ranks, if one rank's `state` is of another search, exchange or number of ranks, or the
                ranks' states are not of one step; nothing has changed then.
        """
        if conflict := self._conflict_of_all(state):
            raise ValueError(conflict)
        self.handle.load_state_dict(state["handle"])
        self._course.close()
        self._progress = Progress(**state["progress"])
        self._committed = CommittedValues(state["committed"].tolist())
        if state["is_over"]:
            self._end()
            return
        self.handle.put("stage", Image(**state["stage"]))
        self._signs.load_state_dict(state["signs"])
        self._check.resume(self._progress.num_steps)
        if state["loop"] is not None:
            self._leader.load_state_dict(state["loop"])
        self._orders, self._taken = self._leader.orders(), None
        self._sent = self.handle.node_links.between.ledger.total - state["bytes_sent"]
        self._course = self._follow()
        next(self._course, None)

    def _conflict_of_all(self, state: Mapping[str, Any]) -> str | None:
        """Return why the ranks cannot load what each gives as its `state`; None: they can. Collective."""
        conflict = self._conflict(state)
        links, moment = self.handle.node_links, Moment(is_refused=1) if conflict else moment_of(state)
        rows = torch.zeros(links.topology.num_workers, len(Moment._fields), dtype=torch.int64)
        rows[rank()] = torch.tensor(moment)
        self.handle.settle()
        links.all_reduce_sum(rows, {"control": rows.nbytes})
        return conflict or conflict_among([Moment(*row) for row in rows.tolist()])

    def _conflict(self, state: Mapping[str, Any]) -> str | None:
        """Return why `state` cannot be loaded on this rank; None: it can."""
        if state.get("format") != FORMAT:
            return f"`state` must be what a tuner has saved, {FORMAT!r}, got {state.get('format')!r}"
        if self.is_over:
            return "a tuner that is over takes no state: `detach` its handle, and attach again"
        for name, now in self._search.items():
            saved = state["search"].get(name, now)
            may_grow = name in Budget.model_fields and not state["is_over"] and None not in (saved, now)
            if now != saved and not (may_grow and now > saved):
                grown = " or larger" if may_grow else ""
                return f"`{name}` must be as in the search that `state` is of, {saved!r}{grown}, got {now!r}"
        return self.handle.conflict(state["handle"])

    def _follow(self) -> Generator[None, float, None]:
        """Carry out the orders of rank 0; `send` takes the loss of each step."""
        while (order := self._ordered()).task not in (Task.STOP, Task.GIVE_UP):
            if order.task == Task.ACCEPT:
                for values in order.steps:
                    self._committed.append(values)
                self._taken, self.is_probing = None, False
                continue
            self._rewind(order.task)
            self.is_probing = order.task == Task.PROBE
            yield from self._step(order)
            self._taken = self._mean()
        self._end()
        if order.task == Task.GIVE_UP:
            rates = ", ".join(f"{failed.learning_rate:.3g}" for failed in order.steps)
            raise RuntimeError(
                f"the loss was not finite in {len(order.steps)} commits in a row, decided at learning rates of {rates}"
                ": look at the loss and the data; the model is where the last commit that trained has ended"
            )

    def _rewind(self, task: Task) -> None:
        """Take the snapshot of the committed state, or go back to it, if that is the task."""
        progress = self._progress
        if task == Task.SNAPSHOT:
            self.handle.snapshot("stage")
            progress.num_kept, progress.kept_loss = len(self._committed), progress.last_loss
        elif task == Task.RESTORE:
            self.is_probing = True  # until it is done: `stop` does it if this is interrupted
            self.handle.restore("stage")
            self._signs.begin()
            progress.last_loss, progress.num_lost = progress.kept_loss, 0
            progress.num_taken_back += len(self._committed) - progress.num_kept
            self._committed.cut(progress.num_kept)

    def _step(self, order: Order) -> Generator[None, float, None]:
        """Set the values of each step of `order` that is not taken yet, and note what it measures."""
        progress = self._progress
        for values in order.steps[len(progress.losses) :]:
            started = self._clock()
            self._set(values)
            progress.losses.append(self._told((yield)))
            progress.num_steps += 1
            progress.step_seconds.append(self._clock() - started)
            if order.task == Task.COMMIT:
                self._committed.append(values)
        if progress.losses and not math.isfinite(progress.kept_loss):
            progress.kept_loss = progress.losses[0]  # of the first probe, before its first update

    def _end(self) -> None:
        self.is_over, self.is_probing = True, False
        self._signs.end()
        self._check.end()
        self.handle.forget("stage")

    def _told(self, loss: float) -> float:
        """Return a step's `loss` as the leader gets it.

        A series survives a loss that is not finite if the parameters are: a batch was bad, or a GradScaler skipped the
        step. The last finite loss then takes its place. In a probe, too: one that diverges bars all higher rates.
        """
        progress = self._progress
        if math.isfinite(loss):
            progress.last_loss, progress.num_lost = loss, 0
            return loss
        progress.num_lost += 1
        return progress.last_loss if progress.num_lost <= MOST_LOST and self.handle.is_sound() else loss

    def _check_groups(self) -> None:
        """Raise ValueError if the optimizer has other parameter groups than when it was attached."""
        groups = self.handle.optimizer.param_groups
        if len(groups) != len(self._ratios):
            raise ValueError(
                f"`optimizer` must keep the {len(self._ratios)} parameter groups that it had when it was attached, got "
                f"{len(groups)}: add all groups before `attach`, or `detach` and attach again"
            )

    def _set(self, values: Values) -> None:
        self._check_groups()
        for group, ratio in zip(self.handle.optimizer.param_groups, self._ratios, strict=True):
            rate = values.learning_rate * ratio
            if isinstance(group["lr"], Tensor):  # in place: a compiled or captured step holds the tensor
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate
        self._check.keep_rates()
        self._values = values
        self.handle.chosen = StepValues(*(getattr(values, name) for name in StepValues._fields))

    def _ordered(self) -> Order:
        """Return rank 0's next order, on all ranks."""
        order = Order(Task.STOP)
        if not dist.is_initialized() or dist.get_rank() == 0:
            with suppress(StopIteration):
                order = self._orders.send(self._taken)
        self.handle.settle()
        head = torch.tensor([order.task, len(order.steps)])
        self.handle.node_links.tell(head)
        rows = [row_of(values) for values in order.steps]
        told = torch.tensor(rows or [[0.0] * len(TOLD)] * int(head[1]), dtype=torch.float64)
        if len(told):
            self.handle.node_links.tell(told)
        return Order(Task(int(head[0])), [values_of(row) for row in told.tolist()])

    def _mean(self) -> Taken:
        """Return the answer to the order that is done: means over the ranks, and bytes as a mean over the nodes."""
        losses, step_seconds = self._progress.losses, self._progress.step_seconds
        self._progress.losses, self._progress.step_seconds = [], []
        links, sent = self.handle.node_links, self.handle.node_links.between.ledger.total
        series = (losses, step_seconds, *self._signs.take(len(losses)))
        sums = torch.tensor([*chain(*series), sent - self._sent], dtype=torch.float64)
        self._sent = sent
        self.handle.settle()
        links.all_reduce_sum(sums, {"control": sums.nbytes})
        means = (sums[:-1] / links.topology.num_workers).reshape(len(series), -1).tolist()
        return Taken._make([*means, round(sums[-1].item() / len(links.topology.nodes))])


def number_of(loss: Tensor | float) -> float:
    """Return `loss` as a number. Raises ValueError for what is not one."""
    try:
        tensor = torch.as_tensor(loss)
    except (RuntimeError, TypeError, ValueError):
        raise ValueError(f"`loss` must be one number, or a tensor of one, got {loss!r}") from None
    if tensor.numel() != 1:
        raise ValueError(f"`loss` must be one number, got shape {tuple(tensor.shape)}: give its mean")
    return tensor.item()


def guess_of(optimizer: torch.optim.Optimizer) -> float:
    """Return the learning rate to search around, that of the first group.

    Raises ValueError if it is not positive, or if a group has none.
    """
    check_rates(optimizer, "a controller")
    guess = float(optimizer.param_groups[0]["lr"])
    if not guess > 0:
        raise ValueError(f"`optimizer` must have a positive learning rate in its first group, got {guess}")
    return guess


def options_of(groups: Sequence[Mapping[str, Any]], kind: str) -> dict[str, Any]:
    """Return the options that the schedule of an optimizer of this `kind` keeps: those that all `groups` share."""
    options = dict[str, Any]()
    for name in OPTIONS_OF.get(kind, ()):
        values: list[Any] = [group.get(name) for group in groups]
        if name == "betas":  # which may be tensors
            values = [[float(each) for each in pair] for pair in values]
        if values[0] is not None and all(value == values[0] for value in values):
            options[name] = values[0]
    return options


def check_ends(budget: Budget, *, num_nodes: int) -> None:
    """Raise ValueError for a budget that `num_nodes` nodes would never spend."""
    if budget.counts_bytes_alone and num_nodes == 1:
        raise ValueError(
            f"`bytes` must not be the only cap, got {budget.bytes}: one node sends nothing, so the run would never "
            "end; add `seconds` or `steps`"
        )


def check_batch_size(batch_size: int | None) -> None:
    """Raise ValueError for a batch size that is no count of samples."""
    if batch_size is not None and not (isinstance(batch_size, Integral) and batch_size >= 1):
        raise ValueError(f"`batch_size` must be a whole number of at least 1, got {batch_size!r}")


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


def searched(config: ControllerConfig, budget: Budget, space: SearchSpace) -> dict[str, Any]:
    """Return by name what a search is of: it goes on with no other. What was measured of the model is left out."""
    fields = {f"controller.{name}": value for name, value in config.model_dump(mode="json").items()}
    of_space = space.model_dump(mode="json", include={"optimizer", "period", "batch_size"})
    guess = {"learning_rate": space.guess.learning_rate, space.level_name or "level": space.guess.level}
    ranges = [each.model_dump(mode="json") for each in space.axes]
    return {**fields, **budget.model_dump(mode="json"), **of_space, **guess, "ranges": ranges}


def moment_of(state: Mapping[str, Any]) -> Moment:
    """Return when a rank has saved `state`."""
    progress, num_committed = state["progress"], num_steps_in(state["committed"])
    return Moment(0, progress["num_steps"], num_committed, len(progress["losses"]), state["is_over"])


def conflict_among(moments: Sequence[Moment]) -> str | None:
    """Return why states of these `moments`, one per rank, cannot be loaded together; None: they can."""
    for number, moment in enumerate(moments):
        if moment.is_refused:
            return f"`state` must be loaded on all ranks, and rank {number} refuses its own: its error says why"
    for number, moment in enumerate(moments):
        if moment != moments[0]:
            return (
                f"`state` must be of one run and one step on all ranks, got {moments[0]} on rank 0 and {moment} on "
                f"rank {number}: load states that were saved together"
            )
    return None


def num_timed(config: ControllerConfig, space: SearchSpace, budget: Budget) -> int:
    """Return how many steps to time before the search; 0: none.

    Seconds or bytes may end the run long before a cap in steps does: its length follows from a step's cost.
    """
    if not isinstance(config, StagedConfig) or budget.seconds is budget.bytes is None:
        return 0  # it asks for no length
    timed = steps_to_time(space)
    is_large_part = budget.steps is not None and timed > TIMED_PART * budget.steps
    return 0 if is_large_part else timed


def steps_to_time(space: SearchSpace) -> int:
    """Return how many steps to time before the search: whole rounds of local updates; 0: a round is too long."""
    period = space.period_of(space.opening)
    return period * math.ceil(FIRST_PUSH / period) if period <= MOST_TIMED else 0
