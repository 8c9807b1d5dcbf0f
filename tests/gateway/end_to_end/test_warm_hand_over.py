"""What was handed over is served once: nothing begins it again, and nothing of it stays."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateway.dispatch import reservations, warm_request
from gateway.http import body
from gateway.http.client_request import ClientRequest
from gateway.http.listener import RequestStarts
from gateway.telemetry.explanations import Explanations
from tests.architecture.test_visited_files import REQUEST, RESPONSE, SPEC
from tests.gateway.asynchronous import run_async
from tests.gateway.end_to_end.test_warm_requests import (
    BY_POLICY,
    CLOSE,
    HOLD,
    LONG_S,
    REFUSED,
    Served,
    served,
)
from tests.gateway.placer_harness import eventually
from tests.servers import RedisServer, redis_server

INTERIM = b"HTTP/1.1 103 Early Hints\r\nlink: a\r\n\r\n"
HEAD = (
    b"HTTP/1.1 200 OK\r\nx-pilotlight-pod: pod-a\r\ncontent-type: %b\r\ncontent-length: 2\r\n\r\n[]"
)


def note_handed_over(monkeypatch: pytest.MonkeyPatch) -> list[ClientRequest]:
    started, start = list[ClientRequest](), ClientRequest.start

    def start_noted(client: ClientRequest) -> None:
        started.append(client)
        start(client)

    monkeypatch.setattr(ClientRequest, "start", start_noted)
    return started


async def nothing_more(client: Served, count: int) -> None:
    """The next response is that of the next request, which is the pod's `count`th."""
    first, _, body = await client.ask(REQUEST)
    assert (first, body) == (b"HTTP/1.1 200 OK", b"[]")
    assert len(client.pod.heads) == count
    await client.at_rest()


@pytest.mark.parametrize(
    ("script", "heads"),
    [
        ([[HOLD, RESPONSE]], 1),
        ([[RESPONSE[:-2], HOLD, RESPONSE[-2:]]], 1),
        ([[RESPONSE[:30], HOLD, RESPONSE[30:]]], 1),
        ([[INTERIM, HOLD, RESPONSE]], 1),
        ([[CLOSE], [HOLD, RESPONSE]], 2),
        ([[REFUSED], [HOLD, RESPONSE]], 2),
    ],
    ids=["whole", "body apart", "head apart", "interim", "stale", "refused"],
)
@pytest.mark.parametrize("has_redis", [True, False])
@run_async
async def test_a_request_is_handed_over_once_however_long_it_lasts(
    has_redis: bool,
    script: list[list[bytes]],
    heads: int,
    tmp_path: Path,
    pool: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reservations, "REGISTER_AFTER_S", 0.01)
    with redis_server(tmp_path) as server:
        async with served(server, pool) as client:
            if not has_redis:
                server.stop()
            started = note_handed_over(monkeypatch)
            client.pod.script = [list(parts) for parts in script]
            client.writer.write(REQUEST)
            await client.pod.held.wait()
            registering = asyncio.get_running_loop().time() + 0.1
            await eventually(lambda: asyncio.get_running_loop().time() > registering)
            assert len(started) == 1
            client.pod.released.set()
            assert (await client.read())[2] == b"[]"
            await nothing_more(client, heads + 1)


@run_async
async def test_responses_by_turns_keep_their_own_headers(redis: RedisServer, pool: str) -> None:
    kinds = [b"a/a", b"a/a", b"b/b", b"a/a", b"b/b", b"a/a", b"b/b", b"b/b"]
    async with served(redis, pool) as client:
        client.pod.script = [[HEAD % kind] for kind in kinds]
        assert [(await client.ask())[1][b"content-type"] for _ in kinds] == kinds


