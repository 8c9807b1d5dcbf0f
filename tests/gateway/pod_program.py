"""Fake pods for the gateway's tests: real processes with the pods' contract over HTTP and Redis.

`python -m tests.gateway.pod_program --names pod-a,pod-b …` registers the pods, serves them on free
ports and prints `{"ports": {name: port}}`. They load nothing and infer nothing: options in the
`x-test` header (`delay=0.1,refuse=slots`) define how a request is treated. The response has the
request's body, as an event where OpenAI's `stream` asks for one; to binary V2 tensors it has them
as outputs. A model whose name begins with `hold` is held until the `release` command; one named
`words…` streams the prompt's words, `words-hold` all but the first after `release`, and
`words-break` breaks off each pod's first stream after one word.
"""

import argparse
import asyncio
import contextlib
import hashlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator

from registry.domain.model import ModelName, Tier
from registry.domain.pod import PodInfo, PodPhase, PodReport, Samples
from registry.domain.pod_state import ANY_COPIES
from registry.errors import ClaimLost, LeaseLost, RegistryUnavailable
from registry.redis.client import Registry
from tests.gateway.fake_pod_server import (
    Disconnect,
    FakePodRequest,
    FakePodServer,
    ResponseWriter,
    header_lines,
    parse_headers,
)
from tests.registry.redis.timeouts import long_timeouts

PIECE = b"x" * 65536
INPUT = {"name": "text", "datatype": "BYTES", "shape": [-1]}
NOT_REACHED = (502, b"dial tcp 127.0.0.1:8080: connect: connection refused\n")
BROKEN_OFF = (502, b"read tcp 127.0.0.1:40000->127.0.0.1:8080: read: connection reset by peer\n")
QUEUE_PROXY = {
    "gone": {"POST": NOT_REACHED, "GET": NOT_REACHED},
    "crash": {"POST": BROKEN_OFF, "GET": NOT_REACHED},
    "broken": {"POST": BROKEN_OFF, "GET": (200, b'{"live": true}')},
    "full": {"POST": (503, b"pending request queue full\n"), "GET": (200, b'{"live": true}')},
}
"""Responses of Knative's queue-proxy in place of a container in this state."""


def metadata_response(pod: str, path: str) -> tuple[int, dict[str, str], bytes]:
    """V2 metadata, and whether the files are right; names say which models' are not, and why."""
    refused = {"x-pilotlight-not-executed": "load-failed"}
    if "~broken" in path or f"~unmounted-{pod}" in path:
        return 503, refused, b'{"error": "no such bucket"}'
    if "~pickle" in path:
        return 501, refused, b'{"error": "pickled models are not served"}'
    if "~no-disk" in path:
        return 507, refused, b'{"error": "no space left on device"}'
    if "~too-large" in path:
        refused = {
            "x-pilotlight-not-executed": "no-memory",
            "x-pilotlight-error": "model-too-large",
        }
        return 507, refused, b'{"error": "needs 8 GB on disk"}'
    if "~draining" in path:
        return 503, {"x-pilotlight-not-executed": "draining"}, b'{"error": "the pod is draining"}'
    document = {
        "platform": "fake",
        "inputs": [INPUT],
        "outputs": [],
        "answers_openai": "~classifier" not in path,
    }
    return 200, {}, json.dumps(document).encode()


class StageRefused(Exception):
    """The predict pod refuses the inference stage."""


