"""The processors (tokenizers and the like) of the models that a pod serves or forwards.

The most recently used ones stay in host memory. Models with the same task and small files share
one processor. Also how such work is shared, and ends with a load.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar
from weakref import WeakValueDictionary

from registry.domain.model import ModelName, ModelSpec
from registry.inference_service.predictors import needs_in_pool
from runtime.engines.building import (
    check_format,
    check_is_whole,
    engine_name,
    library_path,
    model_files,
)
from runtime.engines.process_engine import PROGRAM_FLAGS, ProcessEngines, missing
from runtime.engines.server_engine import ModelServer
from runtime.errors import LoadFailed, ModelInvalid, NeedsMissing
from runtime.sandbox.sandbox_processes import Sandbox
from runtime.storage.listing import MODULES, PROGRAM_SUFFIX
from runtime.storage.load_priority import LoadTicket
from runtime.tasks.engine_task import EngineTask
from runtime.tasks.processors import load_processor
from runtime.tasks.server_task import ServerTask
from runtime.tasks.task import Processor
from runtime.threads import in_thread
from runtime.tiers.disk_cache import DiskCache

# Work of loads on the event loop: cancellable, and shared by those who want the same.


Key = TypeVar("Key")
Result = TypeVar("Result")


async def unless_cancelled(ticket: LoadTicket, work: Coroutine[Any, Any, Result]) -> Result:
    """The result of `work`; cancels `work` and raises LoadCancelled once the ticket is cancelled.

    If `work` completes all the same, its result is returned, so that resources in it are not lost.
    """
    loop = asyncio.get_running_loop()
    cancelled: asyncio.Future[None] = loop.create_future()

    def on_change() -> None:
        if ticket.is_cancelled:
            loop.call_soon_threadsafe(_set_done, cancelled)

    ticket.add_listener(on_change)
    on_change()
    task = asyncio.ensure_future(work)
    try:
        waited: set[asyncio.Future[Any]] = {task, cancelled}
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            task.cancel()
            await asyncio.wait({task})
    except asyncio.CancelledError:
        task.cancel()
        raise
    finally:
        ticket.remove_listener(on_change)
    if task.cancelled():
        ticket.raise_if_cancelled()
    try:
        return task.result()
    finally:
        del task, waited  # they keep the error, whose traceback has this frame


def _set_done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class SingleFlight(Generic[Key, Result]):
    """Runs at most one piece of work per key; a cancelled caller does not cancel it."""

    def __init__(self, tasks: asyncio.TaskGroup) -> None:
        self._tasks = tasks
        self._running: dict[Key, asyncio.Future[Result]] = {}

    async def run(self, key: Key, work: Callable[[], Awaitable[Result]]) -> Result:
        """The result of the running work of this key, else of `work`."""
        future = self._running.get(key)
        if future is None:
            future = asyncio.get_running_loop().create_future()
            future.add_done_callback(mark_retrieved)
            self._running[key] = future
            self._tasks.create_task(self._execute(key, work, future))
        try:
            return await asyncio.shield(future)
        finally:
            del future

    async def wait_ended(self, key: Key) -> None:
        """Return once no work of the key runs."""
        future = self._running.get(key)
        if future is not None:
            await asyncio.wait({future})

    async def _execute(
        self, key: Key, work: Callable[[], Awaitable[Result]], future: asyncio.Future[Result]
    ) -> None:
        try:
            future.set_result(await work())
        except asyncio.CancelledError:
            future.cancel()
            raise
        except Exception as error:  # raised by `run`
            future.set_exception(error)
        finally:
            del self._running[key], future  # it keeps the error, whose traceback has this frame


def mark_retrieved(future: asyncio.Future[Any]) -> None:
    """Prevent asyncio's warning about an error that no caller waits for any more."""
    if not future.cancelled():
        future.exception()


MAX_PROCESSORS = 64


@dataclass(slots=True)
class _Fetch:
    """Of a model's small files. Mutable: owned by the event loop."""

    ticket: LoadTicket = field(default_factory=LoadTicket)
    callers: int = 0


