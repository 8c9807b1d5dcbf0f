"""`pilotlight doctor` on the real API server: quiet on a sound cluster, each planted fault named.

Two things of a real cluster are played: KServe's Deployment, whose manager runs here as a program,
and a network plugin that enforces policies, in whose place the node agent refuses addresses.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pilotlight.doctor.policy_probe import NAMESPACE as PROBED
from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.kserve import NAMESPACE as KSERVE
from tests.kubernetes.kubectl import APPLY, CALL_TIMEOUT_S, Kubectl
from tests.kubernetes.models import Gateway
from tests.kubernetes.node.pod import DENIED
from tests.kubernetes.places import IN_NAMESPACE, NAMESPACE, REPOSITORY
from tests.kubernetes.scaling import OF_POOL
from tests.kubernetes.suite import Cluster
from tests.servers import wait_until

pytestmark = pytest.mark.kubernetes

MANAGER = "kserve-controller-manager"
FINDINGS = list[dict[str, str]]


def doctor(kubectl: Kubectl, *flags: str) -> FINDINGS:
    """What it finds, but for what is well; each with a remedy."""
    done = subprocess.run(
        [sys.executable, "-m", "pilotlight", "doctor", "--json", *flags],
        cwd=REPOSITORY,
        env={**os.environ, "KUBECONFIG": str(kubectl.kubeconfig)},
        capture_output=True,
        text=True,
        timeout=CALL_TIMEOUT_S,
        check=False,
    )
    assert done.stdout, done.stderr
    found = [each for each in json.loads(done.stdout) if each["severity"] != "ok"]
    assert done.returncode == any(each["severity"] == "problem" for each in found)
    assert all(each["remedy"] for each in found)
    return found


def manager(version: str = "v0.20.0") -> dict[str, Any]:
    """KServe's Deployment, whose pod no node takes."""
    labels = {"control-plane": MANAGER}
    container = {"name": "manager", "image": f"docker.io/kserve/kserve-controller:{version}"}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": MANAGER, "namespace": KSERVE, "labels": labels},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"nodeSelector": {"no-such": "node"}, "containers": [container]},
            },
        },
    }


@dataclass(frozen=True, slots=True)
class Patient:
    """A sound cluster, in which a test plants a fault."""

    admin: Kubectl
    plane: ControlPlane

    @property
    def denied(self) -> Path:
        return self.plane.folder / "node" / DENIED

    def find(self, subject: str, *flags: str) -> dict[str, str]:
        """The only finding, which is about `subject`."""
        [found] = doctor(self.admin, *flags or ("--no-probe",))
        assert found["subject"] == subject
        return found

    @contextmanager
    def planted(self, *objects: dict[str, Any]) -> Iterator[None]:
        for each in objects:  # of which the API server may warn, too
            self.admin("apply", "-f", "-", given=json.dumps(each))
        try:
            yield
        finally:
            for each in objects:
                self.admin("delete", "-f", "-", given=json.dumps(each))


@pytest.fixture(scope="module")
def patient(installed: Kubectl, gateway: Gateway, node: Cluster) -> Iterator[Patient]:
    assert node.plane is not None
    found = Patient(installed, node.plane)
    installed.apply([manager()])
    here = ("-n", KSERVE)
    wait_until(
        lambda: installed.get(*here, "pods", "-l", f"control-plane={MANAGER}")["items"],
        what="the manager's pod",
    )
    [pod] = installed.get(*here, "pods", "-l", f"control-plane={MANAGER}")["items"]
    ready = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
    name = pod["metadata"]["name"]
    installed(*here, "patch", "pod", name, "--subresource=status", "-p", json.dumps(ready))
    installed.wait("condition=Available", *here, f"deployment/{MANAGER}")
    redis = installed.get(*IN_NAMESPACE, "service", "pilotlight-redis")["spec"]["clusterIP"]
    pods = installed.get(*IN_NAMESPACE, "pods", "-l", OF_POOL)["items"]
    found.denied.write_text("\n".join([redis, *(each["status"]["podIP"] for each in pods)]))
    yield found
    found.denied.unlink(missing_ok=True)
    installed("delete", *here, "deployment", MANAGER)


def test_a_sound_cluster_is_left_in_peace(patient: Patient) -> None:
    assert doctor(patient.admin) == []
    assert "pilotlight-doctor" not in patient.admin("get", "pods", "-n", PROBED, "-o", "name")


