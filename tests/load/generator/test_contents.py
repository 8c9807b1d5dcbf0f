"""Request bodies, response headers, shares of a trace and the open loop, without a server."""

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pydantic import TypeAdapter

from common.inference_protocol.bodies import decode_request
from load.errors import GeneratorError
from load.generator.bodies import RequestBodies
from load.generator.records import RecordPart, RequestResult, reported_stages_ms
from load.generator.settings import (
    IMAGE,
    TEXT,
    Content,
    ContentKind,
    LatencyHistogram,
    RequestProtocol,
    RunSettings,
    content_of_metadata,
)
from load.generator.trace_arrivals import TraceArrival, survey, survey_in_thread, worker_share
from load.generator.worker import OpenLoop, WorkerConfig
from load.trace_spec import open_trace
from tests.load.generator.conftest import WriteTrace
from tests.load.rows import trace_of

ARRIVAL = TraceArrival(7, 0.0, "team", "model", 3, 20, None)


@pytest.mark.parametrize(
    ("content", "name", "shape"),
    [
        pytest.param(TEXT, "text", (3,), id="text"),
        pytest.param(IMAGE, "image", (3,), id="image"),
        pytest.param(
            Content(ContentKind.TENSORS, inputs=(("x", "FP32", (-1, 3, -1)),)),
            "x",
            (3, 3, 1),
            id="numbers",
        ),
    ],
)
def test_v2_bodies_can_be_decoded_by_a_pod(
    content: Content, name: str, shape: tuple[int, ...]
) -> None:
    body = RequestBodies(RequestProtocol.V2, 0).body(ARRIVAL, content)
    request = decode_request(body.data, dict(body.headers)["inference-header-content-length"])
    [tensor] = request.inputs
    assert (tensor.name, tensor.shape) == (name, shape)
    assert request.is_binary


def test_v1_bodies_have_an_instance_per_item() -> None:
    bodies = RequestBodies(RequestProtocol.V1, 0)
    texts = json.loads(bodies.body(ARRIVAL, TEXT).data)["instances"]
    assert [len(text.split()) for text in texts] == [8, 8, 8]
    images = json.loads(bodies.body(ARRIVAL, IMAGE).data)["instances"]
    assert [set(each) for each in images] == [{"image_bytes"}] * 3


def test_v1_instances_are_objects_if_there_are_several_inputs() -> None:
    content = Content(ContentKind.TENSORS, inputs=(("q", "BYTES", (-1,)), ("x", "FP32", (-1,))))
    body = RequestBodies(RequestProtocol.V1, 0).body(ARRIVAL, content)
    instances = json.loads(body.data)["instances"]
    assert [set(each) for each in instances] == [{"q", "x"}] * 3
    assert [len(each["q"].split()) for each in instances] == [8, 8, 8]
    assert all(isinstance(each["x"], float) for each in instances)


@pytest.mark.parametrize("words", [1, 100, 5000])
def test_openai_prompts_have_the_sizes_of_the_trace(words: int) -> None:
    arrival = ARRIVAL._replace(input_size=words)
    body = json.loads(RequestBodies(RequestProtocol.OPENAI, 0).body(arrival, TEXT).data)
    assert len(body["prompt"].split()) == words
    assert (body["model"], body["max_tokens"], body["stream"]) == ("model", 20, True)


def test_bodies_depend_only_on_seed_and_row() -> None:
    def body(seed: int, row: int) -> bytes:
        return RequestBodies(RequestProtocol.V1, seed).body(ARRIVAL._replace(row=row), TEXT).data

    assert body(0, 7) == body(0, 7)
    assert len({body(0, 7), body(1, 7), body(0, 8)}) == 3


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        pytest.param({"inputs": []}, None, id="gateway"),
        pytest.param({"error": "x"}, None, id="none"),
        pytest.param(["odd"], None, id="no-object"),
        pytest.param(
            {"inputs": [{"name": "image", "datatype": "BYTES", "shape": [-1]}]}, IMAGE, id="image"
        ),
        pytest.param(
            {"inputs": [{"name": "q", "datatype": "BYTES", "shape": [-1]}]},
            Content(ContentKind.TEXT, "q"),
            id="text",
        ),
        pytest.param(
            {
                "platform": "transformers",
                "inputs": [
                    {"name": name, "datatype": "BYTES", "shape": [-1]} for name in ("text", "task")
                ],
            },
            TEXT,
            id="text-with-an-option",
        ),
        pytest.param(
            {
                "platform": "scikit-learn",
                "inputs": [
                    {"name": name, "datatype": "BYTES", "shape": [-1]} for name in ("text", "task")
                ],
            },
            Content(
                ContentKind.TENSORS, inputs=(("text", "BYTES", (-1,)), ("task", "BYTES", (-1,)))
            ),
            id="columns-of-texts",
        ),
        pytest.param(
            {"inputs": [{"name": "x", "datatype": "FP32", "shape": ["-1", 4]}]},
            Content(ContentKind.TENSORS, inputs=(("x", "FP32", (-1, 4)),)),
            id="numbers",
        ),
    ],
)
def test_metadata_determine_the_content_of_a_model(metadata: Any, expected: Content | None) -> None:
    assert content_of_metadata(metadata) == expected
    if expected is not None:
        config = WorkerConfig(RunSettings("t", "u", payloads={"m": expected}), 0, "part")
        assert TypeAdapter(WorkerConfig).validate_json(config.to_json()) == config


