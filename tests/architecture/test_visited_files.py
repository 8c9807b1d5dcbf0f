"""How many files a warm predict and a cold load visit: what their reader has to know."""

import asyncio
import http.client
import json
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Final

import pytest

from gateway.__main__ import running_app
from gateway.app import GatewayApp
from gateway.settings import GatewaySettings
from gateway.telemetry import explanations
from registry.domain.model import ModelName, ModelSpec, Tier
from registry.domain.pod import PodInfo, PodReport, Samples
from registry.redis.client import Registry
from tests import servers
from tests.gateway.asynchronous import run_async
from tests.gateway.http.test_server import connected, read_response
from tests.gateway.placer_harness import eventually
from tests.registry.redis.clients import act
from tests.servers import REPOSITORY, RedisServer

MOST_IN_GATEWAY: Final = 20
MOST_IN_ALL: Final = 30
MOST_IN_RUNTIME: Final = 15
MOST_IN_POD: Final = 22
MOST_FOR_BRINGING: Final = 29
MOST_FOR_LOAD: Final = 53
MOST_BELOW_LOAD: Final = 21
BRINGING: Final = ("runtime/loading/", "runtime/storage/", "runtime/tiers/", "runtime/weights/")
AROUND: Final = (
    "common/http_server.py",
    "runtime/pod/",
    "runtime/protocols/",
    "runtime/serving/",
    "runtime/profiling.py",
)
WARM_UP: Final = 3
SPEC: Final = ModelSpec(ModelName("default", "m"), "file:///m")
REQUEST: Final = b"POST /v1/models/m:predict HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}"
RESPONSE: Final = b"HTTP/1.1 200 OK\r\nx-pilotlight-pod: pod-a\r\ncontent-length: 2\r\n\r\n[]"
TIMES_S: Final = {"preprocess": 0.0001, "infer": 0.0002, "postprocess": 0.0001, "network": 0.0005}


Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def serve_pod(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while await reader.read(65536):
        writer.write(RESPONSE)
    writer.close()


@asynccontextmanager
async def warm_gateway(
    redis: RedisServer,
    pool: str,
    serve: Serve = serve_pod,
    *,
    infer_s: float = TIMES_S["infer"],
    spec: ModelSpec = SPEC,
    **more: Any,
) -> AsyncIterator[GatewayApp]:
    """A gateway in this process, whose pod has measured the model."""
    async with AsyncExitStack() as stack:
        pod = await asyncio.start_server(serve, "127.0.0.1", 0)
        stack.callback(pod.close)
        host, port = pod.sockets[0].getsockname()
        registry = await Registry.connect(redis.url, pool)
        stack.push_async_callback(registry.close)
        info = PodInfo("pod-a", f"{host}:{port}", "node", slots=4)
        epoch = await registry.register_pod(info, lease_ttl_s=600)
        await registry.put_models([spec])
        await registry.set_tier("pod-a", epoch, spec.key, Tier.DEVICE, 1)
        times_s = TIMES_S | {"infer": infer_s}
        samples = tuple(Samples(spec.key, name, (time_s,)) for name, time_s in times_s.items())
        await registry.heartbeat("pod-a", epoch, PodReport(samples=samples), lease_ttl_s=600)
        settings = GatewaySettings(redis_url=redis.url, pool=pool, **more)
        app = await stack.enter_async_context(running_app(settings))
        state = app.pools.owner_of(spec.name).watch.state
        await eventually(lambda: state.holders(spec.key))
        estimates = state.pods["pod-a"].estimates
        await eventually(lambda: estimates[spec.key].stages.is_measured)
        yield app


@run_async
async def test_a_warm_request_visits_no_more_files_than_recorded(
    redis: RedisServer, pool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(explanations, "MAX_WEIGHED", 0)  # as of most requests where many come
    visits: list[set[str]] = []

    def record(frame: FrameType, event: str, _: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(REPOSITORY):
            visits[-1].add(path.relative_to(REPOSITORY).as_posix())

    async with (
        warm_gateway(redis, pool) as app,
        connected(app.infer, find=app.resolve_target, take_warm=app.take_warm) as (
            reader,
            writer,
            _,
        ),
    ):
        for number in range(WARM_UP + 5):
            visits.append(set())
            sys.setprofile(record if number >= WARM_UP else None)
            writer.write(REQUEST)
            assert await read_response(reader) == b"[]"
        sys.setprofile(None)
    # without what runs beside some of them
    visited = sorted(set.intersection(*visits[WARM_UP:]))
    ours = [each for each in visited if each.startswith(("gateway/", "registry/", "common/"))]
    in_gateway = [each for each in ours if each.startswith("gateway/")]
    assert 10 < len(in_gateway) <= MOST_IN_GATEWAY, in_gateway
    assert len(ours) <= MOST_IN_ALL, ours


@dataclass(frozen=True, slots=True)
class RecordedPod:
    client: http.client.HTTPConnection
    recorder: socket.socket

    def predict(self) -> str | None:
        """Ask for a prediction; returns where its model was: warm, or the tier of its load."""
        self.client.request("POST", "/v1/models/m:predict", b'{"instances": ["some words"]}')
        response = self.client.getresponse()
        assert len(json.loads(response.read())["predictions"]) == 1
        return response.headers["x-pilotlight-start"]

    def visited(self) -> tuple[str | None, set[str]]:
        """The same, and the project's files that the pod has run for it, or beside it."""
        self.recorder.sendall(b"x")
        assert self.recorder.recv(1)
        start = self.predict()
        self.recorder.sendall(b"x")
        with self.recorder.makefile("rb") as lines:
            return start, set(json.loads(lines.readline()))


@contextmanager
def recorded_pod(
    redis: RedisServer, pool: str, uri: str, folder: Path, environment: Mapping[str, str]
) -> Iterator[RecordedPod]:
    """A pod that has the model at `uri` to serve."""
    act(redis.url, pool, lambda registry: registry.put_models([ModelSpec(SPEC.name, uri)]))
    place = str(folder / "s")
    program = ("tests.architecture.recording_pods", place)
    with (
        servers.forkserver(environment, program=program) as parent,
        servers.pod(
            parent, name="pod-a", redis_url=redis.url, pool=pool, folder=folder / "pod"
        ) as pod,
        closing(http.client.HTTPConnection("127.0.0.1", pod.port)) as client,
        socket.socket(socket.AF_UNIX) as recorder,
    ):
        recorder.connect(place)
        yield RecordedPod(client, recorder)


@pytest.mark.slow
def test_a_warm_request_visits_no_more_files_of_the_pod_than_recorded(
    redis: RedisServer, pool: str, tmp_path: Path
) -> None:
    from pilotlight.sample_models.make_model import make_model

    model = make_model("tiny-bert", tmp_path / "model")
    with recorded_pod(redis, pool, model.as_uri(), tmp_path, {}) as pod:
        pod.predict()
        visits = [pod.visited() for _ in range(WARM_UP + 8)]
    assert {start for start, _ in visits} == {"warm"}
    # without what runs beside some of them
    visited = sorted(set.intersection(*(files for _, files in visits[WARM_UP:])))
    ours = [each for each in visited if each.startswith(("runtime/", "registry/", "common/"))]
    in_runtime = [each for each in ours if each.startswith("runtime/")]
    assert 10 < len(in_runtime) <= MOST_IN_RUNTIME, in_runtime
    assert len(ours) <= MOST_IN_POD, ours


@pytest.mark.slow
def test_a_cold_load_visits_no_more_files_of_the_pod_than_recorded(
    redis: RedisServer, s3: servers.S3Server, pool: str, tmp_path: Path
) -> None:
    """The first load of a pod, from S3: all that runs for it, and what a pod does beside it.

    Without `AROUND`, what carries the request, which the test above counts. Of the rest the rooms
    that bring the weights are counted apart from those that make a network of them.
    Heartbeats and changes that come meanwhile add up to four of the registry.
    """
    from pilotlight.sample_models.make_model import make_model

    s3.put_folder(make_model("tiny-bert", tmp_path / "model"), "s3://visited/m")
    with recorded_pod(redis, pool, "s3://visited/m", tmp_path, s3.environment) as pod:
        start, visited = pod.visited()
    assert start == "remote"
    files = sorted(each for each in visited if not each.startswith(AROUND))
    bringing = [each for each in files if each.startswith(BRINGING)]
    in_runtime = [each for each in files if each.startswith("runtime/")]
    below = [each for each in files if each.startswith(("registry/", "common/"))]
    assert 20 < len(bringing) <= MOST_FOR_BRINGING, bringing
    assert len(in_runtime) <= MOST_FOR_LOAD, in_runtime
    assert len(below) <= MOST_BELOW_LOAD, below
