"""Predicted steps: bytes equal the methods' own, time follows the link, and unknowns are stated."""

import math
import re
from pathlib import Path
from typing import get_args

import pytest
import yaml
from choosing_page import RULE, page
from pydantic import ValidationError

from api.cli import figures
from service.catalog.methods import parsed, traffic
from service.job.spec import JobSpec
from service.prediction.choosing import advised
from service.prediction.evidence import recorded
from service.prediction.model import GOODPUT, OwnCost, Site, step
from service.prediction.predict import DENSE, OWN, PredictionRequest, best, judged, predict
from service.wire.predictions import Span, Task
from trainers.methods.exchange.dense.spec import NoneConfig
from trainers.methods.optimizer.spec import SgdConfig
from trainers.methods.replica_config import ReplicaConfig
from trainers.methods.sync.cocod_sgd.spec import CocodSgdConfig
from trainers.methods.sync.local_sgd.spec import LocalSgdConfig
from trainers.methods.sync.streaming_diloco.spec import StreamingDiLoCoConfig
from trainers.traffic.collectives import num_elements
from trainers.traffic.shapes import CONV_CHANNELS, TRANSFORMERS, parameter_shapes

ROOT = Path(__file__).parents[2]
JOB = {
    "workload": {"kind": "fashion-conv"},
    "optimizer": {"kind": "sgd"},
    "exchange": {"kind": "topk", "density": 0.02},
    "budget": {"steps": 500},
}
OWN_MODEL = JOB | {"workload": {"factory": "my.model:workload"}}


COMPUTE_S = 0.002
_BLOCK = ["4096", "4096", *["4096x4096"] * 2, *["1024x4096"] * 2, *["14336x4096"] * 2, "4096x14336"]
LLAMA_3_8B = ["128256x4096", *_BLOCK * 32, "4096", "128256x4096"]


def _asked(job=JOB, **changes):
    return PredictionRequest(**({"job": job, "compute_ms": 20, "mbps": 100, "workers": 4} | changes))


def _by_name(asked):
    return {each.method: each for each in predict(asked).methods}


def test_bytes_are_those_that_the_method_declares_among_the_hosts():
    found, spec = _by_name(_asked(workers=8, hosts=4))[OWN], JobSpec.model_validate(JOB)
    shapes = parameter_shapes(spec.workload)

    assert found.bytes_per_step == traffic(spec, shapes, 4).bytes_per_step


def test_every_round_waits_for_the_latency():
    near, far = (_by_name(_asked(latency_ms=latency))["topk 1 %"] for latency in (0, 30))
    job = JobSpec.model_validate(JOB | {"exchange": {"kind": "topk", "density": 0.01}})
    rounds = traffic(job, parameter_shapes(job.workload), 4).rounds_per_step

    assert far.wire_s - near.wire_s == pytest.approx(rounds * 0.030)


@pytest.mark.parametrize(("workers", "levels"), [(2, 1), (8, 3)])
def test_a_sum_up_a_tree_and_down_again_waits_on_every_level_for_a_payload(workers, levels):
    found = _by_name(_asked(workers=workers))["gtopk 1 %"]
    payload = found.bytes_per_step * workers / (2 * (workers - 1))  # all workers but one send it, either way

    assert found.wire_s == pytest.approx(2 * levels * payload * 8 / (GOODPUT * 100e6), rel=1e-3)


def test_an_average_every_eight_steps_waits_an_eighth_of_a_dense_exchange():
    found = _by_name(_asked(mbps=10, latency_ms=5))

    assert found["local_sgd 8"].wire_s == pytest.approx(found[DENSE].wire_s / 8, rel=0.02)


def test_a_method_takes_as_long_as_dense_training_at_the_rate_below_which_it_pays():
    rate = _by_name(_asked())["signsgd, EF"].pays_below_mbps
    found = _by_name(_asked(mbps=rate))
    dense, method = found[DENSE], found["signsgd, EF"]

    assert method.steps_ratio.expected * method.step_s.expected == pytest.approx(dense.step_s.expected, rel=0.01)


@pytest.mark.parametrize("mbps", [0.01, 5, 50, 1e6])
def test_a_method_pays_at_the_rates_that_it_is_said_to_pay_at_and_at_no_others(mbps):
    job = JOB | {"workload": {"kind": "digits-mlp"}, "budget": {"steps": 100}}
    found = predict(_asked(job, compute_ms=12.5, mbps=mbps, latency_ms=10, workers=8)).methods
    [dense] = [each.step_s.expected for each in found if each.method == DENSE]

    for each in found:
        lowest, highest = each.pays_above_mbps, each.pays_below_mbps
        is_within = (lowest is None or lowest <= mbps) and (highest is None or mbps <= highest)
        assert (each.step_s.expected < dense) == is_within, each.method


