"""Pods for the gateway's tests: real processes that speak the pods' contract over HTTP and Redis.

`python -m tests.gateway.pod_program --names pod-a,pod-b …` registers the pods, serves them on free
ports and prints `{"ports": {name: port}}`. They load nothing and infer nothing: a request says in
its `x-test` header (`delay=0.1,refuse=slots`) how it wants to be treated, and its body comes back,
as an event where it asks OpenAI's way for a stream.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import json
import signal
import sys
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING

from registry.domain.model import ModelName, Tier
from registry.domain.pod import PodInfo, PodPhase, PodReport, Samples
from registry.domain.reservation import ClaimScope
from registry.errors import ClaimLost, LeaseLost, RegistryUnavailable
from registry.redis.client import Registry
from tests.registry.redis.timeouts import long_timeouts

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine

PIECE = b"x" * 65536
NOT_REACHED = (502, b"dial tcp 127.0.0.1:8080: connect: connection refused\n")
BROKEN_OFF = (502, b"read tcp 127.0.0.1:40000->127.0.0.1:8080: read: connection reset by peer\n")
QUEUE_PROXY = {
    "gone": {"POST": NOT_REACHED, "GET": NOT_REACHED},
    "crash": {"POST": BROKEN_OFF, "GET": NOT_REACHED},
    "broken": {"POST": BROKEN_OFF, "GET": (200, b'{"live": true}')},
    "full": {"POST": (503, b"pending request queue full\n"), "GET": (200, b'{"live": true}')},
}
"""What Knative's queue-proxy, asked in place of the pod, says of a container in this state."""


