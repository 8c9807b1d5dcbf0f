"""What the objects of a cluster say about Pilotlight's chances there. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from controller.kserve_version import MANAGER, TESTED, version_of, version_problem
from controller.pool_size import (
    CompetingScaler,
    Owner,
    PoolObject,
    find_owner,
    read_pool,
    read_scalers,
    rivals,
)
from controller.resources import POOL, Role, mode_of, read_service, role_of
from pilotlight.doctor import MIN_DRIVER, Finding, ok, problem, unknown, warning

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pilotlight.doctor.cluster_facts import ClusterFacts, Document

MIN_KUBERNETES: Final = (1, 30)
GPU: Final = "nvidia.com/gpu"
DRIVER_LABEL: Final = "nvidia.com/cuda.driver-version.major"
_WEBHOOKS: Final = ("annotations.pilotlight.io", "defaults.pilotlight.io")
_POOL_MODES: Final = ("Standard", "RawDeployment", "Knative")
_FEATURES: Final = {
    "fieldref": "containers",
    "volumes-hostpath": "hostPath",
    "init-containers": "initContainers",
    "tolerations": "tolerations",
    "affinity": "affinity",
    "nodeselector": "nodeSelector",
    "topologyspreadconstraints": "topologySpreadConstraints",
}
"""Knative's feature flags `kubernetes.podspec-…`, and the field of a pod that needs each."""


def cluster_findings(facts: ClusterFacts) -> list[Finding]:
    """All findings, in the order in which one would mend them."""
    findings = [
        unknown(
            name.replace("_", " "),
            reason,
            "run as a user who may list them, such as a cluster-admin",
        )
        for name, reason in facts.denied.items()
    ]
    findings += _kubernetes(facts)
    findings += _kserve(facts)
    findings += _installation(facts)
    for pool in _services(facts, Role.POOL):
        findings += _pool(facts, pool)
    findings += _pool_names(facts)
    findings += _models(facts)
    findings += _mesh(facts)
    return findings


def _kubernetes(facts: ClusterFacts) -> Iterator[Finding]:
    if facts.version is None:
        return
    text = ".".join(map(str, facts.version))
    if facts.version < MIN_KUBERNETES:
        yield problem(
            "Kubernetes",
            f"version {text}; 1.30 or later is needed, for webhooks' match conditions",
            "upgrade the cluster",
        )
    else:
        yield ok("Kubernetes", f"version {text}")


def _kserve(facts: ClusterFacts) -> Iterator[Finding]:
    names = {each["metadata"]["name"] for each in facts.items("crds")}
    if "crds" in facts.lists and "inferenceservices.serving.kserve.io" not in names:
        remedy = "install KServe 0.20 in Standard mode, or the component without-kserve"
        if any(POOL in _labels(each) for each in facts.items("deployments")):
            yield ok("KServe", "is not installed; a Deployment is the pool, for Models")
        else:
            yield problem("KServe", "is not installed", remedy)
        return
    if meshes := [
        *_labelled(facts, "modelmesh-controller"),
        *({"predictors.serving.kserve.io"} & names),
    ]:
        yield problem(
            "modelmesh-serving",
            f"is installed ({meshes[0]}) and claims the InferenceServices of"
            " mode ModelMesh, as Pilotlight does",
            "uninstall it, or bind it to namespaces without Pilotlight's models",
        )
    managers = [
        each for each in facts.items("deployments") if _labels(each).get("control-plane") == MANAGER
    ]
    if "deployments" in facts.lists and not managers:
        yield warning(
            "KServe",
            "its controller was found in no Deployment with the label"
            " control-plane=kserve-controller-manager",
            "check that KServe's controller runs",
        )
    pools = [each for each in _services(facts, Role.POOL) if mode_of(each) == "Standard"]
    for manager in managers:
        yield _kserve_version(manager, pools)


def _kserve_version(manager: Document, standard_pools: list[Document]) -> Finding:
    version = version_of(manager)
    if version is None:
        images = [each["image"] for each in manager["spec"]["template"]["spec"]["containers"]]
        return unknown(
            "KServe",
            f"its version is not in the images {', '.join(images)}",
            "check that it is 0.15 to 0.20",
        )
    text = ".".join(map(str, version))
    if version < TESTED[0] and standard_pools:
        return problem(
            "KServe",
            f"version {text} does not know the mode Standard of pool {_title(standard_pools[0])}:"
            " its name is RawDeployment",
            "upgrade KServe to 0.16 or later, or create the pool again in mode RawDeployment, which"
            " Pilotlight scales as well",
        )
    if untested := version_problem(version):
        return warning("KServe", untested, "try it where nothing depends on it first")
    if not (manager.get("status") or {}).get("availableReplicas"):
        return problem(
            "KServe",
            f"version {text}, but its controller is not available",
            "see `kubectl -n kserve describe deployment`",
        )
    return ok("KServe", f"version {text}")


