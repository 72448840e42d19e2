"""The list of methods agrees with the job, its checks and its costs."""

import re
from collections.abc import Iterator
from typing import Any, get_args

import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError

from api.documents import checked, parse_yaml
from service.catalog import methods
from service.catalog.combinations import PARTS, job, kinds_of, merged
from service.catalog.papers import NOTES
from service.errors import NotFound
from service.job.spec import JobSpec
from service.wire.methods import MethodView
from tests.support.example_jobs import EXAMPLES
from trainers.methods import registry
from trainers.methods.exchange.dense.spec import NoneConfig
from trainers.spec.sparse import SparseConfig
from trainers.spec.workloads import DigitsMlp, WorkloadConfig
from trainers.traffic import cost
from trainers.traffic.shapes import parameter_shapes

ALL = methods.methods(workers=4).methods
BY_NAME = {(each.part, each.name): each for each in ALL}
KINDS = {(part, kind) for part, union in PARTS.items() for kind in kinds_of(union)}
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


def is_accepted(parts: dict[str, Any]) -> bool:
    """Whether these parts make a job, with a workload and a budget if they have none."""
    try:
        job(parts)
    except ValidationError:
        return False
    return True


def both(method: MethodView, part: str, kind: str) -> dict[str, Any]:
    """Return the job of a kind with that of a method laid over it, but for this part, where levels or memory stay."""
    other = BY_NAME[part, kind].job
    held = {name: each for name, each in method.job.get(part, {}).items() if name == method.part}
    return other | method.job | {part: other[part] | held}


def simple_values(config: type[BaseModel]) -> Iterator[tuple[str, Any]]:
    """Yield each knob with its words, its lowest value, and nothing at all where that is allowed."""
    for name, schema in config.model_json_schema()["properties"].items():
        for each in (schema, *schema.get("anyOf", ())):
            if name != "kind":
                lowest = [each["minimum"]] if "minimum" in each else []
                either = {"boolean": [True, False], "null": [None]}.get(str(each.get("type")), [])
                yield from ((name, value) for value in (*lowest, *either, *each.get("enum", ())))


def test_every_kind_that_a_job_offers_is_listed():
    """A new kind needs a note in `service.catalog.papers`; a new part of the job, a line in `PARTS` of
    `service.catalog.methods`; a union inside of a kind, such as policies of its level, a `Composed` for each kind."""
    offered = with_kind(JobSpec.model_json_schema()) - with_kind(TypeAdapter(WorkloadConfig).json_schema())

    listed = {name for method in ALL for name in models_in(job(method.job))}

    assert offered - listed == set()


def test_every_kind_is_noted_once_and_no_note_is_of_a_kind_that_is_gone():
    noted = {part: {method.kind for method in registry.of(part)} for part in PARTS if part != "controller"}
    noted["exchange"].add("auto")
    noted["controller"] = set(NOTES["controller"])

    assert noted == {part: set(kinds_of(PARTS[part])) for part in PARTS}


def test_every_memory_of_a_sparse_exchange_is_listed():
    offered = get_args(SparseConfig.model_fields["memory"].annotation)

    assert {method.job["exchange"]["memory"] for method in ALL if method.part == "memory"} == {*offered} - {"none"}


@each_method
def test_a_method_says_what_it_does(method: MethodView):
    assert method.summary.endswith(".")


@each_method
def test_the_papers_that_a_summary_names_are_the_methods_own(method: MethodView):
    named = {(author, int(year)) for author, year in re.findall(r"(\w+)(?: et al\.)?, (\d{4})", method.summary)}

    assert all(any(author in each.authors and year == each.year for each in method.papers) for author, year in named)


@each_method
@pytest.mark.parametrize("budget", [{"steps": 100}, {"seconds": 60}, {"bytes": 10**9}], ids=str)
def test_what_chooses_a_method_makes_a_job_with_a_workload_and_any_budget(method: MethodView, budget: dict[str, int]):
    assert is_accepted({"budget": budget} | method.job)


@each_method
def test_kinds_that_go_with_a_method_do_so_with_the_knobs_that_are_named(method: MethodView):
    needs = {(each.part, each.kind): each.knobs for each in method.needs}

    for part, kinds in method.combines_with.items():
        for kind in kinds:
            assert is_accepted(merged(both(method, part, kind), needs.get((part, kind), {}))), (part, kind)


