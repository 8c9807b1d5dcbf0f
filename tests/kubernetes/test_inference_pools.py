"""InferencePools and HTTPRoutes that the controller makes, and the gateways' own objects.

With the CRDs of Gateway API, its inference extension, Istio, Envoy Gateway and kgateway.
"""

import json
import os
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.kubernetes.audit import LOG
from tests.kubernetes.kubectl import Kubectl, kustomize
from tests.kubernetes.models import Gateway, Tenant, model_object
from tests.kubernetes.object_store import GRANT, overlay_with_grant
from tests.kubernetes.places import IN_NAMESPACE, NAMESPACE, REPOSITORY, source_tree
from tests.kubernetes.suite import Cluster
from tests.kubernetes.test_admission_policies import create, is_refused
from tests.servers import wait_until

pytestmark = pytest.mark.kubernetes

MANIFESTS = REPOSITORY / "manifests"
POOLS, ROUTES = "inferencepools.inference.networking.k8s.io", "httproutes.gateway.networking.k8s.io"
OF_KINDS = ("/apis/inference.networking.k8s.io/", "/apis/gateway.networking.k8s.io/")
CONTROLLER = (*IN_NAMESPACE, "deployment/pilotlight-controller")
DEFINITIONS = {
    "gateway-api": "config/crd/standard/gateway.networking.k8s.io_[!v]*.yaml",
    "inference-extension": "config/crd/bases/inference.networking.k8s.io_*.yaml",
    "istio-api": "kubernetes/customresourcedefinitions.gen.yaml",
    "envoy-gateway": "charts/gateway-helm/charts/crds/crds/generated/*.yaml",
    "kgateway": "install/helm/*-crds/templates/*.yaml",
}
"""Files by name of the module in `scripts/kubernetes/versions`."""


def define(kubectl: Kubectl, *modules: str) -> None:
    for module in modules:
        if not (tree := source_tree(module)).exists():
            pytest.skip(f"{tree.name} is not unpacked: scripts/kubernetes/build {module}")
        files = [f"--filename={each}" for each in sorted(tree.glob(DEFINITIONS[module]))]
        kubectl("apply", "--server-side", "--force-conflicts", *files)
    kubectl.wait("condition=Established", "crd", "--all")


def restart(kubectl: Kubectl, *change: str) -> None:
    """The controller, with variables."""
    if change:
        kubectl("set", "env", *CONTROLLER, *change)
    kubectl("rollout", "restart", *CONTROLLER)
    kubectl("rollout", "status", *CONTROLLER)


@pytest.fixture(scope="module")
def enabled(
    installed: Kubectl, node: Cluster, gateway: Gateway, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Kubectl]:
    """The platform with the component, on a cluster without the kinds."""
    installed("delete", "crd", POOLS, ROUTES, "--ignore-not-found")
    folder = tmp_path_factory.mktemp("overlay")
    here = os.path.relpath(MANIFESTS, folder.resolve())
    components = [f"{here}/components/{each}" for each in ("endpoint-picker", "inference-pools")]
    content = {"resources": [f"{here}/overlays/minimal"], "components": components}
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(content))
    objects = [each for each in overlay_with_grant(folder) if each["kind"] != "InferenceService"]
    installed.apply(objects, "--force-conflicts")
    installed("rollout", "status", *CONTROLLER)
    yield installed
    for kind in ("role", "rolebinding"):
        installed("delete", *IN_NAMESPACE, kind, "pilotlight-inference-pools", "--ignore-not-found")
    kept = kustomize(MANIFESTS / "overlays" / "minimal")
    installed.apply(
        [each for each in kept if each["kind"] not in ("InferenceService", "ConfigMap")],
        "--force-conflicts",
    )
    restart(installed)


@pytest.fixture(scope="module")
def kinds(enabled: Kubectl) -> Kubectl:
    define(enabled, "gateway-api", "inference-extension")
    restart(enabled)
    enabled.wait("create", *IN_NAMESPACE, f"{POOLS}/pool")
    enabled.wait("create", *IN_NAMESPACE, f"{ROUTES}/pool")
    return enabled


