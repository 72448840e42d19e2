"""The learned schedule: a file, and the same values again in plain torch."""

import json
from pathlib import Path

import pytest
import torch
from schedulefree import AdamWScheduleFree, SGDScheduleFree

from search.schedule import Schedule
from search.schedule_file import Entry, Provenance, ScheduleFile, json_schema
from trainers.methods.optimizer.optimizer import Optimizer
from trainers.methods.optimizer.spec import SgdConfig
from trainers.segment import Segment


@pytest.fixture
def schedule():
    return Schedule(
        optimizer="sgd",
        num_steps=10,
        entries=(
            Entry(step=0, num_steps=4, learning_rate=0.1, level=0.01, density=0.012, reason="first"),
            Entry(step=4, num_steps=1, learning_rate=0.05, level=0.01),
            Entry(step=5, num_steps=5, learning_rate=0.2, final_learning_rate=0.0, level=0.03, threshold=1e-3),
        ),
    )


RATES = [0.1, 0.1, 0.1, 0.1, 0.05, 0.2, 0.15, 0.1, 0.05, 0.0]


def test_json_both_ways_is_the_identity(schedule):
    assert Schedule.from_json(schedule.to_json()) == schedule
    assert json.loads(schedule.to_json())["format"] == "wiretune.schedule/1"


def test_rates_and_levels_are_those_of_the_entries(schedule):
    assert [schedule.learning_rate_at(step) for step in range(10)] == pytest.approx(RATES)
    assert [schedule.level_at(step) for step in (0, 4, 5, 9)] == [0.01, 0.01, 0.03, 0.03]


def test_after_its_end_the_last_rate_goes_on(schedule):
    assert schedule.learning_rate_at(25) == 0.0


class Counting(tuple[Entry, ...]):
    """Entries that count how often one is looked at."""

    num_reads = 0

    def __getitem__(self, index):
        self.num_reads += 1
        return super().__getitem__(index)

    def __iter__(self):
        self.num_reads += len(self)
        return super().__iter__()


def test_a_step_looks_at_few_of_many_entries(schedule):
    entries = Counting(Entry(step=step, num_steps=1, learning_rate=1.0 + step) for step in range(1000))
    long = schedule.model_copy(update={"entries": entries, "num_steps": 1000})

    assert long.learning_rate_at(700) == 701.0
    assert entries.num_reads < 50


def test_torch_replays_the_schedule_and_keeps_the_ratio_of_groups(schedule):
    first, second = (torch.nn.Parameter(torch.ones(1)) for _ in range(2))
    optimizer = torch.optim.SGD([{"params": [first], "lr": 0.7}, {"params": [second], "lr": 1.4}])
    levels = []
    scheduler = schedule.scheduler(optimizer, on_level=levels.append)
    used = []
    for _ in range(10):
        used.append([group["lr"] for group in optimizer.param_groups])
        optimizer.step()
        scheduler.step()

    assert [rates[0] for rates in used] == pytest.approx(RATES)
    assert [rates[1] for rates in used] == pytest.approx([2 * rate for rate in RATES])
    assert levels == [0.01, 0.03]


def test_torch_goes_on_with_the_schedule_where_an_optimizer_was_restored_or_had_a_scheduler(schedule):
    def trained(optimizer, scheduler, num_steps):
        used = []
        for _ in range(num_steps):
            used.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            scheduler.step()
        return used

    first, again = (torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.7) for _ in range(2))
    before = schedule.scheduler(first)
    used = trained(first, before, 6)
    again.load_state_dict(first.state_dict())
    after = schedule.scheduler(again)
    after.load_state_dict(before.state_dict())

    assert used + trained(again, after, 4) == pytest.approx(RATES)

    warmed = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.7)
    torch.optim.lr_scheduler.LinearLR(warmed, start_factor=0.1)
    assert trained(warmed, schedule.scheduler(warmed), 10) == pytest.approx(RATES)