def test_policies_that_nothing_enforces(patient: Patient) -> None:
    before = patient.denied.read_text()
    patient.denied.write_text("")
    try:
        found = patient.find("network policies", "--probe")
    finally:
        patient.denied.write_text(before)
    assert "not enforced" in found["detail"]
    assert "Redis and a pod of a pool" in found["detail"]
    assert "enforces NetworkPolicies" in found["remedy"]
    assert "pilotlight-doctor" not in patient.admin("get", "pods", "-n", PROBED, "-o", "name")


def test_without_the_right_to_make_pods_enforcement_is_not_tried(
    patient: Patient, tmp_path: Path
) -> None:
    admin = patient.admin
    admin("-n", PROBED, "create", "serviceaccount", "reader")
    rules = [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["get", "list"]}]
    role = {"kind": "ClusterRole", "metadata": {"name": "reader"}, "rules": rules}
    with patient.planted({"apiVersion": "rbac.authorization.k8s.io/v1", **role}):
        admin("create", "clusterrolebinding", "reader", "--clusterrole=reader",
              f"--serviceaccount={PROBED}:reader")  # fmt: skip
        [found] = doctor(admin.as_account(PROBED, "reader", tmp_path))
        admin("delete", "clusterrolebinding", "reader")
    admin("-n", PROBED, "delete", "serviceaccount", "reader")
    assert (found["severity"], found["subject"]) == ("unknown", "network policies")
    assert "forbidden" in found["detail"]


def pool(name: str, mode: str, **spec: Any) -> dict[str, Any]:
    container = {"name": "kserve-container", "image": "example.invalid/x:1"}
    return {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "labels": {"pilotlight.io/pool": name},
            "annotations": {
                "serving.kserve.io/deploymentMode": mode,
                "serving.kserve.io/autoscalerClass": "external",
            },
        },
        "spec": {"predictor": {"minReplicas": 0, "containers": [container], **spec}},
    }


def deployment(name: str, namespace: str, **pod: Any) -> dict[str, Any]:
    labels = {"app.kubernetes.io/name": name, "app.kubernetes.io/part-of": "pilotlight"}
    container = {"name": "none", "image": "example.invalid/x:1"}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [container], **pod},
            },
        },
    }


FOREIGN_SCALER = {
    "apiVersion": "autoscaling/v2",
    "kind": "HorizontalPodAutoscaler",
    "metadata": {"name": "theirs", "namespace": NAMESPACE},
    "spec": {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "pool-predictor"},
        "minReplicas": 1,
        "maxReplicas": 1,
    },
}
DISK = {"name": "cache", "emptyDir": {"sizeLimit": "50Gi"}}


@pytest.mark.parametrize(
    ("planted", "subject", "detail", "remedy"),
    [
        pytest.param(
            pool("wrong", "ModelMesh"),
            "pool wrong",
            "in mode 'ModelMesh'",
            "create it again in mode Standard",
            id="wrong-mode",
        ),
        pytest.param(
            deployment("modelmesh-controller", "default"),
            "modelmesh-serving",
            "claims the InferenceServices of mode ModelMesh",
            "uninstall it",
            id="modelmesh-serving",
        ),
        pytest.param(
            FOREIGN_SCALER,
            "pool default",
            "it asks for none of Pilotlight's figures",
            "docs/scaling.md",
            id="foreign-autoscaler",
        ),
        pytest.param(
            deployment(
                "pilotlight-extra",
                NAMESPACE,
                volumes=[{"name": "keys", "secret": {"secretName": "forgotten"}}],
            ),
            "Secret forgotten",
            "named by a Deployment and missing",
            "create it",
            id="missing-secret",
        ),
        pytest.param(
            pool("greedy", "Standard", volumes=[DISK]),
            "pool greedy",
            "asks for no ephemeral-storage",
            "resources.requests.ephemeral-storage",
            id="ephemeral-storage",
        ),
    ],
)
def test_a_planted_object_is_named_with_the_way_out(
    patient: Patient, planted: dict[str, Any], subject: str, detail: str, remedy: str
) -> None:
    with patient.planted(planted):
        found = patient.find(subject)
    assert detail in found["detail"]
    assert remedy in found["remedy"]


def test_two_scalers_of_a_pool_are_a_fight(patient: Patient) -> None:
    other = {**FOREIGN_SCALER, "metadata": {"name": "others", "namespace": NAMESPACE}}
    with patient.planted(FOREIGN_SCALER, other):
        found = patient.find("pool default")
    assert found["severity"] == "problem"
    both = "HorizontalPodAutoscaler others and HorizontalPodAutoscaler theirs both scale"
    assert both in found["detail"]
    assert "delete all but one" in found["remedy"]