class Processors:
    """Fetches the small files of models and builds a processor from them, once per model."""

    def __init__(
        self,
        cache: DiskCache,
        threads: Executor,
        tasks: asyncio.TaskGroup,
        on_change: Callable[[str], None] = lambda _: None,
        *,
        sandbox: Sandbox | None = None,
        declared: Callable[[ModelName], ModelSpec | None] = lambda _name: None,
        server: ModelServer | None = None,
        engines: ProcessEngines | None = None,
    ) -> None:
        """`server`: what runs all models in place of the pod's own engines; `engines`: some."""
        self._server, self.engines = server, engines
        self._declared = declared
        self._sandbox = sandbox
        self._cache = cache
        self._threads = threads
        self._on_change = on_change
        self._ready: OrderedDict[str, Processor] = OrderedDict()
        self._by_contents: WeakValueDictionary[str, Processor] = WeakValueDictionary()
        self._folders: SingleFlight[str, Path] = SingleFlight(tasks)
        self._fetches: dict[str, _Fetch] = {}
        self._builds: SingleFlight[str, Processor] = SingleFlight(tasks)

    async def folder(self, spec: ModelSpec) -> Path:
        """The folder with the model's small files, fetched if necessary; raises LoadFailed.

        A fetch ends soon after its last caller was cancelled.
        """
        key = spec.key
        if needs := needs_in_pool(spec, has_server=self._server is not None):
            raise NeedsMissing(needs)
        while key in self._fetches and self._fetches[key].ticket.is_cancelled:
            await self._folders.wait_ended(key)
        fetch = self._fetches.setdefault(key, _Fetch())
        fetch.callers += 1
        try:
            return await self._folders.run(key, lambda: self._fetch(spec, fetch.ticket))
        finally:
            fetch.callers -= 1
            if not fetch.callers:
                fetch.ticket.cancel("nobody waits for the model's files any more")

    async def _fetch(self, spec: ModelSpec, ticket: LoadTicket) -> Path:
        try:
            return await in_thread(self._threads, self._cache.fetch_assets, spec, ticket)
        finally:
            del self._fetches[spec.key]

    async def get(self, spec: ModelSpec) -> Processor:
        """The model's processor, built if necessary; raises LoadFailed."""
        processor = self._ready.get(spec.key)
        if processor is None:
            processor = await self._builds.run(spec.key, lambda: self._build(spec))
        if spec.key in self._ready:
            self._ready.move_to_end(spec.key)
        return processor

    def has(self, key: str) -> bool:
        return key in self._ready

    def keys(self) -> set[str]:
        return set(self._ready)

    def forget(self, key: str) -> None:
        self._ready.pop(key, None)

    def base_of(self, spec: ModelSpec) -> ModelSpec | None:
        """The base of an adapter, None for other models; raises LoadFailed."""
        if not spec.base:
            return None
        name = ModelName(spec.name.namespace, spec.base)
        base = self._declared(name)
        if base is None:
            raise LoadFailed(
                f"{spec.key} is an adapter of {name}, which is not declared: apply that model, or"
                " correct pilotlight.io/base-model"
            )
        if base.base:
            raise LoadFailed(
                f"{spec.key} is an adapter of {name}, which is an adapter itself (of {base.base});"
                f" pilotlight.io/base-model must name a whole model"
            )
        return base

    async def _build(self, spec: ModelSpec) -> Processor:
        try:
            processor = await self._read(spec)
        except ModelInvalid:
            # The source may be corrected: the next attempt fetches the files again.
            await in_thread(self._threads, self._cache.discard, spec.key)
            raise
        self._ready[spec.key] = processor
        self._on_change(spec.key)
        while len(self._ready) > MAX_PROCESSORS:
            key, _ = self._ready.popitem(last=False)
            self._on_change(key)
        return processor

    async def _read(self, spec: ModelSpec) -> Processor:
        with await in_thread(self._threads, self._cache.lock_for_use, spec.key):
            folder = await self.folder(spec)
            if self._server is not None:
                return ServerTask(self._server, spec.key)
            if (base := self.base_of(spec)) is not None:
                return await self.get(base)
            if self.engines is not None:
                if (engine := await self.engines.find(spec, folder)) is not None:
                    return await in_thread(self._threads, EngineTask, folder, engine.choice)
            elif spec.engine in PROGRAM_FLAGS:
                raise NeedsMissing(missing(spec.engine))
            await in_thread(self._threads, check_is_whole, folder)
            await in_thread(self._threads, check_format, spec.format, folder)
            contents = await in_thread(self._threads, _digest, folder, spec)
            return await self._shared(contents, folder, spec)

    async def _shared(self, contents: str, folder: Path, spec: ModelSpec) -> Processor:
        """The processor of files with this digest: that of another model, or a new one."""
        existing = self._by_contents.get(contents)
        if existing is not None:
            return existing
        load = partial(load_processor, options=spec.options)
        processor = await in_thread(self._threads, load, folder, spec.task, self._sandbox)
        self._by_contents[contents] = processor
        return processor


def _digest(folder: Path, spec: ModelSpec) -> str:
    """Of task, options and all small files: equal for models that can share a processor."""
    digest = hashlib.sha256(repr((spec.task, spec.options)).encode())
    if (library := library_path(folder)) is not None:
        engine = engine_name(library)
        digest.update(engine.encode())
        if engine == "onnx":
            from runtime.engines.libraries.onnx_engine import onnx_signature

            digest.update(repr(onnx_signature(library)).encode())
        return digest.hexdigest()
    has_modules = (folder / MODULES).exists()
    for path in model_files(folder):
        is_network = path.parent == folder or not has_modules
        is_weights = is_network and ".safetensors" in path.name  # they may be under download
        if path.suffix == PROGRAM_SUFFIX:
            from runtime.weights.archive import Archive

            digest.update(Archive(path).program_bytes())
        elif not is_weights:
            digest.update(f"{path.relative_to(folder)}:{path.stat().st_size}:".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()
