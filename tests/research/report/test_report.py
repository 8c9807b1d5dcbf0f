"""`pilotlight report`: its files, and its errors for files that are no runs."""

import re
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from load.generator.records import METADATA_KEY
from tests.load.report.runs import write_run
from tests.pilotlight.conftest import Cli, cli

pytestmark = pytest.mark.slow

__all__ = ["cli"]


def _plain(folder: Path) -> Path:
    """A run with few plots."""
    return write_run(folder / "run.parquet", 5, is_plain=True, deadline_s=None)


def test_page_has_no_outside_resources(cli: Cli, tmp_path: Path) -> None:
    auto = write_run(tmp_path / "auto.parquet", 400, metadata={"wasted_memory_byte_s": 5e9})
    odd = write_run(
        tmp_path / "odd.parquet", 300, models=40, model=["<i>$x$\u4e2d\u6587" + "y" * 60] * 300
    )
    ran = cli("report", str(auto), f"<b>$odd$&={odd}", "-o", str(tmp_path / "out"), "--json")
    assert ran.status == 0, ran.err
    assert ran.document["left_out"] == {}
    assert len(ran.document["images"]) == 7
    page = (tmp_path / "out" / "index.html").read_text()
    sources = re.findall(r'(?:src|href)="([^"]*)"', page)
    assert sources
    assert all(source.startswith(("data:image/png;base64,", "#")) for source in sources)
    assert not re.search(r"<(link|script|iframe)|@import|url\(", page)
    assert "<i>$x" not in page
    assert "&lt;b&gt;$odd$&amp;" in page
    for path in (tmp_path / "out").glob("*.png"):
        assert path.read_bytes().startswith(b"\x89PNG")


def test_run_of_one_request_from_a_plain_predictor(cli: Cli, tmp_path: Path) -> None:
    path = write_run(
        tmp_path / "one.parquet", 1, is_plain=True, deadline_s=None, metadata={"interrupted": True}
    )
    ran = cli("report", str(path), "-o", str(tmp_path / "out"), "--json")
    assert ran.status == 0, ran.err
    assert set(ran.document["left_out"]) == {
        "Deadline misses",
        "Cold starts by tier",
        "Where the time goes",
        "Goodput against offered load",
        "Wasted memory against cold starts",
    }
    assert "one was interrupted" in ran.err
    assert "one was interrupted" in (tmp_path / "out" / "index.html").read_text()


def test_run_without_responses(cli: Cli, tmp_path: Path) -> None:
    none = [None] * 5
    path = write_run(
        tmp_path / "none.parquet",
        5,
        is_plain=True,
        status=[0] * 5,
        error=["no"] * 5,
        sent_s=none,
        first_byte_s=none,
        finished_s=none,
    )
    ran = cli("report", str(path), "-o", str(tmp_path / "out"), "--json")
    assert ran.status == 0, ran.err
    assert ran.document["runs"][0]["goodput_rps"] == 0
    assert ran.document["left_out"]["Completion times"] == "no request was answered"


