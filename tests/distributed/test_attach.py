"""Laws of `attach` in a user's own script, on two ranks."""

import math
import re
from typing import Any

import pytest
import torch
from attach_scenario import DIRECTIONS, KINDS, ONCE_A_STEP, REFUSED, TUNED, WITH_BUFFERS, Script, bare
from scenarios import Reports
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel

from trainers.exchange.buffer import LEAD
from trainers.methods.replica_config import ReplicaConfig
from trainers.own_loop.attach import StepValues, attach
from trainers.traffic.collectives import all_reduce, broadcast

ON_TWO_RANKS = ["attached"]
BUFFER_BYTES = 2 * 4 * 64 + 8  # of BatchNorm: means, variances, and how many batches they are of
NUM_PARAMETERS = 20 * 64 + 64 + 64 * 64 + 64 + 64 * 4 + 4


def test_without_an_exchange_it_is_plain_ddp_bit_for_bit(two_ranks: Reports):
    step = all_reduce(4 * NUM_PARAMETERS, 2).bytes

    for rank in two_ranks["attached"]:
        assert rank["dense"]["equal"]
        assert rank["dense"]["bytes"] == {"gradient": 12 * step}


def test_plain_ddp_is_billed_by_backwards_and_not_by_forwards(two_ranks: Reports):
    for rank in two_ranks["attached"]:
        assert rank["dense"]["of two forwards"] == {"gradient": all_reduce(4 * NUM_PARAMETERS, 2).bytes}


@pytest.mark.parametrize("attached", WITH_BUFFERS)
def test_buffers_that_ddp_broadcasts_are_billed_once_a_step(two_ranks: Reports, attached: str):
    expected = 0 if attached == "diloco" else broadcast(BUFFER_BYTES, 2).bytes

    for rank in two_ranks["attached"]:
        assert rank["buffers"][attached] == [expected] * 4


@pytest.mark.parametrize("kind", ["topk", *DIRECTIONS])
def test_it_exchanges_like_compress_gradients(two_ranks: Reports, kind: str):
    for rank in two_ranks["attached"]:
        assert rank["kinds"][kind]["whole"] == rank["by compress_gradients"][kind]


@pytest.mark.parametrize("kind", KINDS)
def test_a_loaded_state_trains_on_bit_for_bit(two_ranks: Reports, kind: str):
    for rank in two_ranks["attached"]:
        assert rank["kinds"][kind]["halves"] == rank["kinds"][kind]["whole"]


def test_the_state_of_another_rank_or_of_another_number_of_ranks_is_refused(two_ranks: Reports):
    remedy = ": give the states of all ranks to `inherit`, or, without them, load the model before you attach it"
    for number, rank in enumerate(two_ranks["attached"]):
        assert rank["other states"] == [
            f"`state` must be what rank {number} of 2 has saved, got that of {other}"
            for other in (f"rank {1 - number} of 2", f"rank {number} of 3{remedy}", f"rank None of None{remedy}")
        ]


@pytest.mark.parametrize("kind", KINDS)
def test_steps_that_are_taken_back_leave_no_trace(two_ranks: Reports, kind: str):
    for rank in two_ranks["attached"]:
        assert rank["kinds"][kind]["rewound"] == rank["kinds"][kind]["whole"]


@pytest.mark.parametrize("kind", KINDS)
def test_ranks_evaluate_one_mean(two_ranks: Reports, kind: str):
    assert len({rank["kinds"][kind]["averaged"] for rank in two_ranks["attached"]}) == 1


def test_a_residual_can_follow_the_optimizers_rate(two_ranks: Reports):
    for rank in two_ranks["attached"]:
        assert rank["kinds"]["corrected"]["whole"] != rank["kinds"]["topk"]["whole"]


@pytest.mark.parametrize("wrapping", ["ddp", "finding unused", "bare"])
def test_ranks_differ_until_they_meet(two_ranks: Reports, wrapping: str):
    first, second = (rank["meetings"][wrapping] for rank in two_ranks["attached"])

    assert [one == other for one, other in zip(first, second, strict=True)] == [False, False, False, True] * 2


