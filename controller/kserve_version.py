"""KServe's version, which its controller's Deployment names, and whether it is a tested one."""

import asyncio
import logging
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from kubernetes.aio import client

from controller.api import FAILURES, KubernetesError, path_of, read_json
from controller.resources import Kind

logger = logging.getLogger(__name__)

MANAGER: Final = "kserve-controller-manager"
"""Name of the Deployment, and its label `control-plane`."""
TESTED: Final = ((0, 16), (0, 20))
"""Oldest and newest version."""
POLL_INTERVAL_S: Final = 60.0
_VERSION: Final = re.compile(r"kserve-controller[^:]*:v?(\d+)\.(\d+)")


def version_of(manager: Mapping[str, Any]) -> tuple[int, int] | None:
    """By the label that Helm sets, else by the image's tag; None: neither says."""
    labels = manager["metadata"].get("labels") or {}
    containers = manager["spec"]["template"]["spec"]["containers"]
    label = f"kserve-controller:{labels.get('app.kubernetes.io/version', '')}"
    texts = [label, *(each["image"] for each in containers)]
    found = next(filter(None, map(_VERSION.search, texts)), None)
    return None if found is None else (int(found[1]), int(found[2]))


def version_problem(version: tuple[int, int] | None) -> str:
    """Empty: it is a tested one, or unknown."""
    if version is None or TESTED[0] <= version <= TESTED[1]:
        return ""
    oldest, newest, found = (".".join(map(str, each)) for each in (*TESTED, version))
    return f"KServe {found} is not tested ({oldest} to {newest} are)"


async def watch_version(api: client.ApiClient, on_change: Callable[[str], None]) -> None:
    """Report each change of the version's problem, until cancelled.

    What cannot be read, as with rights in some namespaces, changes nothing.
    """
    known = ""
    while True:
        try:
            path, named = path_of(Kind.DEPLOYMENT), f"metadata.name={MANAGER}"
            listed = await read_json(api, path, fieldSelector=named)
            problems = [version_problem(version_of(each)) for each in listed["items"]]
            problem = "; ".join(filter(None, problems))
        except KubernetesError as error:
            FAILURES.labels(cause=type(error).__name__).inc()
            problem = known
        if problem != known:
            logger.warning("KServe's version", extra={"problem": problem or "none any more"})
            known = problem
            on_change(problem)
        await asyncio.sleep(POLL_INTERVAL_S)
