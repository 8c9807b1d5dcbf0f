"""What predictions are made of, read from the registry and added to it by all schedulers."""

import logging
from collections.abc import Callable
from contextlib import suppress

from registry.domain.model import ModelName
from registry.errors import RegistryUnavailable
from registry.redis.workflow_log import WorkflowLog
from workflows.prediction.step_counts import BadCountsError
from workflows.service.knowledge import WorkflowCounts, WorkflowKnowledge

logger = logging.getLogger(__name__)


class KnowledgeStore:
    """Owned by the event loop."""

    def __init__(
        self,
        log: WorkflowLog,
        known: dict[ModelName, WorkflowKnowledge],
        now_s: Callable[[], float],
    ) -> None:
        """`known` makes what is missing in it."""
        self._log = log
        self._known = known
        self._now_s = now_s

    async def read(self, name: ModelName) -> None:
        """What other schedulers, or this one before its restart, know of a workflow."""
        if name in self._known:
            return
        knowledge = self._known[name]
        with suppress(RegistryUnavailable):
            stored, _ = await self._stored_counts(name)
            knowledge.adopt(stored, self._now_s())

    async def store_changed(self) -> None:
        for name, knowledge in list(self._known.items()):
            if knowledge.is_changed:
                await self._store(name, knowledge)

    async def _stored_counts(self, name: ModelName) -> tuple[WorkflowCounts, int]:
        """What all schedulers have stored, and its version; damaged counts are replaced."""
        stored, version = await self._log.counts(name)
        try:
            return WorkflowCounts.of_json(stored, self._now_s()), version
        except BadCountsError as error:
            logger.warning("stored counts are damaged", extra={"error": str(error)})
            return WorkflowCounts(), version

    async def _store(self, name: ModelName, knowledge: WorkflowKnowledge) -> None:
        """Add what is not stored yet to the counts of all schedulers, and go on from these."""
        taken = knowledge.take_unstored()
        try:
            stored, version = await self._stored_counts(name)
            now_s = self._now_s()
            stored.merge(taken, now_s)
            if await self._log.put_counts(name, stored.as_json(now_s), version):
                knowledge.adopt(stored, now_s)
                return
        except RegistryUnavailable as error:
            logger.debug("counts are stored later", extra={"error": str(error)})
        knowledge.put_back(taken, self._now_s())  # for the next interval