def test_torch_trains_at_the_same_rates_where_they_are_tensors(schedule):
    parameters = [torch.nn.Parameter(torch.ones(1)) for _ in range(2)]
    groups = [{"params": [each], "lr": torch.tensor(rate)} for each, rate in zip(parameters, (0.7, 1.4), strict=True)]
    first, again = torch.optim.AdamW(groups), torch.optim.AdamW([{**each, "lr": each["lr"].clone()} for each in groups])
    used = []

    def train(optimizer, scheduler, num_steps):
        for _ in range(num_steps):
            used.append([group["lr"].item() for group in optimizer.param_groups])
            optimizer.step()
            scheduler.step()

    before, after = schedule.scheduler(first), schedule.scheduler(again)
    train(first, before, 6)
    after.load_state_dict(before.state_dict())
    train(again, after, 4)

    assert used == [pytest.approx([rate, 2 * rate]) for rate in RATES]


def test_torch_warms_up_as_the_optimizer_did_that_learned_the_schedule(schedule):
    parameter = torch.nn.Parameter(torch.ones(1))
    config, of_torch = SgdConfig(warmup_steps=8), torch.optim.SGD([parameter], lr=1.0)
    worker = Optimizer(config, of_torch, {parameter: "weight"}, brought=[{}])
    rates = [worker.set_learning_rate(schedule.learning_rate_at(step), step) for step in range(10)]
    warmed = Schedule.from_json(schedule.model_copy(update={"warmup_steps": 8}).to_json())
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.7)
    scheduler, used = warmed.scheduler(optimizer), []
    for _ in range(10):
        used.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()

    assert [warmed.learning_rate_at(step) for step in range(10)] == rates
    assert used == pytest.approx(rates) and used[0] == RATES[0] / 8


OPTIONS = {"momentum": 0.8, "weight_decay": 0.02, "nesterov": True, "batch_size": 64}


@pytest.fixture
def joint_schedule():
    """A schedule of a search over more than the learning rate."""
    entries = (
        Entry(step=0, num_steps=1, learning_rate=0.1, values=OPTIONS),
        Entry(step=1, num_steps=1, learning_rate=0.1, values=OPTIONS | {"momentum": 0.95, "batch_size": 32}),
    )
    return Schedule.from_json(Schedule(optimizer="sgd", num_steps=2, entries=entries).to_json())


def test_torch_replays_options_in_the_groups_that_have_the_first_ones(joint_schedule):
    first, second = (torch.nn.Parameter(torch.ones(1)) for _ in range(2))
    groups = [{"params": [first]}, {"params": [second], "weight_decay": 0.0}]
    optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9, weight_decay=1e-3)
    scheduler = joint_schedule.scheduler(optimizer)
    used = []
    for _ in range(2):
        used.append([(group["momentum"], group["weight_decay"], group["nesterov"]) for group in optimizer.param_groups])
        optimizer.step()
        scheduler.step()

    assert used == [[(0.8, 0.02, True), (0.8, 0.0, True)], [(0.95, 0.02, True), (0.95, 0.0, True)]]
    assert [joint_schedule.batch_size_at(step) for step in (0, 1, 5)] == [64, 32, 32]


def test_an_option_that_an_entry_leaves_out_is_as_the_optimizer_was_built(joint_schedule):
    entries = [each.model_copy(update={"values": values}) for each, values in zip(
        joint_schedule.entries, ({"momentum": 0.5}, {}), strict=True
    )]  # fmt: skip
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1, momentum=0.9, weight_decay=0.01)
    scheduler = joint_schedule.model_copy(update={"entries": tuple(entries)}).scheduler(optimizer)
    [group] = optimizer.param_groups
    first, group["weight_decay"] = group["momentum"], 0.3  # which is the script's own matter
    optimizer.step()
    scheduler.step()

    assert (first, group["momentum"], group["weight_decay"]) == (0.5, 0.9, 0.3)


def test_the_momentum_of_adam_is_its_first_beta(joint_schedule):
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.ones(1))], betas=(0.9, 0.99))
    entries = tuple(each.model_copy(update={"values": {"momentum": 0.8}}) for each in joint_schedule.entries)
    joint_schedule.model_copy(update={"optimizer": "adamw", "entries": entries}).scheduler(optimizer)

    assert optimizer.param_groups[0]["betas"] == (0.8, 0.99)