@each_method
def test_no_knob_is_named_that_is_neither_needed_nor_the_methods_own(method: MethodView):
    for each in method.needs:
        is_own = merged(method.job, each.knobs) == method.job
        assert is_own or not is_accepted(both(method, each.part, each.kind)), each
        assert each.kind in method.combines_with[each.part]


@each_method
def test_kinds_that_are_refused_are_refused_whatever_their_knobs(method: MethodView):
    """One knob at a time, each at its words, at its lowest value, and without one."""
    for refused in method.refuses:
        parts = both(method, refused.part, refused.kind)
        assert not is_accepted(parts), refused
        for knob, value in simple_values(kinds_of(PARTS[refused.part])[refused.kind]):
            if knob != method.part:
                assert not is_accepted(merged(parts, {refused.part: {knob: value}})), (refused, knob, value)


@each_method
def test_a_refusal_tells_what_to_give_instead_and_of_no_arm(method: MethodView):
    for refused in method.refuses:
        gives_another = "give " in refused.reason and "{kind: " in refused.reason
        assert gives_another or "kinds that have it: `" in refused.reason or "is an object: `" in refused.reason
        assert not re.search(r"\barm\b|tuned", refused.reason)


@each_method
def test_every_kind_of_every_part_but_the_methods_own_goes_together_with_it_or_is_refused(method: MethodView):
    assert set(method.combines_with) == set(PARTS) - {method.part}
    for part, kinds in method.combines_with.items():
        refused = [each.kind for each in method.refuses if each.part == part]
        assert sorted([*kinds, *refused]) == sorted(kinds_of(PARTS[part]))


@pytest.mark.parametrize(
    ("part", "name", "other", "fitting"),
    [
        ("exchange", "cser", "optimizer", {"sgd"}),
        ("exchange", "dgc", "optimizer", set(kinds_of(PARTS["optimizer"])) - {"from_exchange"}),
        ("optimizer", "from_exchange", "exchange", {"demo", "dion", "onebit_adam", "zero_one_adam"}),
        ("exchange", "onebit_adam", "optimizer", {"from_exchange"}),
        ("exchange", "demo", "sync", {"every_step"}),
        ("exchange", "liec_sgd", "optimizer", {"sgd", "schedulefree_sgd"}),
        ("exchange", "auto", "controller", {"bo", "sobol", "schedule"}),
        ("levels", "accordion", "exchange", {"threshold", "topk", "randomk", "dgc", "gtopk", "powersgd"}),
        ("levels", "warmup", "exchange", {"threshold", "topk", "randomk", "dgc", "gtopk"}),
        ("levels", "cat", "exchange", {"topk"}),
        ("levels", "calibrated", "exchange", {"threshold"}),
        ("memory", "ef21", "exchange", {"threshold", "topk", "randomk", "dgc", "gtopk", "adacomp"}),
        ("blocks", "jointspar_lars", "optimizer", {"sgd", "lars"}),
        ("optimizer", "lars", "controller", set(kinds_of(PARTS["controller"]))),
    ],
)
def test_what_is_known_to_go_together_is_listed(part: str, name: str, other: str, fitting: set[str]):
    assert set(BY_NAME[part, name].combines_with[other]) == fitting


def test_what_goes_together_is_told_from_either_side():
    pairs = {
        ((method.part, method.name), (part, kind))
        for method in ALL
        if (method.part, method.name) in KINDS
        for part, kinds in method.combines_with.items()
        for kind in kinds
    }

    assert pairs == {(other, one) for one, other in pairs}


def test_a_kind_that_goes_with_a_method_by_certain_knobs_is_listed_with_them_from_either_side():
    told = {
        (method.name, each.kind): each.knobs
        for method in map(
            BY_NAME.__getitem__,
            [("exchange", "cser"), ("exchange", "dgc"), ("optimizer", "sgd"), ("levels", "accordion")],
        )
        for each in method.needs
    }

    assert told["cser", "sgd"] == told["sgd", "cser"] == told["dgc", "lars"] == {"optimizer": {"momentum": 0}}
    assert told["dgc", "adamw"] == {"exchange": {"momentum_correction": None}}
    assert told["accordion", "topk"] == {"exchange": {"levels": {"critical": 0.1}}}
    assert told["accordion", "powersgd"] == {"exchange": {"rank": 1}}


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
