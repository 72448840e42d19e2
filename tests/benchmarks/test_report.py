"""The report derives from recorded rows, and the figures in the README and docs are those of the report."""

import json
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


def test_what_we_lose_stands_in_the_first_paragraph() -> None:
    _, first, *_ = (ROOT / "benchmarks/report.md").read_text().split("\n\n")

    assert first.startswith("**What we lose.**")
    assert all(sentence in first for sentence in report.losses(equal_cost.rows()))


@pytest.mark.parametrize(
    ("words", "mark"),
    [
        ("equal_cost.py run --steps 300", ", older than its rows (2026-11-28)"),
        ("links.py reach", ", older than its rows (2026-11-28)"),
        ("time_to_loss.py run", ""),
        ("time_to_loss.py smoke", ""),
        ("kernels.py", ""),
    ],
)
def test_what_was_printed_of_rows_is_marked_where_a_row_is_newer(
    words: str, mark: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "HERE", tmp_path)
    (tmp_path / "suite").mkdir()
    dated = {
        "suite/rows.jsonl": [{"date": "2026-11-26"}, {"date": "2026-11-28"}, {}],
        "links.jsonl": [{}, {"race": 1795827877}],
        "time_to_loss.jsonl": [{"date": "2026-11-27"}],
    }
    for name, rows in dated.items():
        (tmp_path / name).write_text("".join(f"{json.dumps(row)}\n" for row in rows))

    assert report._outdated({"words": words, "date": "2026-11-27"}) == mark


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