def test_options_are_set_in_the_groups_of_an_optimizer_whose_state_was_loaded(joint_schedule):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1, momentum=0.9)
    scheduler = joint_schedule.scheduler(optimizer)
    optimizer.load_state_dict(optimizer.state_dict())

    optimizer.step()
    scheduler.step()

    assert optimizer.param_groups[0]["momentum"] == 0.95


def test_a_scheduler_whose_state_is_loaded_sets_the_level_and_the_options_of_the_coming_step(schedule):
    values = {"momentum": 0.8}
    entries = (*schedule.entries[:2], schedule.entries[2].model_copy(update={"values": values}))
    schedule = schedule.model_copy(update={"entries": entries})
    first, again = (torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.7, momentum=0.9) for _ in range(2))
    before, levels = schedule.scheduler(first), []
    for _ in range(6):
        first.step()
        before.step()

    after = schedule.scheduler(again, on_level=levels.append)
    after.load_state_dict(before.state_dict())

    assert (levels, again.param_groups[0]["momentum"]) == ([0.01, 0.03], 0.8)


def test_an_option_goes_back_to_its_value_of_before_the_schedule_whichever_state_was_loaded_first(schedule):
    entries = (schedule.entries[0].model_copy(update={"values": {"momentum": 0.8}}), *schedule.entries[1:])
    schedule = schedule.model_copy(update={"entries": entries})
    first, again = (torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.7, momentum=0.9) for _ in range(2))
    before = schedule.scheduler(first)
    first.step()
    before.step()
    again.load_state_dict(first.state_dict())
    after = schedule.scheduler(again)
    after.load_state_dict(before.state_dict())

    used = []
    for _ in range(4):
        used.append(again.param_groups[0]["momentum"])
        again.step()
        after.step()

    assert used == [0.8, 0.8, 0.8, 0.9]


def test_an_option_that_the_optimizer_does_not_have_is_refused(joint_schedule):
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.ones(1))])

    with pytest.raises(ValueError, match=r"`entries\[0\].values` sets `nesterov`, .* of the kind `sgd`"):
        joint_schedule.scheduler(optimizer)


@pytest.mark.parametrize(
    ("kind", "optimizer", "is_warned"),
    [
        ("sgd", torch.optim.SGD, False),
        ("sgd", torch.optim.AdamW, True),
        ("lars", torch.optim.SGD, True),
        ("from_exchange", torch.optim.SGD, False),
        ("own", torch.optim.AdamW, False),
        ("adamw", torch.optim.Adagrad, False),
    ],
)
def test_an_optimizer_that_is_clearly_of_another_kind_is_warned_of(schedule, kind, optimizer, is_warned, caplog):
    schedule.model_copy(update={"optimizer": kind}).scheduler(optimizer([torch.nn.Parameter(torch.ones(1))], lr=0.1))

    said = [record.getMessage() for record in caplog.records if record.name == "wiretune.schedule"]
    assert len(said) == is_warned
    assert all(each.startswith(f"the schedule was learned with `{kind}`") for each in said)


def test_several_optimizers_are_refused_with_a_remedy(schedule):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)

    with pytest.raises(ValueError, match=r"must be one .*, got list: of several, give each its own scheduler"):
        schedule.scheduler([optimizer, optimizer])


@pytest.fixture
def schedule_of_rounds(schedule):
    """A schedule of a search over what ranks meet by, whose last entry has it no more."""
    values = {"period": 8, "outer_momentum": 0.5}
    entries = [each.model_copy(update={"values": values | {"momentum": 0.8}}) for each in schedule.entries[:2]]
    return schedule.model_copy(update={"entries": (*entries, schedule.entries[2])})


def test_what_is_no_option_of_an_optimizer_is_given_to_on_values_when_it_changes(schedule_of_rounds):
    optimizer, given = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.7, momentum=0.9), []
    scheduler = schedule_of_rounds.scheduler(optimizer, on_values=given.append)
    for _ in range(9):
        optimizer.step()
        scheduler.step()

    assert given == [{"period": 8, "outer_momentum": 0.5}, {}]


