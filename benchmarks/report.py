"""Write one report of all recorded benchmarks, which begins with our losses.

    make bench SIZE=smoke|default|full              two minutes, half an hour, hours: what is recorded is not run again
    python benchmarks/report.py run SIZE            the same
    python benchmarks/report.py write               report.md, report.html, the figures of README and docs

Races keep their rows in files of their own (`RECORDS`). The output of any other program is a row of `programs.jsonl`,
with the machine, its load and the date. A program that a size has run within `FRESH_DAYS` is not run again. Figures in
README and docs stand between two comments, where only this program writes; a test compares them.
"""

import argparse
import math
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import equal_cost
from races import auto_table, time_table
from rows import append, read

HERE = Path(__file__).parent
ROOT = HERE.parent
PROGRAMS = HERE / "programs.jsonl"
FRESH_DAYS = 1
STEPS = (300, 1000)
Row = dict[str, Any]


class Program(NamedTuple):
    """A program and its words, and the seconds after which it is given up."""

    words: str
    limit_s: float
    question: str


SMOKE = (
    Program("start_up.py", 400, "how long does the service take to start"),
    Program("time_to_loss.py smoke", 900, "do all arms of the race to a loss train"),
)
DEFAULT = (
    *SMOKE,
    Program("kernels.py", 300, "how fast are the exchange's kernels beside a copy"),
    Program("controller.py", 600, "how good is the controller beside rivals, in simulations"),
    Program("recovery.py", 600, "how long does training stand still when a worker is killed"),
    Program("overheads.py", 600, "what does training wait for besides training"),
    Program("equal_cost.py run --steps 300 --seeds 0 --tasks tumours-perceptron wines-perceptron", 1200, "equal cost"),
)
HOURS = 24 * 3600
FULL = (
    *DEFAULT,
    Program("equal_cost.py run", HOURS, "equal cost, all tasks"),
    Program("time_to_loss.py run", HOURS, "time to a loss, all networks"),
    *(Program(f"links.py {what}", HOURS, "exchanges on links") for what in ("rates", "reach", "pace", "bytes")),
    *(Program(f"methods.py {what}", HOURS, "all methods") for what in ("rates", "run", "pace")),
    Program("auto.py run", HOURS, "exchanges that compete"),
    Program("search_pays.py run", HOURS, "does the search pay on the built-in workloads"),
)
SIZES = {"smoke": SMOKE, "default": DEFAULT, "full": FULL}
#: Files of rows, and the program that writes each.
RECORDS = {
    "suite/rows.jsonl": "equal_cost.py run",
    "suite/optimizers.jsonl": "suite/optimizers.py run",
    "time_to_loss.jsonl": "time_to_loss.py run",
    "links.jsonl": "links.py",
    "methods.jsonl": "methods.py",
    "auto.jsonl": "auto.py run",
    "search_pays.jsonl": "search_pays.py run",
    "chaos.jsonl": "chaos.py",
    "soak.jsonl": "soak.py",
}
#: Pages with figures of this report.
PAGES = ("README.md", "docs/alternatives.md", "docs/auto.md")


# -- running -----------------------------------------------------------------------------------------------


def run(size: str) -> int:
    """Run what the size asks for and is not fresh; returns how many programs failed."""
    num_failed = 0
    for program in SIZES[size]:
        if any(row["words"] == program.words and _is_fresh(row) for row in read(PROGRAMS)):
            continue
        row = measure(program)
        num_failed += row["status"] != 0
        append(PROGRAMS, row)
        print(f"{program.words}: {'failed' if row['status'] else 'done'} after {row['seconds']:.0f} s", flush=True)
    return num_failed


def _is_fresh(row: Row) -> bool:
    return row["status"] == 0 and date.fromisoformat(row["date"]) > date.today() - timedelta(days=FRESH_DAYS)


