"""Every kind of bad file: one message of one class, with file and row."""

import bz2
import gzip
import io
import os
import re
import zlib
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from load.errors import InvalidTrace, TraceError, UnreadableTrace
from tests.load.rows import named, write
from tests.research.traces.test_formats import SAMPLES

LLM = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,1,1\n"
OWN = "at_s,model,input_size,deadline_s\n0,m,1,\n"
MINUTES = "minute,model,count\n1,m,1\n"
WIDE = "HashOwner,HashApp,HashFunction,Trigger,1,2\no,a,f,http,1,2\n"


@pytest.mark.parametrize(
    ("text", "row", "problem"),
    [
        pytest.param(
            OWN + "-1,m,1,\n",
            3,
            "at_s must be a number of at least 0, was '-1'",
            id="negative time",
        ),
        pytest.param(
            OWN + "nan,m,1,\n", 3, "at_s must be a number of at least 0, was 'nan'", id="NaN"
        ),
        pytest.param(OWN + "inf,m,1,\n", 3, "at_s must be a number", id="infinite"),
        pytest.param(
            OWN + ",m,1,\n", 3, "at_s must be a number of at least 0, was ''", id="no time"
        ),
        pytest.param(OWN + "1,m,1,\nx,m,1,\n", 4, "at_s must be a number", id="text"),
        pytest.param(OWN + "1,,1,\n", 3, "model must be a name, was ''", id="no model"),
        pytest.param(OWN + "1,m,1.5,\n", 3, "input_size must be a whole number", id="half an item"),
        pytest.param(OWN + "1,m,1e300,\n", 3, "input_size must be a whole number", id="too large"),
        pytest.param(OWN + "1,m,1,0\n", 3, "deadline_s must be more than 0", id="no time left"),
        pytest.param(
            OWN + "1,m\n", 3, "has 2 of 4 columns: '1,m'; is the file cut off?", id="cut off"
        ),
        pytest.param(
            OWN + "1,a/b,1,\n", 3, "model must be a name without '/', was 'a/b'", id="slash"
        ),
        pytest.param(
            LLM + "yesterday,1,1\n", 3, "TIMESTAMP must be a time such as", id="no time of day"
        ),
        pytest.param(LLM + ",1,1\n", 3, "TIMESTAMP must be a time such as", id="empty time of day"),
        pytest.param(
            LLM + "2023-11-16 18:17:04,-2,1\n",
            3,
            "ContextTokens must be a number of at least 0, was '-2'",
            id="negative tokens",
        ),
        pytest.param(
            MINUTES + "2,m,-1\n", 3, "count must be a number of at least 0", id="negative count"
        ),
        pytest.param(MINUTES + "2,m,0.5\n", 3, "count must be a whole number", id="half a call"),
        pytest.param(
            MINUTES + "2,m,9000000000\n",
            3,
            "count must be a whole number from 0 to 5000000",
            id="too many calls",
        ),
        pytest.param(
            WIDE + "o,a,g,http,1,-2\n", 3, "2 must be a number of at least 0, was '-2'", id="wide"
        ),
        pytest.param(
            "day,time,0\n0,0,1\n0,61,1\n", 3, "time must be a multiple of 60 s", id="seconds"
        ),
    ],
)
def test_a_bad_cell_is_reported_with_file_and_row(
    tmp_path: Path, text: str, row: int, problem: str
) -> None:
    path = write(tmp_path / "t.csv", text)
    with pytest.raises(InvalidTrace, match=re.escape(f"{path}, row {row}: {problem}")) as caught:
        named(str(path))
    assert (caught.value.file, caught.value.row) == (str(path), row)
    assert "\n" not in str(caught.value)


def test_a_short_row_far_down_is_reported_with_its_row(tmp_path: Path) -> None:
    lines = "".join(f"{index},m,1,{'9' * 100}\n" for index in range(1, 60_000))
    path = write(tmp_path / "t.csv", OWN + lines + "60001,m")
    with pytest.raises(InvalidTrace, match="row 60002: has 2 of 4 columns"):
        named(str(path))


