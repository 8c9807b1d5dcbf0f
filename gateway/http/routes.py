"""Which model a request names, by path or by KServe-style Host header.

OpenAI's paths may name none: then the body does, and `openai` looks there.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from urllib.parse import unquote

from gateway.errors import BadRequest, GatewayError, UnknownModel
from gateway.http import openai
from registry.domain.canaries import Canaries
from registry.domain.model import ModelName

if TYPE_CHECKING:
    from collections.abc import Container

    from registry.domain.canaries import Canary
    from registry.domain.cluster import ClusterState

_REMEMBERED = 4096
_LONGEST_REMEMBERED = 512
"""Bytes of path and Host. Clients choose both, and the parser knows no limit."""
_SERVING = re.compile(r"/serving/([^/]+)/([^/]+)(/.*)?")
_INFERENCE = re.compile(
    r"/(?:v1/models/([^/:]+):predict|v2/models/([^/]+)(?:/versions/[^/]+)?/infer)"
)
_ADDRESS = re.compile(r"[0-9.]+|\[.*\]|localhost")


@dataclass(frozen=True, slots=True)
class ModelTarget:
    """An inference request's model, and the path it has at a pod."""

    model: ModelName
    name: str
    """The model's name as the caller wrote it, for `model_name` in the answer."""
    pod_path: bytes
    label: str
    """The model as a metric label: `namespace/name`."""
    openai_call: str | None = None
    """Which of OpenAI's calls it is; None: none of them."""
    is_named: bool = True
    """Whether path or Host named the model; where they did not, the body does."""
    version: bytes = b""
    """The version that answers, once one of several is chosen."""
    canaries: tuple[Canary, ...] = ()
    """What takes a share of the model's requests."""
    without_host: ModelTarget | None = None
    """What the path alone asks for, where the Host named the model."""


@dataclass(frozen=True, slots=True)
class ModelPath:
    """A path with its `/serving/NAMESPACE/NAME` prefix taken off."""

    path: str
    namespace: str = "default"
    name: str | None = None
    """The model the prefix or the Host names; None: the path alone does."""
    is_by_host: bool = False


class TargetResolver:
    """Finds the targets of inference requests, and remembers them until the models change."""

    def __init__(self, state: ClusterState, *, is_guarded: bool = False) -> None:
        self._state = state
        self._canaries = Canaries(state)
        self._is_guarded = is_guarded
        """A Host then counts only where the path agrees: a refusal would tell that it is known."""
        self._found: dict[tuple[bytes, bytes], ModelTarget | None] = {}
        self._models_version = -1

    def find(self, path: bytes, host: bytes) -> ModelTarget | None:
        """The target of a path as it was sent; None if it names none, or names one wrongly."""
        if self._models_version != self._state.models_version or len(self._found) > _REMEMBERED:
            self._found.clear()
            self._models_version = self._state.models_version
        try:
            return self._found[path, host]
        except KeyError:
            found = self._read(path, host)
            if len(path) + len(host) <= _LONGEST_REMEMBERED:
                self._found[path, host] = found
            return found

    @property
    def remembered_bytes(self) -> int:
        """Length of all paths and Hosts that are remembered."""
        return sum(len(path) + len(host) for path, host in self._found)

    def _read(self, path: bytes, host: bytes) -> ModelTarget | None:
        text = path.decode("latin-1")
        place = ModelPath(text)
        try:
            place = parse_path(text, host.decode("latin-1"), self._state.models)
            if not is_inference(place.path):
                return None
            target = target_of(place)
        except GatewayError:
            return self._read(path, b"") if self._is_guarded and place.is_by_host else None
        if place.is_by_host:
            target = replace(target, without_host=self._read(path, b""))
        return self.with_canaries(target)

    def with_canaries(self, target: ModelTarget) -> ModelTarget:
        """The target with the model's canaries, where there are some."""
        found = self._canaries.of(target.model) if target.model in self._state.models else ()
        return replace(target, canaries=found) if found else target


def parse_path(path: str, host: str, known: Container[ModelName]) -> ModelPath:
    """Read the namespace and model that prefix or Host name. Raises BadRequest."""
    match = _SERVING.fullmatch(path)
    if match:
        namespace, name = _plain(match[1]), _plain(match[2])
        return ModelPath(match[3] or "/", namespace, name)
    named = model_of_host(host, known)
    if named is None:
        return ModelPath(path)
    return ModelPath(path, named.namespace, named.name, is_by_host=True)


def is_inference(path: str) -> bool:
    """Whether the path, its prefix taken off, asks for an inference."""
    if path.endswith(("/infer", ":predict")):
        return _INFERENCE.fullmatch(path) is not None
    return openai.PATH.fullmatch(path) is not None


def target_of(place: ModelPath) -> ModelTarget:
    """The target of an inference path. Raises BadRequest, ModelNotFound."""
    if call := openai.PATH.fullmatch(place.path):
        return openai_target(place.namespace, place.name, call[1])
    match = _INFERENCE.fullmatch(place.path)
    if match is None:
        raise BadRequest(f"{place.path!r} is no inference path")
    name = _plain(match[1] or match[2])
    if place.name is not None and place.name != name:
        raise UnknownModel(
            f"the path names model {name!r}, its prefix or Host {place.namespace}/{place.name}"
        )
    model = ModelName(place.namespace, name)
    if match[1]:
        pod_path = f"/v1/models/{model.path_segment}:predict"
    else:
        pod_path = f"/v2/models/{model.path_segment}/infer"
    return ModelTarget(model, name, pod_path.encode(), str(model))


def target_of_version(target: ModelTarget, model: ModelName) -> ModelTarget:
    """The same request to one of the model's versions, which its pod knows by its own name."""
    version = model.name.encode()
    if model == target.model:
        return replace(target, version=version)
    own, other = target.model.path_segment.encode(), model.path_segment.encode()
    pod_path = target.pod_path.replace(b"/%b" % own, b"/%b" % other, 1)
    return replace(target, model=model, pod_path=pod_path, label=str(model), version=version)


def openai_target(namespace: str, name: str | None, call: str) -> ModelTarget:
    """The target of one of OpenAI's calls; without a name it waits for the body's."""
    model = ModelName(namespace, name or "")
    path = f"/serving/{model.path_segment}/openai/v1/{call}"
    return ModelTarget(
        model, model.name, path.encode(), str(model), openai_call=call, is_named=name is not None
    )


def model_of_host(host: str, known: Container[ModelName]) -> ModelName | None:
    """The declared model that a Host such as `NAME.NAMESPACE.example.com` names, if any.

    KServe's forms: `NAME.NAMESPACE.…`, `NAME-predictor.NAMESPACE.…`, `NAME-NAMESPACE.DOMAIN`.
    """
    host = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    if not host or _ADDRESS.fullmatch(host):
        return None
    labels = host.lower().split(".")
    if len(labels) < 2:
        return None
    first, second = labels[0].removesuffix("-predictor"), labels[1]
    for name in (ModelName(second, labels[0]), ModelName(second, first)):
        if name in known:
            return name
    parts = first.split("-")
    for cut in range(1, len(parts)):
        name = ModelName("-".join(parts[cut:]), "-".join(parts[:cut]))
        if name in known:
            return name
    return None


def _plain(segment: str) -> str:
    """A path segment without escapes. Raises BadRequest for an escaped slash or the like."""
    text = unquote(segment)
    if any(c in text for c in "/~\\") or not text.isprintable() or text in (".", ".."):
        raise BadRequest(f"a name in the path may not hold {segment!r}")
    return text
