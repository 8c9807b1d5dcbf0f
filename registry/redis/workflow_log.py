"""Workflows as deployed, and the journal of their runs, in Redis.

A run has one owner at a time, by a lease with a fencing token. What an owner appends is in the
order of its calls. All methods raise RegistryUnavailable.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from registry.domain.graph import KIND as GRAPH
from registry.domain.model import ModelName
from registry.errors import InvalidModel
from registry.redis.client import Registry

MAX_TAKEN: Final = 16
"""Runs taken over at once; other schedulers take the next ones."""
GAP: Final = "gap"
UNDER_WAY: Final = "running"


@dataclass(frozen=True, slots=True)
class TakenRun:
    run: str
    token: int
    head: Mapping[str, Any]
    entries: Sequence[Mapping[str, Any]]
    is_cancelled: bool


@dataclass(frozen=True, slots=True)
class RunRecord:
    head: Mapping[str, Any]
    owner: str
    result: Mapping[str, Any] | None
    """None: the run is under way."""
    is_cancelled: bool


@dataclass(frozen=True, slots=True)
class LatestRun:
    run: str
    workflow: ModelName
    begun_s: float
    """Unix time."""
    status: str


class WorkflowLog:
    """Reads and writes the workflows and runs of one pool."""

    def __init__(self, registry: Registry) -> None:
        self._transactions = registry.transactions
        self._submit = registry.transactions.submit

    # Workflows

    async def put_workflow(self, name: ModelName, definition: Mapping[str, Any]) -> str:
        """`created`, `configured` or `unchanged`. Raises InvalidModel for a name that is taken.

        An InferenceGraph and a workflow of a file would have one URL for runs.
        """
        outcome = str(await self._submit("put_workflow", str(name), _text(definition)))
        if outcome == "taken":
            mine, other = "workflow", "InferenceGraph"
            if definition["kind"] == GRAPH:
                mine, other = other, mine
            raise InvalidModel(
                [
                    f"{mine} {name}: the name is that of a deployed {other}; delete that one, or "
                    "use another name"
                ]
            )
        return outcome

    async def delete_workflow(self, name: ModelName) -> bool:
        """False: it did not exist."""
        return bool(await self._submit("delete_workflow", str(name)))

    async def workflow(self, name: ModelName) -> dict[str, Any] | None:
        text = await self._submit("workflow", str(name))
        return orjson.loads(text) if text else None

    async def workflows(self) -> dict[ModelName, dict[str, Any]]:
        pairs = list(await self._submit("workflows") or ())
        return {
            ModelName.parse(name): orjson.loads(text)
            for name, text in zip(pairs[::2], pairs[1::2], strict=True)
        }

    async def put_counts(self, name: ModelName, counts: Mapping[str, Any], version: int) -> bool:
        """Keep what predictions of the workflow are made of.

        False: another scheduler has stored its own since `version` was read.
        """
        result = await self._submit("put_workflow_counts", str(name), _text(counts), version)
        return str(result) != "conflict"

    async def counts(self, name: ModelName) -> tuple[dict[str, Any], int]:
        """The stored counts, empty where there are none, and their version."""
        text, version = await self._submit("workflow_counts", str(name))
        return orjson.loads(text) if text else {}, int(version)

    # Runs

    async def begin_run(
        self, run: str, head: Mapping[str, Any], owner: str, *, lease_s: float
    ) -> int | None:
        """The fencing token; None where the run exists already."""
        result = await self._submit("begin_run", run, _text(head), owner, int(lease_s * 1000))
        return int(result[1]) if result[0] == "begun" else None

    def append(
        self,
        run: str,
        token: int,
        index: int,
        entry: Mapping[str, Any],
        on_result: Callable[[Any], None],
    ) -> None:
        """Append to the journal without waiting; `index` entries precede it.

        `on_result` gets False where the caller does not own the run, `GAP` where entries before it
        are missing, or a RegistryUnavailable.
        """
        operation = orjson.dumps(("append_run", run, token, index, _text(entry)))
        self._transactions.submit_with_callback(operation, on_result)

    async def replace_entries(
        self, run: str, token: int, entries: Sequence[Mapping[str, Any]]
    ) -> bool:
        """Write the whole journal anew; False: the caller does not own the run any more."""
        texts = [_text(each) for each in entries]
        return bool(await self._submit("replace_run_entries", run, token, texts))

    async def end_run(
        self, run: str, token: int, result: Mapping[str, Any], *, kept_s: float
    ) -> bool:
        """Record the result; False: the caller does not own the run any more."""
        status = str(result["status"])
        return bool(
            await self._submit("end_run", run, token, _text(result), status, int(kept_s * 1000))
        )

    async def latest_runs(self) -> list[LatestRun]:
        """The newest 200 runs that are kept, newest first."""
        found = await self._submit("latest_runs")
        return [
            LatestRun(
                run,
                ModelName(head["namespace"], head["workflow"]),
                head["begun_s"],
                status or UNDER_WAY,
            )
            for run, text, status in found or ()
            for head in (orjson.loads(text),)
        ]

    async def renew_runs(self, runs: Mapping[str, int], *, lease_s: float) -> list[str]:
        """Extend the leases, by token; the runs that the caller does not own any more."""
        pairs = [[run, token] for run, token in runs.items()]
        return list(await self._submit("renew_runs", pairs, int(lease_s * 1000)) or ())

    async def cancelled_runs(self, runs: Sequence[str]) -> list[str]:
        """Those among the runs that clients have cancelled through another scheduler."""
        return list(await self._submit("cancelled_runs", list(runs)) or ())

    async def take_runs(self, owner: str, *, lease_s: float) -> list[TakenRun]:
        """Become the owner of runs whose owner is gone."""
        taken = await self._submit("take_runs", owner, int(lease_s * 1000), MAX_TAKEN)
        return [
            TakenRun(
                run,
                int(token),
                orjson.loads(head),
                [orjson.loads(each) for each in entries or ()],
                bool(is_cancelled),
            )
            for run, token, head, entries, is_cancelled in taken or ()
        ]

    async def run(self, run: str) -> RunRecord | None:
        found = await self._submit("run", run)
        if not found:
            return None
        head, owner, result, is_cancelled = found
        ended = orjson.loads(result) if result else None
        return RunRecord(orjson.loads(head), owner, ended, bool(is_cancelled))

    async def cancel_run(self, run: str) -> bool:
        """Ask the owner to cancel it; False: there is no such run under way."""
        return bool(await self._submit("cancel_run", run))


def _text(document: Mapping[str, Any]) -> str:
    return orjson.dumps(document).decode()
