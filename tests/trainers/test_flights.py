"""The table of flights: the held-out days, the known ids, and refusals of other files."""

import itertools
import zipfile
from pathlib import Path

import numpy as np
import pyarrow
import pytest

from trainers.spec.workloads import FlightsEmbedding
from trainers.traffic.shapes import FLIGHT_IDS
from trainers.workload import WorkloadError
from trainers.workloads import flights, registry


def _ids(tails: list[str | None], is_training: list[bool]) -> list[int]:
    same = {name: ["1"] * len(tails) for name in FLIGHT_IDS if name != "tailnum"}
    table = pyarrow.table(same | {"tailnum": pyarrow.array(tails, pyarrow.string())})
    column = list(FLIGHT_IDS).index("tailnum")
    return flights.identify(table, np.array(is_training))[:, column].tolist()


def test_whole_days_are_held_out_and_flights_that_never_arrived_are_left_out(small_data: Path):
    workload = registry.build(FlightsEmbedding())

    # 200 flights over days 1 to 28, 8 of them on each of the first four days and 7 on each other one
    assert (len(workload.validation), len(workload.training)) == (5 * 7, 200 - 5 * 7)


def test_aircraft_that_no_training_flight_has_share_the_first_row():
    seen, seen_again, other, unnamed, unseen = _ids(["N1", "N1", "N2", None, "N3"], [True, True, True, True, False])

    assert seen == seen_again and other == seen + 1
    assert unnamed == unseen == seen - 1


def test_ids_of_different_columns_never_share_a_row(small_data: Path):
    ids, *_ = registry.build(FlightsEmbedding()).training.tensors

    starts = np.cumsum([0, *FLIGHT_IDS.values()])
    for column, (start, end) in enumerate(itertools.pairwise(starts)):
        assert start <= ids[:, column].min() and ids[:, column].max() < end


def test_more_ids_than_declared_are_refused():
    tails: list[str | None] = [f"N{index}" for index in range(FLIGHT_IDS["tailnum"])]

    with pytest.raises(WorkloadError, match="3986 values of `tailnum` at most, got 3987"):
        _ids(tails, [True] * len(tails))


def test_weather_that_nobody_measured_counts_as_the_mean(small_data: Path):
    _, numbers, _ = registry.build(FlightsEmbedding()).training.tensors

    temperature = numbers[:, 1]
    assert (temperature == 0).any() and temperature.isfinite().all()
    assert temperature[temperature != 0].std() == pytest.approx(1, rel=0.01)


@pytest.mark.parametrize("content", [b"PK", b"", None])
def test_a_file_that_is_no_archive_of_flights_is_refused_with_its_name(content: bytes | None, tmp_path: Path):
    path = tmp_path / "flights.csv.zip"
    if content is None:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("pebbles.csv", "a,b\n")
    else:
        path.write_bytes(content)

    with pytest.raises(WorkloadError, match=f"{path} holds no flights"):
        flights.read_flights(path)


@pytest.mark.parametrize("content", ["", "origin,temp\nEWR,1\n", "origin,time_hour\n"])
def test_another_table_of_weather_is_refused_with_its_name(content: str, tmp_path: Path):
    path = tmp_path / "weather.csv"
    path.write_text(content)

    with pytest.raises(WorkloadError, match=f"{path} holds no weather"):
        flights.read_weather(path)
