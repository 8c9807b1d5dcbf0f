"""A pod beside the real MLServer of PyPI, in an environment of its own (`scripts/mlserver`)."""

import subprocess
from pathlib import Path

import pytest

from registry.domain.model import ModelName, ModelSpec
from tests import servers
from tests.runtime.conftest import Cluster
from tests.runtime.http import get, post, predict

pytestmark = pytest.mark.slow

ROWS = [[6.8, 2.8, 4.8, 1.4], [5.1, 3.5, 1.4, 0.2]]
CLASSES = [1, 0]
TRAIN = """
import sys, joblib
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression
joblib.dump(LogisticRegression(max_iter=1000).fit(*load_iris(return_X_y=True)), sys.argv[1])
"""
COMMAND = (
    "/usr/bin/env MLSERVER_HOST=127.0.0.1 MLSERVER_HTTP_PORT={port} MLSERVER_GRPC_PORT={grpc_port}"
    " MLSERVER_METRICS_PORT={metrics_port} MLSERVER_LOAD_MODELS_AT_STARTUP=false"
    " MLSERVER_PARALLEL_WORKERS=0"
)

UNREACHABLE = "connection broken by"
"""Words of pip where it reaches no registry."""


@pytest.fixture(scope="session")
def mlserver() -> Path:
    """The folder of MLServer's programs, installed at the first use."""
    script = str(servers.REPOSITORY / "scripts" / "mlserver")
    found = subprocess.run([script], capture_output=True, text=True, check=False)
    if found.returncode and UNREACHABLE in found.stderr:
        pytest.skip("no package registry can be reached, and MLServer is not installed")
    assert found.returncode == 0, found.stderr
    return Path(found.stdout.strip())


@pytest.fixture(scope="module")
def iris(mlserver: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pickled model, by MLServer's own version of scikit-learn."""
    folder = tmp_path_factory.mktemp("iris")
    subprocess.run([mlserver / "python", "-c", TRAIN, folder / "model.joblib"], check=True)
    return folder


@pytest.fixture(scope="module")
def pod(mlserver: Path, shared_cluster: Cluster) -> servers.Pod:
    return shared_cluster.pod(
        engine_command=f"{COMMAND} {mlserver / 'mlserver'} start {{repository}}",
        engine_metrics="http://127.0.0.1:{metrics_port}/metrics",
    )


def _declare(cluster: Cluster, name: str, folder: Path, namespace: str = "default") -> None:
    spec = ModelSpec(ModelName(namespace, name), folder.as_uri(), format="sklearn")
    cluster.do(lambda registry: registry.put_models([spec]))


def _body(rows: list[list[float]], **fields: object) -> dict[str, object]:
    data = [value for row in rows for value in row]
    shape = [len(rows), len(rows[0])]
    entry = {"name": "x", "datatype": "FP64", "shape": shape, "data": data}
    return {"inputs": [entry], **fields}


def test_a_pickled_model_is_served(pod: servers.Pod, shared_cluster: Cluster, iris: Path) -> None:
    _declare(shared_cluster, "iris", iris)
    found = post(f"{pod.url}/v2/models/default~iris/infer", _body(ROWS, id="7"))
    assert found.status_code == 200, found.text
    document = found.json()
    assert (document["model_name"], document["id"]) == ("iris", "7")
    assert document["outputs"][0]["data"] == CLASSES
    assert predict(pod.url, "iris", *ROWS).json() == {"predictions": [[each] for each in CLASSES]}
    assert get(f"{pod.url}/v2/models/default~iris").json()["platform"] == "mlserver"


def test_parameters_of_a_request_reach_the_server(
    pod: servers.Pod, shared_cluster: Cluster, iris: Path
) -> None:
    """MLServer's own: outputs that are asked for by name."""
    _declare(shared_cluster, "iris", iris)
    body = _body(ROWS, outputs=[{"name": "predict_proba"}], parameters={"content_type": "np"})
    (output,) = post(f"{pod.url}/v2/models/default~iris/infer", body).json()["outputs"]
    assert (output["name"], output["shape"]) == ("predict_proba", [2, 3])


def test_namespaces_have_models_of_their_own(
    pod: servers.Pod, shared_cluster: Cluster, iris: Path
) -> None:
    _declare(shared_cluster, "iris", iris)
    _declare(shared_cluster, "iris", iris, namespace="team-b")
    for namespace in ("default", "team-b"):
        found = post(f"{pod.url}/v2/models/{namespace}~iris/infer", _body(ROWS))
        assert found.json()["outputs"][0]["data"] == CLASSES


def test_a_file_that_is_no_pickle_fails_its_load_alone(
    pod: servers.Pod, shared_cluster: Cluster, iris: Path, tmp_path: Path
) -> None:
    (tmp_path / "model.joblib").write_text("no pickle")
    _declare(shared_cluster, "broken", tmp_path)
    _declare(shared_cluster, "iris", iris)
    found = post(f"{pod.url}/v2/models/default~broken/infer", _body(ROWS))
    assert (found.status_code, "refused to load" in found.text) == (503, True)
    assert post(f"{pod.url}/v2/models/default~iris/infer", _body(ROWS)).status_code == 200


def test_wrong_features_and_bodies_are_told(
    pod: servers.Pod, shared_cluster: Cluster, iris: Path
) -> None:
    """MLServer answers 500 for what its library refuses, and 422 for what is no request."""
    _declare(shared_cluster, "iris", iris)
    url = f"{pod.url}/v2/models/default~iris/infer"
    found = post(url, _body([[1.0, 2.0]]))
    assert found.status_code in {400, 500}
    assert "features" in found.text
    assert post(url, {"inputs": [{"name": "x"}]}).status_code == 400


def test_an_unloaded_model_leaves_the_server(
    pod: servers.Pod, shared_cluster: Cluster, iris: Path
) -> None:
    _declare(shared_cluster, "leaves", iris)
    post(f"{pod.url}/v2/repository/models/default~leaves/load")
    assert get(f"{pod.url}/v2/models/default~leaves/ready").status_code == 200
    repository = pod.folder / "cache-models-of-pod-a"
    assert any(path.name.startswith("default~leaves~") for path in repository.iterdir())
    post(f"{pod.url}/v2/repository/models/default~leaves/unload")
    servers.wait_until(
        lambda: not any(path.name.startswith("default~leaves~") for path in repository.iterdir()),
        what="files removed",
    )
