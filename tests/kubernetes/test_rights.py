"""Each component has a service account of its own, with the rights that it needs and no others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.kubernetes.places import IN_NAMESPACE, NAMESPACE
from tests.servers import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.kubernetes.kubectl import Kubectl

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
        pytest.param(("get", "pods", "-A"), id="list-pods"),
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
        pytest.param((*IN_NAMESPACE, "get", "deployments"), id="list-deployments"),
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
