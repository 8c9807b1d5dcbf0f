"""A pod for one model, on a real process with a registry of its own."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from registry.domain.model import ModelName, ModelRecord
from runtime.serving.single_model import single_model_spec
from tests import servers
from tests.runtime.http import get, predict
from tests.servers import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.runtime.conftest import Cluster


def find(cluster: Cluster, name: str) -> ModelRecord | None:
    return cluster.do(lambda registry: registry.get_model(ModelName("default", name)))


def test_is_ready_once_its_model_is_loaded_and_keeps_it(cluster: Cluster, models: Path) -> None:
    folder = str(models / "tiny-bert")
    pod = cluster.pod(model_name="alone", model_dir=folder)
    assert get(f"{pod.url}/v1/models/alone").json() == {"name": "alone", "ready": True}
    assert predict(pod.url, "alone", "a cat").status_code == 200
    cluster.withdraw("alone")  # as if its registry had lost its data

    def is_there_again() -> bool:
        record = find(cluster, "alone")
        is_declared = record is not None and record.spec == single_model_spec("alone", folder)
        return is_declared and predict(pod.url, "alone", "a cat").status_code == 200

    wait_until(is_there_again, what="the model is there again")


def test_is_not_ready_before_its_model_can_be_loaded(
    cluster: Cluster, models: Path, tmp_path: Path
) -> None:
    place, port = tmp_path / "model", servers.free_port()
    url = f"http://127.0.0.1:{port}"
    with ThreadPoolExecutor(1) as starter:
        starting = starter.submit(
            cluster.pod,
            port=port,
            grpc_port=0,
            model_name="late",
            model_dir=str(place),
            ready_within_s=2 * servers.START_TIMEOUT_S,
        )

        def has_failed() -> bool:
            record = find(cluster, "late")
            return record is not None and record.failure is not None

        wait_until(has_failed, what="the failed load is recorded")
        wait_until(
            lambda: get(f"{url}/v2/health/live").json() == {"live": True},
            what="the pod is live",
        )
        assert get(f"{url}/v2/health/ready").status_code == 503
        servers.copy_model(models / "tiny-bert", place)
        assert starting.result().is_ready()
