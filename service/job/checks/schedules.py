"""Find conflicts of arms with the schedules that they follow."""

from collections.abc import Iterator

from search.config import ScheduleConfig
from search.schedule_file import ScheduleFile
from service.job.checks.auto import beside
from service.job.parts import JobParts
from trainers.methods.exchange.auto.spec import JobExchange, Option, menu
from trainers.methods.optimizer.spec import contenders
from trainers.spec.ranges import Conflict


def schedule_conflicts(job: JobParts) -> Iterator[Conflict]:
    """Yield what the schedules of `job` set that their arms do not have, each at its place."""
    for index, arm in enumerate(job.arms):
        controller, optimizer = arm.controller or job.controller, arm.optimizer or job.optimizer
        if not isinstance(controller, ScheduleConfig):
            continue
        place = f"/arms/{index}/controller" if arm.controller else "/controller"
        learned_by = controller.schedule.optimizer
        kinds = [contender.kind for contender in contenders(optimizer)]
        if learned_by not in kinds:
            yield Conflict(
                f"{place}/schedule/optimizer",
                learned_by,
                f"arm `{arm.name}`: the schedule was learned by `{learned_by}`, so its rates mean nothing to "
                f"{' or '.join(f'`{kind}`' for kind in kinds)}: give `optimizer: {{kind: {learned_by}}}`",
            )
        exchange = arm.exchange or job.exchange
        yield from _levels_out_of_range(controller.schedule, exchange, place)
        yield from _unknown_options(controller.schedule, menu(exchange, **beside(job, arm)), place)


def _levels_out_of_range(schedule: ScheduleFile, exchange: JobExchange, place: str) -> Iterator[Conflict]:
    if exchange.level is None:
        return
    for number, entry in enumerate(schedule.entries):
        if entry.level is not None and (conflict := exchange.level_conflict(entry.level)):
            yield Conflict(
                f"{place}/schedule/entries/{number}/level",
                entry.level,
                f"`level` is the exchange's `{exchange.level_name}` here and {conflict}, got {entry.level:g}",
            )


def _unknown_options(schedule: ScheduleFile, options: tuple[Option, ...], place: str) -> Iterator[Conflict]:
    legal = [option.name for option in options]
    for number, entry in enumerate(schedule.entries):
        name = entry.values.get("option")
        if name is not None and name not in legal:
            yield Conflict(
                f"{place}/schedule/entries/{number}/values/option",
                name,
                f"the schedule exchanges by `{name}`, and here there is {legal or 'one kind of exchange'}: give "
                "`exchange: {kind: auto, options: [...]}` with those of the schedule",
            )
