"""Models, applications and workflows of the embedded Redis, kept in a file for the next start.

Nothing else of Redis is kept: pods, leases and measurements are those of one run.
"""

from __future__ import annotations

import asyncio
import logging
import os
from typing import TYPE_CHECKING, Any, Final

import orjson

from registry.domain.application_codec import decode_application, encode_application
from registry.domain.codec import decode_spec, encode_spec
from registry.domain.model import ModelName
from registry.errors import InvalidModel, RegistryUnavailable
from registry.redis.workflow_log import WorkflowLog

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path

    from pilotlight.platform.cluster_connection import ClusterConnection
    from registry.domain.model import ModelSpec

logger = logging.getLogger(__name__)

_SAVE_INTERVAL_S: Final = 1.0


class KeptDeclarations:
    def __init__(self, file: Path, cluster: ClusterConnection) -> None:
        self._file = file
        self._cluster = cluster
        self._log = WorkflowLog(cluster.registry)
        self._saved_version = -1

    async def restore(self) -> int:
        """Declare what the file has; the number of models. A file that cannot be read is left."""
        document = await asyncio.to_thread(self._read)
        if document is None:
            return 0
        registry = self._cluster.registry
        models = [decode_spec(text) for text in document["models"]]
        await self._put(registry.put_models, models)
        await self._put(
            registry.put_applications,
            [decode_application(text) for text in document["applications"]],
        )
        for name, definition in document["workflows"].items():
            await self._put_workflow(ModelName.parse(name), definition)
        return len(models)

    async def _put(self, put: Callable[[Sequence[Any]], Awaitable[Any]], specs: list[Any]) -> None:
        """All at once; where the pool cannot take one, the others."""
        try:
            await put(specs)
        except InvalidModel:
            for spec in specs:
                try:
                    await put([spec])
                except InvalidModel as error:
                    logger.warning("not declared again", extra={"problems": error.problems})

    async def _put_workflow(self, name: ModelName, definition: dict[str, Any]) -> None:
        try:
            await self._log.put_workflow(name, definition)
        except InvalidModel as error:
            logger.warning("not declared again", extra={"problems": error.problems})

    def _read(self) -> dict[str, Any] | None:
        try:
            document: dict[str, Any] = orjson.loads(self._file.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            logger.warning("cannot be read", extra={"file": self._file, "error": error})
            return None
        return document

    async def save_periodically(self) -> None:
        """Follow changes of models and applications until cancelled."""
        while True:
            await asyncio.sleep(_SAVE_INTERVAL_S)
            if self._cluster.state.models_version != self._saved_version:
                await self.save()

    async def save(self) -> None:
        """Write the file; leave it as it is while Redis is away."""
        state = self._cluster.state
        version = state.models_version
        models: list[ModelSpec] = [record.spec for _, record in sorted(state.models.items())]
        try:
            workflows = await self._log.workflows()
        except RegistryUnavailable:
            return
        document = {
            "models": [encode_spec(spec) for spec in models],
            "applications": [encode_application(each) for each in state.applications.values()],
            "workflows": {str(name): definition for name, definition in workflows.items()},
        }
        if not any(document.values()) and not self._file.exists():
            return
        try:
            await asyncio.to_thread(self._write, orjson.dumps(document))
        except OSError as error:  # a full disk
            logger.warning("cannot be written", extra={"file": self._file, "error": error})
            return
        self._saved_version = version

    def _write(self, content: bytes) -> None:
        """Aside, then renamed: a crash leaves the former file."""
        aside = self._file.with_suffix(".new")
        aside.write_bytes(content)
        os.replace(aside, self._file)