@pytest.mark.parametrize("wrapping", ["finding unused", "bare"])
def test_a_bare_model_meets_as_one_in_ddp_does(two_ranks: Reports, wrapping: str):
    for rank in two_ranks["attached"]:
        assert rank["meetings"][wrapping] == rank["meetings"]["ddp"]


def test_between_meetings_ranks_do_not_wait_for_each_other_though_ddp_finds_unused_parameters(two_ranks: Reports):
    assert [rank["sums of ddp"] for rank in two_ranks["attached"]] == [0, 0]


def test_exchanges_in_one_step_add_up(two_ranks: Reports):
    assert all(rank["accumulated"] for rank in two_ranks["attached"])


@pytest.mark.parametrize("kind", ONCE_A_STEP)
def test_what_takes_each_backward_for_a_step_refuses_a_second_one(two_ranks: Reports, kind: str):
    for rank in two_ranks["attached"]:
        said = rank["twice"][kind]
        assert said.keys() == {"after a gradient"}
        assert "inside `model.no_sync()`" in said["after a gradient"]
        assert "attach all optimizers of the model, and leave out `model.join()`" in said["after a gradient"]


def test_an_exchange_waits_for_peers_as_long_as_the_default_group(two_ranks: Reports):
    expected = ReplicaConfig.model_fields["collective_timeout_s"].default  # of the group of the tests

    assert [rank["timeout"] for rank in two_ranks["attached"]] == [expected] * 2


def test_a_bare_model_begins_as_rank_0s_frozen_parameters_too(two_ranks: Reports):
    first, second = (rank["frozen"] for rank in two_ranks["attached"])

    assert first == second


def test_a_bare_model_begins_as_rank_0s_whatever_the_order_in_memory(two_ranks: Reports):
    first, second = (rank["in another order"] for rank in two_ranks["attached"])

    assert first["told"] == second["told"] == first["own"]
    assert first["around"] and second["around"]


def test_ranks_meet_at_the_mean_of_where_they_went(two_ranks: Reports):
    assert all(rank["by hand"] for rank in two_ranks["attached"])


def test_local_updates_send_parameters_when_ranks_meet_and_nothing_else(two_ranks: Reports):
    meeting = all_reduce(4 * (NUM_PARAMETERS + 1), 2).bytes  # with the loss
    for rank in two_ranks["attached"]:
        taken = rank["kinds"]["diloco"]["bytes"]
        assert taken.keys() <= {"parameters", "control", "state"}
        assert taken["parameters"] + taken["control"] == 3 * meeting


def test_a_rank_whose_parameters_are_lost_stops_the_others_too(two_ranks: Reports):
    assert [rank["lost"] for rank in two_ranks["attached"]] == [
        [True, True, True, False, False],
        [True, False, False, False, False],
    ]


def test_with_max_z_the_mean_within_a_round_is_that_of_the_ranks_that_are_finite(two_ranks: Reports):
    kept, lost = (rank["mean beside a lost rank"] for rank in two_ranks["attached"])

    assert kept[1] == lost[1] == kept[0] != lost[0]


@pytest.mark.parametrize("kind", ["topk", "diloco", "diloco, finding unused"])
def test_what_is_detached_goes_on_as_plain_ddp(two_ranks: Reports, kind: str):
    ranks = [rank["detached"][kind] for rank in two_ranks["attached"]]

    assert len({rank["agreed"] for rank in ranks}) == 1
    assert all(rank["goes on plainly"] and rank["bytes"] == {} for rank in ranks)


@pytest.mark.parametrize("searched", TUNED)
def test_a_search_leaves_training_at_the_committed_values(two_ranks: Reports, searched: str):
    first, second = (rank["tuned"][searched] for rank in two_ranks["attached"])

    assert (first["rates"], first["chosen"]) == (second["rates"], second["chosen"])
    assert len(set(first["rates"][: first["searched"]])) > 3
    assert first["stays"] and second["stays"]


