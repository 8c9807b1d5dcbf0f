"""What is said to come from the trace is what the trace says."""

import csv
import gzip
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import pytest

from research.simulated_workflows import constants


def test_figures_of_base_models_are_the_traces(data: Callable[[str], Path]) -> None:
    with gzip.open(data("gentd26_requests.csv.gz"), "rt") as lines:
        rows = [row for row in csv.DictReader(lines) if row["predict_status"] == "SUCCEED"]
    by_base: dict[str, list[dict[str, str]]] = defaultdict(list)
    for row in rows:
        name = row["checkpoint_model_version_id"]
        by_base[name].append(row)
    found = {name: _figures(each) for name, each in by_base.items() if len(each) >= 100}
    assert found == constants.BASES
    rare = [row for name, each in by_base.items() if name not in found for row in each]
    assert _figures(rare) == constants.OTHER_BASES
    numbers = Counter(int(row["num_lora"]) for row in rows)
    assert {number: numbers[number] for number in sorted(numbers) if number} == (
        constants.LORAS_OF_REQUEST
    )
    one, eight = (
        median(float(row["exec_time_seconds"]) for row in rows if row[_IMAGES] == images)
        for images in ("1.0", "8.0")
    )
    assert (eight / one - 1) / 7 == pytest.approx(constants.FURTHER_IMAGE, abs=0.005)


_IMAGES = "num_images_per_prompt"


def _figures(rows: Sequence[dict[str, str]]) -> constants.BaseFigures:
    seconds = median(float(row["exec_time_seconds"]) for row in rows)
    share = sum(row["num_lora"] != "0" for row in rows) / len(rows)
    return constants.BaseFigures(len(rows), seconds, round(share, 3))


@pytest.mark.parametrize(
    ("kind", "seconds"), [("base_model", constants.BASE_LOADS_S), ("lora", constants.LORA_LOADS_S)]
)
def test_load_times_are_measured_quantiles(
    data: Callable[[str], Path], kind: str, seconds: Sequence[float]
) -> None:
    with gzip.open(data(f"gentd26_load_latency_{kind}.csv.gz"), "rt") as lines:
        measured = sorted(float(row["latency_ms"]) / 1e3 for row in csv.DictReader(lines))
    parts = len(seconds)
    quantiles = [measured[int(len(measured) * (at + 0.5) / parts)] for at in range(parts)]
    assert [round(each, 1) for each in quantiles] == list(seconds)


def test_base_models_are_all_of_the_traces_minutes(data: Callable[[str], Path]) -> None:
    with gzip.open(data("gentd26_per_minute.csv.gz"), "rt") as lines:
        names = {row["model"] for row in csv.DictReader(lines)}
    assert names == set(constants.BASE_NAMES)
