"""Run one replica of the controller: `pilotlight controller`."""

import asyncio
import logging
import os
import socket
import sys
from collections.abc import Sequence
from functools import partial

from prometheus_client import REGISTRY

from common.probe_server import exposition, serving_probes
from common.process import configure_logs, on_stop_signals
from common.settings_table import read_settings
from controller.api import ClusterApi, connect
from controller.cluster_issuer import CONFIG_MAP, write_issuer
from controller.controller import Controller, Reconcile
from controller.declaration_reconcilers import ApplicationReconciler, GraphReconciler
from controller.inference_pools import InferencePoolReconciler
from controller.informer import Informer
from controller.kserve_version import watch_version
from controller.leader_election import Leadership
from controller.model_reconciler import ModelReconciler
from controller.objects import ClusterObjects
from controller.pools import PodPhases, PoolRegistries, TenantRulesWriter
from controller.resources import Kind
from controller.secret_keeper import PODS, PODS_ENTRY, SecretKeeper, keep_periodically, redis_keeper
from controller.settings import ControllerSettings
from controller.webhook_server import WebhookServer

logger = logging.getLogger(__name__)

COMPONENT = "pilotlight-controller"


class _StopRequested(Exception):
    """The controller received a termination signal."""


async def run(settings: ControllerSettings) -> None:
    """Serve until a termination signal. Raises the error of any part that fails."""
    stop = asyncio.Event()
    with on_stop_signals(lambda _: stop.set()):
        await _run(settings, stop)


async def _run(settings: ControllerSettings, stop: asyncio.Event) -> None:
    client, identity = await connect(), socket.gethostname()  # the pod's name
    api = ClusterApi(client, component=COMPONENT, instance=identity)
    objects = ClusterObjects(settings.trusted_namespaces)
    watched, of_pools = settings.watched_namespaces, sorted(settings.trusted_namespaces)
    informer = Informer(client, objects, watched, of_pools)
    try:
        async with asyncio.TaskGroup() as tasks:
            registries = PoolRegistries(
                settings.redis_url, tasks, lambda: controller.on_registry_change()
            )
            models = ModelReconciler(settings, api, objects, registries)
            applications = ApplicationReconciler(api, objects, registries)
            graphs = GraphReconciler(api, objects, registries)
            pod_phases = PodPhases(objects, registries)
            election = Leadership(
                client, settings.namespace, identity, lambda leads: controller.set_leading(leads)
            )
            tenants = TenantRulesWriter(api, objects, registries, lambda: election.version)
            routes = InferencePoolReconciler(settings, client, api, objects)
            reconcilers: dict[Kind, Reconcile] = {
                **dict.fromkeys((Kind.SERVICE, Kind.MODEL, Kind.DEPLOYMENT), models.reconcile),
                Kind.APPLICATION: lambda _: applications.reconcile_all(),
                Kind.GRAPH: lambda _: graphs.reconcile_all(),
                Kind.POD: lambda _: pod_phases.update(),
                Kind.TENANT: lambda _: tenants.update(),
                Kind.ROUTE: lambda _: routes.reconcile_all(),
            }

            def on_kserve_change(problem: str) -> None:
                models.kserve_problem = problem
                controller.on_registry_change()

            controller = Controller(objects, reconcilers, models.changed_in_registries)
            webhooks = (
                WebhookServer(client, settings, objects, registries)
                if settings.webhook_port
                else None
            )

            async def act() -> None:
                await informer.listed.wait()
                await controller.run()

            def is_ready() -> bool:
                return informer.listed.is_set() and (webhooks is None or webhooks.is_started)

            tasks.create_task(informer.run())
            tasks.create_task(act())
            tasks.create_task(SecretKeeper(client, settings.namespace, PODS, [PODS_ENTRY]).run())
            tasks.create_task(redis_keeper(client, settings).run())
            tasks.create_task(watch_version(client, on_kserve_change))
            issuer = partial(write_issuer, client, settings.namespace)
            tasks.create_task(keep_periodically(issuer, f"the ConfigMap {CONFIG_MAP}"))
            if webhooks is not None:
                tasks.create_task(webhooks.run())
            tasks.create_task(election.run())
            show = partial(exposition, REGISTRY)
            with serving_probes("0.0.0.0", settings.port, is_ready=is_ready, metrics=show):
                await stop.wait()
            await registries.close()
            raise _StopRequested
    except* _StopRequested:
        logger.info("stopped")
    finally:
        await client.close()


def main(arguments: Sequence[str]) -> int:
    settings = read_settings(
        ControllerSettings, arguments, os.environ, prog="pilotlight controller"
    )
    configure_logs(
        logging.StreamHandler(sys.stderr), settings.log_level, libraries=("httpx", "httpcore")
    )
    asyncio.run(run(settings))
    return 0