@pytest.mark.parametrize("searched", TUNED)
def test_every_rank_knows_which_steps_are_probes(two_ranks: Reports, searched: str):
    for rank in two_ranks["attached"]:
        found = rank["tuned"][searched]
        num_kept = len(found["rates"]) - found["searched"]
        assert found["probing"] == [True] * found["searched"] + [False] * num_kept
        assert found["kept"] == num_kept


SEARCHED: dict[str, list[str]] = {name: [] for name in TUNED} | {
    "level": ["level"],
    "period": ["level", "period", "outer_learning_rate"],
}


@pytest.mark.parametrize(("searched", "names"), SEARCHED.items())
def test_every_range_is_searched_and_nothing_else(two_ranks: Reports, searched: str, names: list[str]):
    for rank in two_ranks["attached"]:
        num_probed = dict(zip(StepValues._fields, rank["tuned"][searched]["num_probed"], strict=True))
        assert {name for name, number in num_probed.items() if number > 1} == {*names}


@pytest.mark.parametrize("kind", ["topk", "diloco"])
def test_a_search_resumes_bit_for_bit(two_ranks: Reports, kind: str):
    for rank in two_ranks["attached"]:
        whole, resumed = rank["resumed search"][kind]
        assert resumed == whole
        assert whole["is_over"] and 120 < whole["begun"] < 190


@pytest.mark.parametrize(
    ("states", "messages"),
    [
        (
            "of two steps",
            ["of one run and .* got step 7, 7 committed, on rank 0 and step 6, 6 committed, on rank 1"] * 2,
        ),
        ("of an end", ["of one .* step on all ranks, got step 6, .* rank 0 and the end at step 6, .* rank 1"] * 2),
        (
            "of another format",
            ["loaded on all ranks, and rank 1 refuses its own", "what a tuner has saved, .*'another'"],
        ),
    ],
)
def test_states_that_do_not_fit_one_rank_or_each_other_are_refused_on_all(
    two_ranks: Reports, states: str, messages: list[str]
):
    for rank, message in zip(two_ranks["attached"], messages, strict=True):
        assert re.match(f"`state` must be {message}", rank["refused states"]["said"][states])


def test_a_search_goes_on_from_a_fitting_state_after_others_were_refused(two_ranks: Reports):
    for rank in two_ranks["attached"]:
        found = rank["refused states"]
        assert found["resumed"] == found["whole"]
        assert found["are over"] == [True, True]


def test_bytes_that_a_script_takes_meanwhile_count_in_the_budget(two_ranks: Reports):
    budget = TUNED["level"]["bytes"]
    for rank in two_ranks["attached"]:
        assert 0.95 * budget < rank["tuned"]["level"]["bytes"] <= budget


