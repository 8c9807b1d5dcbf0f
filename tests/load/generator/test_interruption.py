"""A run that ends early keeps its records and reports it."""

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from load.generator.records import RecordPart, RequestResult, read_parts, record_row
from load.generator.trace_arrivals import TraceArrival
from load.report.run_file import read_run
from tests import servers
from tests.load.generator.conftest import LoadRun, WriteTrace
from tests.load.generator.odd_server import OddServer, odd_server


def _start(trace: str, url: str, output: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "pilotlight",
            "load",
            "run",
            "--trace",
            trace,
            "--url",
            url,
            "-o",
            str(output),
            "--processes",
            "2",
        ],
        cwd=servers.REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _both_arrived(server: OddServer) -> bool:
    """True if a request is held, and enough have responses that the generator recorded some."""
    return server.requests_for("plain") >= 20 and server.requests_for("hold") > 0


@pytest.mark.slow
def test_ctrl_c_writes_the_file_and_reports_it(write_trace: WriteTrace, tmp_path: Path) -> None:
    output = tmp_path / "run.parquet"
    trace = write_trace(["plain", "hold", "hold"], count=2000, gap_s=0.01)
    with odd_server() as server:
        run = _start(trace, server.url, output)
        servers.wait_until(lambda: _both_arrived(server), what="both arrived")
        run.send_signal(signal.SIGINT)
        out, err = run.communicate(timeout=240)
    assert run.returncode == 128 + signal.SIGINT, err
    assert f"interrupted; {output} holds the requests up to then" in err
    assert "records" in out
    found = read_run(output, "run")
    assert found.was_interrupted
    assert 2 <= found.requests < 2000
    assert 0 < found.is_ok.sum() < found.requests
    assert sorted(path.name for path in tmp_path.glob("run*")) == ["run.parquet"]


@pytest.mark.slow
def test_ctrl_c_before_the_first_arrival(write_trace: WriteTrace, tmp_path: Path) -> None:
    output, trace = tmp_path / "run.parquet", Path(write_trace(["plain"], count=1, gap_s=1.0))
    trace.write_text("at_s,model\n3600,plain\n")
    with odd_server() as server:
        run = _start(str(trace), server.url, output)
        servers.wait_until(
            lambda: len(list(tmp_path.glob("run.parquet.parts/*.arrows"))) == 2, what="workers"
        )
        run.send_signal(signal.SIGINT)
        out, err = run.communicate(timeout=240)
    assert run.returncode == 128 + signal.SIGINT, err
    assert f"interrupted; {output} holds no requests" in err
    assert (out, "Traceback" in err) == ("", False)


@pytest.mark.slow
def test_a_full_disk_is_one_message_and_keeps_the_records_so_far(
    write_trace: WriteTrace, tmp_path: Path
) -> None:
    output = tmp_path / "run.parquet"
    trace = write_trace(["plain"], count=20_000, gap_s=0.002)
    empty = tmp_path / "empty.arrows"
    RecordPart(empty).close()

    def largest() -> int:
        parts = tmp_path.glob("run.parquet.parts/*.arrows")
        return max((path.stat().st_size for path in parts), default=0)

    with odd_server() as server:
        run = _start(trace, server.url, output)
        servers.wait_until(lambda: largest() > empty.stat().st_size, what="the first records")
        for worker in _children(run.pid):
            limit = largest()
            resource.prlimit(worker, resource.RLIMIT_FSIZE, (limit, limit))
        out, err = run.communicate(timeout=240)
    assert (run.returncode, out) == (1, "")
    [line] = [line for line in err.splitlines() if line.startswith("error: ")]
    assert "File too large" in line
    assert str(output) in line
    assert "Traceback" not in err
    found = read_run(output, "run")
    assert found.was_interrupted
    assert 0 < found.requests < 20_000


@pytest.mark.slow
def test_a_report_reads_the_parts_of_a_killed_run(
    load_run: LoadRun, write_trace: WriteTrace
) -> None:
    output = load_run.output
    trace = write_trace(["plain", "hold"], count=2000, gap_s=0.01)
    with odd_server() as server:
        run = _start(trace, server.url, output)
        servers.wait_until(lambda: _both_arrived(server), what="both arrived")
        workers = _children(run.pid)
        run.kill()
        run.communicate(timeout=240)
        assert len(workers) == 2
        servers.wait_until(
            lambda: not any(servers.is_alive(pid) for pid in workers), what="workers ended"
        )
        again = load_run(trace, server.url)
    assert not output.exists()
    found = read_run(output, "run")
    assert found.was_interrupted
    assert found.requests >= 2
    assert 0 < found.is_ok.sum() < found.requests
    assert again.status == 2
    assert "of an interrupted run" in again.err


@pytest.mark.slow
def test_a_killed_worker_is_reported_and_the_records_are_kept(
    write_trace: WriteTrace, tmp_path: Path
) -> None:
    output = tmp_path / "run.parquet"
    trace = write_trace(["plain"], count=4000, gap_s=0.01)
    with odd_server() as server:
        run = _start(trace, server.url, output)
        servers.wait_until(lambda: len(server.requests) >= 60, what="sixty requests")
        os.kill(_children(run.pid)[0], signal.SIGKILL)
        _, err = run.communicate(timeout=240)
    assert run.returncode == 1
    [line] = [line for line in err.splitlines() if line.startswith("error: ")]
    assert "of the generator ended by SIGKILL" in line
    assert line.endswith(f"; {output} holds the requests up to then")
    found = read_run(output, "run")
    assert found.was_interrupted
    assert found.requests > 0


def _children(pid: int) -> list[int]:
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(each) for each in file.read().split()]


@pytest.mark.parametrize("kept", [0.3, 0.7, 0.99])
def test_a_truncated_part_is_read_up_to_its_end(tmp_path: Path, kept: float) -> None:
    path = tmp_path / "worker-0.arrows"
    part = RecordPart(path)
    for row in range(3000):
        arrival = TraceArrival(row, row / 100, "t", f"m{row % 7}", 1, 0, None)
        part.add(record_row(arrival, RequestResult(status=200), request_id=str(row), policy=None))
    part.close()
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * kept)])
    rows = [each for batch in read_parts(tmp_path) for each in batch.to_pylist()]
    assert 0 < len(rows) < 3000
    assert [row["request_id"] for row in rows] == [str(row) for row in range(len(rows))]
    assert all(row["model"] == f"m{int(row['request_id']) % 7}" for row in rows)