def _broken_files(folder: Path) -> dict[str, Path]:
    """Files that are not runs, by defect."""
    good = write_run(folder / "good.parquet", 50)
    table = parquet.read_table(good)
    found = {
        name: folder / f"{name}.parquet"
        for name in (
            "missing",
            "other",
            "text",
            "nothing",
            "rowless",
            "truncated",
            "middle",
            "nulls",
            "mistyped",
            "endless",
            "early",
            "folder",
        )
    }
    parquet.write_table(pa.table({"name": ["x"], "price": [1.5]}), found["other"])
    found["folder"].mkdir()
    parquet.write_table(table.drop_columns(["status", "infer_ms"]), found["missing"])
    found["text"].write_text("a,b\n1,2\n")
    found["nothing"].write_bytes(b"")
    parquet.write_table(table.slice(0, 0), found["rowless"])
    found["truncated"].write_bytes(good.read_bytes()[:-100])
    whole = bytearray(good.read_bytes())
    whole[4:2000] = b"?" * 1996
    found["middle"].write_bytes(whole)
    write_run(found["endless"], 3, finished_s=[0.1, float("inf"), 0.3])
    write_run(found["early"], 3, scheduled_s=[-7.0, 0.1, 0.2])
    at = table.schema.names.index("scheduled_s")
    parquet.write_table(
        table.set_column(at, "scheduled_s", pa.nulls(50, pa.float64())), found["nulls"]
    )
    parquet.write_table(
        table.set_column(at, "scheduled_s", pa.array(["soon"] * 50)), found["mistyped"]
    )
    return found


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("missing", "columns missing: status, infer_ms"),
        ("other", "columns missing: tenant, model"),
        ("folder", "is a folder"),
        ("middle", "not a complete Parquet file"),
        ("endless", "finished_s must be finite, was inf in row 1"),
        ("early", "scheduled_s must be finite and not negative, was -7.0 in row 0"),
        ("text", "not a complete Parquet file"),
        ("nothing", "not a complete Parquet file"),
        ("rowless", "has no requests"),
        ("truncated", "not a complete Parquet file"),
        ("nulls", "empty cells in scheduled_s"),
        ("mistyped", "soon"),
    ],
)
def test_file_that_is_not_a_run_is_one_error_line(
    cli: Cli, tmp_path: Path, kind: str, said: str
) -> None:
    path = _broken_files(tmp_path)[kind]
    ran = cli("report", str(path), "-o", str(tmp_path / "out"))
    assert ran.status == 2
    [line] = ran.err.splitlines()
    assert str(path) in line
    assert said in line
    assert not (tmp_path / "out").exists()


def test_all_errors_in_files_are_reported_together(cli: Cli, tmp_path: Path) -> None:
    broken = _broken_files(tmp_path)
    ran = cli("report", str(broken["text"]), "absent.parquet", str(broken["rowless"]))
    assert ran.status == 2
    assert [line.split(":")[1].strip() for line in ran.err.splitlines()] == [
        str(broken["text"]),
        "absent.parquet",
        str(broken["rowless"]),
    ]


