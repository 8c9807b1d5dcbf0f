"""Images of tier `host` that are registered with the driver: copies run from where they lie.

Registering pins all pages of an image and takes longer than a copy. So it happens in the background
after the first load, and an image stays registered until others need the room. Off by default: no
GPU has run it. Without it, or where the driver refuses, bytes go through the ring of buffers.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch

    from runtime.weights.weight_source import WeightSource

logger = logging.getLogger(__name__)


class Registrar(Protocol):
    """A device's driver. Methods block and are thread-safe."""

    def register(self, region: torch.Tensor) -> None:
        """Pin memory that the device only reads; raises the driver's error."""

    def unregister(self, region: torch.Tensor) -> None:
        """Undo `register`."""


@dataclass(eq=False, slots=True)
class _Registered:
    """Mutable: guarded by the lock of the images."""

    region: torch.Tensor
    users: int = 0


class RegisteredImages:
    """The images that a pod keeps registered, at most so many bytes. Thread-safe."""

    def __init__(self, registrar: Registrar, budget_bytes: int) -> None:
        self._registrar = registrar
        self._budget_bytes = budget_bytes
        self._lock = threading.Lock()
        self._by_name: OrderedDict[str, _Registered] = OrderedDict()
        """The least recently used first."""
        # One thread: a refusal leaves an error in CUDA's state of the thread, and kernels that it
        # launched next would fail with it.
        self._thread = ThreadPoolExecutor(1, "registrations")

    def acquire(self, source: WeightSource) -> tuple[str, torch.Tensor] | None:
        """The name and memory of a registered slab, until `release`; None: use the ring."""
        name = source.image_name
        with self._lock:
            image = self._by_name.get(name)
            if image is None:
                return None
            image.users += 1
            self._by_name.move_to_end(name)
            return name, image.region

    def release(self, name: str) -> None:
        with self._lock:
            self._by_name[name].users -= 1

    def register_later(self, source: WeightSource) -> None:
        """Have the image registered for the next load, if there is one and it may have the room."""
        if source.image_name and source.layout.size_bytes <= self._budget_bytes:
            with suppress(RuntimeError):  # closed
                self._thread.submit(self._register, source.image_name, source.map_shared())

    def drop_unused(self) -> bool:
        """Unregister and unmap all that no load uses; False without any."""
        return self._drop(lambda: True)

    def close(self) -> None:
        self._thread.shutdown(cancel_futures=True)
        self.drop_unused()

    def _register(self, name: str, region: torch.Tensor) -> None:
        if name in self._by_name:
            return
        self._drop(lambda: self._bytes() + region.nbytes > self._budget_bytes)
        if self._bytes() + region.nbytes > self._budget_bytes:
            return
        try:
            self._registrar.register(region)
        except RuntimeError as error:
            extra = {"image": name, "bytes": region.nbytes, "error": error}
            logger.warning("host image not registered, copied through buffers", extra=extra)
            return
        with self._lock:
            self._by_name[name] = _Registered(region)

    def _bytes(self) -> int:
        return sum(image.region.nbytes for image in tuple(self._by_name.values()))

    def _drop(self, is_needed: Callable[[], bool]) -> bool:
        """Drop unused images, the least recently used first, while that is needed."""
        dropped = False
        for name in tuple(self._by_name):
            with self._lock:
                image = self._by_name.get(name)
                if image is None or image.users or not is_needed():
                    continue
                del self._by_name[name]
            self._registrar.unregister(image.region)
            dropped = True
        return dropped