def test_a_method_of_fewer_rounds_and_more_bytes_takes_as_long_as_dense_training_where_it_begins_to_pay():
    job = JOB | {"workload": {"kind": "digits-mlp"}, "budget": {"steps": 100}}
    line = {"compute_ms": 12.5, "latency_ms": 10, "workers": 8}
    rate = _by_name(_asked(job, **line))["qsgd"].pays_above_mbps
    found = _by_name(_asked(job, **line, mbps=rate))

    assert found["qsgd"].step_s.expected == pytest.approx(found[DENSE].step_s.expected, rel=0.01)


def test_time_to_a_loss_is_unknown_without_a_row_that_says_it():
    found = _by_name(_asked(OWN_MODEL, shapes="512x64,512"))
    like = _by_name(_asked(OWN_MODEL, shapes="512x64,512", like="text"))

    assert found["topk 1 %"].loss_s is None and "name one with `like`" in found["topk 1 %"].known_from
    assert like["dgc 1 %"].loss_s is not None and "`text` with 4 hosts" in like["dgc 1 %"].known_from
    assert like[OWN].steps_ratio is None


def test_without_a_task_that_is_alike_methods_are_listed_by_the_step():
    found = predict(_asked(OWN_MODEL, shapes="512x64,512", mbps=10))
    seconds = [each.step_s.expected for each in found.methods]

    assert seconds == sorted(seconds)


@pytest.mark.parametrize("mbps", [5, 50, 500])
@pytest.mark.parametrize(("shapes", "rule"), [("512x64,512", RULE[1]), ("2048x2048,2048", RULE[0])])
def test_without_a_task_that_is_alike_the_rule_of_the_page_is_advised_and_the_shortest_step_only_mentioned(
    shapes: str, rule: str, mbps: float
):
    found = predict(_asked(OWN_MODEL, shapes=shapes, mbps=mbps))
    first, lines = best(found)[0], [*advised(found, figures.size)]

    named = {"powersgd 4": "`powersgd`, rank 4", "local_sgd 8, topk 10 %": "`local_sgd 8, topk 10 %`"}[first.method]
    assert named in rule
    assert f"start with `{first.method}`" in lines[0] and "unknown" in lines[0]
    assert yaml.safe_load("\n".join(line for line in lines if line.startswith("    "))) == first.job
    assert f"the shortest step is that of `{found.methods[0].method}`" in lines[-1]


def test_on_a_link_where_no_usual_method_has_a_shorter_step_dense_training_is_advised():
    found = predict(_asked(OWN_MODEL, shapes="2048x2048,2048", mbps=1e6, latency_ms=0))
    lines = [*advised(found, figures.size)]

    assert best(found)[0].method == DENSE
    assert "start with `dense`: what is usual for a model of this size has no shorter step here" in lines[0]
    assert not any("may take" in line or "to the loss" in line for line in lines)


def test_advice_for_a_model_like_no_recorded_task_lists_them_all_and_lets_one_name_none():
    _, line, *_ = advised(predict(_asked(OWN_MODEL, shapes="512x64,512")), figures.size)

    assert re.findall(r"`([\w-]+)`", line.split("(")[1]) == list(get_args(Task))
    assert line.endswith("or none, if none is like it")


@pytest.mark.parametrize(("overlap_steps", "share"), [(0, 0.0), (1, 0.2), (4, 0.8)])
def test_of_an_average_that_travels_for_some_steps_these_are_hidden(overlap_steps: int, share: float):
    waits = [
        _wire_s(StreamingDiLoCoConfig(period=10, fragments=2, overlap_steps=steps)) for steps in (0, overlap_steps)
    ]

    assert waits[1] == pytest.approx(max(0.0, waits[0] - share * COMPUTE_S))


def test_of_an_average_beside_training_is_waited_for_what_takes_longer_than_training():
    waited_for = _wire_s(LocalSgdConfig(period=10))  # which sends the loss beside the parameters

    assert _wire_s(CocodSgdConfig(period=10)) == pytest.approx(max(0.0, waited_for - COMPUTE_S), rel=1e-3)


