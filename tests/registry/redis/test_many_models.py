"""Thousands of models at once: other clients are served, and the limits of Redis respected."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import redis

from registry.domain.model import ModelName, ModelSpec
from registry.domain.records import MAX_STEP_MODELS
from registry.errors import RegistryUnavailable
from registry.redis.client import Registry
from registry.redis.watch import ClusterWatch
from tests import servers
from tests.registry.redis.clients import SPEC, agrees, running, until
from tests.registry.redis.conftest import Connect
from tests.servers import RedisServer

MESSAGES = ("--client-output-buffer-limit", "pubsub")
"""Limit of buffered messages, above which Redis disconnects a subscriber."""


def many(count: int, *, annotation_bytes: int = 0) -> list[ModelSpec]:
    annotations = (("note", "x" * annotation_bytes),) if annotation_bytes else ()
    return [
        ModelSpec(
            ModelName("default", f"model-{number}"),
            f"s3://models/{number}",
            annotations=annotations,
        )
        for number in range(count)
    ]


async def test_other_clients_are_served_while_many_models_are_declared(connect: Connect) -> None:
    registry = await connect()
    specs = many(10 * MAX_STEP_MODELS)
    declaring = asyncio.create_task(registry.put_models(specs))
    while await registry.get_model(specs[0].name) is None:
        assert not declaring.done()
    assert not declaring.done()
    assert await declaring == ["created"] * len(specs)
    models = (await registry.cluster()).models
    assert {each.spec for each in models.values()} == set(specs)
    assert await registry.put_models(specs[:3]) == ["unchanged"] * 3


@pytest.mark.parametrize(
    "specs",
    [
        pytest.param(many(3_000), id="many"),
        pytest.param(many(12, annotation_bytes=120_000), id="long"),
    ],
)
async def test_calls_and_messages_stay_within_the_limits_of_redis(
    executable: str, tmp_path: Path, specs: list[ModelSpec]
) -> None:
    options = ("--proto-max-bulk-len", "1mb", *MESSAGES, "1mb", "0", "0")
    with servers.redis_server(tmp_path, executable=executable, options=options) as limited:
        registry, other = await Registry.connect(limited.url), await Registry.connect(limited.url)
        async with running(ClusterWatch(other)) as watch:
            assert await registry.put_models(specs) == ["created"] * len(specs)
            await until(lambda: len(watch.state.models) == len(specs))
            assert watch.is_connected
            assert watch.repairs_total == 0
            assert await agrees(watch, registry)
        await registry.close()
        await other.close()


@pytest.mark.slow
async def test_a_copy_disconnected_for_a_long_message_is_repaired(
    executable: str, tmp_path: Path
) -> None:
    options = (*MESSAGES, "32kb", "0", "0")
    with servers.redis_server(tmp_path, executable=executable, options=options) as limited:
        registry, other = await Registry.connect(limited.url), await Registry.connect(limited.url)
        async with running(ClusterWatch(other)) as watch:
            specs = many(MAX_STEP_MODELS)
            await registry.put_models(specs)
            await until(lambda: len(watch.state.models) == len(specs))
            await until(lambda: watch.is_connected)
            assert await agrees(watch, registry)
        await registry.close()
        await other.close()


async def test_a_full_redis_reports_how_many_models_are_declared(
    executable: str, tmp_path: Path
) -> None:
    options = ("--maxmemory", "3mb", "--maxmemory-policy", "noeviction")
    with servers.redis_server(tmp_path, executable=executable, options=options) as small:
        registry = await Registry.connect(small.url)
        specs = many(4_000)
        with pytest.raises(RegistryUnavailable, match="of 4000 models are declared") as caught:
            await registry.put_models(specs)
        with redis.Redis.from_url(small.url) as direct:
            direct.config_set("maxmemory", "0")
        declared = len((await registry.cluster()).models)
        assert 0 < declared < len(specs)
        assert f"; {declared} of 4000" in str(caught.value)
        outcomes = await registry.put_models(specs)
        assert outcomes == ["unchanged"] * declared + ["created"] * (len(specs) - declared)
        await registry.close()


async def test_the_calls_of_a_snapshot_do_not_grow_with_the_models(
    connect: Connect, server: RedisServer
) -> None:
    registry = await connect()
    await registry.put_models([SPEC])
    with redis.Redis.from_url(server.url) as direct:
        few = await calls_of_a_snapshot(registry, direct)
        await registry.put_models(many(500))
        assert await calls_of_a_snapshot(registry, direct) <= few + 10


async def calls_of_a_snapshot(registry: Registry, direct: redis.Redis) -> int:
    direct.config_resetstat()
    await registry.cluster()
    stats: Any = direct.info("commandstats")
    return sum(int(each["calls"]) for each in stats.values())
