"""Placement on a whole platform: shares and batches are shown, and a doubled rate moves a copy."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from signal import SIGABRT, SIGKILL
from typing import Any

import httpx
import pytest

from registry.domain.model import ModelName
from registry.domain.pod import Profile, ProfilePoint
from registry.redis.client import Registry
from tests import servers
from tests.pilotlight.conftest import run_cli
from tests.pilotlight.platform.running import RunningPlatform

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores to place on"),
]

LIMIT_S = 180.0
MODEL = """
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata:
  name: {name}
  annotations: {annotations}
spec:
  predictor:
    model:
      modelFormat: {{name: huggingface}}
      storageUri: {uri}
"""
PLACED = {"pilotlight.io/deadline": "60s", "pilotlight.io/profile": "measured"}
"""Their profile is of a model that serves nothing, so that no live batch changes it."""


class Load:
    """Requests at a rate that can be changed, in a thread of its own."""

    def __init__(self, url: str) -> None:
        self.rates_rps: dict[str, float] = {}
        self.statuses: list[int] = []
        self._url = url
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    async def _run(self) -> None:
        async with (
            httpx.AsyncClient(base_url=self._url, trust_env=False, timeout=90) as client,
            asyncio.TaskGroup() as group,
        ):
            due_s = dict.fromkeys(("a", "b"), 0.0)
            loop = asyncio.get_running_loop()
            while not self._is_over.is_set():
                for model, rate_rps in list(self.rates_rps.items()):
                    if loop.time() >= due_s[model]:
                        due_s[model] = max(due_s[model], loop.time() - 1.0) + 1 / rate_rps
                        group.create_task(self._send(client, model))
                await asyncio.sleep(0.005)

    async def _send(self, client: httpx.AsyncClient, model: str) -> None:
        response = await client.post(f"/v1/models/{model}:predict", json={"instances": ["a cat"]})
        self.statuses.append(response.status_code)


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningPlatform]:
    folder = tmp_path_factory.mktemp("placement")
    assert run_cli("make-model", "tiny-t5", str(folder / "tiny-t5")).status == 0
    for name, values in (("measured", {}), ("a", PLACED), ("b", PLACED)):
        text = MODEL.format(name=name, annotations=values, uri=f"file://{folder / 'tiny-t5'}")
        (folder / f"{name}.yaml").write_text(text)
    ran = run_cli(
        "up",
        "--detach",
        "--json",
        "--port",
        "0",
        "--home",
        str(folder / "home"),
        "--no-s3",
        "--pods",
        "1",
        "--placement",
        "predicted-goodput",
    )
    assert ran.status == 0, ran.err
    running = RunningPlatform(folder / "home", ran.document)
    try:
        for name in ("measured", "a", "b"):
            assert running.cli("apply", "-f", str(folder / f"{name}.yaml")).status == 0
        asyncio.run(_store_profile(running))
        yield running
    finally:
        assert running.cli("down").status == 0


async def _store_profile(platform: RunningPlatform) -> None:
    """One core serves at most 10 requests per second."""
    registry = await Registry.connect(platform.facts["redis_url"])
    try:
        state = await registry.cluster()
        spec = state.models[ModelName("default", "measured")].serving
        product = next(iter(state.pods.values())).info.accelerator.product
        points = (ProfilePoint(1, 0.2), ProfilePoint(4, 0.4))
        assert await registry.put_profile(Profile(spec.key, product, points))
    finally:
        await registry.close()


def _warm(platform: RunningPlatform) -> dict[str, list[str]]:
    """Accelerators of the warm placed pods, by model."""
    found: dict[str, list[str]] = {}
    for pod in platform.get("pods"):
        placed: dict[str, Any] | None = pod["placed"]
        if placed is not None and placed["model"] in pod["warm_models"]:
            found.setdefault(placed["model"], []).append(placed["accelerator"])
            assert placed["batch_size"] in {1, 4}
    return {model: sorted(names) for model, names in found.items()}


def test_a_doubled_rate_adds_a_copy_and_no_request_fails(platform: RunningPlatform) -> None:
    with Load(platform.url) as load:
        load.rates_rps = {"a": 6.0, "b": 1.0}
        servers.wait_until(
            lambda: set(_warm(platform)) == {"default/a", "default/b"},
            timeout_s=LIMIT_S,
            what="both models placed",
        )
        before = len(load.statuses)
        load.rates_rps = {"a": 12.0, "b": 1.0}
        servers.wait_until(
            lambda: _warm(platform).get("default/a") == ["cpu-0", "cpu-1"],
            timeout_s=LIMIT_S,
            what="a second copy of the model",
        )
        served = len(load.statuses)
        servers.wait_until(lambda: len(load.statuses) > served + 40, what="more responses")
    assert before < served
    assert set(load.statuses) == {200}
    records = platform.cli("autoscaler", "--json").document
    assert any(
        each["verb"] == "place" and "off the planned rate" in each["words"] for each in records
    )


def _placed_pids(platform: RunningPlatform) -> dict[str, dict[str, int]]:
    """Processes of the warm placed pods, by accelerator and name."""
    found: dict[str, dict[str, int]] = {}
    for pod in platform.get("pods"):
        placed: dict[str, Any] | None = pod["placed"]
        if placed is not None and placed["model"] in pod["warm_models"]:
            found.setdefault(placed["accelerator"], {})[pod["name"]] = pod["pid"]
    return found


def test_neighbours_that_a_fault_ends_together_restart_and_serve(platform: RunningPlatform) -> None:
    """As a fault under MPS does (Elvinger 2024, section 2.3.2): all processes of a device end."""
    with Load(platform.url) as load:
        load.rates_rps = {"a": 12.0, "b": 1.0}
        servers.wait_until(
            lambda: any(len(pods) == 2 for pods in _placed_pids(platform).values()),
            timeout_s=LIMIT_S,
            what="two copies on one accelerator",
        )
        name, ended = next(
            (name, pods) for name, pods in _placed_pids(platform).items() if len(pods) == 2
        )
        for pid, signal_number in zip(ended.values(), (SIGABRT, SIGKILL), strict=True):
            os.kill(pid, signal_number)

        def have_restarted() -> bool:
            now = _placed_pids(platform).get(name, {})
            return now.keys() == ended.keys() and not set(now.values()) & set(ended.values())

        servers.wait_until(have_restarted, timeout_s=LIMIT_S, what="both copies warm again")
        served = len(load.statuses)
        servers.wait_until(lambda: len(load.statuses) > served + 40, what="more responses")
        assert set(load.statuses[served:]) == {200}
