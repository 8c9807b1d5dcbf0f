"""Each component has a service account of its own, with the rights that it needs and no others."""

import re
from pathlib import Path

import pytest

from tests.kubernetes.kubectl import Kubectl
from tests.kubernetes.places import IN_NAMESPACE, NAMESPACE
from tests.servers import wait_until

pytestmark = pytest.mark.kubernetes

CONTROLLER = "pilotlight-controller"
AUTOSCALER = "pilotlight-autoscaler"
ACCOUNTS = (CONTROLLER, AUTOSCALER, "pilotlight-gateway", "pilotlight-runtime")
FORBIDDEN = "forbidden"
SCALE = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/pool-predictor/scale"


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(("get", "inferenceservices", "-A"), id="list-models"),
        pytest.param((*IN_NAMESPACE, "get", "pods"), id="list-pods-of-pools"),
    ],
)
def test_the_controller_has_the_rights_that_it_needs(
    installed: Kubectl, tmp_path: Path, call: tuple[str, ...]
) -> None:
    installed.as_account(NAMESPACE, CONTROLLER, tmp_path)(*call)


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(("get", "inferenceservices"), id="list-pools"),
        pytest.param(("get", "pods"), id="list-pods"),
        pytest.param(("get", "hpa"), id="list-autoscalers-of-others"),
        pytest.param(("get", "--raw", SCALE), id="read-the-scale"),
    ],
)
def test_the_autoscaler_has_the_rights_that_it_needs_in_its_namespace(
    installed: Kubectl, tmp_path: Path, call: tuple[str, ...]
) -> None:
    installed.as_account(NAMESPACE, AUTOSCALER, tmp_path)(*IN_NAMESPACE, *call)


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(("get", "inferenceservices", "-A"), id="list-models"),
        pytest.param(("get", "pods", "-A"), id="list-pods-of-others"),
        pytest.param((*IN_NAMESPACE, "annotate", "isvc", "pool", "other=1"), id="change-the-pool"),
        pytest.param(
            (*IN_NAMESPACE, "set", "env", "deployment/pool-predictor", "A=1"), id="change-pods"
        ),
    ],
)
def test_the_autoscaler_has_no_other_rights(
    installed: Kubectl, tmp_path: Path, call: tuple[str, ...]
) -> None:
    _is_denied(installed.as_account(NAMESPACE, AUTOSCALER, tmp_path), call)


def test_the_controller_may_not_scale(installed: Kubectl, tmp_path: Path) -> None:
    call = (*IN_NAMESPACE, "scale", "deployment/pool-predictor", "--replicas=2")
    _is_denied(installed.as_account(NAMESPACE, CONTROLLER, tmp_path), call)


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(("get", "secrets", "-A"), id="read-secrets"),
        pytest.param(("-n", "kube-system", "get", "configmaps"), id="read-settings-of-others"),
        pytest.param((*IN_NAMESPACE, "delete", "pods", "--all"), id="delete-pods"),
        pytest.param(("delete", "inferenceservices", "--all", "-A"), id="delete-models"),
        pytest.param(
            (*IN_NAMESPACE, "create", "deployment", "other", "--image=other"), id="make-pods"
        ),
        pytest.param(("get", "nodes"), id="list-nodes"),
        pytest.param(("get", "pods", "-A"), id="list-pods-of-others"),
    ],
)
@pytest.mark.parametrize("account", ACCOUNTS)
def test_no_component_has_other_rights(
    installed: Kubectl, tmp_path: Path, account: str, call: tuple[str, ...]
) -> None:
    _is_denied(installed.as_account(NAMESPACE, account, tmp_path), call)


def _is_denied(account: Kubectl, call: tuple[str, ...]) -> None:
    answer = account.answer(*call)
    assert not answer.is_ok
    assert FORBIDDEN in answer.errors.lower()


def test_gateway_and_redis_have_no_token(installed: Kubectl) -> None:
    installed.wait("create", *IN_NAMESPACE, "deployment/pool-predictor")
    wait_until(lambda: set(ACCOUNTS) <= _accounts(installed).keys(), what="a pod of each account")
    accounts = _accounts(installed)
    with_token = {name for name, has_token in accounts.items() if has_token}
    assert with_token == {CONTROLLER, AUTOSCALER, "pilotlight-runtime"}