MESSAGES = {
    "bare": "`model` must be a DistributedDataParallel, .* got Linear: wrap it, or give `sync=",
    "bare and dense": "`model` must be a DistributedDataParallel",
    "float16": "parameters must be float32, .*got cpu, torch.float16",
    "unused": "`find_unused_parameters` must be False: `topk` sends later what it keeps",
    "unused and apart": "nothing",  # is sent for gradients
    "a range": "`exchange/density` must be one number",
    "a range of periods": "`sync/period` must be one number",
    "auto": "`exchange` must be of one kind",
    "accordion": "`accordion` needs `epoch_steps`",
    "stl_sgd": "`sync` must leave rates and gradients to the loop, and `stl_sgd` sets its own",
    "scale": "`scale` must be left out with `diloco`",
    "scale and local steps": "`scale` must be left out with `zero_one_adam`",
    "an unknown field": "perod",
    "schedule-free": "`optimizer` must train what it evaluates .*got SGDScheduleFree",
    "momentum": r"give `optimizer: \{kind: sgd, momentum: 0.0\}`",
    "momentum and a direction": r"give `optimizer: \{kind: from_exchange\}` without momentum",
    "two ddps": "`model` must have one DistributedDataParallel, got 2",
    "a head beside ddp": r"parameter `1\.weight` must be in the DistributedDataParallel",
    "a head beside ddp, and apart": "nothing",  # ranks meet for it, too
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_go_in_a_loop_of_ones_own_is_refused(two_ranks: Reports, case: str):
    for rank in two_ranks["attached"]:
        assert re.search(MESSAGES[case], rank["refused"][case])


@pytest.mark.parametrize(
    ("optimizer", "how", "is_advised"),
    [
        (torch.optim.AdamW, {"exchange": {"kind": "topk", "density": 0.01}}, True),
        (torch.optim.AdamW, {"exchange": {"kind": "topk", "density": 0.02}}, False),
        (torch.optim.AdamW, {"exchange": {"kind": "powersgd"}}, False),
        (torch.optim.SGD, {"exchange": {"kind": "topk", "density": 0.01}}, False),
        (
            torch.optim.AdamW,
            {"exchange": {"kind": "topk", "density": 0.01}, "sync": {"kind": "local_sgd", "period": 4}},
            False,
        ),
    ],
)
def test_a_loop_is_advised_as_a_job_is_where_adamw_gets_few_entries(
    caplog: pytest.LogCaptureFixture, optimizer: type[torch.optim.Optimizer], how: dict[str, Any], is_advised: bool
):
    model = torch.nn.Linear(4, 4)

    attach(model, optimizer(model.parameters(), lr=0.01), **how)

    said = [record.getMessage() for record in caplog.records if record.name == "wiretune.attach"]
    assert len(said) == is_advised
    assert all(each.startswith("`AdamW` learns slowly from 0.01 of a gradient's entries: give") for each in said)


def test_ranks_of_torchrun_are_refused_without_a_group_that_connects_them(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("WORLD_SIZE", "2")

    with pytest.raises(ValueError, match=r"`WORLD_SIZE` is 2, .*: call `torch.distributed.init_process_group` before"):
        Script(0, bare=True, sync={"kind": "diloco", "period": 4})


def test_one_process_needs_no_group():
    script = Script(0, bare=True, sync={"kind": "diloco", "period": 4}).train(range(8))

    assert script.handle is not None
    assert script.handle.take_bytes() == {"parameters": 0, "control": 0}
    assert torch.isfinite(script.vector).all()


@pytest.mark.parametrize(
    ("how", "num_bytes"),
    [
        ({"exchange": {"kind": "none"}}, 4),
        ({"sync": {"kind": "diloco"}}, 4),
        ({"exchange": {"kind": "topk", "density": 0.1}}, 4 * (LEAD + NUM_PARAMETERS)),
    ],
)
def test_gradients_that_nobody_exchanges_have_no_copy(how: dict[str, Any], num_bytes: int):
    handle = Script(0, bare=True, **how).train(range(2)).handle

    assert handle is not None
    assert handle._hook._buffer.gradient.untyped_storage().nbytes() == num_bytes
    assert len(handle._hook._buffer.gradient) == NUM_PARAMETERS


@pytest.mark.parametrize("name", ["optimizer", "model"])
def test_what_is_attached_is_not_attached_twice(name: str):
    script = Script(0, bare=True, sync={"kind": "diloco", "period": 4})
    assert script.handle is not None
    if name == "model":
        script.optimizer = torch.optim.SGD(script.model.parameters(), lr=0.1)
    else:
        script.model = torch.nn.Sequential(script.model)

    with pytest.raises(ValueError, match=f"`{name}` must not be attached twice: first `detach`"):
        attach(script.model, script.optimizer, sync={"kind": "diloco", "period": 4})

    script.handle.detach()
    attach(script.model, script.optimizer, sync={"kind": "diloco", "period": 4})


def test_a_bare_model_is_attached_anew_once_its_first_optimizer_is_gone():
    model = torch.nn.Linear(4, 4)
    attach(model, torch.optim.SGD(model.parameters(), lr=0.1), sync={"kind": "diloco", "period": 4})

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    handle = attach(model, optimizer, sync={"kind": "diloco", "period": 4})

    assert handle.optimizer is optimizer


def test_what_one_process_has_lost_begins_anew_where_ranks_meet():
    script = Script(0, bare=True, momentum=0.9, sync={"kind": "diloco", "period": 4, "max_z": 3.0})
    script.inputs[8] = math.nan
    script.train(range(16))

    assert script.losses[11] != script.losses[11]
    assert torch.isfinite(script.vector).all()


def test_a_parameter_that_is_trained_later_than_it_was_attached_is_refused():
    script = Script(0, bare=True, frozen=True, sync={"kind": "diloco", "period": 4}).train(range(2))
    script.model[0].weight.requires_grad_()

    with pytest.raises(RuntimeError, match="frozen when the model was attached is trained now"):
        script.train(range(2, 3))


@pytest.mark.parametrize("kind", ["cser", "liec_sgd"])
def test_parameters_that_stay_a_ranks_own_are_in_float32_and_their_steps_are_never_skipped(kind: str):
    model = torch.nn.Linear(4, 4)
    with pytest.raises(ValueError, match="`scale` must be left out"):
        attach(model, torch.optim.SGD(model.parameters()), exchange={"kind": kind}, scale=lambda: 1024.0)
    model.bfloat16()
    with pytest.raises(ValueError, match="float32"):
        attach(model, torch.optim.SGD(model.parameters()), exchange={"kind": kind})


@pytest.mark.parametrize(
    ("kind", "brought", "message"),
    [
        (
            "dgc",
            {"momentum": 0.9},
            "`dgc` here applies momentum before it compresses: give `optimizer: {kind: sgd, momentum: 0}`",
        ),
        ("liec_sgd", {"momentum": 0.9}, "what workers apply apart .*: give `optimizer: {kind: sgd, momentum: 0.0}`"),
        ("cser", {"weight_decay": 0.1}, "`optimizer`: a parameter group brings .*weight_decay 0.1"),
        ("demo", {"momentum": 0.9}, "without momentum"),
    ],
)
def test_each_group_is_held_to_what_the_exchange_asks(kind: str, brought: dict[str, float], message: str):
    model = torch.nn.Linear(4, 4)
    groups = [{"params": [model.weight]}, {"params": [model.bias]} | brought]

    with pytest.raises(ValueError, match=message):
        attach(model, torch.optim.SGD(groups, lr=0.1), exchange={"kind": kind})


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"exchange": "topk"}, r"`exchange` must be a part of a job, as {'kind': 'topk'}, got 'topk'"),
        ({"sync": "diloco"}, r"`sync` must be a part of a job, as {'kind': 'diloco'}, got 'diloco'"),
        ({"exchange": {}}, "`exchange.kind`: `kind` is required"),
        ({"sync": {}}, "`sync.kind`: `kind` is required"),
        ({"sync": {"kind": "accordion_batch"}}, "`accordion_batch` sets its own: give {'kind': 'local_sgd'}"),
    ],
)
def test_what_is_no_part_of_a_job_or_for_jobs_alone_is_a_value_error(how: dict[str, Any], message: str):
    model = torch.nn.Linear(4, 4)

    with pytest.raises(ValueError, match=message):
        attach(model, torch.optim.SGD(model.parameters(), lr=0.1), **how)


