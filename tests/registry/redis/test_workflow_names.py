"""A workflow's name is that of one kind: of a file, or an InferenceGraph."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from registry.domain.graph import KIND as GRAPH
from registry.domain.model import ModelName
from registry.errors import InvalidModel
from registry.redis.workflow_log import WorkflowLog

if TYPE_CHECKING:
    from registry.redis.client import Registry

pytestmark = pytest.mark.anyio

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
