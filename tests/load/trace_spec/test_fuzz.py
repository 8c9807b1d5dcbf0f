"""Every input gives a trace or a TraceError."""

import contextlib
import gzip
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from load.errors import TraceError
from load.trace_spec import open_trace
from tests.load.rows import rows
from tests.research.traces.test_formats import SAMPLES

_WORDS = st.sampled_from(
    [
        "poisson",
        "gamma",
        "spike",
        "azure-llm",
        "file",
        ":",
        "|",
        " + ",
        "(",
        ")",
        ",",
        "=",
        "'",
        '"',
        "rate",
        "rps",
        "map",
        "slice",
        "deadline",
        "latency",
        "duration",
        "cv",
        "1",
        "-1",
        "2s",
        "1e999",
        "nan",
        "a/b",
        "5:3",
        "*",
        "~",
        "\0",
        "\n",
        "é",
        ".",
        "[",
        "limit",
        "only",
    ]
)
_CELLS = st.sampled_from(
    [
        "0",
        "1",
        "-1",
        "1.5",
        "nan",
        "inf",
        "1e400",
        "",
        " ",
        "x",
        '"',
        '"a,b"',
        "é",
        "1_0",
        "0x1",
        "2024-05-10 00:00:00",
        "2024-13-41",
        "9999-12-31 23:59:59",
        "1500-01-01 00:00:00",
        "null",
    ]
)
_files = settings(
    max_examples=20,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@given(st.lists(_WORDS, max_size=14).map("".join))
def test_any_specification_is_opened_or_refused(text: str) -> None:
    with contextlib.suppress(TraceError):
        open_trace(text, seed=0)


@_files
@given(content=st.binary(max_size=200), packed=st.booleans())
def test_any_bytes_are_read_or_refused(tmp_path: Path, content: bytes, packed: bool) -> None:
    path = tmp_path / "t"
    path.write_bytes(gzip.compress(content) if packed else content)
    with contextlib.suppress(TraceError):
        rows(open_trace(str(path), seed=0))


@pytest.mark.parametrize("name", SAMPLES)
@_files
@given(data=st.data())
def test_any_cells_are_read_or_refused(tmp_path: Path, name: str, data: st.DataObject) -> None:
    header = SAMPLES[name].partition("\n")[0]
    width = header.count(",") + 1
    cells = data.draw(st.lists(st.lists(_CELLS, min_size=width, max_size=width), max_size=4))
    text = SAMPLES[name] + "".join(",".join(row) + "\n" for row in cells)
    path = tmp_path / "t.csv"
    path.write_text(text)
    with contextlib.suppress(TraceError):
        rows(open_trace(str(path), seed=0))


@pytest.mark.parametrize("name", SAMPLES)
def test_a_file_cut_anywhere_is_read_or_refused(tmp_path: Path, name: str) -> None:
    packed = gzip.compress(SAMPLES[name].encode())
    path = tmp_path / "t.csv.gz"
    for length in range(0, len(packed), 5):
        path.write_bytes(packed[:length])
        with pytest.raises(TraceError, match=r"t\.csv\.gz"):
            rows(open_trace(f"{name}:{path}", seed=0))
