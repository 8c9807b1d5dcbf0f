"""What each field of KServe's objects means here: honoured, without effect, or refused. Pure.

The reader, the warnings of `apply` and of the webhook, and a table of docs/compatibility.md come
from `OBJECTS`; a test compares it with KServe's schemas. A field that is in no schema is warned of.
"""

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from registry.domain.graph import GraphSpec
from registry.domain.model import ModelSpec
from registry.inference_service.model_resource import MODE, MODEL_MODE, declaring_kind


class Verdict(StrEnum):
    HONOURED = "honoured"
    UNSERVED = "not-ready"
    """Accepted; the model's `needs` say what is missing."""
    IGNORED = "no-effect"
    """Accepted with a warning."""
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Rule:
    verdict: Verdict
    names: tuple[str, ...]
    """Of fields; `prefix/*` of annotations."""
    says: str
    """What they become, or why they do not, and the way out; empty: rules of their own say it."""


KIND: Final = "InferenceService"
GRAPH: Final = "InferenceGraph"
LEGACY_KINDS: Final = (
    "sklearn", "xgboost", "tensorflow", "pytorch", "triton", "onnx", "huggingface", "pmml",
    "lightgbm", "paddle", "catboost",
)  # fmt: skip
ANNOTATIONS: Final = "metadata.annotations"
LABELS: Final = "metadata.labels"
STOP: Final = "serving.kserve.io/stop"
ENABLE_AUTH: Final = "security.opendatahub.io/enable-auth"
_POD: Final = "the pods of the pool have their own"
_SCALING: Final = "pods follow the load of all models of the pool"
_SERVICE: Final = f"""
[spec]
honoured predictor
not-ready transformer explainer: the controller makes their pods on a cluster; not here else
refused canary: KServe admits it in mode Standard alone: declare each as an object of its own
[spec.predictor]
honoured model {" ".join(LEGACY_KINDS)}: the model; what is said of `model` holds of all
honoured minReplicas maxReplicas: copies of the model; without it 0, where KServe has 1
honoured containerConcurrency timeout: `target-ongoing-requests`, `deadline`
honoured batcher logger
honoured storageUris: the one mounted at /mnt/models is the model; others are warned of
honoured serviceAccountName automountServiceAccountToken: storage credentials, and nothing else
honoured canaryTrafficPercent: of a changed model; the version before serves the other requests
not-ready containers: a pool runs no containers of yours
no-effect scaleTarget: it counts percent of CPU, or what scaleMetric says; write scaleMetric:
    concurrency, or pilotlight.io/target-ongoing-requests
no-effect scaleMetric scaleMetricType: {_SCALING}; only scaleMetric: concurrency has a meaning
refused autoScaling: {_SCALING}: see docs/autoscaler.md
refused workerSpec: a model is served by one pod: take a smaller or quantised model
no-effect activeDeadlineSeconds affinity annotations deploymentStrategy dnsConfig dnsPolicy
    enableServiceLinks hostAliases hostIPC hostNetwork hostPID hostUsers hostname hostnameOverride
    imagePullSecrets initContainers labels nodeName nodeSelector os overhead preemptionPolicy
    priority priorityClassName readinessGates resourceClaims resources restartPolicy
    runtimeClassName schedulerName schedulingGates securityContext serviceAccount setHostnameAsFQDN
    shareProcessNamespace subdomain terminationGracePeriodSeconds tolerations
    topologySpreadConstraints volumes name storageContainerName: {_POD}
[spec.predictor.model]
honoured modelFormat storage confidential
honoured storageUri protocolVersion: as in KServe; without storageUri the model is not ready
honoured args: [those of KServe's servers](#kserves-hugging-face-server); others are warned of
honoured env: PREDICT_PROBA of scikit-learn; others are warned of
no-effect name command envFrom image imagePullPolicy lifecycle livenessProbe ports readinessProbe
    resizePolicy resources restartPolicy restartPolicyRules runtime runtimeVersion securityContext
    startupProbe stdin stdinOnce terminationMessagePath terminationMessagePolicy tty volumeDevices
    volumeMounts workingDir: {_POD}
[spec.predictor.model.modelFormat]
honoured name: an engine, or what is missing
no-effect version: the model's files decide
[spec.predictor.model.storage]
honoured key path parameters: without `bucket` that of the Secret's key
no-effect schemaPath: the model's files decide
[spec.predictor.model.confidential]
refused enabled: models are read without attestation: leave it out
no-effect resourceId: models are read without attestation
[spec.predictor.storageUris]
honoured uri mountPath
[spec.predictor.batcher]
honoured maxBatchSize maxLatency: batches of the model
no-effect timeout: write spec.predictor.timeout
[spec.predictor.logger]
honoured url mode metadataHeaders: [CloudEvents](#logger)
refused storage marshallerUrl batchSize batchInterval metadataAnnotations: an event has the whole
    body and url, mode, metadataHeaders
[{ANNOTATIONS}]
honoured pilotlight.io/*: docs/annotations.md
honoured serving.kserve.io/deploymentMode serving.kserve.io/storageSecretName: as in KServe
honoured {STOP}: `true`: unloaded, not served, Ready False with reason `Stopped`
refused {ENABLE_AUTH}: clients of this gateway are asked for no keys or tokens: ask them, or leave
    it out
no-effect serving.kserve.io/* storage.kserve.io/* prometheus.kserve.io/* prometheus.io/*
    autoscaling.knative.dev/* serving.knative.dev/* serving.knative.openshift.io/*: a model has no
    pods, metrics, scaler and revisions of its own
[{LABELS}]
no-effect networking.kserve.io/visibility: a model is as visible as the gateway
"""
_GRAPH: Final = """
[spec]
honoured nodes routerTimeouts
honoured timeout: the deadline
no-effect affinity maxReplicas minReplicas nodeName nodeSelector resources scaleMetric scaleTarget
    serviceAccountName tolerations: graphs have no pods
[spec.routerTimeouts]
no-effect serverRead serverWrite serverIdle: graphs have no pods
no-effect serviceClient: a step may take what is left of spec.timeout
[spec.nodes.*]
honoured routerType steps
[spec.nodes.*.steps[]]
honoured name serviceName serviceUrl nodeName data weight condition dependency
    mapPredictionsToInstances: as in KServe's router
"""
_HARMLESS: Final[Mapping[str, object]] = {
    "scaleMetric": "concurrency",
    "scaleMetricType": "AverageValue",
    ENABLE_AUTH: "false",
}
"""Values that ask for nothing, beside those that are empty."""


