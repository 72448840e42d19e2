"""`wiretune methods`: the methods that a job can choose, without a service."""

import json
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Annotated, Any

import typer

from api.cli import figures
from api.cli.sheet import Sheet
from api.cli.terminal import AsJson, console, fail, print_json, say
from service.catalog import methods as catalogue
from service.catalog.methods import DEFAULT_WORKLOAD
from service.errors import NotFound
from service.wire.methods import MethodsView, MethodView, NeedsView, PaperView

app = typer.Typer()


@app.command()
def methods(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="a method; default: all")] = None,
    workload: Annotated[str, typer.Option(help="the built-in workload whose traffic is predicted")] = DEFAULT_WORKLOAD,
    shapes: Annotated[
        str | None, typer.Option(help="shapes of a model's parameters, in place of a workload's: 512x64,512")
    ] = None,
    workers: Annotated[int, typer.Option(min=1, max=1024, help="workers whose traffic is predicted")] = 2,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="write docs/methods.md, the reference")] = False,
    as_json: AsJson = False,
) -> None:
    """List the methods that a job can choose, or show one: its paper, knobs, and combinations."""
    try:
        found = catalogue.methods(name, workload=workload, shapes=shapes, workers=workers)
    except (NotFound, ValueError) as error:
        fail(str(error))
    if as_json:
        print_json(found)
    elif as_markdown:
        typer.echo("\n".join(reference(found)))
    elif name is None:
        console().print(_table(found))
    else:
        for method in found.methods:
            for line in _lines(method, found):
                say(console(), line)


def _table(found: MethodsView) -> Sheet:
    title = f"A step of {found.workers} workers on {_model(found)}, sent by each"
    sheet = Sheet("part", "method", "bytes", "paper", title=title, left=("part", "method", "paper"))
    for method in found.methods:
        sent = figures.size(method.traffic.bytes_per_step)
        papers = "; ".join(f"{_short(paper)}" for paper in method.papers)
        sheet.add_row(method.part, method.name, sent, papers, note=method.summary)
    return sheet


def _model(found: MethodsView) -> str:
    size = f"{found.num_parameters:,} parameters"
    return size if found.workload is None else f"{found.workload} ({size})"


def _short(paper: PaperView) -> str:
    first, *others = paper.authors.split(", ")
    return f"{first} et al., {paper.year}" if len(others) > 1 else f"{paper.authors}, {paper.year}"


def reference(found: MethodsView) -> Iterator[str]:
    """Yield the lines of the page of methods, part by part."""
    yield "# Methods"
    yield from ("", "Everything that a job can choose, as `make docs` writes it from the code.")
    yield "`wiretune methods NAME` shows a method's fields with their ranges and defaults, and what it goes with."
    yield from ("", f"Bytes are what one of {found.workers} workers sends in a step on {_model(found)}.")
    for part, methods in groupby(found.methods, key=lambda method: method.part):
        yield from ("", f"## {part}", "", "| method | bytes | what it does | papers |", "| --- | --- | --- | --- |")
        for method in methods:
            papers = "; ".join(f"{paper.authors}: {paper.title}, {paper.venue} {paper.year}" for paper in method.papers)
            sent = figures.size(method.traffic.bytes_per_step)
            yield f"| `{method.name}` | {sent} | {method.summary} | {papers} |"


def _lines(method: MethodView, found: MethodsView) -> Iterator[str]:
    yield f"{method.part}: {method.name}"
    yield f"  {method.summary}"
    for paper in method.papers:
        yield f"  {paper.authors}: {paper.title}. {paper.venue} {paper.year}"
    yield f"  in a job: {json.dumps(method.job)}"
    sent, rounds = figures.size(method.traffic.bytes_per_step), figures.number(method.traffic.rounds_per_step)
    yield f"  each of {found.workers} workers sends {sent} in {rounds} rounds a step, on {_model(found)}"
    for part, knobs in method.knobs.items():
        for knob in knobs:
            default = "required" if knob.is_required else f"default {json.dumps(knob.default)}"
            told = f": {knob.description}" if knob.description else ""
            yield f"  {part}.{knob.name}: {knob.allowed}; {default}{told}"
    needs = {(each.part, each.kind): f" ({', '.join(_knobs(each))})" for each in method.needs}
    for part, kinds in method.combines_with.items():
        fitting = ", ".join(kind + needs.get((part, kind), "") for kind in kinds)
        yield f"  goes with {part}: {fitting or 'none'}"
    for each in method.refuses:
        yield f"  refuses {each.part} {each.kind}: {each.reason}"


def _knobs(needs: NeedsView) -> Iterator[str]:
    """Yield `momentum: 0` for a knob of the same kind, and `optimizer.momentum: 0` for one of another part."""
    for path, value in _leaves(needs.knobs):
        yield f"{path.removeprefix(f'{needs.part}.')}: {value if isinstance(value, str) else json.dumps(value)}"


def _leaves(knobs: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in knobs.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{path}{name}.")
        else:
            yield f"{path}{name}", value