def test_a_bad_cell_far_down_is_reported_with_its_row(tmp_path: Path) -> None:
    lines = "".join(f"{index},m,1,{'9' * 100}\n" for index in range(1, 60_000))
    path = write(tmp_path / "t.csv", OWN + lines + "60001,m,x,\n")
    with pytest.raises(InvalidTrace, match="row 60002: input_size"):
        named(str(path))


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(OWN + "100,m,1,\n50,m,1,\n", id="requests"),
        pytest.param(MINUTES + "7,m,1\n3,m,1\n", id="long counts"),
        pytest.param("minute,R1\n1,1\n7,1\n3,1\n", id="wide counts"),
    ],
)
def test_unsorted_beyond_the_window_is_refused(tmp_path: Path, text: str) -> None:
    path = write(tmp_path / "t.csv", text)
    with pytest.raises(InvalidTrace, match=re.escape(f"{path}, row 4: ")):
        named(str(path))


def test_a_larger_window_sorts_it(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", OWN + "100,m,1,\n50,m,1,\n")
    assert [row["at_s"] for row in named(f"{path},window=1m")] == [0.0, 50.0, 100.0]


def test_missing_columns_of_a_named_format(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", SAMPLES["huawei"])
    expected = (
        f"azure-llm needs the columns .*; {path} has 'minute', 'R1', 'R2'; it looks like huawei"
    )
    with pytest.raises(TraceError, match=expected):
        named(f"azure-llm:{path}")


def test_columns_of_no_format(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "a,b\n1,2\n")
    with pytest.raises(TraceError, match="has the columns 'a', 'b', of no known format"):
        named(str(path))


def test_a_duplicate_column(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "at_s,model,at_s\n1,2,3\n")
    with pytest.raises(TraceError, match="has the column 'at_s' twice"):
        named(str(path))


def _gzip(text: str) -> bytes:
    return gzip.compress(text.encode())


def _parquet() -> bytes:
    buffer = io.BytesIO()
    parquet.write_table(pa.table({"at_s": [1.0, 2.0], "model": ["a", "b"]}), buffer)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        pytest.param(b"", "is empty", id="empty"),
        pytest.param(_gzip(""), "an empty first line", id="empty gzip"),
        pytest.param(OWN.partition("\n")[0].encode(), "a header and no rows", id="header"),
        pytest.param(
            _gzip(OWN.partition("\n")[0] + "\n\n"), "a header and no rows", id="gzip header"
        ),
        pytest.param(bz2.compress(OWN.encode()), "is neither UTF-8 text", id="bzip2"),
        pytest.param(b"PAR1" + bytes(100), "is not whole Parquet", id="no Parquet"),
        pytest.param(_parquet()[:-20], "is not whole Parquet", id="cut Parquet"),
        pytest.param(b"a\rb\0,c\n1,2\n", "t.csv.gz", id="odd header"),
        pytest.param(b"\xff\xfe\x00\x81" * 50, "is neither UTF-8 text", id="binary"),
        pytest.param(OWN.encode() + b"1,\xff\xfe,1,\n", "t.csv.gz", id="binary in a row"),
    ],
)
def test_a_file_that_cannot_be_read(tmp_path: Path, content: bytes, problem: str) -> None:
    path = tmp_path / "t.csv.gz"
    path.write_bytes(content)
    with pytest.raises(TraceError, match=problem) as caught:
        named(str(path))
    assert isinstance(caught.value, UnreadableTrace)
    assert str(path) in str(caught.value)


_OWN_ROWS = "".join(f"{index},m{index * 7919 % 1009},1,\n" for index in range(150_000))


def _damaged(gzipped: bytes) -> bytes:
    """Blocks of the reserved type after the first half, by a flush of the compressor there."""
    packer = zlib.compressobj(wbits=31)
    middle = len(gzipped) // 2
    return packer.compress(gzipped[:middle]) + packer.flush(zlib.Z_FULL_FLUSH) + b"\xff" * 100


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        pytest.param(_gzip(OWN)[:-8] + bytes(8), "damaged", id="checksum"),
        pytest.param(_gzip(OWN) + b"more", "damaged", id="more bytes"),
        pytest.param(_gzip(OWN)[:10] + b"\xff" * 100, "damaged", id="at once"),
        pytest.param(_damaged((OWN + _OWN_ROWS).encode()), "damaged", id="far down"),
        pytest.param(b"\x1f\x8b" + OWN.encode(), "damaged", id="no gzip"),
        pytest.param(_gzip(OWN)[:-4], "incomplete", id="end is missing"),
        pytest.param(_gzip(OWN)[:12], "incomplete", id="rows are missing"),
        pytest.param(_gzip(OWN + _OWN_ROWS)[:9_000], "incomplete", id="most rows are missing"),
    ],
)
def test_bad_gzip_data_are_reported(tmp_path: Path, content: bytes, problem: str) -> None:
    path = tmp_path / "t.csv.gz"
    path.write_bytes(content)
    expected = f"{re.escape(str(path))}: {problem} gzip data.*; fetch"
    with pytest.raises(UnreadableTrace, match=expected) as caught:
        named(str(path))
    assert "\n" not in str(caught.value)