def test_server_timing_is_read_for_our_stages_only() -> None:
    text = "queue;dur=1.5, load;desc=x;dur=2, infer;dur=inf, db;dur=3, odd, network;dur="
    assert reported_stages_ms(text) == {"queue": 1.5, "load": 2.0}


@pytest.mark.parametrize("workers", [1, 3, 7])
def test_shares_of_all_workers_add_up_to_the_trace(write_trace: WriteTrace, workers: int) -> None:
    path = write_trace(["a", "b"], count=1000, gap_s=0.01)
    trace = open_trace(path, seed=0)
    chunks = (
        worker_share(trace, worker=worker, workers=workers, duration_s=5.0)
        for worker in range(workers)
    )
    shares = [[arrival.row for chunk in each for arrival in chunk] for each in chunks]
    assert sorted(row for rows in shares for row in rows) == list(range(500))
    assert all(rows == sorted(rows) for rows in shares)
    assert survey(trace, 5.0).requests == 500


def test_live_percentiles_are_exact_to_a_bucket() -> None:
    values = np.random.default_rng(0).lognormal(-3, 1, 5000)
    latencies = LatencyHistogram()
    for value in values:
        latencies.observe(float(value))
    for fraction in (0.5, 0.95, 0.99):
        exact = np.quantile(values, fraction)
        assert latencies.percentile_s(fraction) == pytest.approx(exact, rel=0.06)


def test_a_trace_without_arrivals_in_time_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("at_s,tenant,model,input_size,output_size,deadline_s\n5,t,m,1,0,\n")
    with pytest.raises(GeneratorError, match="has no requests within --duration 2 s"):
        survey(open_trace(str(path), seed=0), 2.0)


def test_a_cancelled_survey_ends_with_the_next_batch() -> None:
    has_begun = threading.Event()
    [batch] = trace_of([0.0])
    seen = count()

    def long_trace() -> Iterator[pa.RecordBatch]:
        while next(seen) < 100_000:
            has_begun.set()
            yield batch

    async def begin_and_cancel() -> None:
        surveying = asyncio.ensure_future(survey_in_thread(long_trace(), None))
        await asyncio.to_thread(has_begun.wait)
        surveying.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await surveying

    asyncio.run(begin_and_cancel())  # returns when the thread has ended
    assert next(seen) < 100_000


class _InstantSender:
    """A sender without a network whose responses take 0.1 s."""

    async def send(
        self, arrival: TraceArrival, content: Content, request_id: str, result: RequestResult
    ) -> None:
        del arrival, content, request_id
        result.sent_s, result.finished_s, result.status = 5.0, 5.1, 200

    async def close(self) -> None:
        pass


def test_late_sends_are_counted_and_latency_is_from_the_schedule(tmp_path: Path) -> None:
    records = RecordPart(tmp_path / "part.arrows")
    start_s = time.monotonic() - 5.0  # the run began five seconds ago: both arrivals are overdue
    settings = RunSettings("t", "u")
    loop = OpenLoop(settings, _InstantSender(), records, lambda: time.monotonic() - start_s, 10)
    asyncio.run(loop.run(iter([[ARRIVAL, ARRIVAL._replace(row=8, at_s=4.995)]])))
    records.close()
    assert (loop.counts.late, loop.counts.done) == (1, 2)
    assert loop.counts.latencies.percentile_s(1.0) == pytest.approx(5.1, rel=0.06)
