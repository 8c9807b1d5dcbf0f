"""Public traces: simulated if their files exist, else named in the notes."""

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest

from registry.domain.model import RoutingPolicy
from research.experiments.harness.experiment import ExperimentError, Settings
from research.experiments.real_traces import traces
from research.experiments.real_traces.traces import column_quantile


def test_without_data_every_trace_is_named_in_the_notes() -> None:
    result = traces.run(Settings(is_quick=True))
    assert result.tables == ()
    for case in traces.CASES:
        assert any(note.startswith(f"{case.name} is left out") for note in result.notes)


def test_every_policy_runs_on_the_start_of_every_trace(data: Callable[[str], Path]) -> None:
    folder = data("gentd26_per_minute.csv.gz").parent
    result = traces.run(Settings(is_quick=True, data=folder))
    assert len(result.tables) == len(traces.CASES)
    for table in result.tables:
        assert [row[0] for row in table.rows] == list(RoutingPolicy)
        assert {row[1] for row in table.rows} == {traces.QUICK_REQUESTS}


def test_a_quantile_of_a_column(tmp_path: Path) -> None:
    path = tmp_path / "times.csv.gz"
    path.write_bytes(gzip.compress(b"ms\n3\n1\n\n2\n"))
    assert column_quantile(path, "ms", 0.5) == 2.0


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(gzip.compress(b"other\n1\n"), id="another column"),
        pytest.param(gzip.compress(b"ms\nx\n"), id="no number"),
        pytest.param(b"no gzip", id="no gzip"),
        pytest.param(b"", id="empty"),
    ],
)
def test_a_file_without_the_column_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "times.csv.gz"
    path.write_bytes(content)
    with pytest.raises(ExperimentError, match=r"times\.csv\.gz"):
        column_quantile(path, "ms", 0.5)