def test_a_loaded_scheduler_gives_on_values_those_of_the_coming_step(schedule_of_rounds):
    first, again = (torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.7) for _ in range(2))
    before, given = schedule_of_rounds.scheduler(first, on_values=lambda values: None), []
    for _ in range(6):
        first.step()
        before.step()

    schedule_of_rounds.scheduler(again, on_values=given.append).load_state_dict(before.state_dict())

    assert given[-1] == {}


@pytest.mark.parametrize(
    ("values", "remedy"),
    [
        ({"period": 4}, "give `on_values`, as `handle.set_values` .*'kind': 'schedule'"),
        ({"outer_learning_rate": 0.7}, "give `on_values`, as `handle.set_values` .*'kind': 'schedule'"),
        ({"outer_momentum": 0.5}, "give `on_values`, as `handle.set_values` .*'kind': 'schedule'"),
        ({"share": 0.5}, "train by it as a job; a loop"),
        ({"gamma": 0.9}, "train by it as a job; a loop"),
    ],
)
def test_a_value_that_nobody_would_take_is_refused(schedule, values, remedy):
    entries = (*schedule.entries[:2], schedule.entries[2].model_copy(update={"values": values}))
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.7)

    with pytest.raises(ValueError, match=rf"`entries\[2\].values` sets `{next(iter(values))}`, .* has: {remedy}"):
        schedule.model_copy(update={"entries": entries}).scheduler(optimizer)


@pytest.mark.parametrize("kind", [SGDScheduleFree, AdamWScheduleFree])
def test_torch_replays_the_schedule_with_schedule_free_optimizers(schedule, kind):
    parameter = torch.nn.Parameter(torch.ones(1))
    optimizer = kind([parameter], lr=schedule.learning_rate_at(0))
    scheduler, used = schedule.scheduler(optimizer), []
    optimizer.train()
    for _ in range(10):
        parameter.grad = torch.ones(1)
        optimizer.step()
        used.append(optimizer.param_groups[0]["scheduled_lr"])
        scheduler.step()

    assert used == pytest.approx(RATES)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "wiretune.schedule/9"}, "of another release, whose `wiretune export` or newer reads it"),
        ({"format": "somebody.else/1"}, "is this file a schedule of Wiretune"),
        ({"num_steps": 11}, "`num_steps` must be 10"),
        ({"entries": [{"step": 3, "num_steps": 10, "learning_rate": 0.1}]}, r"`entries\[0\].step` must be 0"),
        ({"entries": []}, "entries"),
        *(
            ({"entries": [{"step": 0, "num_steps": 10, "learning_rate": 0.1, "values": values}]}, message)
            for values, message in [
                ({"learning_rate": 5}, "`values` may name .*momentum.*, got 'learning_rate'"),
                ({"speed": 1}, "got 'speed'"),
                ({"batch_size": 2.5}, "`values.batch_size`: .*got 2.5"),
                ({"momentum": "abc"}, "`values.momentum`: .*got 'abc'"),
            ]
        ),
    ],
)
def test_a_broken_file_is_refused_with_what_is_wrong(schedule, change, message):
    text = json.dumps(json.loads(schedule.to_json()) | change)

    with pytest.raises(ValueError, match=message):
        Schedule.from_json(text)


@pytest.mark.parametrize(
    ("values", "bound"),
    [
        ({"batch_size": 0}, "greater than or equal to 1, got 0"),
        ({"momentum": 1.0}, "less than 1, got 1.0"),
        ({"momentum": -0.1}, "greater than or equal to 0, got -0.1"),
        ({"weight_decay": -1e-3}, "greater than or equal to 0, got -0.001"),
        ({"weight_decay": float("inf")}, "finite number, got inf"),
        ({"period": 0}, "greater than or equal to 1, got 0"),
        ({"gamma": 1.0}, "less than 1, got 1.0"),
        ({"share": 0.0}, "greater than 0, got 0.0"),
        ({"share": 1.5}, "less than or equal to 1, got 1.5"),
        ({"outer_learning_rate": 0.0}, "greater than 0, got 0.0"),
        ({"outer_momentum": 1.5}, "less than 1, got 1.5"),
        ({"outer_momentum": float("nan")}, "got nan"),
    ],
)
def test_a_value_has_the_bounds_of_a_job(schedule, values, bound):
    entry = {"step": 0, "num_steps": 10, "learning_rate": 0.1, "values": values}
    text = json.dumps(json.loads(schedule.to_json()) | {"entries": [entry]})

    with pytest.raises(ValueError, match=f"`values.{next(iter(values))}`: .*{bound}"):
        Schedule.from_json(text)