def measure(program: Program) -> Row:
    """Run the program from the checkout, and return what it printed with the machine and the load before it."""
    load, begin = os.getloadavg()[0], time.monotonic()
    command = [sys.executable, str(HERE / program.words.split()[0]), *program.words.split()[1:]]
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{HERE}"}
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=program.limit_s, check=False
        )
        status, output = done.returncode, done.stdout or done.stderr
    except subprocess.TimeoutExpired:
        status, output = -1, f"given up after {program.limit_s:.0f} s"
    return {
        "words": program.words,
        "question": program.question,
        "status": status,
        "output": output[-6000:],
        "seconds": round(time.monotonic() - begin, 1),
        "load": round(load, 1),
        "machine": machine(),
        "date": datetime.now(UTC).date().isoformat(),
    }


def machine() -> str:
    """Return the processor, its cores, the memory, and the versions that figures depend on."""
    names = re.findall(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    versions = ", ".join(f"{name} {version(name)}" for name in ("wiretune", "torch", "ray", "botorch"))
    processor = names[0] if names else platform.machine()
    return f"{processor}, {os.cpu_count()} cores, {memory:.0f} GiB; Python {platform.python_version()}, {versions}"


# -- writing -----------------------------------------------------------------------------------------------


def report() -> Iterator[str]:
    """Yield the lines of report.md."""
    known = equal_cost.rows()
    yield "# Benchmark report"
    yield from ("", "**What we lose:**", "", *(f"- {each}" for each in losses(known)), "")
    yield f"Written on {datetime.now(UTC).date()} by `make bench`, from recorded rows alone. Written on: {machine()}."
    yield from ("", "## Equal cost", "", *figures("equal-cost"))
    yield from (
        "",
        "[Task by task](equal_cost.md).",
        "",
        "## Exchanges that compete, on real links",
        "",
        *figures("auto"),
    )
    if raced := list(time_table.table(read(HERE / "time_to_loss.jsonl"))):
        yield from ("", "## Time to a loss", "", time_table.LEGEND, *raced)
    yield from ("", "## What is recorded", "", *records())
    yield from ("", "## What is missing", "", *(f"- {each}" for each in missing(known) or ["nothing"]))
    yield from ("", "## What other programs printed")
    for row in printed():
        yield from ("", f"### {row['question']}?", "")
        yield f"`python benchmarks/{row['words']}`, printed on {row['date']}, load {row['load']}"
        yield from (f"before it, {row['seconds']:.0f} s; {row['machine']}.", "", "```", row["output"].rstrip(), "```")


def printed() -> list[Row]:
    """Return what each program printed last, but those that keep rows: their tables are made of all rows."""
    found = {row["words"]: row for row in read(PROGRAMS) if row["status"] == 0}
    return [row for words, row in found.items() if not words.startswith(tuple(RECORDS.values()))]


def losses(known: Sequence[Row]) -> Iterator[str]:
    """Yield sentences that say where something else is better."""
    for steps in STEPS:
        yield equal_cost.verdict(known, steps)
    races = _auto_races()
    verdicts = [(told[0].partition(",")[0], told[4].partition(": ")[2]) for told in map(auto_table.verdict, races)]
    raced = time_table.either(len(auto_table.options_raced(race)) for race in races)
    best = f"the best of the options raced alone ({raced} per link), chosen afterwards"
    for how, words in (("does not hold", "by the median of the seeds"), ("holds for the median", "with some seeds")):
        if slower := [link for link, found in verdicts if found == how]:
            where = f"{words} ({', '.join(slower)})"
            yield f"`auto` takes more than 5 % longer than {best}, {where}."
    yield from time_table.later(read(HERE / "time_to_loss.jsonl"))


def figures(name: str) -> list[str]:
    """Return the lines of a block of figures: what it says, and the command that writes it."""
    command, lines = BLOCKS[name]
    return [*lines(), "", f"(`python benchmarks/{command}`)"]


def _equal_cost() -> Iterator[str]:
    known = equal_cost.rows()
    yield from (f"All tasks; {equal_cost.rests_on(known, STEPS)}:", "", *equal_cost.summary(known, STEPS))
    yield from ("", *equal_cost.held_out(known, STEPS))


def _beside_the_right_guess() -> Iterator[str]:
    """Yield in a sentence how often one job ends lower than the right guess."""
    known, told = equal_cost.rows(), []
    for steps in STEPS:
        of_arm = {each.arm: each for each in equal_cost.standings(equal_cost.losses(known, steps))}
        guess = of_arm[f"{equal_cost.GUESS}, right"]
        told.append(f"{100 * guess.beaten:.0f} % of {guess.runs} runs of {steps:,} steps")
    yield f"One Wiretune job ended lower than that guess with a decay in {', and in '.join(told)}."


def _auto() -> Iterator[str]:
    yield "| link | raced alone | the best of them | `auto` used mostly | `auto` / best: at most 1.05? |"
    yield "| --- | --- | --- | --- | --- |"
    yield from (f"| {' | '.join(auto_table.verdict(race)[:5])} |" for race in _auto_races())
    yield from ("", *auto_table.notes(_auto_rows()))


def _times() -> Iterator[str]:
    """Yield a table of one job with `auto` beside baselines: the seconds, and which baselines are sooner."""
    yield "| task, hosts, link | one job with `auto` | sooner: part of its time | a tie | later |"
    yield "| --- | --- | --- | --- | --- |"
    for own in _times_to_a_loss():
        took = time_table.seconds_told([auto_table.elapsed(row) for row in own if row["arm"] == time_table.AUTO])
        ratios = sorted(_ratios(own).items(), key=lambda each: statistics.median(each[1]))
        cells = (
            ", ".join(f"{arm} {_median(each)}" for arm, each in ratios if time_table.verdict(each) == auto_is) or "-"
            for auto_is in ("later", "a tie", "sooner")
        )
        place = f"`{own[0]['task']}`, {own[0]['hosts']}, {own[0]['mbps']:g} Mbit/s"
        yield f"| {place} | {took} s | {' | '.join(cells)} |"


def _times_in_short() -> Iterator[str]:
    """Yield in how many settings a baseline is sooner than one job with `auto`, and by how much."""
    found = [_ratios(own).values() for own in _times_to_a_loss()]
    sooner = [[statistics.median(each) for each in of_one if time_table.verdict(each) == "later"] for of_one in found]
    best = [min(medians) for medians in sooner if medians]
    yield f"In {len(best)} of {len(found)} settings at least one baseline is there before the job, with every seed."
    if best:
        yield f"The soonest of them takes {min(best):.2f} to {max(best):.2f} of the job's time."


def _times_to_a_loss() -> list[list[Row]]:
    return list(time_table.races(read(HERE / "time_to_loss.jsonl")))


def _ratios(own: Sequence[Row]) -> dict[str, list[float]]:
    """Return the seconds of each baseline in those of `auto`, seed by seed."""
    arms = dict.fromkeys(row["arm"] for row in own if row["arm"] != time_table.AUTO)
    return {arm: found for arm in arms if (found := time_table.paired(own, arm))}


def _median(ratios: Sequence[float]) -> str:
    found = statistics.median(ratios)
    return "(not reached)" if math.isinf(found) else f"({found:.2f})"


#: The command and the lines of each block of figures, by its name.
BLOCKS: dict[str, tuple[str, Callable[[], Iterable[str]]]] = {
    "equal-cost": ("equal_cost.py table", _equal_cost),
    "equal-cost-in-short": ("equal_cost.py table", lambda: equal_cost.in_short(equal_cost.rows(), STEPS)),
    "the-right-guess": ("equal_cost.py table", _beside_the_right_guess),
    "auto": ("auto.py table", _auto),
    "time-to-a-loss": ("time_to_loss.py table", _times),
    "time-to-a-loss-in-short": ("time_to_loss.py table", _times_in_short),
}


def _auto_rows() -> list[Row]:
    """Return the rows of `auto` beside options alone, slow links first."""
    return sorted(read(HERE / "auto.jsonl"), key=lambda row: row["mbps"] or math.inf)


def _auto_races() -> list[list[Row]]:
    """Return the races in which a compared option got there by itself."""
    return [race for race in auto_table.all_races(_auto_rows()) if auto_table.best_option(race) is not None]


def records() -> Iterator[str]:
    """Yield a table of the files of rows: how many, of which days, seeds and loads."""
    yield "| rows | how many | days | seeds | load | command |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for name, command in RECORDS.items():
        rows = read(HERE / name)
        days = sorted({_day(row) for row in rows} - {""})
        seeds = sorted({row["seed"] for row in rows if "seed" in row})
        loads = [row["load"] for row in rows if row.get("load") is not None]
        cells = (
            f"{len(rows):,}",
            " to ".join(dict.fromkeys((days[0], days[-1]))) if days else "-",
            ", ".join(map(str, seeds)) or "-",
            f"{min(loads):.1f} to {max(loads):.1f}" if loads else "counts steps",
        )
        yield f"| `{name}` | {' | '.join(cells)} | `{_shell(command)}` |"


def _shell(command: str) -> str:
    """Return a command of the checkout; the programs of the suite import from the folder above theirs."""
    return f"{'PYTHONPATH=benchmarks ' if command.startswith('suite/') else ''}python benchmarks/{command}"


def _day(row: Row) -> str:
    if "date" in row:
        return str(row["date"])[:10]
    ended = row.get("at", row.get("race"))
    return "" if ended is None else str(datetime.fromtimestamp(ended, UTC).date())


def missing(known: Sequence[Row]) -> list[str]:
    """Return what the report would need for a full size and has no row for."""
    run_before = {row["words"] for row in read(PROGRAMS) if row["status"] == 0}
    found = [f"no rows in `{name}`: `{_shell(command)}`" for name, command in RECORDS.items() if not read(HERE / name)]
    found += [f"`python benchmarks/{each.words}` has not run" for each in DEFAULT if each.words not in run_before]
    return [*equal_cost.missing(known, STEPS), *time_table.missing(read(HERE / "time_to_loss.jsonl")), *found]


def with_figures(text: str) -> str:
    """Return a page's text with its blocks of figures as the rows have them now."""
    return re.sub(
        r"(<!-- figures: ([\w-]+) -->\n).*?(<!-- end -->)",
        lambda found: f"{found[1]}\n" + "\n".join(figures(found[2])) + f"\n\n{found[3]}",
        text,
        flags=re.DOTALL,
    )


def write() -> None:
    """Write the report, the page of equal cost, and the figures of README and docs."""
    from markdown import markdown  # the set-up has it; a race on its own needs it not

    equal_cost.PAGE.write_text("\n".join(equal_cost.page(equal_cost.rows(), STEPS)) + "\n")
    text = "\n".join(report()) + "\n"
    (HERE / "report.md").write_text(text)
    style = "<style>body{font:16px sans-serif;max-width:70em;margin:2em auto}td,th{padding:.3em 1em .3em 0}</style>"
    body = markdown(text, extensions=["tables", "fenced_code"])
    (HERE / "report.html").write_text(
        f'<!doctype html><meta charset="utf-8"><title>Benchmark report</title>{style}\n{body}\n'
    )
    for page in PAGES:
        path = ROOT / page
        path.write_text(with_figures(path.read_text()))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "write"))
    parser.add_argument("size", nargs="?", choices=SIZES, default="smoke")
    given = parser.parse_args()
    num_failed = run(given.size) if given.what == "run" else 0
    write()
    return int(num_failed > 0)


if __name__ == "__main__":
    sys.exit(main())