def test_without_the_kinds_nothing_fails_nor_is_asked_again(
    enabled: Kubectl, node: Cluster, tenant: Tenant
) -> None:
    assert node.plane is not None
    log = node.plane.folder / LOG

    def asked() -> list[str]:
        paths = [json.loads(each)["requestURI"] for each in log.read_text().split("\n")[:-1]]
        return [each for each in paths if each.startswith(OF_KINDS)]  # not kubectl's of the CRDs

    wait_until(lambda: len(asked()) >= 2, what="both kinds are looked for", timeout_s=60)
    before = asked()
    for name in ("unrouted", "unrouted-too"):
        tenant.declare(name)
        tenant.wait_ready(name)
        tenant.delete(name)
    assert asked() == before
    pods = enabled.get(*IN_NAMESPACE, "pods", "-l", "app.kubernetes.io/name=pilotlight-controller")
    [pod] = [each for each in pods["items"] if "deletionTimestamp" not in each["metadata"]]
    assert pod["status"]["containerStatuses"][0]["restartCount"] == 0


def test_a_pool_has_an_inference_pool_and_a_route(kinds: Kubectl, gateway: Gateway) -> None:
    pool = kinds.get(*IN_NAMESPACE, "isvc", "pool")
    found = kinds.get(*IN_NAMESPACE, POOLS, "pool")
    assert found["spec"]["selector"]["matchLabels"] == {"pilotlight.io/pool": "default"}
    assert found["spec"]["endpointPickerRef"]["failureMode"] == "FailClose"
    picker = kinds.get(*IN_NAMESPACE, "service", found["spec"]["endpointPickerRef"]["name"])
    number = found["spec"]["endpointPickerRef"]["port"]["number"]
    assert number in [each["port"] for each in picker["spec"]["ports"]]
    selected = kinds.get(*IN_NAMESPACE, "pods", "-l", "pilotlight.io/pool=default")["items"]
    [port] = [each["number"] for each in found["spec"]["targetPorts"]]
    assert selected
    for each in selected:
        ports = each["spec"]["containers"][0]["ports"]
        assert port in [declared["containerPort"] for declared in ports]
    route = kinds.get(*IN_NAMESPACE, ROUTES, "pool")
    for each in (found, route):
        assert each["metadata"]["ownerReferences"][0]["uid"] == pool["metadata"]["uid"]
    [rule] = route["spec"]["rules"]
    assert rule["matches"][0]["path"]["value"] == "/serving"


def test_changes_leave_the_gateways_status(kinds: Kubectl) -> None:
    condition = {
        "type": "Accepted",
        "status": "True",
        "reason": "Accepted",
        "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    parent = {"parentRef": {"name": "kserve-ingress-gateway"}, "conditions": [condition]}
    where = (*IN_NAMESPACE, POOLS, "pool", "--subresource=status", "--type=merge")
    kinds("patch", *where, "-p", json.dumps({"status": {"parents": [parent]}}))
    strange = json.dumps({"spec": {"targetPorts": [{"number": 9}]}})
    kinds("patch", *where[:-2], "--type=merge", "-p", strange)
    restart(kinds, "PILOTLIGHT_URL=http://models.example.com/serving/{namespace}/{name}")
    kinds.wait("jsonpath={.spec.hostnames[0]}=models.example.com", *IN_NAMESPACE, ROUTES, "pool")
    kinds.wait("jsonpath={.spec.targetPorts[0].number}=8080", *IN_NAMESPACE, POOLS, "pool")
    found = kinds.get(*IN_NAMESPACE, POOLS, "pool")
    assert found["status"]["parents"][0]["conditions"] == [condition]
    restart(kinds, "PILOTLIGHT_URL-")
    wait_until(
        lambda: not kinds.get(*IN_NAMESPACE, ROUTES, "pool")["spec"].get("hostnames"),
        what="the route has no hosts again",
        timeout_s=60,
    )


def names(kubectl: Kubectl) -> set[str]:
    return set(kubectl(*IN_NAMESPACE, "get", f"{POOLS},{ROUTES}", "-o", "name").split())


def test_another_pool_has_a_route_for_each_model_until_it_goes(
    kinds: Kubectl, tenant: Tenant
) -> None:
    before, labels = names(kinds), {"pilotlight.io/pool": "second"}
    container = {"name": "kserve-container", "image": "pilotlight/runtime:test"}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "pool-second", "namespace": NAMESPACE, "labels": labels},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
        },
    }
    kinds("apply", "--server-side", "-f", "-", given=json.dumps(deployment))  # warns of its pods
    everyone = {"name": "everyone-second", "namespace": NAMESPACE}
    labels = {"pilotlight.io/tenant-of": "second"}
    rules = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {**everyone, "labels": labels}}
    kinds.apply([{**rules, "data": {"namespace": "*", **GRANT}}])
    model = model_object(tenant.namespace, "routed", {"pilotlight.io/pool": "second"})
    wait_until(lambda: kinds.try_apply([model]).is_ok, what="the pool admits it", timeout_s=60)
    route = f"{ROUTES}/routed.{tenant.namespace}.pool-second"
    kinds.wait("create", *IN_NAMESPACE, route)
    found = kinds.get(*IN_NAMESPACE, route)["spec"]["rules"][0]
    assert found["matches"][0]["path"]["value"] == f"/serving/{tenant.namespace}/routed"
    assert found["backendRefs"][0]["name"] == "pool-second"
    tenant.delete("routed")
    kinds.wait("delete", *IN_NAMESPACE, route)
    kinds.get(*IN_NAMESPACE, f"{POOLS}/pool-second")
    kinds("delete", *IN_NAMESPACE, "deployment/pool-second", "configmap/everyone-second")
    kinds.wait("delete", *IN_NAMESPACE, f"{POOLS}/pool-second")
    assert names(kinds) == before