def test_compression_is_detected_by_content(tmp_path: Path) -> None:
    packed, plain = tmp_path / "packed.csv", tmp_path / "plain.csv.gz"
    packed.write_bytes(_gzip(OWN))
    plain.write_text(OWN)
    assert named(str(packed)) == named(str(plain))


def _parquet_of(folder: Path, **columns: object) -> str:
    parquet.write_table(pa.table(columns), folder / "t.parquet")
    return str(folder / "t.parquet")


def test_parquet_without_rows(tmp_path: Path) -> None:
    path = _parquet_of(tmp_path, at_s=pa.array([], pa.float64()), model=[])
    with pytest.raises(UnreadableTrace, match="has columns and no rows"):
        named(path)


def test_parquet_with_a_null_time(tmp_path: Path) -> None:
    path = _parquet_of(tmp_path, at_s=[0.0, None], model=["a", "b"])
    with pytest.raises(InvalidTrace, match="row 2: at_s must be a number of at least 0, was None"):
        named(path)


def test_parquet_with_a_time_beyond_what_python_can_represent(tmp_path: Path) -> None:
    time = pa.array([10**12], pa.timestamp("s"))
    path = _parquet_of(tmp_path, TIMESTAMP=time, ContextTokens=[1], GeneratedTokens=[1])
    with pytest.raises(InvalidTrace, match="row 1: TIMESTAMP must be a time such as"):
        named(path)


@pytest.mark.parametrize(
    ("at_s", "model"),
    [
        pytest.param([[1.0], [2.0]], ["a", "b"], id="list"),
        pytest.param([1.0, 2.0], [["a"], ["b"]], id="list of names"),
        pytest.param([1.0, 2.0], [b"a", b"\xff"], id="bytes"),
        pytest.param([{"x": 1}, {"x": 2}], ["a", "b"], id="struct"),
    ],
)
def test_parquet_of_other_types(tmp_path: Path, at_s: object, model: object) -> None:
    path = _parquet_of(tmp_path, at_s=at_s, model=model)
    with pytest.raises(InvalidTrace, match=r"row 1: (at_s|model) must be text or numbers"):
        named(path)


def test_a_folder(tmp_path: Path) -> None:
    with pytest.raises(UnreadableTrace, match="is a folder; name a file in it"):
        named(f"azure-llm:{tmp_path}")


@pytest.mark.parametrize("path", ["a\0b.csv", "\0a/b*"])
def test_a_path_with_a_nul_character(path: str) -> None:
    with pytest.raises(UnreadableTrace, match="is not a path"):
        named(path)


@pytest.mark.parametrize("path", ["a" * 5000, "a*" * 3000])
def test_a_path_that_is_too_long(path: str) -> None:
    with pytest.raises(TraceError, match="cannot be"):
        named(path)


@pytest.mark.parametrize("name", ["none.csv", "none*.csv"])
def test_no_such_file(tmp_path: Path, name: str) -> None:
    with pytest.raises(TraceError, match="no file"):
        named(f"{tmp_path}/{name}")


def test_one_of_several_files_is_of_another_format(tmp_path: Path) -> None:
    write(tmp_path / "1.csv", OWN)
    write(tmp_path / "2.csv", LLM)
    with pytest.raises(TraceError, match=r"2\.csv has 'TIMESTAMP'"):
        named(f"{tmp_path}/*.csv")


def test_a_pipe_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UnreadableTrace, match="is a pipe or device"):
        named(f"azure-llm:{tmp_path}/pipe")
