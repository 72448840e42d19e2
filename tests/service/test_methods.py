"""The list of methods says of each what the job, its checks and its costs say."""

from collections.abc import Iterator
from typing import Any, get_args

import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError

from api.documents import checked, parse_yaml
from service import methods
from service.errors import NotFound
from service.methods import PARTS, MethodView, kinds_of
from service.papers import NOTES
from service.spec import JobSpec
from tests.example_jobs import EXAMPLES
from trainers import cost
from trainers.config import DigitsMlp, NoneConfig, SparseConfig, WorkloadConfig
from trainers.shapes import parameter_shapes

ALL = methods.methods(workers=4).methods
DIGITS = parameter_shapes(DigitsMlp()) or ()
each_method = pytest.mark.parametrize("method", ALL, ids=lambda each: f"{each.part}-{each.name}")


def with_kind(schema: dict[str, Any]) -> set[str]:
    """Return the names of the models in a JSON schema that are told from others by a kind."""
    return {
        name for name, each in schema.get("$defs", {}).items() if "const" in each.get("properties", {}).get("kind", {})
    }


def models_in(given: Any) -> Iterator[str]:
    """Yield the names of the models that have a kind, in a configuration and all that it holds."""
    if isinstance(given, BaseModel):
        yield from [type(given).__name__] if "kind" in type(given).model_fields else []
        for name in type(given).model_fields:
            yield from models_in(getattr(given, name))
    elif isinstance(given, tuple | list):
        for each in given:
            yield from models_in(each)


def test_every_kind_that_a_job_offers_is_listed():
    """A new kind needs a note in `service.papers`; a new part of the job, a line in `service.methods.PARTS`; a union
    inside of a kind, such as policies of its level, a `Composed` for each of its kinds."""
    offered = with_kind(JobSpec.model_json_schema()) - with_kind(TypeAdapter(WorkloadConfig).json_schema())

    listed = {name for method in ALL for name in models_in(methods.job(method.job))}

    assert offered - listed == set()


def test_every_kind_has_a_note_and_no_note_is_of_a_kind_that_is_gone():
    assert {part: set(notes) for part, notes in NOTES.items()} == {part: set(kinds_of(PARTS[part])) for part in PARTS}


def test_every_memory_of_a_sparse_exchange_is_listed():
    offered = get_args(SparseConfig.model_fields["memory"].annotation)

    assert {method.job["exchange"]["memory"] for method in ALL if method.part == "memory"} == {*offered} - {"none"}


@each_method
def test_a_method_says_what_it_does_and_a_job_can_choose_it(method: MethodView):
    assert method.summary.endswith(".")
    assert methods.job(method.job)


@each_method
def test_what_is_refused_is_refused_by_the_job_and_told_with_what_to_give_instead(method: MethodView):
    for refused in method.refuses:
        with pytest.raises(ValidationError):
            methods.job(method.job | {refused.part: {"kind": refused.kind, **NOTES[refused.part][refused.kind].knobs}})
        assert "give " in refused.reason and "{kind: " in refused.reason


@each_method
def test_what_goes_together_and_what_is_refused_are_all_that_there_is(method: MethodView):
    for part, kinds in method.combines_with.items():
        refused = [each.kind for each in method.refuses if each.part == part]
        assert sorted([*kinds, *refused]) == sorted(kinds_of(PARTS[part]))


def test_a_knob_is_told_as_its_model_declares_it():
    [topk] = [each for each in ALL if each.name == "topk"]
    told = {knob.name: (knob.allowed, knob.default, knob.is_required) for knob in topk.knobs["exchange"]}

    assert told["density"] == ("a number in (0, 1] or a pair", None, True)
    assert told["scope"] == ("layer or bucket or global", "bucket", False)
    assert told["bucket_mib"] == ("a number in (0, 1024]", 4.0, False)
    assert told["momentum_correction"] == ("a number in [0, 1) or null", None, False)


def test_the_knobs_of_what_is_chosen_inside_of_a_part_are_told_too():
    [accordion] = [each for each in ALL if (each.part, each.name) == ("levels", "accordion")]
    [packet] = [each for each in ALL if each.name == "cat_packet"]

    assert {knob.name: knob.default for knob in accordion.knobs["exchange.levels"]}["eta"] == 0.5
    assert "packet_bytes" in {knob.name for knob in packet.knobs["exchange.levels.cost"]}


@each_method
def test_every_knob_has_words_for_what_is_allowed(method: MethodView):
    for knob in (knob for knobs in method.knobs.values() for knob in knobs):
        assert knob.allowed and "object" not in knob.allowed


def test_traffic_is_that_of_the_cost_model():
    sent = {(each.part, each.name): each.traffic for each in ALL}
    dense = cost.step_traffic(DIGITS, num_workers=4, exchange=NoneConfig())
    drawn = cost.drawn_step(DIGITS, num_workers=4, exchange=NoneConfig(), share=0.5)

    assert (sent["exchange", "none"].bytes_per_step, sent["exchange", "none"].rounds_per_step) == (
        dense.bytes,
        dense.rounds,
    )
    assert sent["sync", "local_sgd"].bytes_per_step == dense.bytes / 8
    assert sent["blocks", "jointspar"].bytes_per_step == drawn.bytes
    assert sent["exchange", "topk"].bytes_per_step < 0.02 * dense.bytes


def test_shapes_take_the_place_of_a_workload():
    shapes = ",".join("x".join(map(str, shape)) for shape in DIGITS)

    found, asked = methods.methods("topk", shapes=shapes), methods.methods("topk")

    assert found.workload is None and asked.workload == "digits-mlp"
    assert found.methods == asked.methods


@pytest.mark.parametrize("shapes", ["", "3x", "0x4", "3,,4", "a", "1x" * 20_000 + "1"])
def test_what_is_no_shape_is_refused(shapes: str):
    with pytest.raises(ValueError, match="`shapes` must be"):
        methods.parsed(shapes)


def test_a_name_that_is_not_there_is_answered_with_the_nearest():
    with pytest.raises(NotFound, match="do you mean `powersgd`"):
        methods.methods("power_sgd")
    with pytest.raises(NotFound, match=r"do you mean `stdlib-lm`.*give the shapes"):
        methods.methods(workload="stdliblm")


@pytest.fixture(scope="module")
def examples() -> list[set[tuple[str, object]]]:
    """What each arm of the example jobs chooses."""
    jobs = [checked(JobSpec, parse_yaml(path.read_bytes())) for path in EXAMPLES]
    arms = [trial.model_dump(mode="json") for job in jobs for trial in job.trials()]
    return [set(choices(arm["replica"] | {"controller": arm["controller"]})) for arm in arms]


def choices(value: Any, path: str = "") -> Iterator[tuple[str, object]]:
    """Yield what is chosen by name or is on or off, with where it stands; numbers are no choice of a method."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from choices(inner, f"{path}/{key}")
    elif isinstance(value, str | bool):
        yield path, value


@pytest.mark.parametrize("method", [each for each in ALL if each.papers], ids=lambda each: each.name)
def test_every_published_method_has_a_job_to_begin_with(
    method: MethodView, examples: list[set[tuple[str, object]]]
) -> None:
    assert any(chosen >= set(choices(method.job)) for chosen in examples)