class FakePod:
    """One pod: slots, warm models, loads, counters."""

    def __init__(self, options: argparse.Namespace, registry: Registry, name: str) -> None:
        self.name = name
        self.slots = options.slots
        self._options = options
        self._registry = registry
        self._epoch = 0
        self._info: PodInfo | None = None
        self._warm: set[str] = set()
        self._loading: dict[str, asyncio.Future[None]] = {}
        self._device = asyncio.Lock()
        self._samples: list[Samples] = []
        self._is_draining = False
        self._refusals: dict[str, int] = {}
        self._release = asyncio.Event()
        self._state = ""
        self._has_broken_off = False
        self._order: list[str] = []
        self._paths: set[str] = set()
        self._begun: set[str] = set()
        self.counts = {
            "busy": 0,
            "steps": 0,
            "max_busy": 0,
            "asked": 0,
            "executed": 0,
            "loads": 0,
            "disconnected": 0,
            "refused": 0,
            "connections": 0,
            "body_bytes": 0,
        }

    # The registry

    async def register(self, port: int) -> None:
        self._info = PodInfo(self.name, f"127.0.0.1:{port}", self.name, slots=self.slots)
        await self._register()

    async def _register(self) -> None:
        assert self._info is not None
        self._epoch = await self._registry.register_pod(
            self._info, lease_ttl_s=self._options.lease_s
        )
        for key in self._warm:
            await self._registry.set_tier(self.name, self._epoch, key, Tier.DEVICE, 1)
        if self._is_draining:
            await self._registry.set_phase(self.name, self._epoch, PodPhase.DRAINING)

    async def send_heartbeats(self) -> None:
        """Heartbeats until cancelled; registers again when the lease is lost."""
        while True:
            await asyncio.sleep(self._options.heartbeat_s)
            samples, self._samples = tuple(self._samples), []
            report = PodReport({}, samples, self.counts["loads"])
            with contextlib.suppress(RegistryUnavailable):
                try:
                    await self._registry.heartbeat(
                        self.name, self._epoch, report, lease_ttl_s=self._options.lease_s
                    )
                except LeaseLost:
                    await self._register()

    async def deregister(self) -> None:
        with contextlib.suppress(RegistryUnavailable):
            await self._registry.deregister_pod(self.name, self._epoch)

    async def control(self, request: FakePodRequest) -> dict[str, object]:
        """Carry out a test's command, such as warm, drain or release; returns the counters."""
        text = request.body.decode()
        match request.path:
            case "/control/warm":
                self._warm.add(text)
                with long_timeouts():
                    await self._registry.set_tier(self.name, self._epoch, text, Tier.DEVICE, 1)
            case "/control/drain":
                self._is_draining = True
                await self._registry.set_phase(self.name, self._epoch, PodPhase.DRAINING)
            case "/control/release":
                self._release.set()
                self._release = asyncio.Event()
            case "/control/queue-proxy":
                self._state = text
            case "/control/samples":
                for item in json.loads(text):
                    self._samples.append(Samples(item[0], item[1], tuple(item[2])))
        details = {"order": self._order, "paths": sorted(self._paths)}
        return {**self.counts, "warm": sorted(self._warm), **details}

    # Requests

    async def infer(self, request: FakePodRequest, response: ResponseWriter) -> None:
        request.release = self._release
        is_metadata = request.path.startswith("/v2/models/") and request.method == "GET"
        if is_metadata or request.path.endswith("/check"):
            if "~slow" in request.path:
                await asyncio.sleep(5)
            await response.complete(*metadata_response(self.name, request.path))
            return
        if request.method == "GET" and not self._state:
            await response.complete(200, {"x-pilotlight-pod": self.name}, b'{"live": true}')
            return
        if request.headers.get("x-pilotlight-stage") == "infer":
            if refusal := request.option("refuse-stage", self.name):
                self.counts["refused"] += 1
                await response.refuse(503, refusal)
                return
            start = await self._infer_locally(request)
            await self._reply(request, response, start, self.name)
            return
        self.counts["asked"] += 1
        self._paths.add(request.path)
        if self._state:
            status, text = QUEUE_PROXY[self._state][request.method]
            await response.complete(status, {"content-type": "text/plain; charset=utf-8"}, text)
            return
        refusal = self._refusal(request)
        if refusal:
            self.counts["refused"] += 1
            status = 429 if refusal == "slots" else 503
            await response.refuse(status, refusal)
            return
        headers = request.headers
        attempt = headers.get("x-pilotlight-attempt") or headers.get("x-pilotlight-reservation", "")
        is_resent = "x-pilotlight-resent" in request.headers
        if is_resent and attempt in self._begun:
            await response.complete(502, {"x-pilotlight-pod": self.name}, b'{"error": "begun"}')
            return
        self._begun.add(attempt)
        is_step = "x-pilotlight-step-queue" in headers
        self.counts["busy"] += 1
        self.counts["steps"] += is_step
        self.counts["max_busy"] = max(self.counts["max_busy"], self.counts["busy"])
        is_busy = True
        try:
            if request.option("close", self.name) == "before":
                raise Disconnect
            if request.option("die", self.name):
                os._exit(1)
            start, predict = await self._stages(request)
            self.counts["executed"] += 1
            self._order.append(headers.get("x-request-id", ""))
            if request.option("close", self.name) == "worked":
                raise Disconnect
            self.counts["busy"] -= 1  # before the last byte, at which the gateway releases the slot
            self.counts["steps"] -= is_step
            is_busy = False
            await self._reply(request, response, start, predict)
        except StageRefused as error:
            await response.refuse(503, str(error))
        finally:
            if is_busy:
                self.counts["busy"] -= 1
                self.counts["steps"] -= is_step

    def _refusal(self, request: FakePodRequest) -> str:
        refusal = request.option("refuse", self.name)
        if refusal:
            request_id = request.headers.get("x-request-id", "")
            self._refusals[request_id] = self._refusals.get(request_id, 0) + 1
            if self._refusals[request_id] <= int(request.option("times", self.name) or 1_000_000):
                return refusal
        if self._is_draining:
            return "draining"
        if "x-pilotlight-step-queue" in request.headers:
            return ""
        return "slots" if self.counts["busy"] - self.counts["steps"] >= self.slots else ""

    async def _stages(self, request: FakePodRequest) -> tuple[str, str]:
        remote = request.headers.get("x-pilotlight-predict")
        start, predict = (
            await self._infer_remotely(request, remote)
            if remote
            else (await self._infer_locally(request), self.name)
        )
        await self._pause(request, request.option("around", self.name))
        return start, predict

    async def _pause(self, request: FakePodRequest, seconds: str) -> None:
        """Sleep for some seconds, or with `hold` until the `release` command."""
        if seconds == "hold":
            await request.release.wait()
        else:
            await asyncio.sleep(float(seconds or 0))

    async def _infer_locally(self, request: FakePodRequest) -> str:
        start = await self._ensure_warm(request)
        try:
            async with self._device:
                is_held = "~hold" in request.path
                await self._pause(
                    request, "hold" if is_held else request.option("delay", self.name)
                )
        finally:
            if reservation := request.headers.get("x-pilotlight-reservation"):
                with contextlib.suppress(RegistryUnavailable):
                    await self._registry.end_inference(self.name, reservation)
        return start

    async def _infer_remotely(self, request: FakePodRequest, address: str) -> tuple[str, str]:
        host, _, port = address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            forwarded = {
                name: value
                for name, value in request.headers.items()
                if name.startswith("x-") and name != "x-pilotlight-predict"
            }
            forwarded |= {"x-pilotlight-stage": "infer", "content-length": "0", "host": address}
            writer.write(f"POST {request.path} HTTP/1.1\r\n".encode() + header_lines(forwarded))
            head = parse_headers(await reader.readuntil(b"\r\n\r\n"))
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
        if refusal := head.get("x-pilotlight-not-executed"):
            raise StageRefused(refusal)
        return head["x-pilotlight-start"], head["x-pilotlight-pod"]

    async def _ensure_warm(self, request: FakePodRequest) -> str:
        """Load the model if need be; returns the value of `x-pilotlight-start`."""
        key = _key(request)
        if key in self._warm:
            return "warm"
        if loading := self._loading.get(key):
            await asyncio.shield(loading)
            return "remote"
        self._loading[key] = asyncio.get_running_loop().create_future()
        try:
            token = int(request.headers.get("x-pilotlight-load-token", "0"))
            await self._load(key, token, request)
        finally:
            self._loading.pop(key).set_result(None)
        return "remote"

    async def _load(self, key: str, token: int, request: FakePodRequest) -> None:
        with contextlib.suppress(RegistryUnavailable):
            if not token:
                claimed = await self._registry.claim_load(self.name, self._epoch, key, ANY_COPIES)
                token = claimed or 0
            if token:
                await self._registry.start_load(self.name, self._epoch, key, token, Tier.REMOTE)
        seconds = request.option("load", self.name) or str(self._options.load_s)
        await self._pause(request, seconds)
        self.counts["loads"] += 1
        self._warm.add(key)
        with contextlib.suppress(RegistryUnavailable, ClaimLost, LeaseLost):
            await self._registry.finish_load(self.name, self._epoch, key, token, 1)

    async def _reply(
        self, request: FakePodRequest, response: ResponseWriter, start: str, predict: str
    ) -> None:
        headers = {
            "content-type": request.headers.get("content-type", "application/json"),
            "x-pilotlight-pod": self.name,
            "x-pilotlight-predict-pod": predict,
            "x-pilotlight-start": start,
            "server-timing": "load;dur=1.0, preprocess;dur=0.1, infer;dur=2.0, postprocess;dur=0.1",
            "x-test-sha256": hashlib.sha256(request.body).hexdigest(),
            "x-test-length": request.headers.get("content-length", ""),
            "x-custom": "kept",
        }
        status = int(request.option("status", self.name) or 200)
        if error := request.option("error", self.name):
            headers["x-pilotlight-error"] = error
        body = request.body
        if length := request.headers.get("inference-header-content-length"):
            headers["inference-header-content-length"] = str(int(length) + 1)
            body = body.replace(b'"inputs"', b'"outputs"', 1)
        if request.option("response", self.name) == "headers":
            body = json.dumps({"path": request.path, "headers": request.headers}).encode()
        if count := request.option("pieces", self.name):
            await response.stream(status, headers, self._pieces(int(count), request))
        elif request.option("response", self.name) == "until-close":
            await response.until_close(status, headers, body)
        elif request.option("close", self.name) == "middle":
            await response.truncated(status, headers, body)
        elif request.option("close", self.name) == "head":
            await response.truncated(status, headers, b"")
        elif _is_streaming(request):
            headers["content-type"] = "text/event-stream"
            events = self._words(request) if "~words" in request.path else _events(body)
            await response.stream(status, headers, events)
        else:
            await response.complete(status, headers, body)
            if request.option("close", self.name) == "after":
                raise Disconnect

    async def _words(self, request: FakePodRequest) -> AsyncIterator[bytes]:
        """OpenAI's events of a completion, one for each word of the prompt."""
        for number, word in enumerate(json.loads(request.body)["prompt"].split()):
            if number == 1 and "~words-hold" in request.path:
                await self._pause(request, "hold")
            if number == 1 and "~words-break" in request.path and not self._has_broken_off:
                self._has_broken_off = True
                raise Disconnect
            document = {"choices": [{"index": 0, "text": f"{word} ", "finish_reason": None}]}
            yield b"data: %b\n\n" % json.dumps(document).encode()
        yield b"data: [DONE]\n\n"

    async def _pieces(self, count: int, request: FakePodRequest) -> AsyncIterator[bytes]:
        for _ in range(count):
            yield PIECE
            await self._pause(request, request.option("gap", self.name))


