"""Run one replica of the controller: `pilotlight controller`."""

import asyncio
import logging
import os
import socket
import sys
from collections.abc import Callable, Sequence
from functools import partial

from prometheus_client import REGISTRY

from common.logs import configure_logs
from common.probe_server import exposition, serving_probes
from common.process import on_stop_signals
from common.settings_table import read_settings
from controller.api import FAILURES, IS_LEADING, ClusterApi, KubernetesError, connect
from controller.application_reconciler import ApplicationReconciler
from controller.controller import Controller
from controller.graph_reconciler import GraphReconciler
from controller.informer import Informer
from controller.leader_election import Leadership
from controller.model_reconciler import ModelReconciler
from controller.objects import ClusterObjects, ObjectEvent
from controller.pod_secret import PodSecretKeeper
from controller.pools import PoolRegistries
from controller.settings import ControllerSettings
from controller.webhook_server import WebhookServer

logger = logging.getLogger(__name__)

COMPONENT = "pilotlight-controller"
RELIST_INTERVAL_S = 300.0
"""Watches may miss a deletion; a full list finds it."""
RELIST_RETRY_S = 2.0


class _StopRequested(Exception):
    """The controller received a termination signal."""


async def run(settings: ControllerSettings) -> None:
    """Serve until a termination signal. Raises the error of any part that fails."""
    stop = asyncio.Event()
    with on_stop_signals(lambda _: stop.set()):
        await _run(settings, stop)


async def _run(settings: ControllerSettings, stop: asyncio.Event) -> None:
    client, identity = await connect(), socket.gethostname()  # the pod's name
    namespaces = settings.watched_namespaces
    api = ClusterApi(client, component=COMPONENT, instance=identity, namespaces=namespaces)
    objects, informer = ClusterObjects(settings.trusted_namespaces), Informer(namespaces)
    try:
        async with asyncio.TaskGroup() as tasks:
            registries = PoolRegistries(
                settings.redis_url, tasks, lambda: controller.on_registry_change()
            )
            models = ModelReconciler(settings, api, objects, registries)
            applications = ApplicationReconciler(api, objects, registries)
            graphs = GraphReconciler(api, objects, registries)
            controller = Controller(objects, models, applications, graphs, registries)

            def on_event(event: ObjectEvent) -> None:
                objects.update(event)
                controller.wake()

            def on_failure(error: BaseException) -> None:
                tasks.create_task(_raise(error))

            def set_leading(is_leading: bool) -> None:
                IS_LEADING.set(is_leading)
                controller.set_leading(is_leading=is_leading)

            informer.start(on_event, on_failure)
            tasks.create_task(_relist(api, objects, controller.wake))
            tasks.create_task(controller.run())
            tasks.create_task(PodSecretKeeper(client, settings).run())
            webhooks = WebhookServer(client, settings, objects) if settings.webhook_port else None
            if webhooks is not None:
                tasks.create_task(webhooks.run())

            def is_ready() -> bool:
                return objects.is_complete and (webhooks is None or webhooks.is_started)

            election = Leadership(client, settings.namespace, identity, set_leading)
            tasks.create_task(election.run())
            show = partial(exposition, REGISTRY)
            with serving_probes("0.0.0.0", settings.port, is_ready=is_ready, metrics=show):
                await stop.wait()
            await registries.close()
            raise _StopRequested
    except* _StopRequested:
        logger.info("stopped")
    finally:
        await informer.stop()
        await client.close()


async def _raise(error: BaseException) -> None:
    raise error


async def _relist(api: ClusterApi, objects: ClusterObjects, wake: Callable[[], None]) -> None:
    """List all objects at the start and at every interval.

    They are applied at once: what is not listed yet would be taken for removed.
    """
    while True:
        try:
            known = objects.uids()
            services = [each async for each in api.list_services() if each.concerns_us]
            pods, applications = await api.list_pods(), await api.list_applications()
            objects.graphs.replace_all(await api.list_graphs(), known)
            objects.applications.replace_all(applications, known)
            objects.replace(services, pods, known)
        except KubernetesError as error:
            FAILURES.labels(cause=type(error).__name__).inc()
            logger.warning("the cluster's objects could not be listed; retrying", exc_info=error)
            await asyncio.sleep(RELIST_RETRY_S)
            continue
        wake()
        await asyncio.sleep(RELIST_INTERVAL_S)


def main(arguments: Sequence[str]) -> int:
    settings = read_settings(
        ControllerSettings, arguments, os.environ, prog="pilotlight controller"
    )
    configure_logs(
        logging.StreamHandler(sys.stderr),
        settings.log_level,
        libraries=("httpx", "httpcore", "kopf"),
    )
    asyncio.run(run(settings))
    return 0
