"""A model is attached anew after `detach`, keeps nothing of what it was attached to, and can be copied."""

import pytest
import torch
from attach_again_scenario import AGAIN, DIFFERING, DROPPED, ROUNDS
from attach_scenario import Script
from scenarios import Reports
from torch import nn

from trainers.own_loop.attach import attach

ON_TWO_RANKS = ["attached_again"]


@pytest.mark.parametrize("case", AGAIN)
def test_a_model_in_ddp_is_attached_anew_after_detach_and_trains_like_a_fresh_one(two_ranks: Reports, case: str):
    for rank in two_ranks["attached_again"]:
        assert rank["again"][case]["like a fresh one"]


def test_what_is_detached_and_let_go_of_is_freed(two_ranks: Reports):
    for rank in two_ranks["attached_again"]:
        assert rank["again"]["topk, diloco"]["held"] == [False, False]
        assert rank["again"]["diloco, topk"]["held"] == [False, False]


@pytest.mark.parametrize("case", DROPPED)
def test_what_is_let_go_of_without_detach_is_freed(two_ranks: Reports, case: str):
    for rank in two_ranks["attached_again"]:
        assert rank["dropped"][case] == [False, False]


def test_process_groups_are_given_back_in_the_middle_of_training(two_ranks: Reports):
    first, second = (rank["rounds"] for rank in two_ranks["attached_again"])

    assert first == second
    assert len({*first}) == ROUNDS


def test_a_second_exchange_beside_one_that_is_there_is_refused(two_ranks: Reports):
    for rank in two_ranks["attached_again"]:
        assert len(rank["both"]) == 4
        assert all("`model` must have one exchange, and it has one already" in each for each in rank["both"])


def test_somebody_elses_hook_is_refused_and_no_group_is_left(two_ranks: Reports):
    for rank in two_ranks["attached_again"]:
        *said, left = rank["foreign"]
        assert len(said) == 2 and all("`model` must have no communication hook" in each for each in said)
        assert left == "0 groups"


def test_what_ranks_are_not_given_alike_is_refused_by_name_on_all_of_them(two_ranks: Reports):
    for rank in two_ranks["attached_again"]:
        for name, said in zip(DIFFERING, rank["differing"], strict=True):
            assert said.startswith(
                f"`{name}` must be the same on all ranks, and that of rank 1 differs" if name else ""
            )
            assert bool(said) == bool(name)


@pytest.mark.parametrize("exchange", ["dense", "topk"])
def test_an_attached_model_is_copied_and_the_copy_changes_neither_training_nor_the_bill(
    two_ranks: Reports, exchange: str
):
    for rank in two_ranks["attached_again"]:
        found = rank["copies"][exchange]
        assert found["same"] and found["trained alike"] and found["billed alike"]
        assert found["average"] > 0


def test_a_model_under_compress_gradients_is_copied(two_ranks: Reports):
    assert all(rank["copy of compress_gradients"] for rank in two_ranks["attached_again"])


def test_what_is_lent_a_mean_is_a_module():
    script = Script(0, bare=True, sync={"kind": "diloco", "period": 4})
    assert script.handle is not None

    with pytest.raises(ValueError, match="`others` must be modules, got dict"), script.handle.averaged({}):  # type: ignore[arg-type]
        pass


def test_an_optimizer_whose_groups_have_no_rate_is_attached_where_nothing_goes_by_it():
    model = nn.Linear(4, 4)

    class Rateless(torch.optim.Optimizer):
        def __init__(self, parameters):
            super().__init__(parameters, {})

        def step(self, closure=None):
            for group in self.param_groups:
                for each in group["params"]:
                    each.data -= 0.1 * each.grad

    optimizer = Rateless(model.parameters())
    handle = attach(model, optimizer, sync={"kind": "local_sgd", "period": 2})
    model(torch.ones(1, 4)).sum().backward()
    for _ in range(2):
        optimizer.step()

    assert handle.last is not None and not handle.last.diverged
