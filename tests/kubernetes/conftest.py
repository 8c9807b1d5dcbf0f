"""The cluster of the tests: their own, or the one given to `make test-kubernetes`."""

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kubernetes.kubectl import APPLY, Kubectl
from tests.kubernetes.models import Gateway, Tenant
from tests.kubernetes.object_store import overlay_with_grant, storage_secret
from tests.kubernetes.places import IN_NAMESPACE, NAMESPACE, REPOSITORY
from tests.kubernetes.scaling import Autoscalers, Pool, Scaler
from tests.kubernetes.suite import Cluster, own_cluster

SETTING = "PILOTLIGHT_TEST_KUBECONFIG"
OWN = "own"
"""Value of the setting in the namespaces that `scripts/kubernetes/test` creates."""


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A running cluster with KServe."""
    given = os.environ.get(SETTING)
    if not given:
        pytest.skip("needs a cluster: run by `make test-kubernetes`")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    folder = tmp_path_factory.mktemp("cluster")
    if given == OWN:
        with own_cluster(folder) as own:
            yield own
    else:
        yield Cluster(Kubectl(Path(given)), folder)


@pytest.fixture(scope="session")
def admin(cluster: Cluster) -> Kubectl:
    """kubectl with administrator rights."""
    return cluster.admin


@pytest.fixture(scope="session")
def installed(cluster: Cluster) -> Kubectl:
    """kubectl with administrator rights, on a cluster with Pilotlight and its pool installed."""
    admin = cluster.admin
    manifests = REPOSITORY / "manifests"
    admin(*APPLY, "-f", str(manifests / "base" / "namespace.yaml"))
    if cluster.store is not None:
        admin.apply([storage_secret(cluster.store, NAMESPACE)])
    admin.apply(overlay_with_grant(manifests / "overlays" / "minimal"))
    Pool(admin).allow(1, 1)  # until a test lets the autoscaler set the number
    return admin


@pytest.fixture(scope="session")
def node(cluster: Cluster) -> Cluster:
    """The cluster, if its pods run on this machine."""
    if cluster.plane is None:
        pytest.skip("needs the node agent, which this cluster does not run")
    return cluster


@pytest.fixture(scope="session")
def gateway(installed: Kubectl, node: Cluster) -> Gateway:
    """The gateway's Service, once all pods of the platform are ready."""
    of_pool = "serving.kserve.io/inferenceservice=pool"
    installed.wait("create", *IN_NAMESPACE, "deployment/pool-predictor")
    installed.wait("condition=Ready", *IN_NAMESPACE, "pods", "-l", of_pool)
    platform = "app.kubernetes.io/part-of=pilotlight"
    installed.wait("condition=Available", *IN_NAMESPACE, "deployment", "-l", platform)
    service = installed.get(*IN_NAMESPACE, "service", "pilotlight-gateway")
    return Gateway(f"http://{service['spec']['clusterIP']}")


@pytest.fixture(scope="session")
def tenant(installed: Kubectl) -> Tenant:
    metadata = {"name": "tenant"}
    installed.apply([{"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}])
    return Tenant(installed, metadata["name"])


@pytest.fixture
def pool(installed: Kubectl, gateway: Gateway) -> Pool:
    """The running pool, with one pod."""
    assert gateway.url
    return Pool(installed)


@pytest.fixture
def autoscalers(installed: Kubectl, gateway: Gateway) -> Autoscalers:
    assert gateway.url
    return Autoscalers(installed)


@pytest.fixture
def scale(installed: Kubectl, gateway: Gateway, tmp_path: Path) -> Scaler:
    """`pilotlight scale`, on a cluster with a running pool."""
    assert gateway.url
    return Scaler(installed, tmp_path)