def _installation(facts: ClusterFacts) -> Iterator[Finding]:
    ours = [
        each
        for each in facts.items("deployments")
        if each["metadata"]["namespace"] == facts.namespace
        and _labels(each).get("app.kubernetes.io/part-of") == "pilotlight"
    ]
    if "deployments" in facts.lists and not ours:
        yield problem(
            "Pilotlight",
            f"is not installed in namespace {facts.namespace}",
            "see docs/install.md, or name its namespace with --namespace",
        )
        return
    for each in ours:
        name = each["metadata"]["name"]
        wanted = each["spec"].get("replicas", 1)
        available = (each.get("status") or {}).get("availableReplicas", 0)
        if wanted and not available:
            yield problem(
                name,
                f"0 of {wanted} pods are available",
                f"`kubectl -n {facts.namespace} describe deployment {name}`",
            )
        else:
            yield ok(name, f"{available} of {wanted} pods are available")
    yield from _credentials(ours)
    secrets = {each["metadata"]["name"] for each in facts.items("secrets")}
    for secret in sorted(_MADE_SECRETS - secrets if "secrets" in facts.lists else ()):
        yield problem(
            f"Secret {secret}",
            "is missing: gateways, autoscalers and pods wait for it",
            "the controller makes it: see its log; a pool in another namespace needs one of yours",
        )
    for secret in sorted(_needed_secrets(ours) - secrets if "secrets" in facts.lists else ()):
        yield problem(
            f"Secret {secret}", "is named by a Deployment and missing", "create it: docs/install.md"
        )
    policies = facts.items("network_policies")
    if "network_policies" in facts.lists and not policies:
        yield warning(
            "network policies",
            "there are none: every pod of the cluster reaches Redis and pods",
            "apply manifests/base/network-policies.yaml",
        )
    yield from _admission(facts)


def _admission(facts: ClusterFacts) -> Iterator[Finding]:
    policies = [each["metadata"]["name"] for each in facts.items("admission_policies")]
    if "admission_policies" in facts.lists and not any(
        each.startswith("pilotlight-parked-models") for each in policies
    ):
        yield warning(
            "admission policies",
            "are missing: nothing but their roles binds controller and autoscaler, and a KServe"
            " without the mode ModelMesh would start pods for every model",
            "apply manifests/base/admission-policies.yaml (chart: admissionPolicies.create)",
        )
    for webhook in (*facts.items("webhooks"), *facts.items("mutating_webhooks")):
        if webhook["metadata"]["name"] in _WEBHOOKS and not all(
            each["clientConfig"].get("caBundle") for each in webhook["webhooks"]
        ):
            annotations = webhook["metadata"].get("annotations") or {}
            yield problem(
                f"webhook {webhook['metadata']['name']}",
                "has no caBundle: every `kubectl apply` of a model is refused",
                f"kubectl -n {facts.namespace} describe certificate pilotlight-webhook"
                if "cert-manager.io/inject-ca-from" in annotations
                else "the controller sets it within 20 s; see its log, and its rights",
            )


def _credentials(deployments: Iterable[Document]) -> Iterator[Finding]:
    for each in deployments:
        variables = each["spec"]["template"]["spec"]["containers"][0].get("env", ())
        given = {variable["name"]: variable.get("value") for variable in variables}
        asked = ("PILOTLIGHT_CLUSTER_ISSUER", "PILOTLIGHT_API_KEYS", "PILOTLIGHT_TOKEN_ISSUERS")
        is_open = given.get("PILOTLIGHT_AUTH") == "open" or not any(map(given.get, asked))
        if is_open and each["metadata"]["name"] == "pilotlight-gateway":
            yield warning(
                "clients",
                "need no key or token: whoever reaches the gateway may call every model",
                "leave out the component open (PILOTLIGHT_AUTH; the chart's auth.mode)",
            )


_MADE_SECRETS: Final = frozenset({"pilotlight-pods", "pilotlight-redis"})
"""By the controller."""


