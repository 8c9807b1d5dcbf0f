"""Watches InferenceServices and the pods of pools with kopf, and reports every change.

It registers event handlers only: kopf annotates every object that has a change handler, and a new
annotation on a pool restarts its pods. kopf runs in a thread with its own event loop, because at
shutdown it cancels all tasks of its loop that were created after it.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

import kopf

from controller.objects import ObjectEvent
from controller.resources import (
    APPLICATIONS,
    GRAPHS,
    POOL,
    ApplicationObject,
    GraphObject,
    PodObject,
    ServiceObject,
    read_application_object,
    read_graph_object,
    read_pod,
    read_service,
)

logger = logging.getLogger(__name__)

STOP_TIMEOUT_S = 10.0


class Informer:
    """Runs kopf in a thread. Callbacks run in the event loop that called `start`."""

    def __init__(self, namespaces: Sequence[str] = ()) -> None:
        """`namespaces`: those to watch; empty: all."""
        self._namespaces = tuple(namespaces)
        self._on_event: Callable[[ObjectEvent], None] = _ignore
        self._on_failure: Callable[[BaseException], None] = _ignore
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kubernetes", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(
        self, on_event: Callable[[ObjectEvent], None], on_failure: Callable[[BaseException], None]
    ) -> None:
        self._on_event, self._on_failure = on_event, on_failure
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    async def stop(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join, STOP_TIMEOUT_S)

    def _run(self) -> None:
        try:
            asyncio.run(
                kopf.operator(
                    registry=self._handlers(),
                    settings=_settings(),
                    standalone=True,
                    clusterwide=not self._namespaces,
                    namespaces=self._namespaces,
                    stop_flag=self._stop,
                )
            )
            if not self._stop.is_set():
                self._call(self._on_failure, RuntimeError("the watches ended"))
        except Exception as error:
            logger.exception("the watches of the cluster failed")
            self._call(self._on_failure, error)

    def _handlers(self) -> kopf.OperatorRegistry:
        handlers = kopf.OperatorRegistry()

        def login(**arguments: Any) -> kopf.ConnectionInfo | None:
            return kopf.login_with_service_account(**arguments) or kopf.login_with_kubeconfig(
                **arguments
            )

        async def on_service(event: kopf.RawEvent, **_: Any) -> None:
            self._report(read_service(event["object"]), event)

        async def on_application(event: kopf.RawEvent, **_: Any) -> None:
            self._report(read_application_object(event["object"]), event)

        async def on_graph(event: kopf.RawEvent, **_: Any) -> None:
            self._report(read_graph_object(event["object"]), event)

        async def on_pod(event: kopf.RawEvent, **_: Any) -> None:
            self._report(read_pod(event["object"]), event)

        kopf.on.login(registry=handlers)(login)
        kopf.on.event("serving.kserve.io", "v1beta1", "inferenceservices", registry=handlers)(
            on_service
        )
        kopf.on.event(*APPLICATIONS, registry=handlers)(on_application)
        kopf.on.event(*GRAPHS, registry=handlers)(on_graph)
        kopf.on.event("", "v1", "pods", labels={POOL: kopf.PRESENT}, registry=handlers)(on_pod)
        return handlers

    def _report(
        self,
        found: ServiceObject | PodObject | ApplicationObject | GraphObject,
        event: kopf.RawEvent,
    ) -> None:
        self._call(self._on_event, ObjectEvent(found, is_removed=event["type"] == "DELETED"))

    def _call(self, callback: Callable[[Any], None], value: object) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(callback, value)


def _settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.scanning.disabled = True  # scanning watches all CRDs
    settings.watching.label_selectors["pods"] = POOL
    settings.process.ultimate_exiting_timeout = None
    return settings


def _ignore(_: object) -> None:
    """Callback before `start`."""
