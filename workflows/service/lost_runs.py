"""The results of runs that another scheduler has taken over, for clients that wait at this one."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from registry.domain.model import ModelName
from registry.errors import RegistryUnavailable
from workflows.service.policy import SchedulingPolicy
from workflows.service.run import Run, RunStatus

if TYPE_CHECKING:
    from registry.redis.workflow_log import RunRecord, WorkflowLog


def run_elsewhere(identity: str, record: RunRecord) -> Run:
    """A run that another scheduler executes, for a client that waits for it here."""
    head = record.head
    return Run(
        identity, ModelName(str(head["namespace"]), str(head["workflow"])),
        dict(head["arguments"]), float(head["begun_s"]), float(head["deadline_s"]),
        SchedulingPolicy(head["scheduling"]),
    )  # fmt: skip


async def adopt_result(log: WorkflowLog, run: Run, now_s: float, lease_s: float) -> None:
    """Wait until the run's owner has recorded its result; a failure soon after the deadline."""
    limit_s = max(0.0, run.deadline_s - now_s) + 2 * lease_s
    with suppress(TimeoutError):
        async with asyncio.timeout(limit_s):
            while True:
                if await _adopt(log, run):
                    return
                await asyncio.sleep(lease_s / 4)
    run.status = RunStatus.FAILED
    run.error = {
        "message": "another scheduler has taken the run over, and recorded no result",
        "reason": "taken-over", "status": 503,
    }  # fmt: skip


async def _adopt(log: WorkflowLog, run: Run) -> bool:
    """False: the run is under way, or the registry does not answer."""
    try:
        record = await log.run(run.identity)
    except RegistryUnavailable:
        return False
    if record is None or record.result is None:
        return False
    run.status, run.error = RunStatus(record.result["status"]), record.result.get("error")
    result = record.result.get("result")
    if run.items:  # those of a generator
        run.items = list(result or run.items)
    else:
        run.result = result
    return True