def _needed_secrets(deployments: Iterable[Document]) -> set[str]:
    found: set[str] = set()
    for each in deployments:
        pod = each["spec"]["template"]["spec"]
        found |= {
            volume["secret"]["secretName"]
            for volume in pod.get("volumes", ())
            if "secret" in volume and not volume["secret"].get("optional")
        }
        for container in pod["containers"]:
            for variable in container.get("env", ()):
                reference = (variable.get("valueFrom") or {}).get("secretKeyRef")
                if reference and not reference.get("optional"):
                    found.add(reference["name"])
    return found - _MADE_SECRETS


def _pool(facts: ClusterFacts, pool: Document) -> Iterator[Finding]:
    metadata, pod, mode = pool["metadata"], pool["spec"]["predictor"], mode_of(pool)
    subject = f"pool {_labels(pool)[POOL]}"
    yield ok(subject, f"InferenceService {_title(pool)}, mode {mode or 'not known yet'}")
    if mode and mode not in _POOL_MODES:
        yield problem(
            subject,
            f"KServe runs it in mode {mode!r}, which cannot change",
            "delete the InferenceService and create it again in mode Standard",
        )
    if mode == "Knative":
        yield from _knative(facts, subject, pod)
    if mode in _POOL_MODES:
        yield from _scaling(subject, read_pool(pool), _scalers(facts, pool))
    yield from _disk(subject, pod)
    if metadata["namespace"] == facts.namespace and "secrets" in facts.lists:
        secrets = {each["metadata"]["name"] for each in facts.items("secrets")}
        for source in pod["containers"][0].get("envFrom", ()):
            name = (source.get("secretRef") or {}).get("name")
            if name and name not in secrets:
                yield warning(
                    subject,
                    f"the Secret {name} with its storage credentials does not exist",
                    f"kubectl -n {facts.namespace} create secret generic {name} --from-literal=…, "
                    "unless models bring credentials of their own",
                )
    if GPU in (pod["containers"][0].get("resources", {}).get("limits") or {}):
        yield from _gpus(facts, subject)


def _scaling(subject: str, pool: PoolObject, scalers: list[CompetingScaler]) -> Iterator[Finding]:
    """Which scaler owns the pool's Deployment, and whether two do."""
    owner, others = find_owner(pool, scalers), rivals(pool, scalers)
    names = [f"{each.kind} {each.name}" for each in others]
    if owner is not None and owner.owner is Owner.MODE:
        names.insert(0, "Knative")
    if len(names) > 1:
        yield problem(
            subject,
            f"{' and '.join(names)} both scale Deployment {pool.deployment}, and each undoes the"
            " other's number",
            f"delete all but one: kubectl -n {pool.namespace} delete …",
        )
    elif owner is None:
        yield ok(subject, f"Pilotlight's autoscaler scales Deployment {pool.deployment}")
    elif owner.owner is Owner.CLASS:
        remedy = "set the annotation serving.kserve.io/autoscalerClass: external"
        yield warning(subject, owner.reason, remedy)
    elif others and not others[0].asks_pilotlight:
        yield warning(
            subject,
            f"{owner.reason}; it asks for none of Pilotlight's figures",
            "use those of docs/scaling.md, or delete it",
        )
    else:
        yield ok(subject, f"{names[0]} scales Deployment {pool.deployment}")


def _scalers(facts: ClusterFacts, pool: Document) -> list[CompetingScaler]:
    """HPAs and KEDA's ScaledObjects in the pool's namespace."""
    namespace = pool["metadata"]["namespace"]
    scaled, autoscalers = (
        [each for each in facts.items(name) if each["metadata"]["namespace"] == namespace]
        for name in ("scaled_objects", "autoscalers")
    )
    return read_scalers(autoscalers, scaled)


def _disk(subject: str, pod: Document) -> Iterator[Finding]:
    volumes = [each.get("emptyDir") or {} for each in pod.get("volumes", ())]
    has_disk = any("sizeLimit" in each and each.get("medium") != "Memory" for each in volumes)
    requests = (pod["containers"][0].get("resources") or {}).get("requests") or {}
    if has_disk and "ephemeral-storage" not in requests:
        yield warning(
            subject,
            "asks for no ephemeral-storage, though its disk cache is on the node's disk: pods are"
            " put on nodes whose disk is too small, and evicted there",
            "set resources.requests.ephemeral-storage to the cache's size and a little more",
        )


