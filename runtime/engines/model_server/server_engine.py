"""The engine of models that a model server runs: brings their files to it, loads and unloads them.

Loads take turns at the server, so that the growth of its memory is that of one model; one that
takes long holds up no other.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from common.inference_protocol import PodError
from registry.domain.model import ModelSpec
from runtime.engines.engine import Engine, LoadedSkeleton, ModelFolder, Skeleton
from runtime.engines.model_server.server_repository import ServerRepository, server_name
from runtime.errors import LoadFailed, ServerUnavailable

if TYPE_CHECKING:
    import torch

    from runtime.engines.model_server.server_process import ServerMemory
    from runtime.engines.model_server.v2_client import ServerInfo, ServerSignature, V2Client

logger = logging.getLogger(__name__)

READY_INTERVAL_S: Final = 0.05
LOAD_TURN_S: Final = 5.0
"""How long a load waits for another one's end; after that, neither's growth is its own."""
UNLOADS: Final = 4
"""Unloads at once."""
UNLOAD_WAIT_S: Final = 5.0
"""How long a load waits for other models' unloads, whose memory it needs."""


@dataclass(frozen=True, slots=True)
class ServerModel:
    """A model that the server has loaded."""

    name: str
    """The server's name of it."""
    key: str
    memory_bytes: int


class ModelServer:
    """A server beside the pod, with its repository. Methods block unless they say otherwise."""

    def __init__(
        self,
        client: V2Client,
        repository: ServerRepository,
        memory: ServerMemory,
        *,
        load_timeout_s: float,
    ) -> None:
        self.client = client
        self.repository = repository
        self.is_up = False
        """Whether it answers; set by the watch of the pod."""
        self.info: ServerInfo | None = None
        """Set when it has answered for the first time."""
        self.on_model_lost: Callable[[str], None] = lambda key: None
        """Called on the event loop with the key of a model that the server no longer has."""
        self.on_suspect: Callable[[], None] = lambda: None
        """Called on the event loop when a request found the server dead."""
        self._memory = memory
        self._load_timeout_s = load_timeout_s
        self._turn = threading.Lock()
        """Of a load whose growth is measured."""
        self._loading: set[str] = set()
        self._inferring_s: list[float] = []
        """The time limits of inferences under way."""
        self._unloads = ThreadPoolExecutor(UNLOADS, "unload")
        self._unloading: dict[str, Future[None]] = {}
        self._closed = threading.Event()
        self._memory_of: dict[str, int] = {}
        self._signatures: dict[str, ServerSignature] = {}

    def memory_of(self, key: str) -> int:
        """Memory that the model took when it was last loaded; 0: it has not been."""
        return self._memory_of.get(key, 0)

    def signature(self, key: str) -> ServerSignature | None:
        """The inputs and outputs that the server told when it last loaded the model."""
        return self._signatures.get(key)

    @contextmanager
    def inferring(self, limit_s: float) -> Iterator[None]:
        """An inference that may take so long; on the event loop."""
        self._inferring_s.append(limit_s)
        try:
            yield
        finally:
            self._inferring_s.remove(limit_s)

    @property
    def busy_limit_s(self) -> float:
        """Longest time for which it may be deaf: some do nothing else in a load or inference.

        0: no call is under way.
        """
        loads_s = [self._load_timeout_s] if self._loading else []
        return max([*self._inferring_s, *loads_s], default=0.0)

    def load(
        self, spec: ModelSpec, folder: Path, files: Sequence[str], size_bytes: int
    ) -> ServerModel:
        """Load the model, and wait until the server says that it is ready; raises LoadFailed.

        Raises ServerUnavailable if the server is away, which says nothing about the model.
        """
        name = server_name(spec.key)
        self._wait_unloaded(name)
        info = self._require_up()
        has_turn = self._turn.acquire(timeout=LOAD_TURN_S)
        self._loading.add(name)
        try:
            self.repository.place(name, folder, files, model_format=spec.format, server=info.name)
            growth = self._load_placed(name, spec.key)
        except PodError:
            self.unload_soon(name)  # the server may still be at it
            raise
        finally:
            self._loading.discard(name)
            if has_turn:
                self._turn.release()
        # A later load may fill memory that the process had kept, and then shows no growth.
        measured = growth if has_turn else 0
        self._memory_of[spec.key] = max(measured, size_bytes, self.memory_of(spec.key))
        return ServerModel(name, spec.key, self._memory_of[spec.key])

    def _load_placed(self, name: str, key: str) -> int:
        """Load from the repository; returns the bytes by which the server has grown."""
        before = self._memory.used_bytes()
        self.client.load(name)
        self._wait_ready(name)
        self._signatures[key] = self.client.signature(name)
        self.repository.hide_loaded(name)
        after = self._memory.used_bytes()
        return 0 if before is None or after is None else max(0, after - before)

    def _require_up(self) -> ServerInfo:
        if not self.is_up or self.info is None:
            raise ServerUnavailable(f"the model server at {self.client.url} does not answer")
        return self.info

    def _wait_ready(self, name: str) -> None:
        deadline_s = time.monotonic() + self._load_timeout_s
        while not self.client.is_model_ready(name):
            if self._closed.wait(READY_INTERVAL_S):
                raise ServerUnavailable("the pod shuts down")
            if time.monotonic() >= deadline_s:
                raise LoadFailed(
                    f"the model server did not make {name} ready within {self._load_timeout_s:g} s"
                )

    def _wait_unloaded(self, name: str) -> None:
        """Wait until its own unload has ended, and a while for others', whose memory it needs."""
        wait(list(self._unloading.values()), UNLOAD_WAIT_S)
        own = self._unloading.get(name)
        if own is not None and wait([own], self._load_timeout_s).not_done:
            raise LoadFailed(f"the model server has not unloaded {name}, which it had before")

    def unload_soon(self, name: str) -> None:
        """Unload in the background, before any later load of it; does not block."""
        if self._closed.is_set():
            return
        unloading = self._unloads.submit(self._unload, name)
        self._unloading[name] = unloading
        unloading.add_done_callback(lambda _: self._unloading.pop(name, None))

    def _unload(self, name: str) -> None:
        try:
            self.client.unload(name)
        except (LoadFailed, ServerUnavailable) as error:
            logger.info("not unloaded at the server", extra={"model": name, "error": error})
        self.repository.remove(name)

    def close(self) -> None:
        """Wait for unloads under way."""
        self._closed.set()
        wait(list(self._unloading.values()), UNLOAD_WAIT_S)
        self._unloads.shutdown(wait=False, cancel_futures=True)
        self.repository.close()


class ServerEngine(Engine):
    """The engine of one model in a pod with a model server."""

    name = "model server"
    uses_device = False

    def __init__(self, server: ModelServer, spec: ModelSpec) -> None:
        self._server = server
        self._spec = spec

    def skeleton_key(self, model: ModelFolder) -> str:
        return f"{self.name} {self._spec.key}"

    def build_skeleton(
        self, model: ModelFolder, *, key: str, device: torch.device, threads: int
    ) -> Skeleton:
        names = [file.name for file in model.tensors]
        size_bytes = sum(file.size_bytes for file in model.tensors)
        return LoadedSkeleton(
            key,
            lambda _weights: self._server.load(self._spec, model.path, names, size_bytes),
            lambda loaded: self._server.unload_soon(loaded.name),
            has_inferred=True,
        )

    def working_bytes(self, weight_bytes: int) -> int:
        """What it took when it was last loaded, beyond the size of its files; 0 before."""
        return max(0, self._server.memory_of(self._spec.key) - weight_bytes)
