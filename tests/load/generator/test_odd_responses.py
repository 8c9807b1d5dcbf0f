"""A run records every request and its failure, whatever the server does."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from load.generator.http_sender import HttpSender
from load.generator.records import RecordPart, read_parts
from load.generator.settings import RequestProtocol, RunSettings
from load.generator.target import parse_url
from load.generator.trace_arrivals import TraceArrival
from load.generator.worker import OpenLoop
from tests import servers
from tests.load.generator.conftest import LoadRun, WriteTrace
from tests.load.generator.odd_server import odd_server


@pytest.mark.slow
def test_every_odd_response_is_recorded(load_run: LoadRun, write_trace: WriteTrace) -> None:
    models = ["plain", "busy", "wrong", "odd-headers", "truncated", "garbage", "closed", "hold"]
    trace = write_trace(models, count=len(models), gap_s=0.01)
    with odd_server() as server:
        ran = load_run(trace, server.url, "--timeout", "4s")
    assert ran.status == 0, ran.err
    rows = {row["model"]: row for row in parquet.read_table(load_run.output).to_pylist()}
    seen = {model: (row["status"], row["error"]) for model, row in rows.items()}
    assert seen == {
        "plain": (200, None),
        "busy": (503, "HTTP 503: no room"),
        "wrong": (400, "HTTP 400: <p>not JSON"),
        "odd-headers": (200, None),
        "truncated": (200, "the connection was closed or broken inside the response"),
        "garbage": (0, "the connection was closed or broken before the response"),
        "closed": (0, "the connection was closed or broken before the response"),
        "hold": (0, "no complete response within --timeout 4 s"),
    }
    columns = ("policy", "reason", "entry_pod", "predict_pod", "start", "queue_ms", "infer_ms")
    assert all(rows["plain"][column] is None for column in columns)
    assert rows["busy"]["reason"] == "full"
    assert (rows["odd-headers"]["queue_ms"], rows["odd-headers"]["infer_ms"]) == (1.5, None)
    assert "no response: 3" in ran.out


def _send(
    models: list[str],
    folder: Path,
    url: str,
    *,
    output_size: int = 0,
    max_in_flight: int = 100,
    **settings: Any,
) -> list[dict[str, Any]]:
    """Send requests that arrive together from this process; returns the records."""
    arrivals = [
        TraceArrival(row, 0.0, "default", model, 2, output_size, None)
        for row, model in enumerate(models)
    ]

    async def send() -> None:
        start_s = time.monotonic()
        run = RunSettings("trace", url, **settings)
        sender = HttpSender(run, parse_url(url), lambda: time.monotonic() - start_s)
        records = RecordPart(folder / "worker-0.arrows")
        loop = OpenLoop(run, sender, records, lambda: time.monotonic() - start_s, max_in_flight)
        await loop.run(iter([arrivals]))
        await sender.close()
        records.close()

    asyncio.run(send())
    return [row for batch in read_parts(folder) for row in batch.to_pylist()]


def test_an_openai_stream_succeeds_only_if_it_is_complete(tmp_path: Path) -> None:
    models = ["stream", "stream-broken", "stream-error", "openai-wrong"]
    with odd_server() as server:
        rows = _send(models, tmp_path, server.url, protocol=RequestProtocol.OPENAI, output_size=5)
    assert {row["model"]: row["error"] for row in rows} == {
        "stream": None,
        "stream-broken": "the stream ended without [DONE]",
        "stream-error": "too slow",
        "openai-wrong": "HTTP 404: no such model",
    }


def test_a_record_has_the_tokens_that_the_stream_reports(tmp_path: Path) -> None:
    with odd_server() as server:
        rows = _send(
            ["stream", "stream-usage"],
            tmp_path,
            server.url,
            protocol=RequestProtocol.OPENAI,
            output_size=5,
        )
        asked = [json.loads(body)["stream_options"] for body in server.bodies]
    assert asked == [{"include_usage": True}] * 2
    assert {row["model"]: row["output_size"] for row in rows} == {"stream": 5, "stream-usage": 7}


def test_arrivals_do_not_wait_for_responses(tmp_path: Path) -> None:
    with odd_server(together=30) as server:
        rows = _send(["together"] * 30, tmp_path, server.url, timeout_s=120.0)
    assert [row["status"] for row in rows] == [200] * 30


@pytest.mark.slow
def test_requests_beyond_the_bound_fail_at_once(tmp_path: Path) -> None:
    models = ["hold", "hold", "plain", "plain", "hold", "plain"]
    with odd_server() as server:
        rows = _send(models, tmp_path, server.url, max_in_flight=2, timeout_s=3.0)
        assert len(server.requests) == 2
    unsent = [row for row in rows if row["sent_s"] is None]
    assert len(unsent) == 4
    assert all("--max-in-flight" in row["error"] and row["status"] == 0 for row in unsent)


def test_an_unreachable_url_is_one_message_before_anything_is_written(
    load_run: LoadRun, write_trace: WriteTrace
) -> None:
    url = f"http://127.0.0.1:{servers.free_port()}"
    ran = load_run(write_trace(["m"], count=1, gap_s=1.0), url)
    assert ran.status == 1
    [line] = ran.err.splitlines()
    assert f"no server responds at {url}" in line
    assert "pilotlight up" in line
    assert list(load_run.output.parent.glob("run*")) == []


def test_all_mistakes_in_flags_are_reported_together(
    load_run: LoadRun, write_trace: WriteTrace, tmp_path: Path
) -> None:
    (tmp_path / "body.txt").write_text("no JSON")
    ran = load_run(
        write_trace(["m"], count=1, gap_s=1.0),
        "http://h",
        "--protocol",
        "soap",
        "--policy",
        "best",
        "--duration",
        "5",
        "--timeout",
        "0s",
        "--payload",
        "m",
        "--payload",
        f"m={tmp_path / 'body.txt'}",
        "--payload",
        "m=absent.json",
        "--host-header",
        "{name}.example.com",
    )
    assert ran.status == 2
    assert len(ran.err.splitlines()) == 8
    for part in ("'soap'", "'best'", "'5'", "'0s'", "'m'", "body.txt", "absent.json", "{name}"):
        assert part in ran.err


@pytest.mark.parametrize("url", ["ftp://h", "http://", "http://h:x", "http://u:p@h", "http://h?a"])
def test_a_wrong_url_is_refused(load_run: LoadRun, write_trace: WriteTrace, url: str) -> None:
    ran = load_run(write_trace(["m"], count=1, gap_s=1.0), url)
    assert ran.status == 2
    assert len(ran.err.splitlines()) == 1
    assert "--url" in ran.err


@pytest.mark.parametrize("trace", ["absent.parquet", "poisson:rate=fast", "soap:x"])
def test_a_wrong_trace_is_refused(load_run: LoadRun, trace: str) -> None:
    ran = load_run(trace, "http://127.0.0.1:1")
    assert ran.status == 2
    assert ran.err.startswith("error: ")
    assert list(load_run.output.parent.glob("run*")) == []
