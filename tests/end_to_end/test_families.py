"""A method of every family, from the request to the exported weights: as arms of one job on the real service."""

from typing import Any

import pytest

from service.states import JobState

pytestmark = [pytest.mark.ray, pytest.mark.timeout(400)]

STEPS = 48
#: What they send, as shares of what dense training would have sent.
FAMILIES: dict[str, tuple[dict[str, Any], tuple[float, float]]] = {
    "low-rank-whose-ranks-follow-a-policy": (
        {"exchange": {"kind": "powersgd", "rank": 1, "levels": {"kind": "accordion", "critical": 4, "interval": 1}}},
        (0.005, 0.1),
    ),
    "quantised-averages-now-and-then-with-dropped-activations": (
        {
            "sync": {"kind": "local_sgd", "period": 8},
            "exchange": {"kind": "onebit"},
            "activations": {"kind": "dropit", "gamma": 0.8},
        },
        (0.01, 0.1),
    ),
    "signs-both-ways": ({"exchange": {"kind": "doublesqueeze"}}, (0.03, 0.05)),
    "blocks": ({"blocks": {"kind": "jointspar", "share": 0.5}}, (0.1, 0.9)),
    "competing": (
        {"exchange": {"kind": "auto"}, "controller": {"kind": "bo", "max_search_fraction": 0.5}},
        (0.005, 1.0),
    ),
}


def test_a_method_of_every_family_trains_to_its_end_and_sends_what_it_is_chosen_for(cluster: Any) -> None:
    arms = [{"name": name} | parts for name, (parts, _) in FAMILIES.items()]
    job = {
        "workload": {"kind": "digits-mlp"},
        "optimizer": {"kind": "sgd", "learning_rate": 0.05},
        "controller": {"kind": "fixed"},
        "link": {"mode": "emulate", "mbps": 1000},
        "budget": {"steps": STEPS},
        "objective": {"every": STEPS},
        "arms": arms,
    }
    with cluster.client() as client:
        view = client.wait(client.submit(job).id, timeout_s=300)
        trials = client.trials(view.id)

    assert view.state is JobState.SUCCEEDED, view.reason
    assert {trial.arm: trial.outcome for trial in trials} == dict.fromkeys(FAMILIES, "completed")
    assert {trial.bill.steps + trial.bill.steps_search for trial in trials} == {STEPS}
    for trial in trials:
        lowest, highest = FAMILIES[trial.arm][1]
        assert lowest < trial.bill.bytes_sent / trial.bill.bytes_dense < highest, trial.arm
        assert trial.weights_url is not None and trial.validation_loss is not None