def test_a_group_at_rate_0_may_stand_before_the_others_or_behind_them(two_ranks: Reports):
    for rank in two_ranks["attached"]:
        first, second = rank["orders of groups"]
        assert first == second


def test_steps_that_ranks_take_back_must_minimize():
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, maximize=True)

    with pytest.raises(ValueError, match="`optimizer` must minimize with `zero_one_adam`"):
        attach(model, optimizer, exchange={"kind": "zero_one_adam", "max_interval": 4})


@pytest.mark.parametrize("how", [{}, {"sync": {"kind": "diloco"}}])
def test_a_parameter_that_the_optimizer_trains_outside_the_model_is_refused(how: dict[str, Any]):
    body, head = torch.nn.Linear(4, 4), torch.nn.Linear(4, 2, bias=False)
    optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.1)

    with pytest.raises(ValueError, match=r"got another of shape \(2, 4\).*give the module that holds it, too"):
        attach(body, optimizer, **how)

    attach(body, torch.optim.SGD([*body.parameters(), *head.requires_grad_(False).parameters()]), **how)


@pytest.mark.parametrize(
    ("how", "is_refused"),
    [({"sync": {"kind": "diloco"}}, True), ({"exchange": {"kind": "cser"}}, True), ({}, False)],
)
def test_a_parameter_that_another_optimizer_trains_is_refused_where_ranks_train_apart(
    how: dict[str, Any], is_refused: bool
):
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD([model.weight], lr=0.1)

    if is_refused:
        with pytest.raises(ValueError, match="none of its groups has parameter `bias`: freeze it, or give"):
            attach(model, optimizer, **how)
        model.bias.requires_grad_(False)
    attach(model, optimizer, **how)


