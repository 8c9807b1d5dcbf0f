"""What users declared and profiled in the embedded Redis, kept in a file for the next start.

Models with what is known of files that cannot be read, applications, workflows and profiles;
nothing else of Redis: pods, leases and measurements are those of one run.
"""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final

import orjson

from pilotlight.platform.cluster_connection import ClusterConnection
from registry.domain.application import (
    decode_accuracy,
    decode_application,
    encode_accuracy,
    encode_application,
)
from registry.domain.model import UNREADABLE, ModelName
from registry.domain.records import (
    decode_failure,
    decode_profile,
    decode_spec,
    encode,
    encode_profile,
    encode_spec,
)
from registry.errors import InvalidModel, RegistryUnavailable
from registry.redis.reports import read_declared_times, restore_declared_times
from registry.redis.workflow_log import WorkflowLog

logger = logging.getLogger(__name__)

_SAVE_INTERVAL_S: Final = 1.0


class KeptDeclarations:
    def __init__(self, file: Path, cluster: ClusterConnection) -> None:
        self._file = file
        self._cluster = cluster
        self._log = WorkflowLog(cluster.registry)
        self._saved_versions = (-1, -1)

    async def restore(self) -> int:
        """Declare what the file has; the number of models. A file that cannot be read is left.

        Files of earlier releases lack some of the lists.
        """
        document = await asyncio.to_thread(self._read)
        if document is None:
            return 0
        registry = self._cluster.registry
        models = [decode_spec(text) for text in document["models"]]
        await self._put(registry.put_models, models)
        await restore_declared_times(registry, document.get("declared", {}))
        for text in document.get("unreadable", ()):
            await registry.report_unreadable(decode_failure(text))
        await self._put(
            registry.put_applications,
            [decode_application(text) for text in document["applications"]],
        )
        for name, definition in document["workflows"].items():
            await self._put_workflow(ModelName.parse(name), definition)
        for text in document.get("profiles", ()):
            await registry.put_profile(decode_profile(text))
        for text in document.get("accuracies", ()):
            await registry.put_accuracy(decode_accuracy(text))
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
        """Follow changes until cancelled."""
        while True:
            await asyncio.sleep(_SAVE_INTERVAL_S)
            if self._versions() != self._saved_versions:
                await self.save()

    def _versions(self) -> tuple[int, int]:
        state = self._cluster.state
        return state.models_version, state.profiles_version

    async def save(self) -> None:
        """Write the file; leave it as it is while Redis is away."""
        state = self._cluster.state
        versions = self._versions()
        records = [record for _, record in sorted(state.models.items())]
        failures = [each.failure for each in records if each.failure is not None]
        try:
            workflows = await self._log.workflows()
            declared = await read_declared_times(self._cluster.registry)
        except RegistryUnavailable:
            return
        document = {
            "models": [encode_spec(each.spec) for each in records],
            "declared": declared,
            "unreadable": [encode(each) for each in failures if each.reason == UNREADABLE],
            "applications": [encode_application(each) for each in state.applications.values()],
            "workflows": {str(name): definition for name, definition in workflows.items()},
            "profiles": [
                encode_profile(each)
                for by_product in state.profiles.values()
                for each in by_product.values()
            ],
            "accuracies": [encode_accuracy(each) for each in state.accuracies.values()],
        }
        if not any(document.values()) and not self._file.exists():
            return
        try:
            await asyncio.to_thread(self._write, orjson.dumps(document))
        except OSError as error:  # a full disk
            logger.warning("cannot be written", extra={"file": self._file, "error": error})
            return
        self._saved_versions = versions

    def _write(self, content: bytes) -> None:
        """Aside, then renamed: a crash leaves the former file."""
        aside = self._file.with_suffix(".new")
        aside.write_bytes(content)
        os.replace(aside, self._file)
