"""The Helm chart: two pools, an upgrade and a rollback under traffic, an uninstall.

Runs first, on a cluster without Pilotlight: the other tests install by kustomize.
"""

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from controller.resources import FINALIZER
from tests.kubernetes.kubectl import Kubectl
from tests.kubernetes.load import Load, load
from tests.kubernetes.models import Gateway, Tenant
from tests.kubernetes.object_store import storage_secret
from tests.kubernetes.places import IN_NAMESPACE, NAMESPACE, program
from tests.kubernetes.suite import Cluster
from tests.rendered import helm_chart

pytestmark = pytest.mark.kubernetes

POOLS = {"charted-a": "default", "charted-b": "second"}
"""The pool of each tenant's model."""
MODEL = "charted"
ENOUGH = 20
DEPLOYMENTS = (
    "pilotlight-gateway", "pilotlight-controller", "pilotlight-autoscaler",
    "pilotlight-autoscaler-second", "pool-predictor", "pool-second-predictor",
)  # fmt: skip
VALUES: dict[str, Any] = {
    "images": {"registry": "registry.invalid/pilotlight"},
    "gateway": {"replicas": 2},
    "pools": [
        {"name": name, "minReplicas": 1, "maxReplicas": 1, "storagePrefixes": "*=s3://"}
        for name in POOLS.values()
    ],
}