@pytest.mark.parametrize("how", [{"sync": {"kind": "diloco"}}, {"exchange": {"kind": "topk", "density": 0.1}}])
@pytest.mark.parametrize("wrapper", [FullyShardedDataParallel, nn.DataParallel])
def test_a_model_that_a_wrapper_shards_or_copies_is_refused_before_anything_is_sent(wrapper, how: dict[str, Any]):
    wrapped = wrapper.__new__(wrapper)  # FSDP itself wants an accelerator
    nn.Module.__init__(wrapped)
    wrapped.inner = nn.Linear(4, 4)
    model = nn.Sequential(wrapped)

    with pytest.raises(ValueError, match=f"must hold its parameters whole, once, got a {wrapper.__name__}"):
        attach(model, torch.optim.SGD(wrapped.inner.parameters(), lr=0.1), **how)


def test_a_model_of_which_nothing_is_trained_is_refused():
    model = torch.nn.Linear(4, 4).requires_grad_(False)

    with pytest.raises(ValueError, match="`model` must have a parameter that is trained"):
        attach(model, torch.optim.SGD(model.parameters(), lr=0.1))


def test_entries_that_lie_in_one_place_are_refused_by_name():
    model = torch.nn.Linear(4, 4)
    model.register_buffer("mask", torch.ones(1, 1).expand(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    with pytest.raises(ValueError, match=r"buffer `mask` of shape \(4, 4\) has strides \(0, 0\).*add `.clone\(\)`"):
        attach(model, optimizer, sync={"kind": "diloco"})

    model.mask = model.mask.clone()
    handle = attach(model, optimizer, sync={"kind": "diloco"})
    handle.snapshot("start")
    handle.restore("start")


@pytest.mark.parametrize("by_data", [False, True])
def test_a_buffer_that_the_model_has_replaced_is_refused_where_it_would_not_be_put_back(by_data: bool):
    model = torch.nn.BatchNorm1d(4)
    handle = attach(model, torch.optim.SGD(model.parameters(), lr=0.1), sync={"kind": "diloco"})
    handle.snapshot("start")
    if by_data:
        model.running_mean.data = model.running_mean + 1
    else:
        model.running_mean = model.running_mean + 1

    for call in (handle.snapshot, handle.restore):
        with pytest.raises(RuntimeError, match="replaced its buffer `running_mean`: change it in place"):
            call("start")


def test_a_parameter_that_lies_elsewhere_than_when_it_was_attached_is_refused_where_it_would_be_put_back_or_averaged():
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    handle = attach(model, optimizer, sync={"kind": "local_sgd", "period": 2})
    handle.snapshot("start")
    model.double().float()
    optimizer.step()  # before the ranks meet nothing is lost

    for call in (optimizer.step, lambda: handle.snapshot("start"), lambda: handle.restore("start"), handle.detach):
        with pytest.raises(RuntimeError, match=r"replaced its parameter `weight`.*change it in place"):
            call()


@pytest.mark.parametrize(
    ("name", "value", "is_sound"),
    [("running_mean", math.nan, False), ("running_mean", math.inf, True), ("weight", math.inf, False)],
)
def test_a_model_is_sound_without_lost_parameters_and_statistics(name: str, value: float, is_sound: bool):
    script = Script(0, bare=True, norm=True, sync={"kind": "diloco"})
    assert script.handle is not None and script.handle.is_sound()

    with torch.no_grad():
        getattr(script.model[1], name)[0] = value

    assert script.handle.is_sound() == is_sound


def test_a_frozen_parameter_that_the_loop_changes_is_put_back():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4).requires_grad_(False))
    handle = attach(model, torch.optim.SGD(model[0].parameters(), lr=0.1))
    before = model[1].weight.clone()
    handle.snapshot("start")
    model[1].weight.mul_(3)

    handle.restore("start")

    assert torch.equal(model[1].weight, before)


