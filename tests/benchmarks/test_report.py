"""The report derives from recorded rows, and the figures in the README and docs are those of the report."""

import json
import re
from pathlib import Path

import equal_cost
import pytest
import report

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("page", report.PAGES)
def test_the_figures_of_a_page_are_those_of_the_rows(page: str) -> None:
    text = (ROOT / page).read_text()

    assert "<!-- figures: " in text
    assert report.with_figures(text) == text, "run `python benchmarks/report.py write`"


@pytest.mark.parametrize("name", ["equal-cost", "auto"])
def test_the_report_has_the_same_figures(name: str) -> None:
    assert "\n".join(report.figures(name)) in (ROOT / "benchmarks/report.md").read_text()


def test_what_we_lose_stands_first() -> None:
    _, heading, first, *_ = (ROOT / "benchmarks/report.md").read_text().split("\n\n")

    assert heading == "**What we lose:**"
    assert first.splitlines() == [f"- {sentence}" for sentence in report.losses(equal_cost.rows())]


def test_what_a_program_printed_of_its_rows_does_not_stand_beside_the_table_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("equal_cost.py run --steps 300", "links.py reach", "time_to_loss.py smoke", "kernels.py")
    programs = tmp_path / "programs.jsonl"
    programs.write_text("".join(json.dumps({"words": each, "status": 0}) + "\n" for each in words))
    monkeypatch.setattr(report, "PROGRAMS", programs)

    assert [row["words"] for row in report.printed()] == ["time_to_loss.py smoke", "kernels.py"]


def race(arm: str, *seconds: float | None, mbps: float) -> list[report.Row]:
    """Return races of an arm, one for each seed."""
    place = {"kind": "race", "task": "digits", "hosts": 2, "mbps": mbps, "arm": arm, "seconds_before": 0.0}
    return [place | {"seed": seed, "seconds": each} for seed, each in enumerate(seconds)]


def test_one_job_stands_beside_the_baselines_that_are_sooner_and_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "HERE", tmp_path)
    rows = [*race("auto", 10.0, 12.0, 10.0, mbps=100), *race("auto", 5.0, 5.0, 5.0, mbps=1000)]
    rows += [*race("plain", 20.0, 30.0, None, mbps=100), *race("alone", None, None, None, mbps=100)]
    rows += [*race("fp16", 5.0, 9.0, 6.0, mbps=100), *race("top-k", 9.0, 13.0, 9.0, mbps=100)]
    rows += [*race("few seeds", 1.0, 1.0, mbps=100), *race("plain", 6.0, 7.0, 8.0, mbps=1000)]
    (tmp_path / "time_to_loss.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in rows))

    slow, fast, *_ = report.figures("time-to-a-loss")[2:]
    assert (
        slow == "| `digits`, 2, 100 Mbit/s | 10.0 s | fp16 (0.60) | top-k (0.90) | plain (2.50), alone (not reached) |"
    )
    assert fast == "| `digits`, 2, 1000 Mbit/s | 5.0 s | - | - | plain (1.40) |"
    assert report.figures("time-to-a-loss-in-short")[:2] == [
        "In 1 of 2 settings at least one baseline is there before the job, with every seed.",
        "The soonest of them takes 0.60 to 0.60 of the job's time.",
    ]


def test_a_command_of_the_suite_finds_the_folder_that_it_imports_from() -> None:
    pages = [*ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/*.md")]
    given = [line for page in pages for line in page.read_text().splitlines() if "python benchmarks/suite/" in line]

    assert given
    assert [
        line for line in given if re.search(r"(?<!=benchmarks )(?<!:benchmarks )python benchmarks/suite/", line)
    ] == []


def row(what: str, arm: str, loss: float, seed: int = 0) -> equal_cost.Row:
    rate = {"rate": 0.1} if what == "grid" else {}
    return {"what": what, "arm": arm, "task": "digits", "steps": 300, "seed": seed, "loss": loss} | rate


def rows(*, ours: float, rival: float) -> list[equal_cost.Row]:
    searched = [row("search", guess, ours) for guess in equal_cost.GUESSES]
    guessed = [row("guess", guess, 2.0) for guess in equal_cost.GUESSES]
    return [row("grid", "linear", 1.0), *searched, *guessed, row("rival", "Prodigy, cosine", rival)]


def test_a_rival_without_a_guess_meets_one_job_from_each_guess() -> None:
    found = equal_cost.losses(rows(ours=1.1, rival=1.2), 300)

    assert found["Prodigy"] == pytest.approx(dict.fromkeys(found[equal_cost.OURS], 0.2))


def test_one_job_and_its_rivals_count_by_what_a_job_exports_and_the_jobs_end_stands_beside() -> None:
    known = rows(ours=1.1, rival=1.2)
    for each in known:
        each["flattered"] = each["loss"] - 0.05
        if each["what"] == "search":
            each["exported"] = each["loss"] - 0.02

    found = equal_cost.losses(known, 300)
    means = {each.arm: round(each.mean, 9) for each in equal_cost.standings(found)}
    assert (means["Prodigy"], means[equal_cost.OURS], means[equal_cost.OURS_END]) == (0.15, 0.05, 0.1)
    assert means[equal_cost.OURS_UNSEEN] == 0.08  # which no rival has
    assert equal_cost.by_task(found)["digits"][1] == "Prodigy"  # its own end is no rival


def test_a_table_says_how_many_tasks_have_how_many_seeds() -> None:
    known = rows(ours=1.1, rival=1.2)
    known += [each | {"task": "more", "seed": seed} for each in known for seed in (0, 1)]

    told = equal_cost.extent(equal_cost.losses(known, 300))

    assert told == "2 tasks (1 with one seed, 1 with 2 seeds), three guesses: 9 runs an arm"
    assert any(
        "further seeds at 300 steps on 2 tasks: digits, more" in each for each in equal_cost.missing(known, [300])
    )


def test_a_lost_run_counts_as_much_as_any_other_lost_run() -> None:
    worst = max(each.mean for each in equal_cost.standings(equal_cost.losses(rows(ours=1.1, rival=1e9), 300)))

    assert worst == equal_cost.LOST


def test_a_verdict_names_what_ends_lower() -> None:
    assert "Prodigy ends lower" in equal_cost.verdict(rows(ours=1.1, rival=1.05), 300)
    assert "nothing ends lower" in equal_cost.verdict(rows(ours=1.1, rival=1.2), 300)
