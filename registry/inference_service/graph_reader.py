"""Reads InferenceGraph YAML, as for KServe; all mistakes of all objects are reported together.

What fails in KServe's router whatever the request is, is a mistake here; what it ignores is a
warning. Fields about the router's pod are allowed and mean nothing: graphs have no pod.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final
from urllib.parse import urlsplit

from common.shown_value import shown
from registry.domain.graph import (
    ROOT,
    BadPathError,
    GraphNode,
    GraphSpec,
    GraphStep,
    RouterType,
    parse_path,
)
from registry.inference_service.documents import (
    NAME,
    DocumentChecks,
    is_kind,
    read_kind,
    read_parsed,
)
from registry.inference_service.fields import fields_of, review

API_VERSION: Final = "serving.kserve.io/v1alpha1"
KIND: Final = "InferenceGraph"
MAX_STEPS: Final = 256
"""Of all nodes; also the most nodes."""
MAX_CONDITION_CHARACTERS: Final = 16_384
"""Of all nodes."""
_MAX_TIMEOUT_S: Final = 3600
_TARGETS: Final = ("serviceName", "serviceUrl", "nodeName")
_URL_PATH: Final = re.compile(r"/(?:v1/models/([^/:]+):predict|v2/models/([^/]+)/infer)")


@dataclass(slots=True)
class _Reader:
    checks: DocumentChecks
    namespace: str = ""
    nodes: Mapping[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def read(self, document: dict[str, Any]) -> GraphSpec:
        name = self.checks.head(document, API_VERSION)
        self.namespace = name.namespace
        spec = self.checks.mapping(document, "spec")
        self.checks.known(spec, fields_of(KIND, "spec"), "spec")
        self.nodes = self.checks.mapping(spec, "nodes") if spec else {}
        if self.nodes and ROOT not in self.nodes:
            self.checks.reject("spec.nodes", "must have a node `root`", list(self.nodes))
        self._check_size()
        nodes = {str(each): self._node(str(each), node) for each, node in self.nodes.items()}
        self._refuse_circles(nodes)
        self.warnings += [each.line for each in review(document, KIND)]
        return GraphSpec(name, nodes, self._timeout(spec), warnings=tuple(self.warnings))

    def _check_size(self) -> None:
        """Reading takes time for each step and each character of a condition.

        Nodes of a graph that is too large are not read.
        """
        listed = [node.get("steps") for node in self.nodes.values() if isinstance(node, dict)]
        steps = [each for steps in listed if isinstance(steps, list) for each in steps]
        conditions = [each.get("condition") for each in steps if isinstance(each, dict)]
        characters = sum(len(each) for each in conditions if isinstance(each, str))
        if len(self.nodes) > MAX_STEPS:
            self.checks.reject("spec.nodes", f"may have {MAX_STEPS} nodes", len(self.nodes))
        elif len(steps) > MAX_STEPS:
            self.checks.reject("spec.nodes", f"may have {MAX_STEPS} steps together", len(steps))
        elif characters > MAX_CONDITION_CHARACTERS:
            allowed = f"may have conditions of {MAX_CONDITION_CHARACTERS} characters together"
            self.checks.reject("spec.nodes", allowed, characters)
        else:
            return
        self.nodes = {}

    def _timeout(self, spec: dict[str, Any]) -> float | None:
        value = spec.get("timeout")
        if value is None:
            return None
        if type(value) is int and 0 < value <= _MAX_TIMEOUT_S:
            return float(value)
        self.checks.reject("spec.timeout", f"must be 1 to {_MAX_TIMEOUT_S} whole seconds", value)
        return None

    def _node(self, name: str, document: Any) -> GraphNode:
        path = f"spec.nodes.{name}"
        node = document if isinstance(document, dict) else {}
        self.checks.known(node, fields_of(KIND, "spec.nodes.*"), path)
        kind = node.get("routerType")
        if kind not in tuple(RouterType):
            self.checks.reject(
                f"{path}.routerType", f"must be one of {', '.join(RouterType)}", kind
            )
            kind = RouterType.SEQUENCE
        router, listed = RouterType(kind), node.get("steps")
        if not isinstance(listed, list) or not listed:
            self.checks.reject(f"{path}.steps", "must list at least one step", listed)
            listed = []
        steps = tuple(
            self._step(f"{path}.steps[{at}]", each, router, is_first=at == 0)
            for at, each in enumerate(listed)
        )
        names = [step.name for step in steps if step.name]
        if len(set(names)) < len(names):
            self.checks.reject(f"{path}.steps", "must have different names", names)
        weights = [step.weight for step in steps]
        if router is RouterType.SPLITTER and steps and sum(weights) != 100:
            self.checks.reject(f"{path}.steps", "must have weights that sum to 100", weights)
        return GraphNode(router, steps)

    def _step(self, path: str, document: Any, router: RouterType, *, is_first: bool) -> GraphStep:
        step = document if isinstance(document, dict) else {}
        self.checks.known(step, fields_of(KIND, "spec.nodes.*.steps[]"), path)
        model, node, protocol = self._target(path, step)
        data = step.get("data") or "$request"
        if not isinstance(data, str):
            self.checks.reject(f"{path}.data", "must be $request or $response", data)
        elif data not in ("$request", "$response"):
            self.warnings.append(
                f"{path}.data {shown(data)} is not $response: the step gets the node's request, as "
                "in KServe's router"
            )
        dependency = step.get("dependency", "Soft")
        if dependency not in ("Soft", "Hard"):
            self.checks.reject(f"{path}.dependency", "must be Soft or Hard", dependency)
        name = step.get("name", "")
        if not isinstance(name, str):
            self.checks.reject(f"{path}.name", "must be a text", name)
        maps = step.get("mapPredictionsToInstances", False)
        if not isinstance(maps, bool):
            self.checks.reject(f"{path}.mapPredictionsToInstances", "must be true or false", maps)
        elif maps and router is not RouterType.SEQUENCE:
            self._ignored(f"{path}.mapPredictionsToInstances", router)
        return GraphStep(
            name=name if isinstance(name, str) else "",
            model=model,
            node=node,
            protocol=protocol,
            takes_response=router is RouterType.SEQUENCE and not is_first and data == "$response",
            maps_predictions=router is RouterType.SEQUENCE and maps is True,
            weight=self._weight(path, step, router),
            condition=self._condition(path, step, router, is_first=is_first),
            is_hard=dependency == "Hard",
        )

    def _target(self, path: str, step: dict[str, Any]) -> tuple[str, str, str]:
        """Model, node and protocol."""
        given = [key for key in _TARGETS if step.get(key)]
        if len(given) != 1:
            self.checks.reject(path, f"must have one of {', '.join(_TARGETS)}", given)
            return "", "", ""
        value = step[given[0]]
        if given[0] == "nodeName":
            if not isinstance(value, str) or value not in self.nodes:
                allowed = f"must name one of the nodes {', '.join(map(str, self.nodes))}"
                self.checks.reject(f"{path}.nodeName", allowed, value)
            return "", str(value), ""
        if given[0] == "serviceUrl":
            return self._url(f"{path}.serviceUrl", value)
        if not isinstance(value, str) or not NAME.fullmatch(value):
            allowed = f"must name a model of namespace {self.namespace!r}"
            self.checks.reject(f"{path}.serviceName", allowed, value)
            return "", "", ""
        return value, "", ""

    def _url(self, path: str, value: object) -> tuple[str, str, str]:
        """The model that a URL names, as KServe writes them: NAME.NAMESPACE.DOMAIN."""
        allowed = (
            "must be the URL of a model of the graph's namespace: http://NAME.NAMESPACE.DOMAIN"
            "/v1/models/NAME:predict or …/v2/models/NAME/infer; other services are not called"
        )
        try:
            url = urlsplit(value if isinstance(value, str) else "")
            labels = (url.hostname or "").split(".")
        except ValueError:
            self.checks.reject(path, allowed, value)
            return "", "", ""
        match = _URL_PATH.fullmatch(url.path)
        name = (match[1] or match[2]) if match else ""
        is_ours = (
            url.scheme in ("http", "https")
            and len(labels) >= 2
            and labels[0] in (name, f"{name}-predictor")
            and labels[1] == self.namespace
            and not url.query
        )
        if match is None or not is_ours or not NAME.fullmatch(name):
            self.checks.reject(path, allowed, value)
            return "", "", ""
        return name, "", "v1" if match[1] else "v2"

    def _weight(self, path: str, step: dict[str, Any], router: RouterType) -> int:
        value = step.get("weight")
        if value is None and router is not RouterType.SPLITTER:
            return 0
        if type(value) is int and 0 <= value <= 100:
            return value
        self.checks.reject(f"{path}.weight", "must be a whole number from 0 to 100", value)
        return 0

    def _condition(
        self, path: str, step: dict[str, Any], router: RouterType, *, is_first: bool
    ) -> str:
        value = step.get("condition")
        if not value:
            if router is RouterType.SWITCH:
                allowed = 'must be a GJSON path of the request, such as [@this].#(kind=="dog")'
                self.checks.reject(f"{path}.condition", allowed, value)
            return ""
        if router in (RouterType.SPLITTER, RouterType.ENSEMBLE):
            self._ignored(f"{path}.condition", router)
            return ""
        if router is RouterType.SEQUENCE and is_first:
            allowed = "must stand at a later step: it is about the response of the step before it"
            self.checks.reject(f"{path}.condition", allowed, value)
            return ""
        text = value if isinstance(value, str) else ""
        try:
            parse_path(text)
        except BadPathError as error:
            self.checks.reject(f"{path}.condition", str(error), value)
        return text

    def _ignored(self, path: str, router: RouterType) -> None:
        self.warnings.append(
            f"{path} changes nothing in a node of type {router}, as in KServe's router"
        )

    def _refuse_circles(self, nodes: Mapping[str, GraphNode]) -> None:
        """A node that leads to itself would never end."""
        after = {
            name: {step.node for step in node.steps if step.node in nodes}
            for name, node in nodes.items()
        }
        left = set(nodes)
        while ends := {name for name in left if not after[name] & left}:
            left -= ends
        if left:
            self.checks.reject("spec.nodes", "must not lead to themselves", sorted(left))


def _read(checks: DocumentChecks, document: dict[str, Any]) -> GraphSpec:
    return _Reader(checks).read(document)


is_graph = partial(is_kind, KIND)
read_graphs = partial(read_kind, KIND, _read)
"""Those among the documents of `(source name, YAML text)` pairs. Raises InvalidModel."""
read_graph = partial(read_parsed, KIND, _read)
"""One that is parsed already. Raises InvalidModel."""
