"""Competing exchanges in a job: valid forms, refusals, and the options for a link."""

from typing import Any

import pytest

from search.types import Values
from service.cluster import exchange_probing, segment_length
from service.cluster.opening import stated_space
from service.job.advice import advice
from service.job.parts import TrialSpec
from service.job.problems import Problem
from service.job.spec import JobSpec
from tests.support.refusals import problems_in
from trainers.methods.exchange.auto.spec import DEFAULT, Option
from trainers.segment import Segment, SegmentResult
from trainers.traffic.shapes import parameter_shapes
from trainers.training.group import Group

AUTO = {"kind": "auto"}
JOB: dict[str, Any] = {
    "workload": {"kind": "digits-mlp"},
    "optimizer": {"kind": "sgd"},
    "exchange": AUTO,
    "budget": {"seconds": 60},
}
NAMED = {"kind": "auto", "options": ["none", "threshold 0.01", "local_sgd 8"]}


def spec(**changes: Any) -> JobSpec:
    return JobSpec.model_validate(JOB | changes)


def trial(**changes: Any) -> TrialSpec:
    return next(spec(**changes).trials())


def refused(**changes: Any) -> list[Problem]:
    return problems_in(JOB | changes)


def test_the_menu_is_what_fits_the_job():
    no_local = tuple(option for option in DEFAULT if option.kind != "local_sgd")

    assert trial().replica.menu == DEFAULT
    assert trial(optimizer={"kind": "schedulefree_sgd"}).replica.menu == DEFAULT
    assert trial(optimizer={"kind": "adamw"}).replica.menu == DEFAULT
    assert trial(optimizer={"kind": "lars"}).replica.menu == no_local
    assert trial(partition={"kind": "by_label"}).replica.menu == no_local
    assert trial(workers={"count": 4, "per_node": 2}).replica.menu == no_local
    assert trial(exchange={"kind": "none"}).replica.menu == ()


@pytest.mark.parametrize(
    "name", ["none", "bf16", "threshold 0.01", "topk 1e-05", "powersgd 16", "local_sgd 100", "local_sgd 8 blockwise"]
)
def test_the_name_of_an_option_says_all_of_it(name: str):
    assert Option.parse(name).name == name
    assert Option.parse(Option.parse(name).name) == Option.parse(name)


@pytest.mark.parametrize(
    ("named", "said"),
    [
        (["none", "zip 0.1"], "got 'zip 0.1'"),
        (["none", "threshold"], "`threshold <density>`"),
        (["none", "fp16 2"], "`fp16`"),
        (["none", "threshold 2"], "less than or equal to 1"),
        (["none", "powersgd 1.5"], "valid integer"),
        (["none", "powersgd much"], "no legal rank"),
        (["none", "local_sgd 1"], "[2, 100000]"),
        (["none", "local_sgd 1 blockwise"], "[2, 100000]"),
        (["none", "local_sgd 16 zip"], "`local_sgd <period> sparse_loco`"),
        (["none", "threshold 0.01 blockwise"], "`local_sgd <period> blockwise`"),
        (["local_sgd 8 blockwise"], "`exchange: {kind: blockwise}`"),
        (["none", "threshold 0.01", "threshold 1e-2"], "must be distinct"),
        (["threshold 0.01"], "give `exchange: {kind: threshold, density: 0.01}`"),
        (["local_sgd 4"], "give `sync: {kind: local_sgd, period: 4}`"),
    ],
    ids=str,
)
def test_options_that_are_none_are_refused_with_what_is_right(named: list[str], said: str):
    [problem] = refused(exchange={"kind": "auto", "options": named})

    assert problem.pointer == "/exchange/options"
    assert said in problem.message


@pytest.mark.parametrize(
    ("changes", "pointer", "said"),
    [
        ({"sync": {"kind": "vrl_sgd"}}, "/sync", "leave `sync` out"),
        ({"controller": {"kind": "local"}}, "/exchange", "(`bo`, `sobol`)"),
        ({"controller": {"kind": "fixed"}}, "/exchange", "give one exchange"),
        ({"controller": {"kind": "autolrs"}}, "/exchange", "`schedule`"),
        ({"exchange": NAMED, "optimizer": {"kind": "lars"}}, "/exchange/options", "leave out `local_sgd 8`"),
        ({"exchange": NAMED, "partition": {"kind": "by_label"}}, "/exchange/options", "`partition` is by_label"),
        ({"exchange": NAMED, "workers": {"count": 4, "per_node": 2}}, "/exchange/options", "`workers.per_node` is 2"),
        ({"blocks": {"kind": "jointspar"}}, "/blocks", "give `exchange: {kind: none}`"),
        (
            {"exchange": AUTO | {"levels": {"kind": "accordion"}}},
            "/exchange/levels",
            "`exchange.kind: auto` has no `levels`",
        ),
        (
            {"exchange": AUTO | {"momentum_correction": 0.9}},
            "/exchange/momentum_correction",
            "kinds that have it: `threshold`",
        ),
        (
            {
                "optimizer": {"kind": "sgd", "momentum": [0.5, 0.9], "weight_decay": [1e-4, 1e-2]},
                "workload": {"kind": "digits-mlp", "batch_size": [16, 64]},
            },
            "/exchange",
            "3 ranges besides `auto`",
        ),
    ],
    ids=str,
)
def test_what_does_not_go_with_auto_is_refused_with_what_does(changes: dict[str, Any], pointer: str, said: str):
    [problem] = refused(**changes)

    assert problem.pointer == pointer
    assert said in problem.message


