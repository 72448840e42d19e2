"""`wiretune init`: a first job file, with comments from the job's own declarations."""

import json
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import typer
from pydantic import BaseModel

from api.cli.rehearsal import DEFAULT_S, CannotTrain, Timeout, answers
from api.cli.sheet import folded
from api.cli.terminal import STANDARD, console, fail, require_writable, say
from api.documents import checked
from search.config import Budget
from service.errors import InvalidJob
from service.job.parts import JobParts, Objective, Workers
from service.job.spec import JobSpec
from trainers.spec.knobs import knobs_of
from trainers.spec.workloads import OwnWorkload, WorkloadConfig

app = typer.Typer()

DEFAULT_FILE, DEFAULT_WORKLOAD = Path("job.yaml"), "digits-mlp"
_WIDTH = 78
_HEAD = (
    "A job of Wiretune. `wiretune check` tries it here, `wiretune run` runs it, `wiretune methods` lists what may "
    "stand in its parts. A line that begins with # and no space shows a default: take the # away to change it."
)
#: A budget large enough for the search of the default controller.
_BUDGET = Budget(steps=3000)


@app.command()
def init(
    factory: Annotated[
        str | None, typer.Option(metavar="MODULE:NAME", help="your own workload, whose parameters are filled in")
    ] = None,
    workload: Annotated[str, typer.Option(help="a built-in one")] = DEFAULT_WORKLOAD,
    out: Annotated[Path, typer.Option(help="where to write it; `-`: standard output")] = DEFAULT_FILE,
    timeout: Timeout = DEFAULT_S,
) -> None:
    """Write a first job file with comments. With a factory, it is imported to see its parameters."""
    require_writable(out)
    if out != STANDARD and out.exists():
        fail(f"{out} is there already; name another file with --out")
    try:
        spec = checked(
            JobSpec,
            {"workload": {"factory": factory} if factory else {"kind": workload}, "budget": _BUDGET.model_dump()},
        )
    except InvalidJob as error:
        fail(error.problems[0].message)
    own = spec.resolved(str(Path.cwd())).workload
    shown = _own(own, timeout) if isinstance(own, OwnWorkload) else list(_built_in(own))
    text = "\n".join(_lines(shown)) + "\n"
    if out == STANDARD:
        typer.echo(text, nl=False)
        return
    out.write_text(text, encoding="utf-8")
    say(console(), f"wrote {out}; try it with `wiretune check {out}`, run it with `wiretune run {out}`")


def _built_in(config: WorkloadConfig) -> Iterator[str]:
    yield from _comment(type(config).__doc__ or "", "  ")
    yield f"  kind: {config.kind}"
    yield from _knobs(type(config), ())


def _own(config: OwnWorkload, timeout_s: float) -> list[str]:
    """Return the lines of a factory and its parameters."""
    try:
        [parameters] = answers({"factory": config.model_dump(mode="json")}, timeout_s=timeout_s).values()
    except CannotTrain as error:
        fail(str(error))
    lines = [f"  factory: {json.dumps(config.factory)}", *(["  params:"] if parameters else [])]
    for each in parameters:
        required = ["required, in place of null"] * each["is_required"]
        about = [*([each["annotation"]] if each["annotation"] else []), *required]
        if not each["is_json"]:
            lines += _comment(f"{each['name']} has a default that a job cannot give", "    ")
            continue
        lines += _comment("; ".join(about), "    ") if about else []
        lines += [f"    {each['name']}: {json.dumps(each['default'])}"]
    return lines


def _lines(workload: list[str]) -> Iterator[str]:
    """Yield the lines of the file, part by part."""
    yield from _comment(_HEAD, "")
    yield from ("name: my first job", "", "workload:", *workload)
    yield from ("", "budget:", *_knobs(type(_BUDGET), ("steps",), values={"steps": _BUDGET.steps}))
    yield from ("", "workers:", *_knobs(Workers, ("count",)))
    yield from ("", "objective:", *_knobs(Objective, ("every",)))
    for part in ("optimizer", "exchange", "controller"):
        yield from ("", f"{part}:", *_choice(part))


def _choice(part: str) -> Iterator[str]:
    """Yield the lines of a part with several kinds: the default kind."""
    config = JobParts.model_fields[part].default
    kinds = JobParts.model_json_schema()["properties"][part]["discriminator"]["mapping"]
    yield from _comment(f"one of {', '.join(kinds)}; `wiretune methods {config.kind}` lists its fields", "  ")
    yield f"  kind: {config.kind}"
    if hasattr(config, "learning_rate"):
        yield f"  learning_rate: {config.learning_rate}"


def _knobs(
    config: type[BaseModel], written: Collection[str], *, values: Mapping[str, Any] = MappingProxyType({})
) -> Iterator[str]:
    """Yield the fields with their allowed values: the `written` ones, and the others with defaults as comments."""
    for knob in knobs_of(config):
        if knob.is_required:
            continue
        yield from _comment(f"{knob.description}: {knob.allowed}" if knob.description else knob.allowed, "  ")
        mark = "" if knob.name in written else "#"
        yield f"  {mark}{knob.name}: {json.dumps(values.get(knob.name, knob.default))}"


def _comment(text: str, indent: str) -> list[str]:
    return folded(f"{indent}# {' '.join(text.split())}", _WIDTH, indent=f"{indent}# ")
