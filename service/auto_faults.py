"""What a job whose exchanges compete (`exchange: {kind: auto}`) is refused for, beyond what its parts say."""

from collections.abc import Iterator, Sequence

from search.config import MAX_DIMENSIONS, BoConfig, ControllerConfig, ScheduleConfig, SobolConfig
from search.schedule_file import ScheduleFile
from trainers.config import AutoConfig, JobExchange, Option
from trainers.ranges import Fault


def option_faults(arm: str, controller: ControllerConfig, exchange: JobExchange, *, num_ranges: int) -> Iterator[Fault]:
    """Yield why nothing chooses among the options of `arm`, which searches `num_ranges` ranges beside them."""
    if not isinstance(exchange, AutoConfig):
        return
    if not isinstance(controller, BoConfig | SobolConfig | ScheduleConfig):
        yield Fault(
            "/exchange",
            exchange.kind,
            f"`auto` needs a controller that searches it (`bo`, `sobol`), or a `schedule` that has, and that of arm "
            f"`{arm}` is `{controller.kind}`: give one exchange, as `{{kind: threshold, density: 0.01}}`",
        )
    elif num_ranges >= MAX_DIMENSIONS - 1:
        yield Fault(
            "/exchange",
            exchange.kind,
            f"at most {MAX_DIMENSIONS - 1} values are searched beside the learning rate, and arm `{arm}` has "
            f"{num_ranges} ranges besides `auto`: give one number for one of them, or one exchange",
        )


def scheduled_option_faults(schedule: ScheduleFile, menu: Sequence[Option], place: str) -> Iterator[Fault]:
    """Yield a fault for each option of a schedule, given at `place`, that its arm does not have."""
    legal = [option.name for option in menu]
    for number, entry in enumerate(schedule.entries):
        name = entry.values.get("option")
        if name is not None and name not in legal:
            yield Fault(
                f"{place}/schedule/entries/{number}/values/option",
                name,
                f"the schedule exchanges by `{name}`, and the arm has {legal or 'one kind of exchange'}: give it "
                f"`exchange: {{kind: auto, options: [...]}}` with those of the schedule",
            )
