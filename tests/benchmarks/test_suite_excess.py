"""The suite's tables count lost runs by one rule."""

import math
from pathlib import Path

import pytest
from rows import read
from suite.excess import LOST, OPTIMIZER_ROWS, beside_each_other, summarised

PAGE = Path(__file__).parents[2] / "docs" / "job.md"


def test_a_run_that_ends_half_above_its_reference_is_lost_and_counts_as_a_half() -> None:
    assert summarised([0.0, LOST]) == (0.25, 0.25, 1, 2)
    assert summarised([0.0, math.inf]).mean == 0.25
    assert summarised([0.0, 0.49]).lost == 0


@pytest.mark.parametrize("worst", [LOST, 3.0, math.inf])
def test_losses_that_were_cut_before_have_the_same_mean_and_as_many_lost_runs(worst: float) -> None:
    runs = [-0.1, 0.2, worst]

    whole, cut = summarised(runs), summarised(min(LOST, each) for each in runs)

    assert whole == cut


def test_the_page_of_the_job_compares_optimizers_as_the_rows_do() -> None:
    found = beside_each_other(read(OPTIMIZER_ROWS), 1000)
    shares = (found[kind] for kind in ("schedulefree_sgd", "sgd", "adamw", "muon"))
    row = " | ".join(f"{100 * share:+.0f} %" for share in shares)

    assert f"| one worker, 47 tasks, 1,000 steps | {row} |" in PAGE.read_text()