@pytest.fixture
def controller(kinds: Kubectl, tmp_path: Any) -> Kubectl:
    return kinds.as_account(NAMESPACE, "pilotlight-controller", tmp_path)


def owned(kubectl: Kubectl, kind: str, **spec: Any) -> dict[str, Any]:
    """The controller's object of a name of its own; `spec` in place of its fields."""
    found = kubectl.get(*IN_NAMESPACE, kind, "pool")
    metadata = {key: found["metadata"][key] for key in ("labels", "ownerReferences")}
    head = {key: found[key] for key in ("apiVersion", "kind")}
    named = {**metadata, "name": "tried", "namespace": NAMESPACE}
    return {**head, "metadata": named, "spec": {**found["spec"], **spec}}


def test_the_controllers_objects_lead_to_its_pools_only(
    kinds: Kubectl, controller: Kubectl
) -> None:
    rules = kinds.get(*IN_NAMESPACE, ROUTES, "pool")["spec"]["rules"]
    backend = rules[0]["backendRefs"][0]
    mirror = {"type": "RequestMirror", "requestMirror": {"backendRef": {"name": "a", "port": 80}}}
    refused = [
        owned(kinds, ROUTES, rules=[{"backendRefs": [{"name": "other", "port": 80}]}]),
        owned(kinds, ROUTES, rules=[{"backendRefs": [{**backend, "namespace": "tenant"}]}]),
        owned(kinds, ROUTES, rules=[{**rules[0], "filters": [mirror]}]),
        owned(kinds, POOLS, selector={"matchLabels": {"app": "of-others"}}),
        owned(kinds, POOLS, endpointPickerRef={"name": "other", "port": {"number": 9002}}),
    ]
    for each in refused:
        is_refused(create(controller, each), "and nowhere else")
    for kind in (POOLS, ROUTES):
        answer = create(controller, owned(kinds, kind))
        assert answer.is_ok, answer.errors


def test_the_controller_touches_no_objects_of_others(kinds: Kubectl, controller: Kubectl) -> None:
    nobodys = owned(kinds, ROUTES)
    del nobodys["metadata"]["ownerReferences"]
    is_refused(create(controller, nobodys), "its own objects of pools only")
    del nobodys["metadata"]["labels"]
    kinds.apply([nobodys])
    theirs = (*IN_NAMESPACE, f"{ROUTES}/tried")
    is_refused(controller.answer("delete", *theirs), "its own objects of pools only")
    change = json.dumps(owned(kinds, ROUTES))
    answer = controller.answer("patch", *theirs, "--type=merge", "-p", change)
    is_refused(answer, "its own objects of pools only")
    kinds("delete", *theirs)


@pytest.mark.parametrize("module", ["istio-api", "envoy-gateway", "kgateway"])
def test_the_gateways_take_their_configurations(kinds: Kubectl, module: str) -> None:
    files = {
        "istio-api": ["istio"],
        "envoy-gateway": ["behind", "envoy-gateway"],
        "kgateway": ["behind", "kgateway", "agentgateway"],
    }
    define(kinds, module)
    for name in files[module]:
        file = MANIFESTS / "gateways" / f"{name}.yaml"
        applied = kinds("apply", "--server-side", "--dry-run=server", "-f", str(file))
        assert len(applied.splitlines()) == len(list(yaml.safe_load_all(file.read_text())))


def test_they_go_once_the_component_is_taken_away(kinds: Kubectl) -> None:
    assert names(kinds)
    kinds("delete", *IN_NAMESPACE, "role,rolebinding", "pilotlight-inference-pools")
    restart(kinds, "PILOTLIGHT_PICKER_SERVICE-")
    wait_until(lambda: not names(kinds), what="the controller's objects are gone", timeout_s=60)
