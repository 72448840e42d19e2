"""A job whose parts fit together, and the training runs that it comes to."""

import json
from collections.abc import Iterator

from pydantic import model_validator

from search.config import MAX_DIMENSIONS, LocalConfig, StagedConfig
from service.job.checks.auto import contender_conflicts, option_conflicts
from service.job.checks.rates import rate_conflicts
from service.job.checks.schedules import schedule_conflicts
from service.job.parts import Arm, JobParts, TrialSpec
from trainers.methods.blocks.spec import blocks_misfit
from trainers.methods.optimizer.spec import LarsConfig, SgdConfig
from trainers.methods.sync.spec import misfit
from trainers.spec.link import MeasureLink
from trainers.spec.ranges import Conflict, conflict_error
from trainers.spec.replica import ReplicaConfig
from trainers.spec.two_way import optimizer_conflict
from trainers.spec.workloads import OwnWorkload
from trainers.traffic.shapes import has_labels, num_samples


class JobSpec(JobParts):
    """A job: what to train, over which link, how values are chosen, and what it may spend."""

    @model_validator(mode="after")
    def _parts_fit_together(self) -> "JobSpec":
        conflicts = [
            *self._repeated(),
            *self._bytes_that_nobody_sends(),
            *self._steps_beyond_the_data(),
            *self._labels_that_are_not_there(),
            *self._momentum_twice(),
            *self._syncs_that_do_not_fit(),
            *self._blocks_that_do_not_fit(),
            *self._clocks_without_seconds(),
            *self._exchanges_that_do_not_fit(),
            *self._ranges_that_are_not_searched(),
            *rate_conflicts(self),
            *option_conflicts(self),
            *contender_conflicts(self),
            *schedule_conflicts(self),
        ]
        if conflicts:
            raise conflict_error(conflicts)
        return self

    def _repeated(self) -> Iterator[Conflict]:
        names = [arm.name for arm in self.arms]
        if len(set(names)) < len(names):
            yield Conflict("/arms", names, f"arms need distinct names, got {names}")
        if len(set(self.seeds)) < len(self.seeds):
            yield Conflict("/seeds", list(self.seeds), f"seeds must be distinct, got {list(self.seeds)}")

    def _bytes_that_nobody_sends(self) -> Iterator[Conflict]:
        if self.budget.counts_bytes_alone and self.workers.count == self.workers.placed_together:
            yield Conflict(
                "/budget/bytes",
                self.budget.bytes,
                "one node sends nothing, so `budget.bytes` alone would never end the job: add `seconds` or `steps`",
            )

    def _steps_beyond_the_data(self) -> Iterator[Conflict]:
        samples = num_samples(self.workload)
        if samples is None or isinstance(self.workload, OwnWorkload):
            return  # the workers find out
        given = self.workload.batch_size
        batch_size = given if isinstance(given, int) else max(given)
        joined = self.lanes.count if self.lanes.after == "batch" else 1
        lanes = f" of {joined} lanes" if joined > 1 else ""
        most = samples // (batch_size * self.accumulate * joined)
        if self.workers.count > most:
            yield Conflict(
                "/workers/count",
                self.workers.count,
                f"`count` must be in [1, {most}], got {self.workers.count}: a step takes {batch_size} samples x "
                f"{self.accumulate} micro-batches per worker{lanes}, and `{self.workload.kind}` has {samples}",
            )

    def _labels_that_are_not_there(self) -> Iterator[Conflict]:
        kind = self.partition.kind
        if kind != "iid" and has_labels(self.workload) is False:
            yield Conflict(
                "/partition",
                kind,
                f"`partition` {kind} divides samples by their labels, and those of `{self.workload.kind}` have none: "
                "give `partition: {kind: iid}`, or a workload that classifies",
            )

    def _momentum_twice(self) -> Iterator[Conflict]:
        for index, arm in enumerate(self.arms):
            exchange, optimizer = arm.exchange or self.exchange, arm.optimizer or self.optimizer
            has_none = isinstance(optimizer, SgdConfig | LarsConfig) and optimizer.momentum == 0
            if exchange.without_momentum and not (optimizer.kind == "own" or has_none):
                plain = optimizer.kind if isinstance(optimizer, SgdConfig | LarsConfig) else "sgd"
                yield Conflict(
                    f"/arms/{index}/exchange" if arm.exchange else "/exchange",
                    exchange.kind,
                    f"arm `{arm.name}`: `{exchange.kind}` here applies momentum before it compresses: give `optimizer: "
                    f"{{kind: {plain}, momentum: 0}}`, or the exchange `{exchange.without_momentum}`",
                )

    def _syncs_that_do_not_fit(self) -> Iterator[Conflict]:
        for index, arm in enumerate(self.arms):
            sync, exchange = arm.sync or self.sync, arm.exchange or self.exchange
            if message := misfit(sync, exchange, (arm.optimizer or self.optimizer).kind):
                place = f"/arms/{index}/sync" if arm.sync else "/sync"
                yield Conflict(place, sync.kind, f"arm `{arm.name}`: {message}")

    def _blocks_that_do_not_fit(self) -> Iterator[Conflict]:
        for index, arm in enumerate(self.arms):
            blocks, optimizer = arm.blocks or self.blocks, arm.optimizer or self.optimizer
            message = blocks_misfit(blocks, arm.exchange or self.exchange, arm.sync or self.sync, optimizer.kind)
            if message:
                place = f"/arms/{index}/blocks" if arm.blocks else "/blocks"
                yield Conflict(place, blocks.kind, f"arm `{arm.name}`: {message}")

    def _clocks_without_seconds(self) -> Iterator[Conflict]:
        """Yield exchanges that would measure the link where no decision may depend on a clock."""
        if self.budget.seconds is not None or not isinstance(self.link, MeasureLink):
            return
        for index, arm in enumerate(self.arms):
            exchange = arm.exchange or self.exchange
            if exchange.reads_clock:
                yield Conflict(
                    f"/arms/{index}/exchange/levels/cost" if arm.exchange else "/exchange/levels/cost",
                    "link",
                    f"arm `{arm.name}`: `{exchange.kind}` here measures what the link takes, which a budget "
                    "without `seconds` does not allow: give `cost: {kind: packet}`, `budget.seconds`, or "
                    "`link: {mode: emulate}`",
                )

    def _exchanges_that_do_not_fit(self) -> Iterator[Conflict]:
        for index, arm in enumerate(self.arms):
            exchange = arm.exchange or self.exchange
            if message := optimizer_conflict(exchange, arm.optimizer or self.optimizer, clip=self.clip):
                place = f"/arms/{index}/exchange" if arm.exchange else "/exchange"
                yield Conflict(place, exchange.kind, f"arm `{arm.name}`: {message}")

    def _ranges_that_are_not_searched(self) -> Iterator[Conflict]:
        found: dict[str, Conflict] = {}
        for index, arm in enumerate(self.arms):
            for conflict in self._ranges_of(index, arm):
                found.setdefault(conflict.pointer, conflict)  # arms share the job's parts
        yield from found.values()

    def _ranges_of(self, index: int, arm: Arm) -> Iterator[Conflict]:
        """Yield a fault for each range that `arm` has and does not search."""
        controller = arm.controller or self.controller
        most = MAX_DIMENSIONS - 1
        for number, (pointer, each) in enumerate(self.placed_ranges(index, arm), start=1):
            reason = ""
            if not isinstance(controller, StagedConfig):
                reason = (
                    f"a range needs a controller that searches it (`bo`, `sobol`; `local` the level), and that of arm "
                    f"`{arm.name}` is `{controller.kind}`"
                )
            elif isinstance(controller, LocalConfig) and each.name != "level":
                reason = f"the controller `local` of arm `{arm.name}` searches rate and level alone"
            elif number > most:
                reason = f"at most {most} values are searched beside the learning rate, and this is number {number}"
            if reason:
                yield Conflict(pointer, list(each.pair), f"{reason}: give one number, got {json.dumps(each.pair)}")

    def resolved(self, folder: str) -> "JobSpec":
        """Return the job with its own code and files found from `folder`, as a shell finds them."""
        return self.model_copy(update={"workload": self.workload.resolved(folder)})

    @property
    def num_workers(self) -> int:
        """Workers of one training run, in all lanes."""
        return self.lanes.count * self.workers.count

    def trials(self) -> Iterator[TrialSpec]:
        """Yield the job's training runs, arm by arm, with every override applied."""
        for arm in self.arms:
            for seed in self.seeds:
                yield self._trial(arm, seed)

    def _trial(self, arm: Arm, seed: int) -> TrialSpec:
        replica = ReplicaConfig(
            workload=self.workload,
            partition=self.partition,
            optimizer=arm.optimizer or self.optimizer,
            exchange=arm.exchange or self.exchange,
            sync=arm.sync or self.sync,
            activations=arm.activations or self.activations,
            blocks=arm.blocks or self.blocks,
            link=self.link,
            workers_per_node=self.workers.per_node,
            seed=seed,
            accumulate=self.accumulate,
            clip=self.clip,
            precision=self.precision,
            threads=max(1, int(self.workers.cpus)),
            collective_timeout_s=self.workers.timeout_s,
            reply_timeout_s=self.workers.reply_timeout_s,
        )
        return TrialSpec(
            arm=arm.name,
            seed=seed,
            controller=arm.controller or self.controller,
            replica=replica,
            workers=self.workers,
            lanes=self.lanes,
            budget=self.budget,
            objective=self.objective,
            checkpoint=self.checkpoint,
        )
