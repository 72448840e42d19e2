"""Several optimizers of one model are attached together: a step is one of each."""

import re

import pytest
import torch
from attach_together_scenario import TRAINED, described, two_of
from scenarios import Reports

from trainers.own_loop.attach import attach

ON_TWO_RANKS = ["together"]


@pytest.mark.parametrize("case", TRAINED)
def test_two_optimizers_of_one_model_train_as_one_of_both_bit_for_bit(two_ranks: Reports, case: str):
    for rank in two_ranks["together"]:
        one, two, rewound = rank[case]["bits"]
        assert one == two == rewound
        assert rank[case]["steps"] == [12, 12]
        assert rank[case]["bytes"][0] == rank[case]["bytes"][1]


@pytest.mark.parametrize("case", TRAINED)
def test_an_optimizer_that_steps_twice_in_a_round_is_refused_where_ranks_count_steps(two_ranks: Reports, case: str):
    expected = "nothing, 2 steps" if case == "topk" else r"optimizer number 0 \(\w+\) has stepped twice before \w+: "
    for rank in two_ranks["together"]:
        assert re.match(expected, rank[case]["out of turn"])


def test_a_search_keeps_the_ratio_of_the_optimizers_rates(two_ranks: Reports):
    first, second = (rank["tuned"] for rank in two_ranks["together"])

    assert first["ratios"] == [0.01]
    assert first["bits"] == second["bits"]
    assert first["searched"] > 0


def test_a_parameter_in_two_optimizers_is_refused():
    model, (first, second) = two_of(torch.optim.SGD, lr=0.1)
    second.add_param_group({"params": [model.weight]})

    with pytest.raises(
        ValueError, match=r"number 1 \(SGD\) must have parameters of its own, and number 0 steps one of"
    ):
        attach(model, [first, second])


@pytest.mark.parametrize(
    ("given", "message"),
    [([], "`optimizer` must be one or several, got an empty list"), (["sgd"], "of torch.optim.Optimizer, got str")],
)
def test_what_is_no_optimizer_is_refused(given: list[object], message: str):
    with pytest.raises(ValueError, match=message):
        attach(torch.nn.Linear(4, 4), given)  # type: ignore[arg-type]


def test_one_of_several_optimizers_that_are_attached_is_not_attached_again():
    model, optimizers = two_of(torch.optim.SGD, lr=0.1)
    handle = attach(model, optimizers, sync={"kind": "diloco", "period": 4})

    with pytest.raises(ValueError, match="`optimizer` must not be attached twice"):
        attach(torch.nn.Sequential(model), optimizers[1])

    handle.detach()
    optimizers[0].step()
    optimizers[0].step()  # nobody counts any more


def test_a_list_of_one_is_that_one():
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    assert attach(model, [optimizer]).optimizer is optimizer


def test_the_momentum_of_one_sgd_decides_for_several():
    model = torch.nn.Linear(4, 4)
    heavy = torch.optim.SGD([model.weight], lr=0.1, momentum=0.9, weight_decay=0.1)
    for weight_decay in (0.0, 0.1):
        plain = torch.optim.SGD([model.bias], lr=0.1, weight_decay=weight_decay)
        for optimizers in ((heavy, plain), (plain, heavy)):
            with pytest.raises(ValueError, match="momentum"):
                described(*optimizers, exchange={"kind": "dgc", "density": 0.1})


def test_several_plain_sgds_step_by_a_direction_whatever_their_weight_decay():
    model = torch.nn.Linear(4, 4)
    optimizers = [
        torch.optim.SGD([each], lr=0.1, weight_decay=decay) for each, decay in ((model.weight, 0.1), (model.bias, 0.0))
    ]

    assert described(*optimizers, exchange={"kind": "demo"}) == "from_exchange"


def test_optimizers_that_are_alike_are_one_to_the_exchange_and_others_a_scripts_own():
    _, plain = two_of(torch.optim.SGD, lr=0.1)
    _, [adam, _] = two_of(torch.optim.AdamW)

    assert described(*plain, exchange={"kind": "topk", "density": 0.1}) == "sgd"
    assert described(*plain, exchange={"kind": "demo"}) == "from_exchange"
    assert described(plain[0], adam, exchange={"kind": "topk", "density": 0.1}) == "own"