def _is_streaming(request: FakePodRequest) -> bool:
    is_openai = "/openai/v1/" in request.path and request.body.startswith(b"{")
    return is_openai and bool(json.loads(request.body).get("stream"))


async def _events(body: bytes) -> AsyncIterator[bytes]:
    yield b"data: %b\n\n" % body
    yield b"data: [DONE]\n\n"


def _key(request: FakePodRequest) -> str:
    parts = request.path.split("/")
    segment = parts[2] if parts[1] == "serving" else parts[3].partition(":")[0]
    name = ModelName.from_path_segment(segment)
    return f"{name}@{request.headers.get('x-pilotlight-generation', '')}"


async def run(options: argparse.Namespace) -> None:
    with long_timeouts():
        registry = await Registry.connect(options.redis_url, options.pool)
    pods = [FakePod(options, registry, name) for name in options.names.split(",")]
    ports: dict[str, int] = {}
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with contextlib.AsyncExitStack() as stack:
        for pod in pods:
            server = await asyncio.start_server(
                FakePodServer(pod).serve_connection, "127.0.0.1", options.port, limit=1 << 20
            )
            stack.push_async_callback(server.wait_closed)
            stack.callback(server.close)
            ports[pod.name] = server.sockets[0].getsockname()[1]
            with long_timeouts():
                await pod.register(ports[pod.name])
        heartbeats = [asyncio.create_task(pod.send_heartbeats()) for pod in pods]
        sys.stdout.write(json.dumps({"ports": ports}) + "\n")
        sys.stdout.flush()
        await stop.wait()
        for beat in heartbeats:
            beat.cancel()
        for pod in pods:
            await pod.deregister()
    await registry.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--redis-url", required=True)
    parser.add_argument("--pool", default="default")
    parser.add_argument("--names", default="pod-a")
    parser.add_argument("--slots", type=int, default=1)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--load-s", type=float, default=0.1)
    parser.add_argument("--lease-s", type=float, default=15.0)
    parser.add_argument("--heartbeat-s", type=float, default=0.2)
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
