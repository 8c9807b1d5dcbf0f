"""The journal of a run in Redis: no entry comes after a gap."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from registry.redis.workflow_log import GAP, WorkflowLog
from tests.registry.redis.clients import eventually

if TYPE_CHECKING:
    from registry.redis.client import Registry

pytestmark = pytest.mark.anyio

OWNER, OTHER = "one", "two"


async def append(log: WorkflowLog, token: int, index: int) -> Any:
    result: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    log.append("r", token, index, {"delivered": index}, result.set_result)
    return await asyncio.wait_for(result, 30)


async def taken(log: WorkflowLog) -> list[dict[str, Any]]:
    """The journal, as another scheduler gets it once the lease is over."""
    entries: list[dict[str, Any]] = []

    async def take() -> bool:
        found = await log.take_runs(OTHER, lease_s=60)
        entries.extend(dict(each) for run in found for each in run.entries)
        return bool(found)

    await eventually(take, what="lease over")
    return entries


async def test_an_entry_after_a_lost_one_is_refused_until_all_are_written_anew(
    registry: Registry,
) -> None:
    log = WorkflowLog(registry)
    token = await log.begin_run("r", {}, OWNER, lease_s=0.2)
    assert token is not None
    assert await append(log, token, 0) is True
    assert await append(log, token, 2) == GAP
    entries = [{"delivered": each} for each in range(4)]
    assert await log.replace_entries("r", token, entries)
    assert await append(log, token, 4) is True
    assert await taken(log) == [{"delivered": each} for each in range(5)]
    assert not await log.replace_entries("r", token, []), "another owns it"
    assert await append(log, token, 5) is False
