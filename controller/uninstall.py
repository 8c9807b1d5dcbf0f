"""Prepares an uninstall: `python -m controller.uninstall` takes the finalizer off all models.

The objects stay, with Ready False. It holds the lease until a minute later, so that no controller
adds finalizers before it is deleted.
"""

import asyncio
import os
import sys
from contextlib import suppress
from typing import Final

from kubernetes.aio import client

from common.settings_table import read_settings
from controller.api import Changed, ClusterApi, Gone, connect
from controller.informer import Informer
from controller.leader_election import RENEW_S, take_lease
from controller.model_reconciler import withdraw
from controller.objects import ClusterObjects
from controller.settings import ControllerSettings

HELD_S: Final = 60
RENEWED_EVERY: Final = 64
"""Models, since thousands take minutes."""
POLL_INTERVAL_S: Final = 0.2
NAME: Final = "pilotlight-uninstall"
UNINSTALLED: Final = (
    "Pilotlight was uninstalled: install it again, or delete the InferenceService and create it "
    "in another mode"
)


async def release_models(api: client.ApiClient, settings: ControllerSettings) -> None:
    """Raises KubernetesError."""
    cluster, objects = ClusterApi(api, component=NAME, instance=NAME), ClusterObjects()
    pools = settings.trusted_namespaces
    informer = Informer(api, objects, settings.watched_namespaces, sorted(pools))

    async def hold(pause_s: float = 0.0) -> None:
        with suppress(Gone):  # no controller has run here
            await take_lease(api, settings.namespace, holder=NAME, duration_s=HELD_S)
            await asyncio.sleep(pause_s)

    await hold(RENEW_S)  # until then its last holder acts
    watching = asyncio.create_task(informer.run())
    await informer.listed.wait()
    while found := [each for each in objects.declared() if each.has_finalizer]:
        for number, service in enumerate(found):
            if number % RENEWED_EVERY == 0:
                await hold()
            with suppress(Changed, Gone):
                await withdraw(cluster, service, UNINSTALLED)
        await asyncio.sleep(POLL_INTERVAL_S)  # for the watch
    watching.cancel()


async def _run(settings: ControllerSettings) -> None:
    async with await connect() as api:
        await release_models(api, settings)


if __name__ == "__main__":
    arguments = sys.argv[1:]
    asyncio.run(_run(read_settings(ControllerSettings, arguments, os.environ, prog=NAME)))
