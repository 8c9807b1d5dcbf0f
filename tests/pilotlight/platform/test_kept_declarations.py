"""What is declared in the embedded Redis survives its end in a file."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from pilotlight.platform.kept_declarations import ClusterConnection, KeptDeclarations
from registry.domain.application import AccuracyProfile
from registry.domain.model import UNREADABLE, LoadFailure, ModelName, ModelSpec
from registry.domain.pod import Profile, ProfilePoint
from registry.redis.reports import read_declared_times
from registry.redis.workflow_log import WorkflowLog
from tests import servers
from tests.servers import wait_until

MODELS = [
    ModelSpec(ModelName("red", "a"), "s3://models/a", annotations=(("pilotlight.io/pin", "true"),)),
    ModelSpec(ModelName("red", "b"), "s3://models/b"),
]


@asynccontextmanager
async def cluster(redis: servers.RedisServer, pool: str) -> AsyncIterator[ClusterConnection]:
    async with asyncio.TaskGroup() as group:
        connection = await ClusterConnection.open(redis.url, pool, group)
        try:
            yield connection
        finally:
            await connection.close()


async def declare_and_save(redis: servers.RedisServer, pool: str, file: Path) -> None:
    async with cluster(redis, pool) as first:
        await first.registry.put_models(MODELS)
        graph = {"kind": "workflow", "text": "x"}
        await WorkflowLog(first.registry).put_workflow(ModelName("red", "chain"), graph)
        await first.wait_until(lambda: len(first.state.models) == 2, timeout_s=120, what="declared")
        await KeptDeclarations(file, first).save()


def test_another_redis_gets_what_was_declared(redis: servers.RedisServer, tmp_path: Path) -> None:
    async def scenario() -> None:
        file = tmp_path / "declared.json"
        await declare_and_save(redis, "kept-1", file)
        async with cluster(redis, "kept-2") as second:
            assert await KeptDeclarations(file, second).restore() == 2
            for spec in MODELS:
                record = await second.registry.get_model(spec.name)
                assert record is not None
                assert record.spec == spec
            assert list(await WorkflowLog(second.registry).workflows()) == [
                ModelName("red", "chain")
            ]

    asyncio.run(scenario())


def test_what_is_known_of_a_model_outlives_the_run(
    redis: servers.RedisServer, tmp_path: Path
) -> None:
    """That its files cannot be read, and since when it is declared; not what may have passed."""
    broken, failed = (
        LoadFailure(MODELS[0].key, UNREADABLE, "truncated", 0, 0.0, 422),
        LoadFailure(MODELS[1].key, "ModelLoadFailed", "out of memory", 1, 0.0),
    )

    async def scenario() -> None:
        file = tmp_path / "declared.json"
        async with cluster(redis, "kept-8") as first:
            await first.registry.put_models(MODELS)
            for each in (broken, failed):
                await first.registry.report_unreadable(each)
            await first.wait_until(
                lambda: (
                    all(each.failure for each in first.state.models.values())
                    and len(first.state.models) == 2
                ),
                timeout_s=120,
                what="failures",
            )
            declared = await read_declared_times(first.registry)
            await KeptDeclarations(file, first).save()
        async with cluster(redis, "kept-9") as second:
            await KeptDeclarations(file, second).restore()
            records = [await second.registry.get_model(each.name) for each in MODELS]
            assert [each and each.failure for each in records] == [broken, None]
            assert await read_declared_times(second.registry) == declared

    asyncio.run(scenario())


def test_deleted_models_are_not_declared_again(redis: servers.RedisServer, tmp_path: Path) -> None:
    async def scenario() -> None:
        file = tmp_path / "declared.json"
        await declare_and_save(redis, "kept-3", file)
        async with cluster(redis, "kept-3") as first:
            await first.registry.delete_models([MODELS[0].name])
            await first.wait_until(lambda: len(first.state.models) == 1, timeout_s=120, what="gone")
            await KeptDeclarations(file, first).save()
        async with cluster(redis, "kept-4") as second:
            assert await KeptDeclarations(file, second).restore() == 1

    asyncio.run(scenario())


def test_profiles_of_declared_models_are_kept(redis: servers.RedisServer, tmp_path: Path) -> None:
    """Also those taken after the models' last change; those of deleted models go with them."""

    file = tmp_path / "declared.json"

    def is_saved() -> bool:
        content = file.read_bytes()
        return b"confusion" in content and MODELS[0].key.encode() not in content

    async def scenario() -> None:
        profiles = [Profile(each.key, "cpu", (ProfilePoint(1, 0.1, 5),), "size") for each in MODELS]
        accuracy = AccuracyProfile(MODELS[1].key, ("no", "yes"), ((6, 2), (1, 1)))
        await declare_and_save(redis, "kept-6", file)
        async with cluster(redis, "kept-6") as first, asyncio.TaskGroup() as group:
            saving = group.create_task(KeptDeclarations(file, first).save_periodically())
            for each in profiles:
                assert await first.registry.put_profile(each)
            assert await first.registry.put_accuracy(accuracy)
            await first.registry.delete_models([MODELS[0].name])
            await asyncio.to_thread(wait_until, is_saved, what="the profiles that are left")
            saving.cancel()
        async with cluster(redis, "kept-7") as second:
            assert await KeptDeclarations(file, second).restore() == 1
            await second.wait_until(
                lambda: bool(second.state.accuracies), timeout_s=120, what="profiles"
            )
            assert second.state.accuracies == {MODELS[1].name: accuracy}
            assert second.state.profiles == {MODELS[1].name: {"cpu": profiles[1]}}

    asyncio.run(asyncio.wait_for(scenario(), 60))


@pytest.mark.parametrize("content", [None, b"", b"{broken"])
def test_without_a_readable_file_it_begins_with_nothing(
    redis: servers.RedisServer, tmp_path: Path, content: bytes | None
) -> None:
    file = tmp_path / "declared.json"
    if content is not None:
        file.write_bytes(content)

    async def scenario() -> None:
        async with cluster(redis, "kept-5") as empty:
            assert await KeptDeclarations(file, empty).restore() == 0
            await KeptDeclarations(file.with_name("other.json"), empty).save()

    asyncio.run(scenario())
    assert not file.with_name("other.json").exists()