@pytest.mark.parametrize("rate", [-1e-3, 1001.0, float("inf"), float("nan")])
@pytest.mark.parametrize("name", ["learning_rate", "final_learning_rate"])
def test_a_rate_is_one_that_a_search_may_try_or_what_a_decay_ends_at(schedule, name, rate):
    entry = {"step": 0, "num_steps": 10, "learning_rate": 0.1} | {name: rate}
    text = json.dumps(json.loads(schedule.to_json()) | {"entries": [entry]})

    with pytest.raises(ValueError, match=rf"entries\W0\W+{name}"):
        Schedule.from_json(text)


def test_the_multiples_of_a_workloads_own_rates_are_not_bounded_as_rates_are(schedule):
    entry = {"step": 0, "num_steps": 10, "learning_rate": 1001.0}
    text = json.dumps(json.loads(schedule.to_json()) | {"optimizer": "own", "entries": [entry]})

    assert Schedule.from_json(text).learning_rate_at(0) == 1001.0


def test_a_negative_step_is_refused(schedule):
    with pytest.raises(ValueError, match="`step` must be at least 0, got -1"):
        schedule.learning_rate_at(-1)


def test_an_optimizer_without_a_rate_is_refused(schedule):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.0)

    with pytest.raises(ValueError, match="`optimizer`"):
        schedule.scheduler(optimizer)


def test_the_rates_of_an_own_optimizer_multiply_those_of_its_groups(schedule):
    first, second = (torch.nn.Parameter(torch.ones(1)) for _ in range(2))
    optimizer = torch.optim.Adam([{"params": [first], "lr": 0.5}, {"params": [second], "lr": 0.25}])
    schedule.model_copy(update={"optimizer": "own"}).scheduler(optimizer)

    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.5 * RATES[0], 0.25 * RATES[0]])


def test_a_ramp_ends_at_its_final_rate_to_the_bit():
    entry = Entry(step=3, num_steps=7, learning_rate=0.3, final_learning_rate=0.1)

    assert entry.learning_rate_at(9) == 0.1


def test_rates_of_a_ramp_are_those_of_the_workers_to_the_bit():
    entry = Entry(step=0, num_steps=7, learning_rate=0.3, final_learning_rate=0.1)
    segment = Segment(num_steps=7, learning_rate=0.3, final_learning_rate=0.1)

    assert [entry.learning_rate_at(step) for step in range(7)] == [segment.learning_rate_at(step) for step in range(7)]


def test_a_file_says_where_it_is_from_and_a_later_release_may_say_more(schedule):
    provenance = Provenance(job_id="j", job={"workload": {"kind": "digits-mlp"}}, arm="tuned", seed=1)
    content = json.loads(schedule.model_copy(update={"provenance": provenance}).to_json())
    content["provenance"]["weather"] = "fine"

    assert Schedule.from_json(json.dumps(content)).provenance == provenance


def test_an_entry_with_a_field_that_nobody_knows_is_refused(schedule):
    content = json.loads(schedule.to_json())
    content["entries"][0]["weather"] = "fine"

    with pytest.raises(ValueError, match=r"entries.0.weather"):
        Schedule.from_json(json.dumps(content))


def test_a_jobs_schedule_leaves_out_where_it_is_from(schedule):
    text = schedule.model_copy(update={"provenance": Provenance(job_id="j", job={}, arm="a", seed=0)}).to_json()

    assert "provenance" not in ScheduleFile.from_json(text).to_json()


def test_the_published_schema_is_that_of_the_code():
    published = Path(__file__).parents[2] / "docs" / "schedule.schema.json"

    assert json.loads(published.read_text()) == json_schema(), "run `make docs`"