def test_a_trained_parameter_without_entries_is_refused_by_name():
    model = torch.nn.Linear(4, 4)
    model.register_parameter("nobody", torch.nn.Parameter(torch.empty(0, 3)))

    with pytest.raises(ValueError, match=r"parameter `nobody` must have entries .*got shape \(0, 3\)"):
        attach(model, torch.optim.SGD(model.parameters(), lr=0.1), sync={"kind": "diloco"})


LOCAL, DILOCO = {"kind": "local_sgd", "slow_momentum": 0.5}, {"kind": "diloco", "outer_momentum": 0.5}
TOPK = {"kind": "topk", "density": 0.1}


@pytest.mark.parametrize(
    ("saved", "here", "message"),
    [
        ({"sync": LOCAL}, {"sync": DILOCO}, "`sync.kind` is 'diloco' here, got 'local_sgd'"),
        (
            {"sync": DILOCO, "exchange": {"kind": "sparse_loco"}},
            {"sync": DILOCO, "exchange": TOPK},
            "`exchange.kind` is 'topk' here, got 'sparse_loco'",
        ),
        (
            {"sync": LOCAL, "exchange": TOPK | {"values": "float32"}},
            {"sync": LOCAL, "exchange": TOPK},
            "`exchange.values` is 'float16' here, got 'float32'",
        ),
        (
            {"sync": LOCAL, "exchange": TOPK},
            {"sync": LOCAL, "exchange": TOPK | {"bucket_mib": 8}},
            "`exchange.bucket_mib`, which lays out the memory, is 8.0 here, got 4.0",
        ),
        (
            {"exchange": {"kind": "randomk", "density": 0.1, "block": True}},
            {"exchange": {"kind": "randomk", "density": 0.1}},
            "`exchange.block` is False here, got True",
        ),
    ],
)
def test_the_state_of_another_method_is_refused_by_field_before_anything_is_loaded(
    saved: dict[str, Any], here: dict[str, Any], message: str
):
    first, second = (Script(0, bare=True, **how).train(range(3)) for how in (saved, here))
    assert first.handle is not None and second.handle is not None
    before = bare(second.handle)

    with pytest.raises(ValueError, match=message):
        second.handle.load_state_dict(first.handle.state_dict())

    after = bare(second.handle)
    assert after["scalars"] == before["scalars"]
    assert all(torch.equal(after["tensors"][name], each) for name, each in before["tensors"].items())


