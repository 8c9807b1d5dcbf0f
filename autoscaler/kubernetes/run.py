"""Run one replica of the controller: `pilotlight controller`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from typing import TYPE_CHECKING

import uvicorn

from autoscaler.kubernetes.admission.webhook_setup import (
    CHECK_S,
    WebhookSetup,
    context_of,
    read_folder,
    take_up,
)
from autoscaler.kubernetes.admission.webhooks import admission_app
from autoscaler.kubernetes.cluster.cluster_api import ClusterApi, connect
from autoscaler.kubernetes.cluster.cluster_objects import ClusterObjects
from autoscaler.kubernetes.cluster.informer import Informer
from autoscaler.kubernetes.cluster.leadership import Leadership
from autoscaler.kubernetes.controller import Controller
from autoscaler.kubernetes.errors import KubernetesError
from autoscaler.kubernetes.metrics import FAILURES, IS_LEADING
from autoscaler.kubernetes.models.reconciler import ModelReconciler
from autoscaler.kubernetes.operation_routes import operation_app
from autoscaler.kubernetes.pools.pool_registries import PoolRegistries
from autoscaler.kubernetes.settings import ControllerSettings
from registry.settings_table import read_settings

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from kubernetes.aio.client import ApiClient

    from autoscaler.kubernetes.admission.certificates import Certificates
    from autoscaler.kubernetes.cluster.informer import ObjectEvent

logger = logging.getLogger(__name__)

COMPONENT = "pilotlight-controller"
LIST_EVERY_S = 300.0
"""Watches may miss that an object went; a full list finds it."""
LIST_AGAIN_S = 2.0


class _StopRequested(Exception):
    """The controller was asked to stop."""


class SignalFreeServer(uvicorn.Server):
    """uvicorn that leaves signals to the controller."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """The controller ends all its parts together."""
        yield


async def run(settings: ControllerSettings) -> None:
    """Serve until told to stop; raises what ended a part that must not end."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    client = await connect()
    api = ClusterApi(client, component=COMPONENT, instance=settings.own_identity)
    objects = ClusterObjects()
    follower = Informer()
    try:
        async with asyncio.TaskGroup() as tasks:
            links = PoolRegistries(settings.redis_url, tasks, lambda: controller.registry_changed())
            controller = Controller(objects, ModelReconciler(settings, api, objects, links), links)

            def see(seen: ObjectEvent) -> None:
                objects.see(seen)
                controller.wake()

            def fail(error: BaseException) -> None:
                tasks.create_task(_raise(error))

            def lead(is_leading: bool) -> None:
                IS_LEADING.set(is_leading)
                controller.lead(is_leading=is_leading)

            follower.start(see, fail)
            tasks.create_task(_list_all(api, objects, controller))
            tasks.create_task(controller.run())
            webhooks: list[SignalFreeServer] = []

            def is_ready() -> bool:
                has_webhooks = not settings.webhook_port or any(each.started for each in webhooks)
                return objects.is_complete and has_webhooks

            tasks.create_task(_operation_server(settings, is_ready).serve())
            if settings.webhook_port:
                tasks.create_task(_serve_webhooks(client, settings, webhooks))
            if settings.elect:
                election = Leadership(client, settings.namespace, settings.own_identity, lead)
                tasks.create_task(election.run())
            else:
                lead(True)
            await stop.wait()
            await links.close()
            raise _StopRequested
    except* _StopRequested:
        logger.info("stopped")
    finally:
        await follower.stop()
        await client.close()


def _operation_server(
    settings: ControllerSettings, is_ready: Callable[[], bool]
) -> SignalFreeServer:
    config = uvicorn.Config(
        operation_app(is_ready),
        host=settings.host,
        port=settings.port,
        lifespan="off",
        log_config=None,
        access_log=False,
    )
    return SignalFreeServer(config)


async def _serve_webhooks(
    client: ApiClient, settings: ControllerSettings, servers: list[SignalFreeServer]
) -> None:
    """Answer admission reviews, once there is a certificate, and keep that fresh."""
    current = _certificates(client, settings)
    shown = await _first(current)
    context = context_of(shown)
    config = uvicorn.Config(
        admission_app(),
        host=settings.host,
        port=settings.webhook_port,
        ssl_context_factory=lambda *_: context,
        lifespan="off",
        log_config=None,
        access_log=False,
    )
    server = SignalFreeServer(config)
    servers.append(server)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(server.serve())
        tasks.create_task(_keep(context, shown, current))


def _certificates(
    client: ApiClient, settings: ControllerSettings
) -> Callable[[], Awaitable[Certificates]]:
    """What the webhooks are to show now, self-made or mounted."""
    if not settings.certificates:
        return WebhookSetup(client, settings).prepare
    return lambda: asyncio.to_thread(read_folder, settings.certificates)


async def _first(current: Callable[[], Awaitable[Certificates]]) -> Certificates:
    while True:
        try:
            return await current()
        except (KubernetesError, OSError) as error:
            FAILURES.labels(cause=type(error).__name__).inc()
            logger.warning("the webhooks have no certificate yet", exc_info=error)
            await asyncio.sleep(LIST_AGAIN_S)


async def _keep(
    context: ssl.SSLContext, shown: Certificates, current: Callable[[], Awaitable[Certificates]]
) -> None:
    """Take up what was renewed, here or elsewhere; a mistake leaves what was."""
    while True:
        await asyncio.sleep(CHECK_S)
        try:
            found = await current()
            if found != shown:
                take_up(context, found)
                shown = found
                logger.info("the webhooks show another certificate")
        except (KubernetesError, OSError) as error:  # ssl.SSLError is one
            FAILURES.labels(cause=type(error).__name__).inc()
            logger.warning("the webhooks' certificate stays as it was", exc_info=error)


async def _raise(error: BaseException) -> None:
    raise error


async def _list_all(api: ClusterApi, objects: ClusterObjects, controller: Controller) -> None:
    """List everything at the start and from time to time."""
    while True:
        try:
            objects.replace(await api.list_services(), await api.list_pods())
        except KubernetesError as error:
            FAILURES.labels(cause=type(error).__name__).inc()
            logger.warning("the cluster's objects could not be listed", exc_info=error)
            await asyncio.sleep(LIST_AGAIN_S)
            continue
        controller.wake()
        await asyncio.sleep(LIST_EVERY_S)


def main(arguments: Sequence[str]) -> int:
    """Read the settings and run."""
    settings = read_settings(
        ControllerSettings, arguments, os.environ, prog="pilotlight controller"
    )
    logging.basicConfig(
        level=settings.log_level.upper(),
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )
    logging.getLogger("kopf").setLevel(logging.WARNING)
    asyncio.run(run(settings))
    return 0