@pytest.mark.parametrize(
    ("version", "detail", "remedy"),
    [
        pytest.param(
            "v0.21.0", "0.21 is not tested", "try it where nothing depends", id="untested"
        ),
        pytest.param(
            "v0.15.2", "its name is RawDeployment", "which Pilotlight scales as well", id="0.15"
        ),
    ],
)
def test_a_kserve_of_another_version(
    patient: Patient, version: str, detail: str, remedy: str
) -> None:
    patient.admin.apply([manager(version)])
    try:
        found = patient.find("KServe")
    finally:
        patient.admin.apply([manager()])
    assert detail in found["detail"]
    assert remedy in found["remedy"]


def test_a_webhook_without_its_authority(patient: Patient) -> None:
    """The controller writes it again within 20 s, so it may have to be removed again."""
    webhook = ("mutatingwebhookconfiguration", "defaults.pilotlight.io")
    removal = [{"op": "replace", "path": "/webhooks/0/clientConfig/caBundle", "value": ""}]

    def is_found() -> bool:
        patient.admin("patch", *webhook, "--type=json", "-p", json.dumps(removal))
        found = doctor(patient.admin, "--no-probe")
        return any(
            each["subject"] == "webhook defaults.pilotlight.io" and "within 20 s" in each["remedy"]
            for each in found
        )

    wait_until(is_found, what="the missing caBundle is named", timeout_s=120)
    wait_until(
        lambda: doctor(patient.admin, "--no-probe") == [],
        what="the controller has mended it",
        timeout_s=120,
    )


def test_a_gateway_that_asks_nobody_who_he_is(patient: Patient) -> None:
    """Of a Deployment with the gateway's name in another namespace: the real one serves on."""
    made = deployment("pilotlight-gateway", "open")
    patient.admin("create", "namespace", "open")
    try:
        with patient.planted(made):
            found = doctor(patient.admin, "--no-probe", "--namespace", "open")
    finally:
        patient.admin("delete", "namespace", "open")
    assert any(
        each["subject"] == "clients" and "component open" in each["remedy"] for each in found
    )


def peer_authentication() -> tuple[dict[str, Any], dict[str, Any]]:
    """Istio's kind, as much of it as a policy needs, and the policy."""
    names = {"kind": "PeerAuthentication", "plural": "peerauthentications", "singular": "pa"}
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    version = {"name": "v1", "served": True, "storage": True, "schema": schema}
    kind = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "peerauthentications.security.istio.io"},
        "spec": {
            "group": "security.istio.io",
            "names": names,
            "scope": "Namespaced",
            "versions": [version],
        },
    }
    policy = {
        "apiVersion": "security.istio.io/v1",
        "kind": "PeerAuthentication",
        "metadata": {"name": "default", "namespace": NAMESPACE},
        "spec": {"mtls": {"mode": "STRICT"}},
    }
    return kind, policy


def test_a_strict_mesh(patient: Patient) -> None:
    kind, policy = peer_authentication()
    with patient.planted(kind):
        patient.admin.wait("condition=Established", f"crd/{kind['metadata']['name']}")
        wait_until(lambda: patient.admin.try_apply([policy]).is_ok, what="the policy is taken")
        found = patient.find("Istio")
        label = ("label", "namespace", NAMESPACE)
        patient.admin(*label, "istio.io/dataplane-mode=ambient")
        in_ambient_mode = doctor(patient.admin, "--no-probe")
        patient.admin(*label, "istio.io/dataplane-mode-")
    assert "ambient" in found["remedy"]
    assert "istio-injection" not in found["remedy"]
    assert in_ambient_mode == []


def test_missing_admission_policies(patient: Patient) -> None:
    file = str(REPOSITORY / "manifests" / "base" / "admission-policies.yaml")
    patient.admin("delete", "-f", file)
    try:
        found = patient.find("admission policies")
    finally:
        patient.admin(*APPLY, "-f", file)
    assert "admission-policies.yaml" in found["remedy"]


def test_missing_network_policies(patient: Patient) -> None:
    others = patient.admin.get(*IN_NAMESPACE, "networkpolicies")
    patient.admin(*IN_NAMESPACE, "delete", "networkpolicies", "--all")
    try:
        found = patient.find("network policies", "--probe")
    finally:
        for each in others["items"]:
            each["metadata"] = {key: each["metadata"][key] for key in ("name", "namespace")}
        patient.admin(*APPLY, "-f", "-", given=json.dumps(others))
    assert "there are none" in found["detail"]
