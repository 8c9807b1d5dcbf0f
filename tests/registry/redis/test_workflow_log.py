"""A workflow's name is that of one kind; in the journal of a run no entry comes after a gap."""

import asyncio
from typing import Any

import pytest

from registry.domain.graph import KIND as GRAPH
from registry.domain.model import ModelName
from registry.errors import InvalidModel
from registry.redis.client import Registry
from registry.redis.workflow_log import GAP, WorkflowLog
from tests.registry.redis.clients import eventually

NAME = ModelName("team", "animals")
FILE, GRAPH_OF = {"kind": "python", "sha": "1"}, {"kind": GRAPH, "sha": "2"}


@pytest.mark.parametrize(
    ("first", "second", "problem"),
    [
        pytest.param(
            FILE, GRAPH_OF, "InferenceGraph team/animals: .* deployed workflow", id="file"
        ),
        pytest.param(
            GRAPH_OF, FILE, "workflow team/animals: .* deployed InferenceGraph", id="graph"
        ),
    ],
)
async def test_a_name_is_kept_from_the_other_kind_until_it_is_free(
    registry: Registry, first: dict[str, str], second: dict[str, str], problem: str
) -> None:
    log = WorkflowLog(registry)
    assert await log.put_workflow(NAME, first) == "created"
    with pytest.raises(InvalidModel, match=problem):
        await log.put_workflow(NAME, second)
    assert await log.workflow(NAME) == first
    assert await log.put_workflow(NAME, {**first, "sha": "3"}) == "configured"
    await log.delete_workflow(NAME)
    assert await log.put_workflow(NAME, second) == "created"


OWNER, OTHER = "one", "two"


async def append(log: WorkflowLog, token: int, index: int) -> Any:
    result: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    log.append("r", token, index, {"delivered": index}, result.set_result)
    return await asyncio.wait_for(result, 60)


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
