"""Requests served by callbacks alone, and what differs: as those that have a coroutine."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from gateway import authentication as tenant_files
from gateway.app import GatewayApp
from gateway.dispatch import reservations
from gateway.dispatch.warm_request import WarmRequest
from gateway.http.server import GatewayProtocol
from gateway.telemetry import explanations
from registry.domain.model import ModelPolicy, RoutingPolicy
from registry.domain.pod_state import Granted, LoadMode, ReservationRequest
from registry.redis.client import Registry
from tests.architecture.test_visited_files import REQUEST, RESPONSE, SPEC, warm_gateway
from tests.gateway.asynchronous import run_async
from tests.gateway.http.test_server import connected, read_response
from tests.gateway.placer_harness import eventually
from tests.servers import RedisServer, redis_server

SHORT_S, LONG_S = 0.0002, 0.5
"""Of inferences, as the pod reports them: long requests reserve at Redis."""
HOLD = b"hold"
"""In place of bytes: until the pod is released."""
CLOSE = b"close"
"""In place of bytes: the pod closes the connection."""
OK = b"HTTP/1.1 200 OK\r\nx-pilotlight-pod: pod-a\r\n"
TIMED = (
    OK + b"server-timing: load;dur=0.000, preprocess;dur=1.000, infer;dur=2.500,"
    b" postprocess;dur=0.500\r\ncontent-length: 2\r\n\r\n[]"
)
WAITED = OK + b"x-pilotlight-start: host\r\ncontent-length: 2\r\n\r\n[]"
FAILED = (
    b"HTTP/1.1 400 Bad Request\r\nx-pilotlight-pod: pod-a\r\nx-pilotlight-error: bad-input\r\n"
    b"content-length: 2\r\n\r\n{}"
)
REFUSED = (
    b"HTTP/1.1 503 Service Unavailable\r\nx-pilotlight-pod: pod-a\r\n"
    b"x-pilotlight-not-executed: slots\r\ncontent-length: 2\r\n\r\n{}"
)
CHUNKED = OK + b"transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
LONG = OK + b"content-length: 300000\r\n\r\n" + b"x" * 300_000
DEADLINE = b"x-pilotlight-deadline-ms: 200\r\n"

CASES: dict[str, list[list[bytes]]] = {
    "usual": [[RESPONSE], [RESPONSE]],
    "times": [[TIMED], [TIMED.replace(b"2.500", b"3.500")]],
    "in pieces": [[RESPONSE[:30], RESPONSE[30:-1], RESPONSE[-1:]]],
    "body apart": [[RESPONSE[:-2], HOLD, RESPONSE[-2:]]],
    "long": [[LONG]],
    "chunked": [[CHUNKED]],
    "until the end": [[OK + b"\r\n[1, 2]", CLOSE]],
    "not kept open": [[RESPONSE.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"), CLOSE]],
    "interim": [[b"HTTP/1.1 103 Early Hints\r\nlink: a\r\n\r\n" + RESPONSE]],
    "waited": [[WAITED]],
    "error": [[FAILED]],
    "no slot, then one": [[REFUSED], [RESPONSE]],
    "stale connection": [[CLOSE], [RESPONSE]],
    "closed twice": [[CLOSE], [CLOSE]],
    "broken off": [[RESPONSE[:-1], CLOSE]],
    "not HTTP": [[b"SMTP\r\n\r\n"]],
    "not JSON of queue-proxy": [[b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 3\r\n\r\nbad"]],
    "more than asked for": [[RESPONSE + RESPONSE]],
    "late": [[HOLD, RESPONSE]],
}


@dataclass
class ScriptedPod:
    """Sends what it is told, by request; after that usual responses."""

    script: list[list[bytes]] = field(default_factory=list)
    heads: list[bytes] = field(default_factory=list)
    released: asyncio.Event = field(default_factory=asyncio.Event)
    held: asyncio.Event = field(default_factory=asyncio.Event)
    closed: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                await reader.readexactly(int(head.split(b"content-length: ")[1].split()[0]))
                self.heads.append(head)
                for part in self.script.pop(0) if self.script else [RESPONSE]:
                    if part == HOLD:
                        self.held.set()
                        await self.released.wait()
                    elif part == CLOSE:
                        return
                    else:
                        writer.write(part)
                        await writer.drain()
                        await asyncio.sleep(0.001)  # so that parts come apart
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        except asyncio.CancelledError:  # a loop cannot end while a transport closes
            writer.transport.abort()
            raise
        finally:
            self.closed += 1
            writer.close()


@dataclass
class Served:
    """A client at a gateway that has served some usual requests."""

    app: GatewayApp
    pod: ScriptedPod
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    begun: list[WarmRequest]
    take: Any
    protocols: list[GatewayProtocol]

    @property
    def state(self) -> Any:
        return self.app.pools.owner_of(SPEC.name).watch.state

    async def ask(self, request: bytes = REQUEST) -> tuple[bytes, dict[bytes, bytes], bytes]:
        self.writer.write(request)
        return await self.read()

    async def read(self) -> tuple[bytes, dict[bytes, bytes], bytes]:
        """Status line, headers and what came of the body; empty if the connection was closed."""
        try:
            head = await self.reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError as error:
            return error.partial, {}, b""
        first, *lines = head[:-4].split(b"\r\n")
        headers = {name: value for name, _, value in (line.partition(b": ") for line in lines)}
        length = int(headers.get(b"content-length", -1))
        try:
            if length >= 0:
                body = await self.reader.readexactly(length)
            else:
                body = await self.reader.readuntil(b"0\r\n\r\n")
        except asyncio.IncompleteReadError as error:
            body = error.partial + b" (broken off)"
        return first, headers, body

    async def at_rest(self) -> None:
        """Nothing is held any more."""
        context = self.app.pools.owner_of(SPEC.name).context
        pod = self.state.pods["pod-a"]
        await eventually(
            lambda: (
                context.reservations.held_total == pod.slots_busy == pod.inferring == 0
                and not pod.work.inferences
                and not pod.work.holders
            )
        )


@asynccontextmanager
async def served(
    redis: RedisServer,
    pool: str,
    *,
    by_callbacks: bool = True,
    count: int = 3,
    request: bytes = REQUEST,
    infer_s: float = SHORT_S,
    **settings: Any,
) -> AsyncIterator[Served]:
    pod, begun = ScriptedPod(), list[WarmRequest]()
    async with AsyncExitStack() as stack:
        gateway = warm_gateway(redis, pool, pod.serve, infer_s=infer_s, **settings)
        app = await stack.enter_async_context(gateway)
        take = app.take_warm
        assert take is not None

        def take_noted(*arguments: Any) -> WarmRequest | None:
            found = take(*arguments)
            if found is not None:
                begun.append(found)
            return found

        reader, writer, protocols = await stack.enter_async_context(
            connected(
                app.infer, find=app.resolve_target, take_warm=take_noted if by_callbacks else None
            )
        )
        client = Served(app, pod, reader, writer, begun, take_noted, protocols)
        for _ in range(count):
            assert (await client.ask(request))[2] == b"[]"
        assert bool(begun) is by_callbacks
        begun.clear()
        pod.heads.clear()
        yield client


def outcome(response: tuple[bytes, dict[bytes, bytes], bytes]) -> tuple[object, ...]:
    """What does not differ between two requests."""
    first, headers, body = response
    own = {b"x-request-id", b"server-timing", b"x-pilotlight-gateway"}
    text = re.sub(rb"[\d.]+ s\b", b"S", body)
    return first, {name: value for name, value in headers.items() if name not in own}, text


def head_without_ids(head: bytes) -> list[bytes]:
    known = (
        b"x-request-id",
        b"x-pilotlight-attempt",
        b"x-pilotlight-deadline-ms",
        b"x-pilotlight-reservation",
        b"host",
    )
    return sorted(line for line in head.split(b"\r\n") if not line.startswith(known))


async def answers(
    redis: RedisServer, pool: str, script: list[list[bytes]], *, by_callbacks: bool, **more: Any
) -> tuple[object, ...]:
    async with served(redis, pool, by_callbacks=by_callbacks, **more) as client:
        client.pod.script = [list(parts) for parts in script]
        client.writer.write(REQUEST)
        if any(HOLD in parts for parts in script):
            await client.pod.held.wait()
            await asyncio.sleep(0.01)
            client.pod.released.set()
        first = outcome(await client.read())
        later: tuple[object, ...] = ()
        if not client.reader.at_eof():
            later = outcome(await client.ask())
        await client.at_rest()
        if by_callbacks:
            assert client.begun
        heads = [head_without_ids(head) for head in client.pod.heads]
        metrics = client.app.pools.owner_of(SPEC.name).context.telemetry.recent
        ended = [(each.status, each.reason, each.start) for each in metrics.newest_first()]
        return first, later, heads, sorted(ended)


BY_POLICY = ModelPolicy(routing=RoutingPolicy.COLOCATION_QUEUEING)
KINDS: dict[str, dict[str, Any]] = {
    "short": {"infer_s": SHORT_S},
    "long": {"infer_s": LONG_S},
    "by policy": {
        "spec": replace(SPEC, policy=ModelPolicy(routing=RoutingPolicy.COLOCATION_QUEUEING))
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", CASES)
@run_async
async def test_what_differs_is_answered_as_ever(
    case: str, kind: str, redis: RedisServer, pool: str
) -> None:
    script, more = CASES[case], KINDS[kind]
    own = await answers(redis, pool, script, by_callbacks=True, **more)
    assert own == await answers(redis, f"{pool}-2", script, by_callbacks=False, **more)


def pause(redis: RedisServer, pause_ms: int) -> None:
    with Redis.from_url(redis.url) as direct:
        direct.client_pause(pause_ms)


@run_async
async def test_a_long_request_reserves_at_redis(redis: RedisServer, pool: str) -> None:
    async with served(redis, pool, infer_s=LONG_S) as client:
        client.pod.script = [[HOLD, RESPONSE]]
        client.writer.write(REQUEST)
        await client.pod.held.wait()
        assert client.state.pods["pod-a"].slots_used == 1  # by Redis' count
        assert b"x-pilotlight-reservation: " in client.pod.heads[0]
        client.pod.released.set()
        assert (await client.read())[2] == b"[]"
        assert len(client.begun) == 1
        await client.at_rest()


@pytest.mark.slow
@pytest.mark.parametrize("has_deadline", [False, True])
@run_async
async def test_a_request_that_ends_while_redis_is_asked_holds_nothing(
    has_deadline: bool, redis: RedisServer, pool: str
) -> None:
    deadline = DEADLINE if has_deadline else b""
    request = REQUEST.replace(b"content-length", deadline + b"content-length")
    async with served(redis, pool, request=request, infer_s=0.02) as client:
        pause(redis, 700)
        client.writer.write(request)
        await eventually(lambda: client.begun and client.begun[0].work)
        if has_deadline:
            assert (await client.read())[0] == b"HTTP/1.1 504 Gateway Timeout"
        else:
            client.writer.transport.abort()
            await eventually(lambda: client.begun[0].is_left)
        await client.at_rest()
        await eventually(lambda: client.state.pods["pod-a"].slots_used == 0)  # by Redis' count
        assert client.pod.heads == []


@run_async
async def test_what_redis_refuses_waits_in_the_queue(redis: RedisServer, pool: str) -> None:
    terms = ReservationRequest("pod-a", "pod-a", SPEC.key, LoadMode.WARM)
    async with served(redis, pool, infer_s=LONG_S) as client, AsyncExitStack() as stack:
        other = await Registry.connect(redis.url, pool)
        stack.push_async_callback(other.close)
        granted: list[object] = []
        await client.at_rest()
        await eventually(lambda: client.state.pods["pod-a"].slots_used == 0)  # by Redis' count
        for number in range(4):
            other.reserve(f"other:{number}", terms, granted.append)
        await eventually(lambda: client.state.pods["pod-a"].slots_used == 4)
        client.state.pods["pod-a"].set_counts(0, 0)  # as if that news had not come
        client.writer.write(REQUEST)
        placer = client.app.pools.owner_of(SPEC.name).context.placer
        await eventually(lambda: placer.queued_total == 1)
        assert client.begun[0].is_left
        assert granted == [Granted("warm", 0)] * 4
        for number in range(4):
            other.release(f"other:{number}", terms)
        assert (await client.read())[2] == b"[]"
        await client.at_rest()


@run_async
async def test_a_slot_is_kept_until_there_is_a_connection_to_its_pod(
    redis: RedisServer, pool: str
) -> None:
    async with served(redis, pool, infer_s=LONG_S) as client, AsyncExitStack() as stack:
        reader, writer, _ = await stack.enter_async_context(
            connected(client.app.infer, find=client.app.resolve_target, take_warm=client.take)
        )
        for _ in range(2):
            writer.write(REQUEST)
            assert await read_response(reader) == b"[]"
        client.begun.clear()
        client.pod.heads.clear()
        client.pod.script = [[HOLD, RESPONSE]]
        client.writer.write(REQUEST)
        await client.pod.held.wait()
        writer.write(REQUEST)
        assert await read_response(reader) == b"[]"
        client.pod.released.set()
        assert (await client.read())[2] == b"[]"
        ids = [re.findall(rb"x-pilotlight-reservation: (\S+)", head) for head in client.pod.heads]
        assert ids == [[request.id.encode()] for request in client.begun]
        assert len(ids) == 2
        await client.at_rest()


@run_async
async def test_without_redis_a_long_request_is_served(tmp_path: Path, pool: str) -> None:
    with redis_server(tmp_path) as server:
        async with served(server, pool, infer_s=LONG_S) as client:
            server.stop()
            for _ in range(3):
                assert (await client.ask())[2] == b"[]"
            assert len(client.begun) == 3
            await client.at_rest()


@run_async
async def test_a_request_that_may_have_been_begun_is_sent_again_as_the_same_attempt(
    redis: RedisServer, pool: str
) -> None:
    async with served(redis, pool) as client:
        client.pod.script = [[CLOSE], [RESPONSE]]
        assert (await client.ask())[2] == b"[]"
        first, second = client.pod.heads
        attempt, request_id = (
            re.compile(rb"x-pilotlight-attempt: (\S+)"),
            re.compile(rb"x-request-id: (\S+)"),
        )
        assert attempt.findall(first) == attempt.findall(second) != []
        assert request_id.findall(first) == request_id.findall(second)
        assert b"x-pilotlight-resent: 1" in second
        assert b"x-pilotlight-resent" not in first


@run_async
async def test_a_long_request_is_registered_and_goes_on(
    redis: RedisServer, pool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reservations, "REGISTER_AFTER_S", 0.02)
    async with served(redis, pool) as client:
        client.pod.script = [[HOLD, RESPONSE]]
        client.writer.write(REQUEST)
        await client.pod.held.wait()
        await eventually(lambda: client.state.pods["pod-a"].slots_used == 1)  # by Redis' count
        client.pod.released.set()
        first, headers, body = await client.read()
        assert (first, body) == (b"HTTP/1.1 200 OK", b"[]")
        assert headers[b"x-pilotlight-policy"] == b"auto"
        await client.at_rest()


@run_async
async def test_a_client_that_leaves_frees_its_slot_and_ends_its_pods_work(
    redis: RedisServer, pool: str
) -> None:
    async with served(redis, pool) as client:
        client.pod.script = [[HOLD, RESPONSE]]
        client.writer.write(REQUEST)
        await client.pod.held.wait()
        client.writer.transport.abort()
        await client.at_rest()
        client.pod.released.set()
        await eventually(lambda: client.pod.closed == 1)


@run_async
async def test_a_deadline_ends_it(redis: RedisServer, pool: str) -> None:
    request = REQUEST.replace(b"content-length", DEADLINE + b"content-length")
    async with served(redis, pool, request=request) as client:
        client.pod.script = [[HOLD, RESPONSE]]
        client.writer.write(request)
        await client.pod.held.wait()
        assert len(client.begun) == 1
        first, headers, _ = await client.read()
        assert first == b"HTTP/1.1 504 Gateway Timeout"
        assert headers[b"x-pilotlight-reason"] == b"deadline"
        await client.at_rest()
        client.pod.released.set()


@run_async
async def test_pipelined_requests_are_answered_in_order(redis: RedisServer, pool: str) -> None:
    async with served(redis, pool) as client:
        client.pod.script = [[HOLD, RESPONSE.replace(b"[]", b"[1")], [RESPONSE], [FAILED]]
        client.writer.write(REQUEST)
        await client.pod.held.wait()
        client.writer.write(REQUEST + REQUEST)
        client.pod.released.set()
        assert [(await client.read())[2] for _ in range(3)] == [b"[1", b"[]", b"{}"]
        client.writer.write(REQUEST + b"no HTTP\r\n\r\n")
        assert (await client.read())[2] == b"[]"
        assert (await client.read())[0].startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize("is_sent", [False, True])
@run_async
async def test_a_draining_gateway_answers_what_it_has_begun(
    is_sent: bool, redis: RedisServer, pool: str
) -> None:
    async with served(redis, pool) as client:
        client.pod.script = [[HOLD, RESPONSE]]
        if not is_sent:
            client.app.shutdown.is_draining = True
        client.writer.write(REQUEST)
        if is_sent:
            await client.pod.held.wait()
            client.app.shutdown.is_leaving = client.app.shutdown.is_draining = True
            client.begun[-1].keep_alive = False  # as uvicorn does
            client.pod.released.set()
        first, headers, _ = await client.read()
        assert first.split()[1] == (b"200" if is_sent else b"503")
        assert headers.get(b"connection") == (b"close" if is_sent else None)
        await client.at_rest()


@run_async
async def test_an_error_of_the_gateway_itself_is_answered(
    redis: RedisServer, pool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("unexpected")

    async with served(redis, pool) as client:
        telemetry = client.app.pools.owner_of(SPEC.name).context.telemetry
        monkeypatch.setattr(telemetry, "warm_head", fail)
        first, _, body = await client.ask()
        assert first == b"HTTP/1.1 500 Internal Server Error"
        assert b"failed unexpectedly" in body
        await client.at_rest()
        monkeypatch.undo()
        assert (await client.ask())[2] == b"[]"


@run_async
async def test_its_decision_is_explained_also_where_many_come(
    redis: RedisServer, pool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    documents = []
    for weighed in (50, 0):
        monkeypatch.setattr(explanations, "MAX_WEIGHED", weighed)
        async with served(redis, f"{pool}-{weighed}") as client:
            _, headers, _ = await client.ask()
            explained = client.app.pools.owner_of(SPEC.name).explanations
            found = explained.get(headers[b"x-request-id"].decode())
            assert found is not None
            documents.append(found)
    weighed_document, plain = documents
    for name in ("model", "policy", "waited_for"):
        assert plain[name] == weighed_document[name]
    assert plain["decision"]["predict"] == "pod-a"
    assert plain["candidates"] == weighed_document["candidates"]
    assert [each["way"] for each in plain["options"]] == ["colocate"]


@pytest.mark.parametrize("line", [b"x-pilotlight-policy: auto", b"x-request-id: 1"])
@run_async
async def test_a_request_that_asks_for_more_is_decided_in_full(
    line: bytes, redis: RedisServer, pool: str
) -> None:
    request = REQUEST.replace(b"host: x", b"host: x\r\n" + line)
    async with served(redis, pool) as client:
        for _ in range(3):
            assert (await client.ask(request))[2] == b"[]"
        assert not client.begun
        assert (await client.ask())[2] == b"[]"
        assert client.begun


def with_key(key: bytes) -> bytes:
    return REQUEST.replace(b"host: x", b"host: x\r\nx-api-key: " + key)


@run_async
async def test_a_credential_that_is_known_is_looked_at_once_a_second(
    redis: RedisServer, pool: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tenant_files, "RELOAD_INTERVAL_S", 0.05)
    (tmp_path / "default").write_text("the-first-key-of-it\nthe-second-key-of-it\n")
    (tmp_path / "other").write_text("the-key-of-another\n")
    first, second = with_key(b"the-first-key-of-it"), with_key(b"the-second-key-of-it")
    async with served(redis, pool, request=first, api_keys=str(tmp_path)) as client:
        assert (await client.ask(first))[2] == b"[]"
        assert client.begun
        assert all(b"key" not in head for head in client.pod.heads)
        for refused in (REQUEST, with_key(b"the-key-of-another"), with_key(b"the-key-of-nobody")):
            for _ in range(3):
                assert (await client.ask(refused))[0].split()[1] in (b"401", b"403", b"404")
        (tmp_path / "default").write_text("the-second-key-of-it\n")

        statuses = {b"200"}
        while b"401" not in statuses:  # for a second, and until the file is read
            statuses.add((await client.ask(first))[0].split()[1])
        assert statuses == {b"200", b"401"}
        assert (await client.ask(second))[2] == b"[]"
