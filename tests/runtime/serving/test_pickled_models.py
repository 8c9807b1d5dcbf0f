"""Pickled models in pods: served with `--allow-pickle`, refused with the way out without it."""

from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from registry.domain.model import ModelName, ModelSpec
from tests import servers
from tests.runtime.conftest import Cluster
from tests.runtime.http import post, predict
from tests.runtime.sandbox.hostile_pickles import hostile_model, logistic, saved

pytestmark = pytest.mark.slow

ROWS = [[6.8, 2.8, 4.8, 1.4], [5.1, 3.5, 1.4, 0.2]]
CLASSES = [1, 0]


def _folder(tmp_path: Path, name: str, content: Any, file: str = "model.joblib") -> Path:
    folder = tmp_path / name
    folder.mkdir()
    (folder / file).write_bytes(saved(content))
    return folder


def _ask(pod: servers.Pod, name: str) -> httpx.Response:
    return predict(pod.url, name, *ROWS)


def test_v1_and_v2_answer_as_kserves_server(cluster: Cluster, tmp_path: Path) -> None:
    model = logistic()
    cluster.declare("iris", _folder(tmp_path, "iris", model))
    cluster.declare("pkl", _folder(tmp_path, "pkl", model, file="model.pkl"))
    likely = _folder(tmp_path, "likely", model)
    cluster.declare("likely", likely, task="tabular-classification")
    pod = cluster.pod(allow_pickle=True)
    for name in ("iris", "pkl"):
        assert _ask(pod, name).json()["predictions"] == CLASSES
    found = _ask(pod, "likely").json()["predictions"]
    np.testing.assert_allclose(found, model.predict_proba(ROWS))
    tensor = {"name": "input-0", "datatype": "FP64", "shape": [2, 4], "data": ROWS}
    answer = post(f"{pod.url}/v2/models/default~iris/infer", {"inputs": [tensor]}).json()
    assert answer["outputs"] == [
        {"name": "output-0", "datatype": "INT64", "shape": [2], "data": CLASSES}
    ]
    narrow = predict(pod.url, "iris", [1.0, 2.0])
    assert narrow.status_code == 400
    assert "must have 4 features" in narrow.text


def test_a_pod_without_the_option_refuses_and_says_the_way_out(
    cluster: Cluster, tmp_path: Path
) -> None:
    cluster.declare("iris", _folder(tmp_path, "iris", logistic()))
    answer = _ask(cluster.pod(), "iris")
    assert answer.status_code == 501
    assert "skops.io.dump" in answer.text


@pytest.mark.parametrize(
    ("code", "status"), [("os._exit(3)", 500), ("return rows[:1]", 500), ("time.sleep(1e6)", 504)]
)
def test_a_model_that_does_harm_gets_a_clear_error_and_others_answer(
    code: str, status: int, cluster: Cluster, tmp_path: Path
) -> None:
    cluster.declare("hostile", _folder(tmp_path, "hostile", hostile_model(code)))
    cluster.declare("near", _folder(tmp_path, "near", logistic()))
    far = ModelSpec(ModelName("other", "far"), _folder(tmp_path, "far", logistic()).as_uri())
    cluster.do(lambda registry: registry.put_models([far]))
    pod = cluster.pod(allow_pickle=True, inference_timeout=2.0)
    far_url = f"{pod.url}/v1/models/other~far:predict"
    assert _ask(pod, "near").json()["predictions"] == CLASSES
    assert post(far_url, {"instances": ROWS}).json()["predictions"] == CLASSES
    found = _ask(pod, "hostile")
    assert (found.status_code, bool(found.json()["error"])) == (status, True)
    assert post(far_url, {"instances": ROWS}).json()["predictions"] == CLASSES
    servers.wait_until(lambda: _ask(pod, "near").status_code == 200)