def _knative(facts: ClusterFacts, subject: str, pod: Document) -> Iterator[Finding]:
    maps = facts.items("config_maps")
    if "config_maps" in facts.lists and not maps:
        yield problem(
            subject,
            "is in Knative mode, and Knative Serving was not found",
            "install Knative Serving 1.21, or use mode Standard",
        )
        return
    used = {field for field in pod if pod[field]} | {k for v in pod.get("volumes", ()) for k in v}
    for features in maps:
        for flag in [f"kubernetes.podspec-{flag}" for flag in _FEATURES if _FEATURES[flag] in used]:
            value = (features.get("data") or {}).get(flag, "disabled")
            if value.lower() not in ("enabled", "allowed"):
                yield problem(
                    subject,
                    f"needs Knative's feature {flag}, which is {value}",
                    f"set `{flag}: enabled` in the ConfigMap"
                    f" {features['metadata']['namespace']}/config-features",
                )


def _gpus(facts: ClusterFacts, subject: str) -> Iterator[Finding]:
    if "nodes" not in facts.lists:
        return
    nodes = [
        each
        for each in facts.items("nodes")
        if int((each.get("status") or {}).get("allocatable", {}).get(GPU, 0))
    ]
    if not nodes:
        yield problem(
            subject,
            f"asks for {GPU}, which no node has",
            "add a node with a GPU, and NVIDIA's device plugin (or GPU operator)",
        )
        return
    drivers = {each["metadata"]["name"]: _labels(each).get(DRIVER_LABEL) for each in nodes}
    for node, driver in drivers.items():
        if driver is None:
            yield warning(
                f"node {node}",
                f"has no label {DRIVER_LABEL}: pods of the component gpu are not placed there",
                "install NVIDIA's GPU feature discovery",
            )
        elif int(driver) < MIN_DRIVER:
            yield problem(
                f"node {node}",
                f"has NVIDIA driver {driver}; CUDA 13 needs {MIN_DRIVER}",
                "upgrade the driver",
            )


def _pool_names(facts: ClusterFacts) -> Iterator[Finding]:
    found: dict[str, list[str]] = {}
    for pool in _services(facts, Role.POOL):
        found.setdefault(_labels(pool)[POOL], []).append(_title(pool))
    for name, services in found.items():
        if len(services) > 1:
            yield problem(
                f"pool {name}",
                f"is the name of several: {', '.join(services)}",
                "give each pool a name of its own in the label pilotlight.io/pool",
            )
    if "services" in facts.lists and not found:
        yield problem("pools", "there is none", "see manifests/base/pool and docs/install.md")


def _models(facts: ClusterFacts) -> Iterator[Finding]:
    pools = {_labels(each)[POOL] for each in _services(facts, Role.POOL)}
    count = 0
    for document in (*_services(facts, Role.MODEL), *_services(facts, Role.MISPLACED)):
        model = read_service(document)
        if model.problems:
            yield problem(f"model {model.name}", "; ".join(model.problems), "change it as it says")
        elif model.pool not in pools:
            yield problem(
                f"model {model.name}",
                f"names pool {model.pool!r}, which does not exist",
                f"name one of: {', '.join(sorted(pools)) or 'none'}",
            )
        else:
            count += 1
    if count:
        yield ok("models", f"{count} without mistakes")


def _mesh(facts: ClusterFacts) -> Iterator[Finding]:
    labels = map(_labels, facts.items("namespaces"))
    if any(each.get("istio.io/dataplane-mode") == "ambient" for each in labels):
        return
    for each in facts.items("peer_authentications"):
        namespace = each["metadata"]["namespace"]
        mode = (each["spec"].get("mtls") or {}).get("mode")
        if mode == "STRICT" and namespace in (facts.namespace, "istio-system"):
            yield warning(
                "Istio",
                f"PeerAuthentication {_title(each)} is STRICT:"
                " pods without a sidecar reach no pod, Redis or gateway",
                f"label the namespace {facts.namespace} istio.io/dataplane-mode=ambient; or, with"
                " sidecars, the component tls and PERMISSIVE for the ports 8080 and 8081 of pods:"
                " docs/kubernetes.md, TLS between the parts",
            )


def _services(facts: ClusterFacts, role: Role) -> list[Document]:
    return [each for each in facts.items("services") if role_of(each) is role]


def _title(document: Document) -> str:
    return f"{document['metadata']['namespace']}/{document['metadata']['name']}"


def _labels(document: Document) -> dict[str, Any]:
    return document["metadata"].get("labels") or {}


def _labelled(facts: ClusterFacts, name: str) -> list[str]:
    """Deployments by their recommended label of a name, or by their own name."""
    return [
        _title(each)
        for each in facts.items("deployments")
        if name in (_labels(each).get("app.kubernetes.io/name"), each["metadata"]["name"])
    ]