@dataclass
class Request:
    """One request with its body, and what its `x-test` header asks for."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes = b""
    wishes: dict[str, str] = field(default_factory=dict)
    release: asyncio.Event = field(default_factory=asyncio.Event)
    """Set by the first order to release after its arrival, however far it has come by then."""

    def wish(self, name: str, pod: str) -> str:
        """What the request wants of this pod; `at=POD` restricts all of it to that pod."""
        if self.wishes.get("at", pod) != pod:
            return ""
        return self.wishes.get(name, "")


class NotTaken(Exception):
    """The predict pod refuses the inference stage, and says why."""


class Hangup(Exception):
    """Close the connection now."""


class Pod:
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
        self._order: list[str] = []
        self._paths: set[str] = set()
        self.counts = {
            "busy": 0, "most_busy": 0, "asked": 0, "executed": 0, "loads": 0, "left": 0,
            "refused": 0, "connections": 0, "body_bytes": 0,
        }  # fmt: skip

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

    async def beat(self) -> None:
        """Heartbeats until cancelled; registers again when the lease is lost."""
        while True:
            await asyncio.sleep(self._options.beat_s)
            samples, self._samples = tuple(self._samples), []
            report = PodReport({}, samples, self.counts["loads"])
            with contextlib.suppress(RegistryUnavailable):
                try:
                    await self._registry.heartbeat(
                        self.name, self._epoch, report, lease_ttl_s=self._options.lease_s
                    )
                except LeaseLost:
                    await self._register()

    async def leave(self) -> None:
        with contextlib.suppress(RegistryUnavailable):
            await self._registry.deregister_pod(self.name, self._epoch)

    async def control(self, request: Request) -> dict[str, object]:
        """What tests order, such as warm, drain or release; always answers with the counters."""
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
        seen = {"order": self._order, "paths": sorted(self._paths)}
        return {**self.counts, "warm": sorted(self._warm), **seen}

    # Requests

    async def infer(self, request: Request, answer: Answer) -> None:
        request.release = self._release
        if request.headers.get("x-pilotlight-stage") == "infer":
            if refusal := request.wish("refuse-stage", self.name):
                self.counts["refused"] += 1
                await answer.refuse(503, refusal)
                return
            start = await self._infer_here(request)
            await self._reply(request, answer, start, self.name)
            return
        self.counts["asked"] += 1
        self._paths.add(request.path)
        if self._state:
            status, said = QUEUE_PROXY[self._state][request.method]
            await answer.whole(status, {"content-type": "text/plain; charset=utf-8"}, said)
            return
        refusal = self._refusal(request)
        if refusal:
            self.counts["refused"] += 1
            status = 429 if refusal == "slots" else 503
            await answer.refuse(status, refusal)
            return
        self.counts["busy"] += 1
        self.counts["most_busy"] = max(self.counts["most_busy"], self.counts["busy"])
        is_busy = True
        try:
            if request.wish("close", self.name) == "before":
                raise Hangup
            start, predict = await self._stages(request)
            self.counts["executed"] += 1
            self._order.append(request.headers.get("x-request-id", ""))
            self.counts["busy"] -= 1  # before the last byte: the gateway counts by that
            is_busy = False
            await self._reply(request, answer, start, predict)
        except NotTaken as error:
            await answer.refuse(503, str(error))
        finally:
            if is_busy:
                self.counts["busy"] -= 1

    def _refusal(self, request: Request) -> str:
        wish = request.wish("refuse", self.name)
        if wish:
            identity = request.headers.get("x-request-id", "")
            self._refusals[identity] = self._refusals.get(identity, 0) + 1
            if self._refusals[identity] <= int(request.wish("times", self.name) or 1_000_000):
                return wish
        if self._is_draining:
            return "draining"
        return "slots" if self.counts["busy"] >= self.slots else ""

    async def _stages(self, request: Request) -> tuple[str, str]:
        remote = request.headers.get("x-pilotlight-predict")
        start, predict = (
            await self._infer_there(request, remote)
            if remote
            else (await self._infer_here(request), self.name)
        )
        await self._take_time(request, request.wish("around", self.name))
        return start, predict

    async def _take_time(self, request: Request, wish: str) -> None:
        """So many seconds, or with `hold` until the order to release."""
        if wish == "hold":
            await request.release.wait()
        else:
            await asyncio.sleep(float(wish or 0))

    async def _infer_here(self, request: Request) -> str:
        start = await self._bring(request)
        try:
            async with self._device:
                await self._take_time(request, request.wish("delay", self.name))
        finally:
            if reservation := request.headers.get("x-pilotlight-reservation"):
                with contextlib.suppress(RegistryUnavailable):
                    await self._registry.end_inference(self.name, reservation)
        return start

    async def _infer_there(self, request: Request, address: str) -> tuple[str, str]:
        host, _, port = address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            passed = {
                name: value
                for name, value in request.headers.items()
                if name.startswith("x-") and name != "x-pilotlight-predict"
            }
            passed |= {"x-pilotlight-stage": "infer", "content-length": "0", "host": address}
            writer.write(f"POST {request.path} HTTP/1.1\r\n".encode() + _lines(passed))
            head = _headers(await reader.readuntil(b"\r\n\r\n"))
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
        if refusal := head.get("x-pilotlight-not-executed"):
            raise NotTaken(refusal)
        return head["x-pilotlight-start"], head["x-pilotlight-pod"]

    async def _bring(self, request: Request) -> str:
        """Make the model warm as the contract says; returns what the request waited for."""
        key = _key(request)
        if key in self._warm:
            return "warm"
        if under_way := self._loading.get(key):
            await asyncio.shield(under_way)
            return "remote"
        self._loading[key] = asyncio.get_running_loop().create_future()
        try:
            token = int(request.headers.get("x-pilotlight-load-token", "0"))
            await self._load(key, token, request)
        finally:
            self._loading.pop(key).set_result(None)
        return "remote"

    async def _load(self, key: str, token: int, request: Request) -> None:
        with contextlib.suppress(RegistryUnavailable):
            if not token:
                claimed = await self._registry.claim_load(
                    self.name, self._epoch, key, ClaimScope.POD
                )
                token = claimed or 0
            if token:
                await self._registry.start_load(self.name, self._epoch, key, token, Tier.REMOTE)
        wish = request.wish("load", self.name)
        await self._take_time(request, wish or str(self._options.load_s))
        self.counts["loads"] += 1
        self._warm.add(key)
        with contextlib.suppress(RegistryUnavailable, ClaimLost, LeaseLost):
            await self._registry.finish_load(self.name, self._epoch, key, token, 1)

    async def _reply(self, request: Request, answer: Answer, start: str, predict: str) -> None:
        headers = {
            "content-type": request.headers.get("content-type", "application/json"),
            "x-pilotlight-pod": self.name,
            "x-pilotlight-predict-pod": predict,
            "x-pilotlight-start": start,
            "server-timing": "load;dur=1.0, preprocess;dur=0.1, infer;dur=2.0, postprocess;dur=0.1",
            "x-test-sha256": hashlib.sha256(request.body).hexdigest(),
            "x-custom": "kept",
        }
        status = int(request.wish("status", self.name) or 200)
        body = request.body
        if request.wish("answer", self.name) == "headers":
            body = json.dumps({"path": request.path, "headers": request.headers}).encode()
        if pieces := request.wish("pieces", self.name):
            await answer.stream(status, headers, self._pieces(int(pieces), request))
        elif request.wish("answer", self.name) == "until-close":
            await answer.until_close(status, headers, body)
        elif request.wish("close", self.name) == "middle":
            await answer.broken(status, headers, body)
        elif request.wish("close", self.name) == "head":
            await answer.broken(status, headers, b"")
        elif _asks_for_events(request):
            headers["content-type"] = "text/event-stream"
            await answer.stream(status, headers, _events(body))
        else:
            await answer.whole(status, headers, body)
            if request.wish("close", self.name) == "after":
                raise Hangup

    async def _pieces(self, count: int, request: Request) -> AsyncIterator[bytes]:
        for _ in range(count):
            yield PIECE
            await self._take_time(request, request.wish("gap", self.name))


def _asks_for_events(request: Request) -> bool:
    is_openai = "/openai/v1/" in request.path and request.body.startswith(b"{")
    return is_openai and bool(json.loads(request.body).get("stream"))


async def _events(body: bytes) -> AsyncIterator[bytes]:
    yield b"data: %b\n\n" % body
    yield b"data: [DONE]\n\n"


def _key(request: Request) -> str:
    parts = request.path.split("/")
    segment = parts[2] if parts[1] == "serving" else parts[3].partition(":")[0]
    name = ModelName.from_path_segment(segment)
    return f"{name}@{request.headers.get('x-pilotlight-generation', '')}"


def _lines(headers: dict[str, str]) -> bytes:
    return "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode() + b"\r\n"


def _headers(head: bytes) -> dict[str, str]:
    pairs = (line.partition(":") for line in head.decode("latin-1").split("\r\n")[1:] if line)
    return {name.lower(): value.strip() for name, _, value in pairs}


class Answer:
    """Writes one answer."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer

    def _head(self, status: int, headers: dict[str, str]) -> bytes:
        return f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n".encode() + _lines(headers)

    async def whole(self, status: int, headers: dict[str, str], body: bytes) -> None:
        head = self._head(status, {**headers, "content-length": str(len(body))})
        self._writer.write(head + body)
        await self._writer.drain()

    async def refuse(self, status: int, refusal: str) -> None:
        headers = {"x-pilotlight-not-executed": refusal}
        await self.whole(status, headers, b'{"error": "not executed"}')

    async def stream(
        self, status: int, headers: dict[str, str], pieces: AsyncIterator[bytes]
    ) -> None:
        self._writer.write(self._head(status, {**headers, "transfer-encoding": "chunked"}))
        async for piece in pieces:
            self._writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            await self._writer.drain()
        self._writer.write(b"0\r\n\r\n")
        await self._writer.drain()

    async def until_close(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self._writer.write(self._head(status, {**headers, "connection": "close"}) + body)
        await self._writer.drain()
        raise Hangup

    async def broken(self, status: int, headers: dict[str, str], body: bytes) -> None:
        """Declare more than comes, then hang up."""
        head = self._head(status, {**headers, "content-length": str(len(body) + 10)})
        self._writer.write(head + body)
        await self._writer.drain()
        raise Hangup


class Server:
    """One pod's HTTP server."""

    def __init__(self, pod: Pod) -> None:
        self._pod = pod

    async def serve_connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._pod.counts["connections"] += 1
        with contextlib.suppress(
            asyncio.IncompleteReadError, ConnectionError, Hangup, asyncio.CancelledError
        ):
            is_reused = False
            while True:
                await self._serve_request(reader, writer, is_reused=is_reused)
                is_reused = True
        writer.close()

    async def _serve_request(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_reused: bool
    ) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        method, path, _ = head.split(b"\r\n", 1)[0].decode().split(" ")
        request = Request(method, path, _headers(head))
        wishes = request.headers.get("x-test", "")
        request.wishes = dict(wish.split("=", 1) for wish in wishes.split(",") if wish)
        answer = Answer(writer)
        if is_reused and request.wish("close", self._pod.name) == "reused":
            raise Hangup
        if early := request.wish("early", self._pod.name):
            await answer.whole(int(early), {"connection": "close"}, b'{"error": "early"}')
            writer.write_eof()
            while await reader.read(1 << 16):
                pass  # a close with unread bytes would take the answer back
            raise Hangup
        try:
            request.body = await self._body(reader, request)
        except asyncio.IncompleteReadError:
            self._pod.counts["left"] += 1
            raise
        self._pod.counts["body_bytes"] += len(request.body)
        if path.startswith("/control/"):
            await answer.whole(200, {}, json.dumps(await self._pod.control(request)).encode())
            return
        await self._unless_left(reader, self._pod.infer(request, answer))

    async def _unless_left(
        self, reader: asyncio.StreamReader, work: Coroutine[object, object, None]
    ) -> None:
        """Do the work; stop when the client closes its connection."""
        task = asyncio.ensure_future(work)
        ears = asyncio.ensure_future(reader.read(1))
        try:
            await asyncio.wait({task, ears}, return_when=asyncio.FIRST_COMPLETED)
            if ears.done() and not task.done():
                self._pod.counts["left"] += 1
                raise Hangup
            await task
        finally:
            for each in (task, ears):
                each.cancel()
            await asyncio.wait({task, ears})
            for each in (task, ears):
                if not each.cancelled():
                    each.exception()

    async def _body(self, reader: asyncio.StreamReader, request: Request) -> bytes:
        if request.headers.get("transfer-encoding") == "chunked":
            parts = []
            while size := int(await reader.readuntil(b"\r\n"), 16):
                parts.append(await reader.readexactly(size))
                await reader.readexactly(2)
            await reader.readexactly(2)
            return b"".join(parts)
        return await reader.readexactly(int(request.headers.get("content-length", "0")))


async def run(options: argparse.Namespace) -> None:
    """Serve until SIGTERM."""
    with long_timeouts():
        registry = await Registry.connect(options.redis_url, options.pool)
    pods = [Pod(options, registry, name) for name in options.names.split(",")]
    ports: dict[str, int] = {}
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with contextlib.AsyncExitStack() as stack:
        for pod in pods:
            server = await asyncio.start_server(
                Server(pod).serve_connection, "127.0.0.1", options.port, limit=1 << 20
            )
            stack.push_async_callback(server.wait_closed)
            stack.callback(server.close)
            ports[pod.name] = server.sockets[0].getsockname()[1]
            with long_timeouts():
                await pod.register(ports[pod.name])
        beats = [asyncio.create_task(pod.beat()) for pod in pods]
        sys.stdout.write(json.dumps({"ports": ports}) + "\n")
        sys.stdout.flush()
        await stop.wait()
        for beat in beats:
            beat.cancel()
        for pod in pods:
            await pod.leave()
    await registry.close()


def main() -> None:
    """Read the options and serve."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--redis-url", required=True)
    parser.add_argument("--pool", default="default")
    parser.add_argument("--names", default="pod-a")
    parser.add_argument("--slots", type=int, default=1)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--load-s", type=float, default=0.1)
    parser.add_argument("--lease-s", type=float, default=15.0)
    parser.add_argument("--beat-s", type=float, default=0.2)
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
