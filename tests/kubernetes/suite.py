"""A whole cluster for the tests: control plane, KServe, addresses of services, one node."""

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.kubernetes.control_plane import ControlPlane, control_plane
from tests.kubernetes.knative import install_kinds, is_built
from tests.kubernetes.kserve import install_kserve
from tests.kubernetes.kubectl import CALL_TIMEOUT_S, Kubectl
from tests.kubernetes.object_store import start_object_store
from tests.kubernetes.places import API_URL
from tests.servers import S3Server, wait_until

NODE = "node-1"


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster to test on; `plane` is None if the cluster was given."""

    admin: Kubectl
    folder: Path
    plane: ControlPlane | None = None
    store: S3Server | None = None


@contextlib.contextmanager
def own_cluster(folder: Path) -> Iterator[Cluster]:
    """A cluster of real components on this machine, until the context ends."""
    with control_plane(folder) as plane:
        _start_services(plane)
        _start_node(plane)
        store = start_object_store(plane)
        if is_built():
            install_kinds(plane.admin)  # KServe's manager looks for Knative's kinds when it starts
        install_kserve(plane)
        plane.admin.wait("condition=Ready", f"node/{NODE}")
        yield Cluster(plane.admin, folder, plane, store)


def _start_services(plane: ControlPlane) -> None:
    hosts = plane.folder / "hosts"
    hosts.mkdir()
    user = plane.authority.kubeconfig("system:kube-proxy", url=API_URL)
    module = [sys.executable, "-m", "tests.kubernetes.services"]
    plane.run("services", [*module, "--kubeconfig", str(user), "--hosts", str(hosts)])


def _start_node(plane: ControlPlane) -> None:
    user = plane.authority.kubeconfig(f"system:node:{NODE}", url=API_URL, group="system:nodes")
    folder = plane.folder / "node"
    module = [sys.executable, "-m", "tests.kubernetes.node", "--node", NODE]
    plane.run("node", [*module, "--kubeconfig", str(user), "--folder", str(folder)])
    found = f"node/{NODE}"
    wait_until(
        lambda: plane.admin.answer("get", found).is_ok,
        timeout_s=CALL_TIMEOUT_S,
        what=f"{found} is registered",
    )
