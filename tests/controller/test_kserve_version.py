"""KServe's version, from what KServe's releases ship, and the warning of one that is not tested."""

import asyncio
from typing import Any

import pytest

from controller import kserve_version
from controller.kserve_version import version_of, version_problem, watch_version
from tests.controller.api_server import ApiServer, connect, running
from tests.registry.redis.clients import until


def manager(*images: str, **labels: str) -> dict[str, Any]:
    containers = [{"name": f"c{index}", "image": image} for index, image in enumerate(images)]
    app = {"app": "kserve"}
    return {
        "kind": "Deployment",
        "metadata": {"namespace": "kserve", "name": "kserve-controller-manager", "labels": labels},
        "spec": {
            "selector": {"matchLabels": app},
            "template": {"metadata": {"labels": app}, "spec": {"containers": containers}},
        },
    }


@pytest.mark.parametrize(
    ("found", "version"),
    [
        (manager("kserve/kserve-controller:v0.20.0"), (0, 20)),
        (manager("10.0.0.1:5000/proxy:1.2", "10.0.0.1:5000/x/kserve-controller:0.16.1"), (0, 16)),
        (manager("x@sha256:12", **{"app.kubernetes.io/version": "v0.21.0-rc1"}), (0, 21)),
        (manager("kserve/kserve-controller@sha256:0123", "kserve-controller:latest"), None),
    ],
)
def test_the_version_is_that_of_the_label_or_image(
    found: dict[str, Any], version: tuple[int, int] | None
) -> None:
    assert version_of(found) == version


@pytest.mark.parametrize("version", [(0, 16), (0, 20), None])
def test_tested_and_unknown_versions_are_no_problem(version: tuple[int, int] | None) -> None:
    assert version_problem(version) == ""


async def test_changes_of_the_version_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing is while it cannot be read."""
    monkeypatch.setattr(kserve_version, "POLL_INTERVAL_S", 0.02)
    server, reported = ApiServer(), list[str]()
    server.put(manager("kserve/kserve-controller:v0.15.2"))
    async with running(server) as url, connect(url) as client, asyncio.TaskGroup() as tasks:
        task = tasks.create_task(watch_version(client, reported.append))
        await until(lambda: len(reported) == 1, what="the old version is reported")
        server.fault = lambda _: 403
        server.put(manager("kserve/kserve-controller:v0.20.0"))
        asked = len(server.lists)
        server.fault = lambda _: None
        await until(lambda: len(server.lists) > asked, what="it is read again")
        await until(lambda: len(reported) == 2, what="the new version is reported")
        task.cancel()
    assert reported == ["KServe 0.15 is not tested (0.16 to 0.20 are)", ""]
