"""The journal of this scheduler's runs, for another to resume them; and stored knowledge of runs.

Results of steps are in it where they are small, and the order in which outputs were delivered. For
clients that wait here, results are read of runs that another scheduler has taken over.
"""

import asyncio
import base64
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from registry.domain.model import ModelName
from registry.errors import RegistryUnavailable
from registry.redis.workflow_log import GAP, TakenRun, WorkflowLog
from workflows.predict import WorkflowKnowledge
from workflows.run import Delivery, RecordedStep, Run, RunStatus, RunStep
from workflows.values import StoredTensor, outputs_bytes

logger = logging.getLogger(__name__)

MAX_INLINE_BYTES: Final = 64 * 1024
"""Outputs of a step up to this size are in the journal; others are computed again."""


class Journal:
    """Writes the entries of the runs that this scheduler owns."""

    def __init__(self, log: WorkflowLog, on_lost: Callable[[str], None]) -> None:
        """`on_lost` is called with a run that another scheduler owns."""
        self._log = log
        self._on_lost = on_lost

    def step_ended(self, run: Run, step: RunStep) -> None:
        self._append(run, _step_entry(step))

    def delivered(self, run: Run, delivery: Delivery) -> None:
        self._append(run, _delivery_entry(delivery))

    def _append(self, run: Run, entry: Mapping[str, Any]) -> None:
        def on_result(result: object) -> None:
            if result is False:
                self._on_lost(run.identity)
            elif result == GAP or isinstance(result, RegistryUnavailable):
                run.has_gap = True

        self._log.append(run.identity, run.token, run.journalled, entry, on_result)
        run.journalled += 1

    async def write_again(self, run: Run) -> None:
        """Write the whole journal, of which the registry lacks entries.

        Raises RegistryUnavailable.
        """
        entries = _all_entries(run)
        run.journalled, run.has_gap = len(entries), False
        try:
            is_owned = await self._log.replace_entries(run.identity, run.token, entries)
        except RegistryUnavailable:
            run.has_gap = True
            raise
        if not is_owned:
            self._on_lost(run.identity)

    async def begin_again(self, run: Run, owner: str, *, lease_s: float) -> bool:
        """Begin a run that the registry has lost, with its whole journal; False: it exists.

        Raises RegistryUnavailable.
        """
        token = await self._log.begin_run(run.identity, run.head(), owner, lease_s=lease_s)
        if token is None:
            return False
        run.token = token
        await self.write_again(run)
        return True


def _all_entries(run: Run) -> list[dict[str, Any]]:
    """All that is known of a run, also what its code has not come to again."""
    steps = [_step_entry(step) for step in run.steps if step.is_over]
    later = [
        _recorded_entry(number, step)
        for number, step in run.recorded.items()
        if number >= len(run.steps)
    ]
    deliveries = [_delivery_entry(each) for each in (*run.delivered, *run.deliveries)]
    return [*steps, *later, *deliveries]


def _step_entry(step: RunStep) -> dict[str, Any]:
    outputs = step.outputs
    if outputs is not None and (
        outputs_bytes(outputs) > MAX_INLINE_BYTES or step.has_data_elsewhere
    ):
        outputs = None
    return _recorded_entry(step.number, RecordedStep(step.digest, outputs, step.error))


def _recorded_entry(number: int, step: RecordedStep) -> dict[str, Any]:
    entry: dict[str, Any] = {"step": number, "digest": step.digest}
    if step.error is not None:
        entry["error"] = step.error
    elif step.outputs is not None:
        entry["outputs"] = [
            [each.name, each.datatype, each.shape, base64.b64encode(each.raw).decode()]
            for each in step.outputs.values()
        ]
    return entry


def _delivery_entry(delivery: Delivery) -> dict[str, Any]:
    entry: dict[str, Any] = {"delivered": delivery.step}
    if delivery.text_to is not None:
        entry |= {"text_to": delivery.text_to, "is_end": delivery.is_end}
    return entry


def resumed_run(taken: TakenRun) -> Run:
    """A run as its journal tells it."""
    run = run_of(taken.run, taken.head)
    run.token, run.journalled = taken.token, len(taken.entries)
    run.resumptions = int(taken.head.get("resumptions", 0)) + 1
    run.recorded, run.deliveries = read_entries(taken.entries)
    return run


def run_of(identity: str, head: Mapping[str, Any]) -> Run:
    """A run as it began, perhaps at another scheduler."""
    return Run(
        identity,
        ModelName(str(head["namespace"]), str(head["workflow"])),
        dict(head["arguments"]),
        float(head["begun_s"]),
        float(head["deadline_s"]),
        str(head["scheduling"]),
    )


def read_entries(
    entries: Sequence[Mapping[str, Any]],
) -> tuple[dict[int, RecordedStep], deque[Delivery]]:
    """Results by step, and the order of deliveries; the first result of a step counts."""
    recorded: dict[int, RecordedStep] = {}
    deliveries: deque[Delivery] = deque()
    for entry in entries:
        match entry:
            case {"delivered": int(step)}:
                deliveries.append(Delivery(step, entry.get("text_to"), bool(entry.get("is_end"))))
            case {"step": int(step), "digest": str(digest)} if step not in recorded:
                outputs = entry.get("outputs")
                recorded[step] = RecordedStep(
                    digest, None if outputs is None else _decoded(outputs), entry.get("error")
                )
    return recorded, deliveries


def _decoded(outputs: Sequence[Sequence[Any]]) -> dict[str, StoredTensor]:
    return {
        name: StoredTensor(name, datatype, tuple(shape), base64.b64decode(raw))
        for name, datatype, shape, raw in outputs
    }


LEASE_S: Final = 5.0
"""Time after which a dead scheduler's runs move: four renewals, more than a busy one misses."""


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
        "reason": "taken-over",
        "status": 503,
    }


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


@dataclass(frozen=True, slots=True)
class KnowledgeStore:
    """Owned by the event loop."""

    log: WorkflowLog
    known: dict[ModelName, WorkflowKnowledge]
    """Makes what is missing in it."""
    now_s: Callable[[], float]

    async def read(self, name: ModelName) -> None:
        """What other schedulers, or this one before its restart, know of a workflow."""
        if name not in self.known:
            knowledge = self.known[name]
            with suppress(RegistryUnavailable):
                found, _ = await self._with_stored(name, knowledge)
                knowledge.adopt(found, 0)

    async def store_changed(self) -> None:
        """Add what is not stored yet to the counts of all schedulers, and go on from these."""
        for name, knowledge in list(self.known.items()):
            if not knowledge.unstored:
                continue
            try:
                found, version = await self._with_stored(name, knowledge)
                count = len(knowledge.unstored)
                if await self.log.put_counts(name, found.as_json(self.now_s()), version):
                    knowledge.adopt(found, count)
            except RegistryUnavailable as error:
                logger.debug("counts are stored later", extra={"error": str(error)})

    async def _with_stored(
        self, name: ModelName, knowledge: WorkflowKnowledge
    ) -> tuple[WorkflowKnowledge, int]:
        """With what all schedulers have stored, and its version; damaged counts are replaced."""
        stored, version = await self.log.counts(name)
        try:
            return knowledge.with_stored(stored, self.now_s()), version
        except (ValueError, TypeError, AttributeError) as error:
            logger.warning("stored counts are damaged", extra={"error": str(error)})
            return knowledge.with_stored({}, self.now_s()), version
