"""Follows the cluster's objects, with kopf's watches, and hands them over as they come.

Event handlers only: kopf writes an annotation on whatever has a change handler, and an annotation
on a pool restarts its pods. kopf runs in a thread and a loop of its own, since at its end it
cancels every task of its loop that came after it.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import kopf

from autoscaler.kubernetes.models.inference_services import POOL, read_service
from autoscaler.kubernetes.pools.pods import read_pod

if TYPE_CHECKING:
    from collections.abc import Callable

    from autoscaler.kubernetes.models.inference_services import ServiceObject
    from autoscaler.kubernetes.pools.pods import PodObject

logger = logging.getLogger(__name__)

LONGEST_STOP_S = 10.0


@dataclass(frozen=True, slots=True)
class ObjectEvent:
    """An object as it is now, or that it is gone."""

    what: ServiceObject | PodObject
    is_gone: bool


class Informer:
    """A thread that follows InferenceServices and the pods of pools."""

    def __init__(self) -> None:
        self._on_seen: Callable[[ObjectEvent], None] = _ignore
        self._on_failed: Callable[[BaseException], None] = _ignore
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kubernetes", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(
        self, on_seen: Callable[[ObjectEvent], None], on_failed: Callable[[BaseException], None]
    ) -> None:
        """Begin to follow; both are called in this loop."""
        self._on_seen, self._on_failed = on_seen, on_failed
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    async def stop(self) -> None:
        """End the watches."""
        self._stop.set()
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join, LONGEST_STOP_S)

    def _run(self) -> None:
        try:
            asyncio.run(
                kopf.operator(
                    registry=self._handlers(),
                    settings=_settings(),
                    standalone=True,
                    clusterwide=True,
                    stop_flag=self._stop,
                )
            )
            if not self._stop.is_set():
                self._hand(self._on_failed, RuntimeError("the watches ended"))
        except Exception as error:
            logger.exception("the watches of the cluster failed")
            self._hand(self._on_failed, error)

    def _handlers(self) -> kopf.OperatorRegistry:
        handlers = kopf.OperatorRegistry()

        def login(**known: Any) -> kopf.ConnectionInfo | None:
            return kopf.login_with_service_account(**known) or kopf.login_with_kubeconfig(**known)

        async def see_service(event: kopf.RawEvent, **_: Any) -> None:
            self._see(read_service(event["object"]), event)

        async def see_pod(event: kopf.RawEvent, **_: Any) -> None:
            self._see(read_pod(event["object"]), event)

        kopf.on.login(registry=handlers)(login)
        kopf.on.event("serving.kserve.io", "v1beta1", "inferenceservices", registry=handlers)(
            see_service
        )
        kopf.on.event("", "v1", "pods", labels={POOL: kopf.PRESENT}, registry=handlers)(see_pod)
        return handlers

    def _see(self, what: ServiceObject | PodObject, event: kopf.RawEvent) -> None:
        self._hand(self._on_seen, ObjectEvent(what, is_gone=event["type"] == "DELETED"))

    def _hand(self, callback: Callable[[Any], None], value: object) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(callback, value)


def _settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.scanning.disabled = True  # it would watch all CRDs
    settings.watching.label_selectors["pods"] = POOL
    settings.process.ultimate_exiting_timeout = None
    return settings


def _ignore(_: object) -> None:
    """Nobody listens yet."""
