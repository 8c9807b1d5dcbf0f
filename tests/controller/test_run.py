"""The process of the controller."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from kubernetes.aio import client

from common.settings_table import settings_from_fields
from controller import main as run
from controller.api import ClusterApi
from controller.objects import ClusterObjects
from controller.settings import ControllerSettings

WARN_AFTER_A_START_WITHOUT_A_CLUSTER = """
import logging
from controller.main import main
try:
    main([])
except Exception:
    pass
logger = logging.getLogger("controller.controller")
logger.warning("failed; retrying", extra={"what": "model team/m"})
logging.getLogger("kopf").info("not shown")
"""


def test_fields_of_a_warning_are_in_the_log(tmp_path: Path) -> None:
    environment = {**os.environ, "KUBECONFIG": str(tmp_path / "none")}
    ended = subprocess.run(
        [sys.executable, "-c", WARN_AFTER_A_START_WITHOUT_A_CLUSTER],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    line = ended.stderr.splitlines()[-1]
    assert line.endswith("controller.controller: failed; retrying what=model team/m")


def test_accepts_a_url_template() -> None:
    settings = settings_from_fields(ControllerSettings, {"url": "https://{name}.{namespace}.test"})
    assert settings.url.format(namespace="team", name="m") == "https://m.team.test"


@pytest.mark.parametrize("url", ["http://x/{tenant}", "http://x/{", "http://x/{}"])
def test_rejects_other_placeholders(url: str) -> None:
    with pytest.raises(ValueError, match="no placeholders but"):
        settings_from_fields(ControllerSettings, {"url": url})


def test_watched_namespaces_have_those_of_pools_too() -> None:
    assert settings_from_fields(ControllerSettings, {}).watched_namespaces == ()
    named = {"namespace": "models", "watch_namespaces": "team-b, team-a"}
    settings = settings_from_fields(ControllerSettings, named)
    assert settings.watched_namespaces == ("models", "team-a", "team-b")
    settings = settings_from_fields(ControllerSettings, {**named, "pool_namespaces": "pools"})
    assert settings.watched_namespaces == ("pools", "team-a", "team-b")


async def test_no_kind_is_taken_for_removed_while_it_could_not_be_listed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The controller acts once the objects are complete, and deletes what none of them declares."""
    monkeypatch.setattr(run, "RELIST_RETRY_S", 0.05)
    objects, was_complete, listed = ClusterObjects(), list[bool](), asyncio.Event()
    empty: dict[str, Any] = {"items": [], "metadata": {}}

    async def answer(request: web.Request) -> web.Response:
        if not request.path.endswith(("inferenceapplications", "inferencegraphs")):
            return web.json_response(empty)
        was_complete.append(objects.is_complete)
        return web.json_response(empty, status=500 if len(was_complete) in (1, 3) else 200)

    routes = web.Application()
    routes.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(routes)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    async with client.ApiClient(client.Configuration(host=f"http://{host}:{port}")) as connection:
        api = ClusterApi(connection, component="controller", instance="test")
        task = asyncio.create_task(run._relist(api, objects, listed.set))
        await asyncio.wait_for(listed.wait(), 30)
        task.cancel()
    await runner.cleanup()
    assert objects.is_complete
    assert was_complete == [False] * 5