def _wire_s(sync):
    workload, free = {"kind": "digits-mlp"}, OwnCost(fixed_s=0, per_entry_s=0, per_round_s=0)
    replica = ReplicaConfig(workload=workload, optimizer=SgdConfig(), exchange=NoneConfig(), sync=sync)
    site = Site(mbps=30, latency_ms=5, workers=2, hosts=2, compute_s=COMPUTE_S)
    return step(replica, [(512, 64), (512,)], site, free).wire_s


@pytest.mark.parametrize(
    ("searched", "stated"),
    [
        ({"exchange": {"kind": "topk", "density": [0.005, 0.02]}}, {"exchange": {"kind": "topk", "density": 0.02}}),
        ({"exchange": {"kind": "powersgd", "rank": [1, 8]}}, {"exchange": {"kind": "powersgd", "rank": 8}}),
        ({"sync": {"kind": "local_sgd", "period": [4, 16]}}, {"sync": {"kind": "local_sgd", "period": 4}}),
    ],
)
def test_a_searched_level_is_predicted_at_the_densest_and_another_range_at_its_first_value(searched, stated):
    found, expected = (_by_name(_asked(JOB | parts))[OWN] for parts in (searched, stated))

    assert found.bytes_per_step == expected.bytes_per_step


@pytest.mark.parametrize("threshold", [0.0, 0.02, 2.0, [0.02, 2.0]])
def test_a_job_with_a_cut_off_has_no_row_of_its_own_as_only_training_says_what_reaches_it(threshold):
    job = JOB | {"exchange": {"kind": "threshold", "search": "absolute", "threshold": threshold}}

    assert _by_name(_asked(job)).keys() == _by_name(_asked()).keys() - {OWN}


def test_a_method_whose_payloads_cannot_index_the_model_is_left_out_and_no_other():
    job = JOB | {"workload": {"factory": "my.model:llama"}, "optimizer": {"kind": "schedulefree_sgd"}}
    found, few = (
        _by_name(_asked(job, shapes=shapes, workers=2)).keys() for shapes in (",".join(LLAMA_3_8B), "4096x4096,4096")
    )

    assert few - found == {"local_sgd 8, topk 10 %"}


def test_a_method_that_did_not_reach_the_loss_has_no_time_to_it():
    found = _by_name(_asked())

    assert found["topk 1 %"].loss_s is None and "was not reached" in found["topk 1 %"].known_from


@pytest.mark.parametrize("num_missed", [0, 1])
def test_a_method_that_missed_the_loss_with_a_seed_is_not_advised_first_and_its_time_has_no_upper_end(num_missed):
    known = recorded()
    lesson = next(each for each in known.lessons if (each.method, each.task) == ("signsgd, EF", "images"))
    quick = lesson.model_copy(update={"ratios": (0.5, 0.5), "num_missed": num_missed})
    known = known.model_copy(update={"lessons": (*(each for each in known.lessons if each != lesson), quick)})
    found = predict(_asked(), known)
    method = next(each for each in found.methods if each.method == "signsgd, EF")
    advice = list(advised(found, figures.size))

    assert method == found.methods[0]
    assert method.num_missed == num_missed
    assert method.known_from.endswith("3 seeds, 1 missed" if num_missed else "2 seeds")
    assert advice[0].endswith("`signsgd, EF`") == (num_missed == 0)
    assert ("or more: 1 seed missed)" in advice[-2]) == (num_missed == 1)


def test_the_expected_steps_are_the_median_of_all_seeds_of_which_one_that_missed_took_most():
    known = recorded()
    lesson = next(each for each in known.lessons if (each.method, each.task) == ("signsgd, EF", "images"))
    some = lesson.model_copy(update={"ratios": (1.0, 2.0, 3.0), "num_missed": 2})
    known = known.model_copy(update={"lessons": (*(each for each in known.lessons if each != lesson), some)})
    found = {each.method: each for each in predict(_asked(), known).methods}

    assert found["signsgd, EF"].steps_ratio.expected == 3.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"workers": 8, "hosts": 3}, "`hosts` must divide `workers`, which is 8, got 3"),
        ({"job": JOB | {"workload": {"factory": "my.model:workload"}}}, "`shapes` must be given"),
        ({"mbps": 0}, "greater than or equal to 0.01"),
        ({"like": "cats"}, "Input should be 'one-large-layer'"),
    ],
)
def test_a_question_without_an_answer_is_refused(changes, message):
    with pytest.raises(ValidationError, match=message):
        _asked(**changes)


