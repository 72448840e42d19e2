"""The predictor on recorded rows: each place is predicted from the others; and the packaged file."""

import json
from pathlib import Path

import pytest
from races import evidence
from races.book import Book

from service.prediction.evidence import recorded

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def rows():
    return [Book(BENCHMARKS / name).rows for name in ("links.jsonl", "methods.jsonl")]


@pytest.fixture(scope="module")
def steps(rows):
    return [each for found in rows for each in evidence.timed(evidence.races_of(found), evidence.median_step)]


def test_the_packages_file_is_what_the_rows_say(rows, steps):
    known = json.loads(recorded().model_dump_json())
    own = evidence.fit(steps)

    assert known["lessons"] == [each.model_dump(mode="json") for each in evidence.lessons(*rows)]
    assert known["own"].keys() == own.keys()
    for key, cost in own.items():
        assert cost.seconds(10**6, 6) == pytest.approx(recorded().own[key].seconds(10**6, 6), rel=0.02), key


def test_of_the_ten_places_that_were_checked_seven_are_not_in_the_fit(steps):
    rows = Book(BENCHMARKS / "predict.jsonl").rows
    checked = {each.place for each in evidence.timed(evidence.races_of(rows), evidence.fastest_step)}
    known = {each.place for each in steps}

    assert (len(checked - known), len(checked & known)) == (7, 3)


@pytest.mark.long
def test_places_without_rows_are_predicted_within_the_goals(steps):
    pairs = evidence.left_out(steps)
    errors, (total, right) = evidence.errors(pairs), evidence.ranked(pairs)

    assert errors[len(errors) // 2] <= 0.15
    assert right >= 0.9 * total
    assert errors[int(0.8 * len(errors))] == pytest.approx(recorded().usual_error, rel=0.05)