def test_two_runs_with_one_name_are_refused(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    first = write_run(tmp_path / "run.parquet", 20)
    second = write_run(tmp_path / "other" / "run.parquet", 20)
    ran = cli("report", str(first), str(second))
    assert ran.status == 2
    assert f"2 runs have the name 'run': {first}, {second}" in ran.err
    assert "NAME=FILE" in ran.err


def test_parts_that_are_not_of_a_run_are_refused(cli: Cli, tmp_path: Path) -> None:
    parts = tmp_path / "run.parquet.parts"
    parts.mkdir()
    table = pa.table({"name": ["x"]})
    with pa.ipc.new_stream(parts / "worker-0.arrows", table.schema) as stream:
        stream.write_table(table)
    ran = cli("report", str(tmp_path / "run.parquet"))
    assert ran.status == 2
    assert f"{parts}: not the parts of a run" in ran.err


def test_name_may_be_longer_than_a_file_name_or_have_bytes_that_are_not_text(
    cli: Cli, tmp_path: Path
) -> None:
    path = _plain(tmp_path)
    names = ("long" * 100, "a\udcff")
    ran = cli(
        "report", *(f"{name}={path}" for name in names), "-o", str(tmp_path / "out"), "--json"
    )
    assert ran.status == 0, ran.err
    assert [run["run"] for run in ran.document["runs"]] == ["long" * 100, "a?"]
    assert "cannot be read: File name too long" in cli("report", "long" * 100).err


@pytest.mark.parametrize("given", ["", "name=", "/", "name=."])
def test_run_without_a_file_is_refused(cli: Cli, given: str) -> None:
    ran = cli("report", given)
    assert ran.status == 2
    assert "is a folder; name the Parquet file in it" in ran.err


def test_invalid_metadata_are_ignored(cli: Cli, tmp_path: Path) -> None:
    table = parquet.read_table(_plain(tmp_path))
    paths = []
    for number, metadata in enumerate((b"[" * 200_000, b"[1]", b"\xff", b"")):
        paths.append(tmp_path / f"{number}.parquet")
        parquet.write_table(table.replace_schema_metadata({METADATA_KEY: metadata}), paths[-1])
    ran = cli("report", *map(str, paths), "-o", str(tmp_path / "out"), "--json")
    assert ran.status == 0, ran.err
    assert [run["run"] for run in ran.document["runs"]] == ["0", "1", "2", "3"]


def test_values_from_a_file_are_escaped_on_the_page(cli: Cli, tmp_path: Path) -> None:
    evil = "</p><script>alert(1)</script>"
    path = write_run(
        tmp_path / "run.parquet",
        20,
        policy=evil,
        model=[evil] * 20,
        tenant=[evil] * 20,
        predict_pod=[evil] * 20,
        start=[evil] * 20,
        metadata={"kind": evil},
    )
    ran = cli("report", f"{evil}={path}", "-o", str(tmp_path / "out"))
    assert ran.status == 0, ran.err
    page = (tmp_path / "out" / "index.html").read_text()
    assert "<script" not in page
    assert page.count("&lt;script&gt;") >= 4


def test_page_in_a_new_folder_shows_causes_of_failed_requests(cli: Cli, tmp_path: Path) -> None:
    path = write_run(
        tmp_path / "run.parquet",
        6,
        status=[200, 200, 404, 404, 504, 0],
        error=[None, "cut off", "x", "x", "x", "x"],
    )
    ran = cli("report", str(path), "-o", str(tmp_path / "a" / "b"))
    assert ran.status == 0, ran.err
    page = (tmp_path / "a" / "b" / "index.html").read_text()
    assert "<li>run: 1 no response, 2 HTTP 404, 1 HTTP 504, 1 incomplete</li>" in page


def test_more_than_eight_runs_are_refused(cli: Cli, tmp_path: Path) -> None:
    path = write_run(tmp_path / "run.parquet", 5)
    ran = cli("report", *(f"r{number}={path}" for number in range(9)))
    assert ran.status == 2
    assert "1 to 8 runs, got 9" in ran.err


@pytest.mark.parametrize("below", ["", "below"])
def test_output_that_cannot_be_a_folder_is_refused(cli: Cli, tmp_path: Path, below: str) -> None:
    path = write_run(tmp_path / "run.parquet", 5)
    before = path.read_bytes()
    ran = cli("report", str(path), "-o", str(path / below))
    assert ran.status == 2
    [line] = ran.err.splitlines()
    assert f"--output must be a folder, or a name for a new one, was {path / below}" in line
    assert path.read_bytes() == before


def test_output_that_cannot_be_written_is_an_error(cli: Cli, tmp_path: Path) -> None:
    path = _plain(tmp_path)
    (tmp_path / "out" / "index.html").mkdir(parents=True)
    ran = cli("report", str(path), "-o", str(tmp_path / "out"))
    assert ran.status == 1
    assert "--output: cannot write" in ran.err


def test_page_shows_which_loading_time_it_has(cli: Cli, tmp_path: Path) -> None:
    told = write_run(tmp_path / "told.parquet", 20, metadata={"all_loading_s": 12.0})
    live = write_run(tmp_path / "live.parquet", 20, start=["remote"] * 20, load_ms=[500.0] * 20)
    ran = cli("report", str(told), str(live), "-o", str(tmp_path / "out"), "--json")
    assert [run["all_loading_s"] for run in ran.document["runs"]] == [12.0, None]
    page = (tmp_path / "out" / "index.html").read_text()
    assert "<td>12 s</td>" in page
    assert re.search(r"<td>≥ [0-9.]+ s</td>", page)