@run_async
async def test_an_error_between_placing_and_sending_leaves_nothing(
    redis: RedisServer, pool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("unexpected")

    monkeypatch.setattr(reservations, "REGISTER_AFTER_S", 0.01)
    async with served(redis, pool) as client:
        with monkeypatch.context() as patch:
            patch.setattr(Explanations, "record_warm", fail)
            assert (await client.ask())[0].startswith(b"HTTP/1.1 500 ")
            await client.at_rest()
        await nothing_more(client, 1)


@run_async
async def test_an_error_of_a_policy_frees_the_bodys_share(
    redis: RedisServer, pool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("unexpected")

    async with served(redis, pool, spec=replace(SPEC, policy=BY_POLICY)) as client:
        monkeypatch.setattr(warm_request, "UNCOUNTED_BYTES", 1)
        assert (await client.ask())[2] == b"[]"
        held = client.begun[-1]._path.held
        placer = client.app.pools.owner_of(SPEC.name).context.placer
        monkeypatch.setattr(placer, "place", fail)
        assert (await client.ask())[0].startswith(b"HTTP/1.1 500 ")
        assert held.held_bytes == 0


@run_async
async def test_a_body_keeps_its_share_when_its_request_is_handed_over(
    redis: RedisServer, pool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (warm_request, body):
        monkeypatch.setattr(module, "UNCOUNTED_BYTES", 1)
    async with served(redis, pool) as client:
        client.pod.script = [[HOLD, RESPONSE]]
        client.writer.write(REQUEST)
        await client.pod.held.wait()
        held = client.begun[-1]._path.held
        held._limit = held.held_bytes
        (protocol,) = client.protocols
        protocol.shutdown()
        assert not held.may_take(1)  # of a request that comes before the task begins
        client.pod.released.set()
        assert (await client.read())[2] == b"[]"
        await client.at_rest()
        assert held.held_bytes == 0


@run_async
async def test_a_body_is_freed_once_its_response_has_begun(
    redis: RedisServer, pool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (warm_request, body):
        monkeypatch.setattr(module, "UNCOUNTED_BYTES", 1)
    async with served(redis, pool) as client:
        client.pod.script = [[RESPONSE[:-1], HOLD, RESPONSE[-1:]]]
        client.writer.write(REQUEST)
        assert (await client.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
        assert client.begun[-1]._path.held.held_bytes == 0
        client.pod.released.set()
        assert await client.reader.readexactly(2) == b"[]"
        await client.at_rest()


@run_async
async def test_nothing_is_sent_for_a_client_that_left_before_the_task_began(
    redis: RedisServer, pool: str
) -> None:
    async with served(redis, pool, by_callbacks=False) as client:
        (protocol,) = client.protocols
        protocol.data_received(REQUEST)
        protocol.connection_lost(None)
        (run,) = protocol.tasks
        await eventually(lambda: run not in protocol.tasks)
        connections = client.app.pools.owner_of(SPEC.name).context.connections
        assert connections.take_idle(client.state.pods["pod-a"].address) is not None
        await client.at_rest()


@pytest.mark.parametrize("more", [{"infer_s": LONG_S}, {"spec": replace(SPEC, policy=BY_POLICY)}])
@run_async
async def test_the_server_can_end_it_at_the_end_of_its_drain(
    more: dict[str, Any], redis: RedisServer, pool: str
) -> None:
    async with served(redis, pool, **more) as client:
        client.pod.script = [[HOLD, RESPONSE]]
        client.writer.write(REQUEST)
        await client.pod.held.wait()
        client.app.shutdown.is_draining = True
        (protocol,) = client.protocols
        protocol.shutdown()
        (task,) = protocol.tasks
        task.cancel()
        first, headers, _ = await client.read()
        assert first.startswith(b"HTTP/1.1 503 ")
        assert headers[b"x-pilotlight-reason"] == b"draining"
        await client.at_rest()
        client.pod.released.set()


@run_async
async def test_one_that_fails_to_start_holds_up_no_others() -> None:
    class Starting:
        def __init__(self, number: int) -> None:
            self.number = number

        def start(self) -> None:
            if self.number == 20:
                raise RuntimeError("unexpected")
            done.append(self.number)

    done: list[int] = []
    loop, starts = asyncio.get_running_loop(), RequestStarts()
    loop.set_exception_handler(lambda *_: None)
    for number in range(80):
        starts.begin(Starting(number), loop)
    await eventually(lambda: len(done) + 16 > 79)
    for number in range(80, 160):
        starts.begin(Starting(number), loop)
    await eventually(lambda: done[-1] == 159)
