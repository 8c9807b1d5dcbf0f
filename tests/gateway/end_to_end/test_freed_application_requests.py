"""Requests to applications are freed as they end, as all others: see `end_to_end`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from registry.domain.application import AccuracyProfile, ApplicationSpec, InputTensor, SneakPeekSpec
from registry.domain.model import ModelName, ModelPolicy
from registry.domain.tenant_rules import TenantRules
from tests.architecture.test_visited_files import REQUEST, RESPONSE, SPEC
from tests.gateway.asynchronous import run_async
from tests.gateway.end_to_end.test_freed_requests import LATE, ask, no_garbage
from tests.gateway.end_to_end.test_warm_requests import FAILED, REFUSED, Served, served
from tests.gateway.placer_harness import eventually
from tests.servers import RedisServer
from tests.variants.test_look_client import train_parity
from variants import look_client

pytestmark = pytest.mark.slow

VARIANT = replace(SPEC, policy=ModelPolicy(application="app"))
APP = ApplicationSpec(
    ModelName("default", "app"), ("even", "odd"), (InputTensor("features", "FP32", (-1, 2)),)
)
ASKED = REQUEST.replace(b"/m:", b"/app:")


def _with(body: bytes) -> bytes:
    head = ASKED.replace(b"content-length: 2", b"content-length: %d" % len(body))
    return head.removesuffix(b"{}") + body


@asynccontextmanager
async def asking(redis: RedisServer, pool: str, **declared: Any) -> AsyncIterator[Served]:
    async with served(redis, pool, spec=VARIANT) as client:
        registry = client.app.pools.owner_of(APP.name).watch.registry
        await registry.put_rules(TenantRules())
        await registry.put_applications([replace(APP, **declared)])
        await registry.put_accuracy(AccuracyProfile(VARIANT.key, APP.classes, ((9, 1), (1, 9))))
        await eventually(
            lambda: APP.name in client.state.applications and bool(client.state.accuracies)
        )
        yield client


@pytest.mark.parametrize("script", [[RESPONSE], [FAILED], [REFUSED, RESPONSE]])
@run_async
async def test_a_planned_request_is_freed_at_its_end(
    script: list[bytes], redis: RedisServer, pool: str
) -> None:
    async with asking(redis, pool) as client:
        assert await ask(client, ASKED)
        client.pod.script = [[each] for each in script]
        with no_garbage():
            assert await ask(client, ASKED)


@run_async
async def test_a_request_that_finds_no_slot_in_time_is_freed(redis: RedisServer, pool: str) -> None:
    async with asking(redis, pool, refuses_late=True) as client:
        client.state.pods["pod-a"].set_counts(4, 4)
        with no_garbage():
            first = (await client.ask(LATE.replace(b"/m:", b"/app:")))[0]
            assert first.startswith(b"HTTP/1.1 504 ")


@run_async
async def test_a_request_whose_client_leaves_its_window_is_freed(
    redis: RedisServer, pool: str
) -> None:
    async with asking(redis, pool, is_window_fixed=True, window_s=0.3) as client:
        others = len(asyncio.all_tasks())
        with no_garbage():
            client.writer.write(ASKED)
            await eventually(lambda: len(asyncio.all_tasks()) > others)
            client.writer.transport.abort()
            await eventually(lambda: len(asyncio.all_tasks()) == others)


@run_async
async def test_a_request_that_the_look_answers_or_refuses_is_freed(
    redis: RedisServer, pool: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(look_client, "TIMEOUT_S", 60.0)  # a busy machine makes no look late
    train_parity(tmp_path)
    look = SneakPeekSpec(f"file://{tmp_path}")
    async with asking(redis, pool, sneak_peek=look, deadline_s=100.0) as client:
        right = _with(b'{"instances": [[4.0, 0.0]]}')
        while (await client.ask(right))[1][b"x-pilotlight-variant"] != b"short-circuit":  # noqa: ASYNC110 - the process starts
            await asyncio.sleep(0.02)
        with no_garbage():
            assert (await ask(client, right)).startswith(b"HTTP/1.1 200 ")
            refused = await ask(client, _with(b'{"instances": [[4.0, 0.0, 1.0]]}'))
            assert refused.startswith(b"HTTP/1.1 400 ")


@run_async
async def test_a_request_without_a_variant_is_freed(redis: RedisServer, pool: str) -> None:
    async with asking(redis, pool, classes=("a", "b", "c")) as client:
        with no_garbage():
            assert (await ask(client, ASKED)).startswith(b"HTTP/1.1 503 ")
