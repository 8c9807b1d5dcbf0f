"""The platform's registry connection, and declarations and profiles kept for the next start.

Models with what is known of files that cannot be read, applications, workflows and profiles;
nothing else of Redis: pods, leases and measurements are those of one run.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final, Self

import orjson

from common.process import write_private_file
from pilotlight.errors import StartFailed
from registry.domain.application import AccuracyProfile, ApplicationSpec
from registry.domain.cluster import ClusterState
from registry.domain.model import UNREADABLE, LoadFailure, ModelName, ModelSpec
from registry.domain.records import (
    decode,
    decode_profile,
    encode,
    encode_application,
    encode_profile,
    encode_spec,
)
from registry.errors import InvalidModel, RegistryUnavailable
from registry.redis.client import Registry
from registry.redis.reports import read_declared_times, restore_declared_times
from registry.redis.watch import ClusterWatch
from registry.redis.workflow_log import WorkflowLog

logger = logging.getLogger(__name__)

_SYNC_TIMEOUT_S = 10.0


class ClusterConnection:
    """The platform's registry client, and a watched copy of the state of pods and models."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self.watch = ClusterWatch(registry)
        self._watch_task: asyncio.Task[None] | None = None
        self._waiters: list[asyncio.Event] = []

    @classmethod
    async def open(cls, redis_url: str, pool: str, group: asyncio.TaskGroup) -> Self:
        """Connect and read the state once; raises StartFailed. The watch is a task of `group`."""
        try:
            connection = cls(await Registry.connect(redis_url, pool))
        except RegistryUnavailable as error:
            raise StartFailed(f"no registry at {redis_url}: {error}") from error
        connection.watch.subscribe(connection._on_change)
        connection._watch_task = group.create_task(connection.watch.run())
        try:
            async with asyncio.timeout(_SYNC_TIMEOUT_S):
                await connection.watch.wait_synced()
        except BaseException:
            await connection.close()
            raise
        return connection

    async def close(self) -> None:
        if self._watch_task is not None:
            self._watch_task.cancel()
        await self.registry.close()

    @property
    def state(self) -> ClusterState:
        return self.watch.state

    async def wait_until(
        self, condition: Callable[[], bool], *, timeout_s: float, what: str
    ) -> None:
        """Return once `condition` holds; it is evaluated at every change of the state.

        Raises:
            StartFailed: after the timeout; the message contains `what`.
        """
        changed = asyncio.Event()
        self._waiters.append(changed)
        try:
            async with asyncio.timeout(timeout_s):
                while not condition():
                    changed.clear()
                    await changed.wait()
        except TimeoutError:
            raise StartFailed(f"timeout after {timeout_s:g} s, waiting for: {what}") from None
        finally:
            self._waiters.remove(changed)

    def _on_change(self) -> None:
        for changed in self._waiters:
            changed.set()


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
        models = [decode(ModelSpec, text) for text in document["models"]]
        await self._put(registry.put_models, models)
        await restore_declared_times(registry, document.get("declared", {}))
        for text in document.get("unreadable", ()):
            await registry.report_unreadable(decode(LoadFailure, text))
        await self._put(
            registry.put_applications,
            [decode(ApplicationSpec, text) for text in document["applications"]],
        )
        for name, definition in document["workflows"].items():
            try:
                await self._log.put_workflow(ModelName.parse(name), definition)
            except InvalidModel as error:
                logger.warning("not declared again", extra={"problems": error.problems})
        for text in document.get("profiles", ()):
            await registry.put_profile(decode_profile(text))
        for text in document.get("accuracies", ()):
            await registry.put_accuracy(decode(AccuracyProfile, text))
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
            "accuracies": [encode(each) for each in state.accuracies.values()],
        }
        if not any(document.values()) and not self._file.exists():
            return
        try:
            text = orjson.dumps(document).decode()
            await asyncio.to_thread(write_private_file, self._file, text)
        except OSError as error:  # a full disk
            logger.warning("cannot be written", extra={"file": self._file, "error": error})
            return
        self._saved_versions = versions
