"""Which files a run may write: existing ones are replaced only with `--overwrite`."""

import os
from pathlib import Path

import pytest

from load.errors import GeneratorError
from load.generator.records import claimed_output
from tests.load.generator.conftest import LoadRun, WriteTrace
from tests.load.generator.odd_server import odd_server


def test_an_existing_output_is_not_replaced(load_run: LoadRun, write_trace: WriteTrace) -> None:
    load_run.output.write_text("mine")
    with odd_server() as server:
        ran = load_run(write_trace(["m"], count=1, gap_s=1.0), server.url)
    assert ran.status == 2
    assert "--overwrite" in ran.err
    assert load_run.output.read_text() == "mine"


def test_a_trace_is_never_overwritten_by_its_own_run(
    load_run: LoadRun, write_trace: WriteTrace, tmp_path: Path
) -> None:
    trace = write_trace(["m"], count=1, gap_s=1.0)
    before = Path(trace).read_bytes()
    (tmp_path / "link.parquet").symlink_to(trace)
    with odd_server() as server:
        ran = load_run(
            f"({trace} + poisson:rate=1,duration=1s)|rate=1",
            server.url,
            "-o",
            str(tmp_path / "link.parquet"),
            "--overwrite",
        )
    assert ran.status == 2
    assert "link.parquet is a file of the trace; name another" in ran.err
    assert Path(trace).read_bytes() == before


def test_overwriting_removes_the_parts_of_an_interrupted_run(tmp_path: Path) -> None:
    output = tmp_path / "run.parquet"
    output.write_text("old")
    with claimed_output(output, overwrite=True) as parts:
        (parts / "worker-0.arrows").write_text("old")
    with claimed_output(output, overwrite=True) as parts:
        assert [path.name for path in parts.iterdir()] == ["lock"]
    assert not output.exists()


def test_the_parts_of_an_interrupted_run_are_kept(tmp_path: Path) -> None:
    output = tmp_path / "run.parquet"
    with claimed_output(output, overwrite=False) as parts:
        (parts / "worker-0.arrows").write_text("records")
    with (
        pytest.raises(GeneratorError, match="of an interrupted run already"),
        claimed_output(output, overwrite=False),
    ):
        pass
    assert (parts / "worker-0.arrows").read_text() == "records"


@pytest.mark.parametrize("overwrite", [False, True])
def test_two_runs_at_once_never_share_an_output(tmp_path: Path, *, overwrite: bool) -> None:
    output = tmp_path / "run.parquet"
    with claimed_output(output, overwrite=False) as parts:
        (parts / "worker-0.arrows").write_text("records")
        with (
            pytest.raises(GeneratorError, match=r"another run writes .* now"),
            claimed_output(output, overwrite=overwrite),
        ):
            pass
        assert (parts / "worker-0.arrows").read_text() == "records"


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        pytest.param("", "is a folder; name a file in it", id="folder"),
        pytest.param("/", "is a folder; name a file in it", id="root"),
        pytest.param("pipe", "is a pipe or device; name a file", id="pipe"),
        pytest.param("file/run.parquet", "Not a directory", id="below a file"),
        pytest.param("x" * 300, "File name too long", id="long"),
    ],
)
def test_other_things_than_files_are_refused_and_left(
    tmp_path: Path, name: str, problem: str
) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_text("mine")
    with (
        pytest.raises(GeneratorError, match=problem) as refused,
        claimed_output(tmp_path / name, overwrite=True),
    ):
        pass
    assert "\n" not in str(refused.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "pipe"]
