"""A model that does not end: it alone is broken and says why; too many of them end the pod."""

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from registry.domain.model import ModelPolicy
from runtime.device.queue import DeviceModel, Payload
from runtime.device.worker import DeviceWorker
from runtime.errors import InferenceHung, ModelBroken
from runtime.loading.load_coordinator import Watchdog
from tests.runtime.conftest import Cluster
from tests.runtime.http import metric, predict
from tests.runtime.local_pod import local_pod
from tests.servers import copy_model, wait_until


def endless(models: Path, folder: Path) -> Path:
    """A translator that generates for hours; its first inference, of one token, is short."""
    path = copy_model(models / "tiny-t5", folder / "endless") / "generation_config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "min_new_tokens": 10**7, "max_new_tokens": 10**7}))
    return path.parent


def hung_batches(url: str) -> float:
    return metric(url, "pilotlight_batches_total", model="default/m", outcome="hung")


@pytest.mark.slow
def test_a_hanging_model_is_broken_alone(cluster: Cluster, models: Path, tmp_path: Path) -> None:
    spec = cluster.declare("m", endless(models, tmp_path))
    cluster.declare("other", models / "tiny-bert")
    pod = cluster.pod(slots=4, inference_timeout=2.0)
    assert predict(pod.url, "other", "x").status_code == 200
    with ThreadPoolExecutor(2) as pool:
        hung = pool.submit(predict, pod.url, "m", "quick brown fox")
        wait_until(lambda: hung_batches(pod.url) == 1, what="the hang is seen")
        assert predict(pod.url, "other", "x").status_code == 200
        answer = hung.result()
    assert answer.status_code == 504
    assert "did not end within 2 s" in answer.json()["error"]
    assert "x-pilotlight-not-executed" not in answer.headers

    again = predict(pod.url, "m", "quick brown fox")
    assert again.status_code == 503
    assert "refused for" in again.json()["error"]
    assert "x-pilotlight-not-executed" not in again.headers
    assert cluster.record("m").failure is None
    assert predict(pod.url, "m", "lazy dog").status_code == 504
    wait_until(lambda: cluster.record("m").failure, what="different requests hung")

    refused = predict(pod.url, "m", "quick brown fox")
    assert refused.status_code == 503
    assert "did not end within 2 s" in refused.json()["error"]
    assert refused.headers["x-pilotlight-not-executed"] == "load-failed"
    assert int(refused.headers["retry-after"]) > 60

    failure = cluster.record("m").failure
    assert failure is not None
    assert (failure.key, failure.reason) == (spec.key, "RuntimeUnhealthy")
    wait_until(lambda: cluster.tiers(spec)[pod.name] == "disk", what="the model left the device")
    assert predict(pod.url, "other", "x").status_code == 200
    assert hung_batches(pod.url) == 2


@pytest.mark.slow
def test_a_models_annotation_sets_its_time(cluster: Cluster, models: Path, tmp_path: Path) -> None:
    cluster.declare("m", endless(models, tmp_path), policy=ModelPolicy(max_infer_s=1.5))
    pod = cluster.pod(inference_timeout=300.0)
    answer = predict(pod.url, "m", "quick brown fox")
    assert answer.status_code == 504
    assert "within 1.5 s" in answer.json()["error"]


@pytest.mark.slow
def test_hangs_that_can_be_interrupted_do_not_end_the_pod(
    cluster: Cluster, models: Path, tmp_path: Path
) -> None:
    for name in ("m", "n"):
        cluster.declare(name, endless(models, tmp_path / name))
    pod = cluster.pod(inference_timeout=1.5)
    for name in ("m", "n"):
        for text in ("quick brown fox", "lazy dog"):
            assert predict(pod.url, name, text).status_code == 504
    wait_until(lambda: metric(pod.url, "pilotlight_device_stuck_threads") == 0, what="ended")
    cluster.declare("other", models / "tiny-bert")
    assert predict(pod.url, "other", "x").status_code == 200


async def test_too_many_threads_that_stay_stuck_end_the_pod(tmp_path: Path) -> None:
    ended, release = asyncio.Event(), threading.Event()
    device = DeviceWorker(threads=1, max_queued=4, timeout_s=0.2)
    device.start()
    async with local_pod(tmp_path) as pod, asyncio.TaskGroup() as tasks:
        watchdog = Watchdog(device, pod.coordinator, max_stuck_threads=1, end_pod=ended.set)
        running = tasks.create_task(watchdog.run())
        for name in ("a", "b"):
            assert not ended.is_set()
            with pytest.raises(InferenceHung):
                await device.run(release.wait, model=DeviceModel(f"default/{name}@1"))
        await asyncio.wait_for(ended.wait(), 60)
        running.cancel()
    release.set()
    device.close()


async def test_threads_of_one_model_that_stay_stuck_end_the_model_and_not_the_pod(
    tmp_path: Path,
) -> None:
    ended, release = asyncio.Event(), threading.Event()
    device = DeviceWorker(threads=1, max_queued=4, timeout_s=0.2)
    device.start()
    model = DeviceModel("default/a@1", infer=lambda contents: [release.wait() for _ in contents])
    other = DeviceModel("default/b@1")
    async with local_pod(tmp_path) as pod, asyncio.TaskGroup() as tasks:
        watchdog = Watchdog(device, pod.coordinator, max_stuck_threads=2, end_pod=ended.set)
        running = tasks.create_task(watchdog.run())
        for text in ("x", "y"):
            with pytest.raises(InferenceHung):
                await device.infer(model, Payload(text))
            model.suspects.record_served()  # others of its requests are served meanwhile
        await asyncio.to_thread(wait_until, lambda: model.broken_reason, what="it is broken")
        with pytest.raises(ModelBroken):
            await device.infer(model, Payload("z"))
        assert (await device.infer(other, Payload("x"))).value == "x"
        assert device.stuck_threads == 2
        assert not ended.is_set()
        running.cancel()
    release.set()
    device.close()