def test_a_state_goes_on_where_a_step_runs_in_another_way_and_has_the_same_bits():
    first = Script(0, bare=True, sync=DILOCO, exchange={"kind": "none"}).train(range(3))
    second = Script(0, bare=True, sync=DILOCO | {"offload": True}, exchange={"kind": "none", "overlap": False})
    assert first.handle is not None and second.handle is not None

    second.handle.load_state_dict(first.handle.state_dict())

    assert bare(second.handle)["scalars"] == bare(first.handle)["scalars"]


def test_a_state_that_does_not_say_its_methods_is_refused_whole_if_its_scalars_do_not_fit():
    script = Script(0, bare=True, sync={"kind": "diloco"}).train(range(3))
    assert script.handle is not None
    state = bare(script.handle)
    script.train(range(3, 6))
    before = bare(script.handle)
    del state["methods"], state["scalars"]["steps"]

    with pytest.raises(ValueError, match="`state` must be of the same exchange and model: its scalars do not fit"):
        script.handle.load_state_dict(state)

    after = bare(script.handle)
    assert after["scalars"] == before["scalars"]
    assert all(torch.equal(after["tensors"][name], each) for name, each in before["tensors"].items())


def test_a_loaded_state_has_the_level_that_was_set():
    first, second = (Script(0, bare=True, sync={"kind": "diloco"}, exchange={"kind": "sparse_loco"}) for _ in range(2))
    assert first.handle is not None and second.handle is not None
    first.handle.set_level(0.25)

    second.handle.load_state_dict(first.handle.state_dict())

    assert second.handle.chosen.level == 0.25


def test_ranks_meet_by_the_values_that_are_set_also_from_a_loaded_state():
    sync = {"kind": "diloco", "period": 8, "outer_momentum": 0.9}
    first, second = (Script(0, bare=True, sync=sync) for _ in range(2))
    assert first.handle is not None and second.handle is not None
    first.handle.set_values({"period": 2, "outer_momentum": 0.5})

    second.handle.load_state_dict(first.handle.state_dict())

    assert second.handle.chosen == StepValues(period=2, outer_momentum=0.5)
    second.train(range(2))
    assert not second.handle._sync.is_apart
    second.handle.set_values({})
    assert second.handle.chosen == StepValues()


@pytest.mark.parametrize(
    ("kind", "values", "message"),
    [
        ("diloco", {"share": 0.5}, "`values` may name period, .* got `share`, which nothing attached takes"),
        ("diloco", {"momentum": 0.5}, "got `momentum`"),
        ("local_sgd", {"outer_momentum": 0.5}, "nothing here has a `outer_momentum`"),
        ("diloco", {"period": 0}, "`values` do not fit: .*period"),
    ],
)
def test_values_that_do_not_fit_what_is_attached_are_refused(kind: str, values: dict[str, Any], message: str):
    script = Script(0, bare=True, sync={"kind": kind, "period": 8})
    assert script.handle is not None

    with pytest.raises(ValueError, match=message):
        script.handle.set_values(values)


def test_a_level_above_the_rank_that_factors_are_kept_for_is_refused():
    script = Script(0, bare=True, sync={"kind": "local_sgd"}, exchange={"kind": "powersgd", "rank": 2})
    assert script.handle is not None

    with pytest.raises(ValueError, match=r"`level` must be in \[1, 2\] for a rank, .*got 4"):
        script.handle.set_level(4)


@pytest.mark.parametrize("exchange", [{"kind": "none"}, {"kind": "blockwise"}])
def test_a_level_is_refused_where_the_exchange_has_none(exchange: dict[str, Any]):
    handle = Script(0, bare=True, sync={"kind": "local_sgd"}, exchange=exchange).handle
    assert handle is not None

    with pytest.raises(ValueError, match=f"`level` must be left out, as `{exchange['kind']}` has none, got 0.05"):
        handle.set_level(0.05)


def test_one_process_without_ddp_has_nothing_that_makes_a_direction():
    with pytest.raises(ValueError, match="`model` must be a DistributedDataParallel"):
        Script(0, bare=True, exchange={"kind": "demo"})