def _accounts(kubectl: Kubectl) -> dict[str, bool]:
    """The service accounts of the platform's pods, and whether their token is mounted."""
    return {
        pod["spec"]["serviceAccountName"]: any(
            "serviceAccountToken" in source
            for volume in pod["spec"].get("volumes", [])
            for source in volume.get("projected", {}).get("sources", [])
        )
        for pod in kubectl.get(*IN_NAMESPACE, "pods")["items"]
    }


MODELS_EVERYWHERE = {
    "inferenceservices.serving.kserve.io": {"get", "list", "watch", "patch"},
    "inferenceservices.serving.kserve.io/status": {"patch"},
    "inferencegraphs.serving.kserve.io": {"get", "list", "watch"},
    "inferenceapplications.pilotlight.io": {"get", "list", "watch"},
    "inferenceapplications.pilotlight.io/status": {"patch"},
    "models.pilotlight.io": {"get", "list", "watch", "patch"},
    "models.pilotlight.io/status": {"patch"},
    "deployments.apps [kserve-controller-manager]": {"list"},
    "events": {"create"},
}
SCALING = {
    "deployments.apps": {"list"},
    "inferenceservices.serving.kserve.io": {"list"},
    "deployments.apps/scale [pool-predictor]": {"get", "patch"},
    "pods": {"list", "patch"},
    "horizontalpodautoscalers.autoscaling": {"list"},
    "scaledobjects.keda.sh": {"list"},
    "events": {"create"},
}
OWN = {
    "deployments.apps": {"list", "watch"},
    "pods": {"list", "watch"},
    "leases.coordination.k8s.io": {"create"},
    "leases.coordination.k8s.io [pilotlight-controller]": {"get", "update", "patch"},
    "configmaps": {"create", "list", "watch"},
    "secrets": {"create"},
    "secrets [pilotlight-pods]": {"get", "update"},
    "secrets [pilotlight-redis]": {"get", "update"},
    "secrets [pilotlight-webhook]": {"get", "update"},
    "configmaps [pilotlight-cluster-issuer]": {"get", "update"},
    "inferencepools.inference.networking.k8s.io": {"get", "list", "delete"},
    "httproutes.gateway.networking.k8s.io": {"get", "list", "delete"},
}
CA_BUNDLES = {
    "mutatingwebhookconfigurations.admissionregistration.k8s.io [defaults.pilotlight.io]": {
        "get",
        "patch",
    },
    "validatingwebhookconfigurations.admissionregistration.k8s.io [annotations.pilotlight.io]": {
        "get",
        "patch",
    },
}


@pytest.mark.parametrize(
    ("account", "elsewhere", "here"),
    [
        (CONTROLLER, MODELS_EVERYWHERE | CA_BUNDLES, MODELS_EVERYWHERE | CA_BUNDLES | OWN),
        (AUTOSCALER, {}, SCALING),
        ("pilotlight-runtime", {}, {}),
        ("pilotlight-gateway", {}, {}),
    ],
)
def test_the_rights_are_those_of_the_table_in_install_md(
    installed: Kubectl, account: str, elsewhere: dict[str, set[str]], here: dict[str, set[str]]
) -> None:
    assert _rights(installed, account, "kube-public") == elsewhere
    assert _rights(installed, account, NAMESPACE) == here


def _rights(kubectl: Kubectl, account: str, namespace: str) -> dict[str, set[str]]:
    """What an account may do in a namespace, beyond what everybody may."""
    user = f"--as=system:serviceaccount:{NAMESPACE}:{account}"
    lines = kubectl("auth", "can-i", "--list", "-n", namespace, user).splitlines()[1:]
    found: dict[str, set[str]] = {}
    for line in lines:
        match = re.fullmatch(r"(\S*)\s+\[(.*?)\]\s+\[(.*?)\]\s+\[(.*?)\]", line.rstrip())
        assert match, line
        resource, paths, names, verbs = match.groups()
        if paths or resource.startswith("self"):
            continue
        key = f"{resource} [{names}]" if names else resource
        found.setdefault(key, set()).update(verbs.split())
    return found