def _scheduled(option: str) -> dict[str, Any]:
    entry = {"step": 0, "num_steps": 9, "learning_rate": 0.1, "values": {"option": option}}
    return {"kind": "schedule", "schedule": {"optimizer": "sgd", "num_steps": 9, "entries": [entry]}}


def test_a_schedule_with_options_is_taken_by_a_job_that_has_them_alone():
    assert trial(controller=_scheduled("threshold 0.01")).controller.kind == "schedule"
    for exchange in (AUTO, {"kind": "none"}):
        [problem] = refused(controller=_scheduled("threshold 0.02"), exchange=exchange)
        assert problem.pointer == "/controller/schedule/entries/0/values/option"
        assert "`exchange: {kind: auto, options: [...]}`" in problem.message


def test_a_budget_in_steps_is_told_that_it_does_not_count_what_is_sent():
    assert advice(spec()) == ()
    [said] = advice(spec(budget={"steps": 100_000}))

    assert "`budget.seconds`" in said and "`none`" in said


def test_a_job_whose_options_include_local_updates_goes_on_with_its_workers_alone():
    local = tuple(option.name for option in DEFAULT if option.kind == "local_sgd")

    assert trial().replica.apart_under == local and "local_sgd 16 blockwise" in local
    assert trial(optimizer={"kind": "lars"}).replica.apart_under == ()


def test_a_segment_names_the_option_of_its_values():
    values = Values(learning_rate=0.1, option="powersgd 1")

    assert segment_length.segment(values, values, 5).options == {"option": "powersgd 1"}


# -- the opening -----------------------------------------------------------------------------------


class OnALink(Group):
    """Its steps take 10 ms and what it sends takes; it sends what is foreseen."""

    def __init__(self, spec: TrialSpec, *, mbps: float, num_nodes: int = 2) -> None:
        self.config, self.mbps = spec.replica, mbps
        self.shapes = parameter_shapes(spec.replica.workload) or ()
        self.nodes = tuple((rank,) for rank in range(num_nodes))
        self.sent = {option.name: each.bytes for option, each in exchange_probing.predicted(spec, self).items()}
        self.ran: list[str] = []

    def run(self, segment: Segment) -> SegmentResult:
        option = segment.options["option"]
        assert isinstance(option, str)
        self.ran.append(option)
        sent = 0.0 if option.startswith("local_sgd") else self.sent[option]
        return SegmentResult(
            first_step=0,
            losses=(1.0,) * segment.num_steps,
            step_seconds=(1.0, *(0.01 + sent * 8 / (self.mbps * 1e6),) * 2),  # the first loads libraries
            bytes_sent=({"gradient": round(3 * sent)},),
            bytes_dense=0,
        )

    def snapshot(self, slot: str) -> None: ...
    def restore(self, slot: str) -> None: ...
    def absorb(self, others: Any) -> None: ...
    def rebuild(self, config: Any) -> None: ...
    def close(self) -> None: ...
    def call(self, method: str, *args: Any, timeout_s: float | None = None) -> list[Any]:
        raise AssertionError(f"{method} is not asked of this group")


def _opened(link: dict[str, Any], mbps: float, num_nodes: int = 2, **changes: Any) -> tuple[OnALink, Any]:
    job = trial(link=link, **changes)
    group = OnALink(job, mbps=mbps, num_nodes=num_nodes)
    space, warm_ups = exchange_probing.opened(job, stated_space(job), [group])
    assert len(warm_ups) == len(group.ran)
    return group, space


@pytest.mark.parametrize("mbps", [1.0, 20.0, 300.0, 1e5])
def test_a_measured_link_leads_to_the_same_options_as_a_stated_one(mbps: float):
    _, measured = _opened({"mode": "measure"}, mbps)
    _, stated = _opened({"mode": "emulate", "mbps": mbps}, mbps)

    assert (measured.options, measured.opening.option) == (stated.options, stated.opening.option)
    assert (measured.opening.option == "none") == (mbps == 1e5)


def test_a_measured_link_is_kept_with_what_every_option_sends_and_a_stated_one_does_not_change():
    _, measured = _opened({"mode": "measure"}, 20.0)
    _, stated = _opened({"mode": "emulate", "mbps": 20.0}, 20.0)

    assert {each.option for each in measured.exchanges} == {option.name for option in DEFAULT}
    assert measured.link.seconds_per_byte == pytest.approx(8 / 20e6, rel=0.05)
    assert (stated.exchanges, stated.link) == ((), None)


def test_on_a_slow_link_nothing_dense_is_tried_and_all_that_compete_are_warmed_up():
    group, space = _opened({"mode": "measure"}, 1.0)

    assert not {"none", "fp16"} & set(group.ran)
    assert set(space.options) <= set(group.ran)


@pytest.mark.parametrize("mbps", [1.0, 20.0, 300.0, 1e5])
def test_no_option_is_warmed_up_twice(mbps: float):
    group, _ = _opened({"mode": "measure"}, mbps)

    assert len(set(group.ran)) == len(group.ran)


@pytest.mark.parametrize(
    ("changes", "num_nodes", "options"),
    [
        ({"budget": {"steps": 1000}}, 2, ()),
        ({"budget": {"bytes": 10**9}}, 2, ("threshold 0.001", "local_sgd 16 sparse_loco")),
        ({}, 1, ()),
    ],
    ids=["steps", "bytes", "one node"],
)
def test_without_seconds_or_a_link_what_the_budget_counts_decides(changes, num_nodes, options):
    _, space = _opened({"mode": "measure"}, 100.0, num_nodes=num_nodes, **changes)

    assert set(options) <= set(space.options) and bool(space.options) == bool(options)
    assert space.opening.option == (options[-1] if options else "none")