@dataclass(frozen=True, slots=True)
class Release:
    """The chart's release, and `helm` with the administrator's rights."""

    admin: Kubectl
    folder: Path
    namespace: str = NAMESPACE

    def __call__(self, *arguments: str) -> str:
        command = [
            str(program("helm")),
            "--kubeconfig",
            str(self.admin.kubeconfig),
            *arguments,
            "--namespace",
            self.namespace,
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
        assert done.returncode == 0, f"{' '.join(arguments)}\n{done.stdout}{done.stderr}"
        return done.stdout

    def install(self, *flags: str, **values: Any) -> None:
        file = self.folder / "values.yaml"
        file.write_text(yaml.safe_dump(VALUES | values))
        chart = helm_chart(self.folder / "chart")
        self("upgrade", "--install", "pilotlight", str(chart), "--values", str(file), *flags)

    def wait(self) -> None:
        """Until each Deployment has only new pods, all of them ready."""
        for name in DEPLOYMENTS:
            self.admin.wait("create", *IN_NAMESPACE, f"deployment/{name}")
            self.admin(*IN_NAMESPACE, "rollout", "status", f"deployment/{name}", "--timeout=5m")

    def tag(self) -> str:
        """Of the gateway's image."""
        found = self.admin.get(*IN_NAMESPACE, "deployment", "pilotlight-gateway")
        return str(found["spec"]["template"]["spec"]["containers"][0]["image"]).rpartition(":")[2]


@pytest.fixture(scope="module")
def release(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Release:
    admin = cluster.admin
    if cluster.plane is None or cluster.store is None:
        pytest.skip("needs a cluster of its own")
    if admin.answer("get", "namespace", NAMESPACE).is_ok:
        pytest.skip("Pilotlight is installed already, by kustomize")
    try:
        program("helm")
    except FileNotFoundError as error:
        pytest.skip(str(error))
    for name in (NAMESPACE, *POOLS):
        admin("create", "namespace", name)
    admin.apply([storage_secret(cluster.store, NAMESPACE)])
    started = Release(admin, tmp_path_factory.mktemp("chart"))
    started.install()
    started.wait()
    return started


@pytest.fixture(scope="module")
def gateway(release: Release) -> Gateway:
    service = release.admin.get(*IN_NAMESPACE, "service", "pilotlight-gateway")
    return Gateway(f"http://{service['spec']['clusterIP']}")


@pytest.fixture(scope="module")
def tenants(release: Release, gateway: Gateway) -> dict[str, Tenant]:
    """A tenant for each pool, with a warm model there."""
    found = {pool: Tenant(release.admin, namespace) for namespace, pool in POOLS.items()}
    for pool, tenant in found.items():
        tenant.declare(MODEL, pool=pool)
    for tenant in found.values():
        tenant.wait_ready(MODEL)
        answer = gateway.predict(tenant, MODEL)
        assert answer.status_code == 200, answer.text
    return found


def test_models_of_two_pools_have_one_gateways_urls(
    release: Release, tenants: dict[str, Tenant]
) -> None:
    for tenant in tenants.values():
        url = tenant.status(MODEL)["url"]
        assert url.endswith(f"{NAMESPACE}.svc.cluster.local/serving/{tenant.namespace}/{MODEL}")
    pods = release.admin.get(*IN_NAMESPACE, "pods", "-l", "pilotlight.io/pool")["items"]
    assert {each["metadata"]["labels"]["pilotlight.io/pool"] for each in pods} == {
        "default",
        "second",
    }


@pytest.fixture
def traffic(gateway: Gateway, tenants: dict[str, Tenant]) -> Iterator[list[Load]]:
    """Requests to both models."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(load(gateway, each, MODEL, clients=1)) for each in tenants.values()
        ]


def test_an_upgrade_and_a_rollback_fail_no_request(release: Release, traffic: list[Load]) -> None:
    for change, tag in (
        (lambda: release.install(images=VALUES["images"] | {"tag": "0.1.1"}), "0.1.1"),
        (lambda: release("rollback", "pilotlight"), "0.1.0"),
    ):
        change()
        release.wait()
        assert release.tag() == tag
        for each in traffic:
            each.wait_for_more(ENOUGH)
            assert (each.refused, each.broken) == ([], [])


def test_a_second_release_is_refused_or_bound_to_its_namespaces(
    release: Release, tenants: dict[str, Tenant]
) -> None:
    assert tenants
    second = Release(release.admin, release.folder, "side-by-side")
    release.admin("create", "namespace", second.namespace)
    with pytest.raises(AssertionError, match="cannot be imported into the current release"):
        second.install("--dry-run=server")
    own = {"controller": {"watchNamespaces": [second.namespace]}}
    once = {"crds": {"install": False}, "tenantRoles": {"create": False}}
    second.install("--dry-run=server", **own, **once)
    release.admin("delete", "namespace", second.namespace)


def test_an_uninstall_keeps_the_tenants_objects_and_nothing_else(
    release: Release, tenants: dict[str, Tenant]
) -> None:
    admin = release.admin
    application = {
        "apiVersion": "pilotlight.io/v1alpha1",
        "kind": "InferenceApplication",
        "metadata": {"name": "kept", "namespace": "charted-a"},
        "spec": {"classes": ["cat", "dog"]},
    }
    admin("create", "-f", "-", given=yaml.safe_dump(application))
    release("uninstall", "pilotlight", "--wait", "--timeout", "4m")
    admin("-n", "charted-a", "get", "inferenceapplication", "kept")
    for tenant in tenants.values():
        found = admin.get("-n", tenant.namespace, "isvc", MODEL)
        assert FINALIZER not in found["metadata"].get("finalizers", ())
        ready = {each["type"]: each for each in found["status"]["conditions"]}["Ready"]
        assert (ready["status"], ready["reason"]) == ("False", "Withdrawn")
        assert "Pilotlight was uninstalled" in ready["message"]
        tenant.delete(MODEL)  # without a controller
    admin("delete", "namespace", NAMESPACE, *POOLS)
    admin("delete", "crd", "inferenceapplications.pilotlight.io", "models.pilotlight.io")
    kinds = (
        "clusterroles,clusterrolebindings,crds,mutatingwebhookconfigurations,"
        "validatingwebhookconfigurations,inferenceservices,clusterservingruntimes,"
        "validatingadmissionpolicies,validatingadmissionpolicybindings"
    )
    left = admin("get", kinds, "-A", "-o", "name")
    assert [each for each in left.split() if "pilotlight" in each] == []