def _parse(text: str) -> dict[str, tuple[Rule, ...]]:
    found: dict[str, list[Rule]] = {}
    for line in text.strip().replace("\n    ", " ").split("\n"):
        if line.startswith("["):
            rules = found[line[1:-1]] = []
            continue
        head, _, says = line.partition(": ")
        verdict, *names = head.split()
        rules.append(Rule(Verdict(verdict), tuple(names), says))
    return {path: tuple(rules) for path, rules in found.items()}


OBJECTS: Final = {KIND: _parse(_SERVICE), GRAPH: _parse(_GRAPH)}
"""Rules by kind and by the path of the object that has the fields; `model` stands for all kinds."""
_RULES: Final[Mapping[tuple[str, str], Mapping[str, Rule]]] = {
    (kind, path): {name: rule for rule in rules for name in rule.names}
    for kind, objects in OBJECTS.items()
    for path, rules in objects.items()
}


@dataclass(frozen=True, slots=True)
class Finding:
    line: str
    is_refused: bool


def fields_of(kind: str, path: str) -> Mapping[str, Rule]:
    """The rules of an object's fields, by name."""
    return _RULES[kind, path]


def review(document: Mapping[str, Any], kind: str) -> Iterator[Finding]:
    """The fields of an object, read as one of `OBJECTS`, that are set and are not honoured."""
    metadata = document.get("metadata")
    for path in (ANNOTATIONS, LABELS):
        found = metadata.get(path.partition(".")[2]) if isinstance(metadata, dict) else None
        given = found if isinstance(found, dict) else {}
        rules = _RULES.get((kind, path), {})
        for key, value in given.items():
            rule = rules.get(key) or rules.get(f"{str(key).partition('/')[0]}/*")
            if rule is not None and key != ENABLE_AUTH:
                yield from _judge(rule, f"{path}[{key}]", key, value, {})
            is_mode = key == MODE and kind == KIND and "pilotlight.io/pool" in given
            if is_mode and value != MODEL_MODE:
                line = f"{path}[{key}] must be {MODEL_MODE!r} for a model of a pool on a cluster"
                yield Finding(f"{line}, was {value!r}", is_refused=False)
    if isinstance(document.get("spec"), dict):
        yield from _review(kind, "spec", "spec", document["spec"], iter(range(_MAX_HINTS)))


def auth_problem(spec: ModelSpec) -> str | None:
    """Why a gateway that asks clients for nothing may not serve a model; None: it may."""
    value, rule = dict(spec.annotations).get(ENABLE_AUTH), _RULES[KIND, ANNOTATIONS][ENABLE_AUTH]
    found = _judge(rule, f"{ANNOTATIONS}[{ENABLE_AUTH}]", ENABLE_AUTH, value, {})
    return next((f"{declaring_kind(spec)} {spec.name}: {each.line}" for each in found), None)


def warnings_of(spec: object) -> list[str]:
    """Of a declared object, as `kubectl` and `apply` print them."""
    if not isinstance(spec, ModelSpec | GraphSpec):
        return []
    kind = declaring_kind(spec) if isinstance(spec, ModelSpec) else GRAPH
    return [f"{kind} {spec.name}: {each}" for each in spec.warnings]


_MAX_HINTS: Final = 64
"""Searches for near names in one document: thousands take seconds."""


def _review(
    kind: str, section: str, path: str, given: Mapping[str, Any], hints: Iterator[int]
) -> Iterator[Finding]:
    rules = _RULES[kind, section]
    for key, value in given.items():
        rule = rules.get(key)
        if rule is None:
            may_search = next(hints, None) is not None
            near = difflib.get_close_matches(str(key), rules, n=1) if may_search else ()
            hint = f"; did you mean {near[0]}?" if near else ""
            line = f"{path}.{key} has no effect: KServe 0.20 has no such field{hint}"
            yield Finding(line, is_refused=False)
            continue
        yield from _judge(rule, f"{path}.{key}", key, value, given)
        inner = f"{section}.{'model' if key in LEGACY_KINDS else key}"
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, dict) and (kind, inner) in _RULES:
                yield from _review(kind, inner, f"{path}.{key}", each, hints)


def _judge(
    rule: Rule, path: str, key: str, value: object, siblings: Mapping[str, Any]
) -> Iterator[Finding]:
    if key == "scaleTarget" and siblings.get("scaleMetric") == "concurrency":
        return
    is_empty = value is False or value in (None, "", [], {})
    is_asked = not is_empty and value != _HARMLESS.get(key)
    if is_asked and rule.verdict in (Verdict.IGNORED, Verdict.REFUSED):
        is_refused = rule.verdict is Verdict.REFUSED
        verb = "is not supported;" if is_refused else "has no effect:"
        yield Finding(f"{path} {verb} {rule.says}", is_refused)