def test_an_error_bar_is_as_wide_as_the_measured_steps_where_nothing_else_takes_time():
    exact, spread = (_by_name(_asked(mbps=1e6, compute_ms=1e6, compute_spread=each))[DENSE] for each in (1.0, 1.5))

    assert spread.step_s.expected == exact.step_s.expected
    usual = math.log(exact.step_s.high / exact.step_s.expected)
    assert math.log(spread.step_s.high / spread.step_s.expected) == pytest.approx(
        math.hypot(usual, math.log(1.5)), rel=1e-3
    )


def test_times_within_each_others_error_bars_are_a_tie():
    found = _by_name(_asked(mbps=1))
    fast, slow = found["signsgd, EF"].loss_s, found[DENSE].loss_s

    assert (judged(fast, slow), judged(slow, fast), judged(fast, fast)) == ("faster", "slower", "tie")


def test_advice_names_the_fastest_method_and_the_numbers_behind_it():
    found = predict(_asked())
    lines = list(advised(found, figures.size))

    assert len(lines) <= 8
    assert lines[0].endswith(f"`{best(found)[0].method}`")
    assert best(found)[0].loss_s.expected == min(each.loss_s.expected for each in found.methods if each.loss_s)
    assert "`images` with 4 hosts, 1 seed" in "\n".join(lines)
    pasted = yaml.safe_load("\n".join(line for line in lines if line.startswith("    ")))
    assert pasted == best(found)[0].job


@pytest.mark.parametrize(("seconds", "told"), [(99.4, "99 s"), (99.7, "100 s"), (99.7 * 60, "100 min"), (4e5, "111 h")])
def test_a_time_of_advice_is_told_without_an_exponent(seconds, told):
    found = predict(_asked())
    (first, *_), time = best(found), Span(expected=seconds, low=seconds, high=seconds)
    methods = (first.model_copy(update={"loss_s": time}), next(each for each in found.methods if each.method == DENSE))

    advice = advised(found.model_copy(update={"methods": methods}), figures.size)

    assert any(f" steps: {told} ({told} to {told})" in line for line in advice)


@pytest.mark.parametrize("tasks", [("text",), pytest.param(None, marks=pytest.mark.long)])
def test_the_page_on_choosing_is_the_generated_one(tasks):
    known = recorded()
    chosen = known.model_copy(update={"tasks": {task: known.tasks[task] for task in tasks or known.tasks}})
    written, generated = (ROOT / "docs" / "choosing.md").read_text().splitlines(), list(page(chosen))

    if tasks is None:
        assert written == generated, "run `make docs`"
    else:
        assert [line for line in generated if line not in written] == [], "run `make docs`"


def test_the_rule_on_choosing_counts_the_rows_below_it():
    rows = {"small": [], "large": []}
    for section in (ROOT / "docs" / "choosing.md").read_text().split("\n## ")[1:]:
        if size := re.match(r".*, ([\d.]+) million parameters\n", section):
            cells = [line.split("|") for line in section.splitlines() if "Mbit/s, " in line]
            rows["small" if float(size[1]) < 1 else "large"] += [(each[3].strip(" `"), each[8]) for each in cells]

    def first(where, *methods):
        return sum(choice in methods for choice, _ in where)

    def also(where, method):
        return sum(f"`{method}`" in others for _, others in where)

    small, large = rows.values()
    both, dgc = small + large, ("dgc 1 %", "dgc 0.3 %")
    low_rank, averages, slow = "powersgd 4", "local_sgd 8, topk 10 %", "local_sgd 8, slow momentum"
    told = (
        f"first in {first(large, low_rank)} of {len(large)} rows, and among *also* in {also(large, low_rank)} more",
        f"first in {first(small, averages)} of {len(small)} rows, and among *also* in {also(small, averages)} more",
        f"first in {first(both, *dgc)} of {len(both)} rows",
        f"first in {first(both, *dgc, averages, slow)} of {len(both)} rows",
    )
    assert [sentence for counts, sentence in zip(told, RULE, strict=True) if counts not in sentence] == []


