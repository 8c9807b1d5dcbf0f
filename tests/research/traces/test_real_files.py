"""The public files in `PILOTLIGHT_DATA` have the totals that their publications state."""

from collections.abc import Callable
from pathlib import Path

import pytest

from load.trace_spec import open_trace
from load.traces.batches import summarise

Data = Callable[[str], Path]

MINUTE_S = 60.0


@pytest.mark.parametrize(
    ("file", "arrivals", "minutes", "models"),
    [
        ("azure_llm_2023_code.csv.gz", 8_819, 57, 1),
        ("azure_llm_2023_conv.csv.gz", 19_366, 58, 1),
        ("azure_functions_2021_excerpt.csv", 199, 21, 31),
        ("gentd26_requests.csv.gz", 26_823, 23 * 1440, 87),
        ("gentd26_per_minute.csv.gz", 26_823, 24 * 1440, 87),
    ],
)
def test_a_file_has_its_published_arrivals(
    data: Data, file: str, arrivals: int, minutes: int, models: int
) -> None:
    found = summarise(open_trace(str(data(file)), seed=1))
    assert found.arrivals == arrivals
    assert len(found.models) == models
    assert found.last_s == pytest.approx(minutes * MINUTE_S, rel=0.05)


@pytest.mark.parametrize("file", ["gentd26_requests.csv.gz", "gentd26_per_minute.csv.gz"])
def test_gentd26_counts_agree_with_requests(data: Data, file: str) -> None:
    models = summarise(open_trace(str(data(file)), seed=1)).models
    assert max(models.values()) == 8_234
    assert models["default/unknown"] == 25


def test_gentd26_arrivals_stay_in_their_minutes(data: Data) -> None:
    text = str(data("gentd26_per_minute.csv.gz"))
    uniform = summarise(open_trace(text, seed=1))
    bursty = summarise(open_trace(f"{text},within=gamma,cv=4", seed=2))
    assert bursty.models == uniform.models
    assert bursty.last_s // MINUTE_S == uniform.last_s // MINUTE_S == 34_173


@pytest.mark.slow
def test_huawei_has_every_cold_start(data: Data) -> None:
    found = summarise(open_trace(str(data("huawei_cold_starts_per_minute.csv.gz")), seed=1))
    assert found.arrivals == 11_910_286
    assert found.last_s // MINUTE_S == 44_639


def test_an_hour_of_huawei_can_be_sliced(data: Data) -> None:
    text = f"{data('huawei_cold_starts_per_minute.csv.gz')}|slice=24h:25h"
    found = summarise(open_trace(text, seed=1))
    assert found.last_s < 3600.0
    assert set(found.models) == {f"default/R{region}" for region in range(1, 6)}


def test_both_azure_services_can_be_mixed(data: Data) -> None:
    code, conv = data("azure_llm_2023_code.csv.gz"), data("azure_llm_2023_conv.csv.gz")
    found = summarise(
        open_trace(f"azure-llm:{code},model=code + azure-llm:{conv},model=conv", seed=1)
    )
    assert found.models == {"default/code": 8_819, "default/conv": 19_366}