@pytest.mark.parametrize(
    ("kind", "size", "tasks"),
    [
        *(
            (kind, size, ("images", "residual-net"))
            for kind in ("fashion-conv", "mnist5k-cnn")
            for size in CONV_CHANNELS
        ),
        *(("stdlib-lm", size, ("text", "transformer")) for size in TRANSFORMERS),
    ],
)
def test_a_built_in_model_is_like_the_recorded_one_of_its_kind_that_is_nearest_in_size(kind, size, tasks):
    asked = _asked(JOB | {"workload": {"kind": kind, "size": size}})
    own = num_elements(parameter_shapes(asked.job.workload))

    def distance(task):
        return abs(math.log(num_elements(parsed(recorded().tasks[task].shapes)) / own))

    assert asked.task == min(tasks, key=distance)


@pytest.mark.parametrize("kind", ["demo", "dion", "onebit_adam", "zero_one_adam"])
def test_a_job_that_steps_by_what_its_exchange_returns_is_compared_with_methods_that_step_by_adamw(kind):
    job = JOB | {"optimizer": {"kind": "from_exchange"}, "exchange": {"kind": kind}}
    found = predict(_asked(job))
    others = [each for each in found.methods if each.method != OWN]

    assert {OWN, DENSE, "powersgd 4", "local_sgd 8"} <= {each.method for each in found.methods}
    assert all(JobSpec.model_validate(job | each.job).optimizer.kind == "adamw" for each in others)
    assert any("step by `adamw`" in each for each in found.assumptions)


def test_the_dense_steps_of_signs_count_by_their_share_of_the_budget():
    exchange = {"kind": "onebit_adam", "freeze_steps": 100}
    job = JOB | {"optimizer": {"kind": "from_exchange"}, "exchange": exchange}
    signs = traffic(JobSpec.model_validate(job), parameter_shapes(_asked().job.workload), 4).bytes_per_step

    for steps, share in ((100, 1.0), (400, 0.25)):
        found = _by_name(_asked(job | {"budget": {"steps": steps}}))
        dense = found[DENSE].bytes_per_step
        assert found[OWN].bytes_per_step == pytest.approx(share * dense + (1 - share) * signs)


@pytest.mark.parametrize(
    ("per_node", "asked", "hosts"),
    [
        (4, {}, 2),
        (4, {"hosts": 8}, 8),
        (4, {"workers": 4}, 4),
        (8, {}, 8),  # a single host has no link to predict
        ("auto", {}, 8),
    ],
)
def test_the_jobs_own_workers_are_on_as_many_hosts_as_it_has_nodes(per_node, asked, hosts):
    job = JOB | {"workers": {"count": 8, "per_node": per_node}}
    found = predict(_asked(job, **({"workers": 8} | asked)))

    assert found.hosts == hosts
    assert any("by the job's `per_node`" in each for each in found.assumptions) == (hosts == 2)


@pytest.mark.parametrize(
    ("parts", "changing"),
    [
        ({}, None),
        ({"exchange": {"kind": "none"}, "sync": {"kind": "stl_sgd", "period": 4}}, "stl_sgd"),
        ({"exchange": JOB["exchange"] | {"levels": {"kind": "warmup", "steps": 50}}}, "warmup"),
        ({"exchange": JOB["exchange"] | {"levels": {"kind": "accordion", "critical": 0.1}}}, "accordion"),
    ],
)
def test_what_of_the_jobs_own_choice_changes_over_the_run_is_among_the_assumptions(parts, changing):
    told = [each for each in predict(_asked(JOB | parts)).assumptions if f"`{OWN}`" in each]

    assert [f"`{changing}`" in each for each in told] == [True] * (changing is not None)


def test_a_link_that_the_job_emulates_gives_data_all_of_its_rate_and_another_does_not():
    emulated = JOB | {"link": {"mode": "emulate", "mbps": 30}}
    own, other = (_by_name(_asked(emulated, mbps=mbps))[DENSE].wire_s for mbps in (30, 60))

    assert own == pytest.approx(GOODPUT * _by_name(_asked(mbps=30))[DENSE].wire_s)
    assert other == _by_name(_asked(mbps=60))[DENSE].wire_s


def test_every_recorded_task_and_method_has_what_a_prediction_needs():
    known = recorded()

    assert known.usual_error <= 0.15
    assert {each.task for each in known.lessons} >= known.tasks.keys()
    assert DENSE in known.methods


@pytest.mark.parametrize(
    "optimizer", [{"kind": "auto"}, {"kind": "sgd", "momentum": [0.8, 0.98]}, {"kind": "adamw", "learning_rate": 0.001}]
)
def test_a_job_whose_values_are_searched_is_predicted_as_it_opens(optimizer):
    assert DENSE in _by_name(_asked(JOB | {"optimizer": optimizer}))
