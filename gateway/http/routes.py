"""Resolves a request's model from its path or its KServe-style Host header.

OpenAI requests may name the model only in the body, which `IncomingBody.read_model_field` reads.
"""

import re
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import quote, unquote

from gateway.errors import BadRequest, GatewayError, UndeclaredModel
from gateway.http import openai
from gateway.http.targets import (
    PREDICTOR_SUFFIX,
    KnownNames,
    ModelTarget,
    Verb,
    component_of,
    labels_of,
    model_of_host,
    openai_target,
)
from registry.domain.canaries import Canaries
from registry.domain.model import ModelName

_MAX_CACHED: Final = 4096
_MAX_CACHED_LENGTH: Final = 512
"""Bytes of path and Host in a cached entry. Clients choose both; the HTTP parser has no limit."""
_SERVING: Final = re.compile(r"/serving/([^/]+)/([^/]+)(/.*)?")
INFERENCE_SUFFIXES: Final = (
    "/infer", ":predict", "%3Apredict", "%3apredict", ":explain", "%3Aexplain", "%3aexplain",
)  # fmt: skip
"""Of paths of KServe's protocols, as they were sent: some clients escape the colon."""
_INFERENCE: Final = re.compile(
    r"/(?:v1/models/([^/:]+?)(?::|%3[Aa])(predict|explain)"
    r"|v2/models/([^/]+)(?:/versions/[^/]+)?/infer)"
)
_MODEL: Final = re.compile(r"/(?:openai/)?v[12]/models/([^/:]+?)(?=[/:]|%3[Aa]|$)")


@dataclass(frozen=True, slots=True)
class ModelPath:
    """A path without its `/serving/NAMESPACE/NAME` prefix."""

    path: str
    namespace: str = "default"
    name: str | None = None
    """The model that the prefix or the Host names; None if only the path may name one."""
    is_by_host: bool = False
    is_plain: bool = False
    """Neither prefix nor Host names a namespace."""
    is_direct: bool = False
    """The Host is `NAME-predictor.…`."""
    called: str = ""
    """The model's second name, where the caller used it; `path` has its own."""


class TargetResolver:
    """Resolves paths and Hosts to targets, and caches the results until the models change."""

    def __init__(self, names: KnownNames, *, is_guarded: bool = False) -> None:
        """With `is_guarded` a Host that contradicts the path is ignored.

        An error would disclose to other tenants that the model exists. `names`: those of all pools.
        """
        self._names = names
        self._states = names.states
        self._canaries = [Canaries(each) for each in names.states]
        self._is_guarded = is_guarded
        self._cache: dict[tuple[bytes, bytes], ModelTarget | None] = {}
        self._models_version = -1

    def resolve(self, path: bytes, host: bytes) -> ModelTarget | None:
        """The target of a path as it was sent; None if it is not a valid inference path."""
        version = 0
        for state in self._states:  # here: a call costs as much as all of this
            version += state.models_version
        if self._models_version != version or len(self._cache) > _MAX_CACHED:
            self._cache.clear()
            self._models_version = version
        try:
            return self._cache[path, host]
        except KeyError:
            found = self._resolve(path, host)
            if len(path) + len(host) <= _MAX_CACHED_LENGTH:
                self._cache[path, host] = found
            return found

    def _resolve(self, path: bytes, host: bytes) -> ModelTarget | None:
        text = path.decode("latin-1")
        model_path = ModelPath(text)
        try:
            model_path = parse_path(text, host.decode("latin-1"), self._names)
            if not is_inference(model_path.path):
                return None
            target = target_of(model_path)
        except GatewayError:
            is_ignored = self._is_guarded and model_path.is_by_host
            return self._without_host(path) if is_ignored else None
        if model_path.is_by_host:
            target = replace(target, without_host=self._without_host(path))
        return self.with_declared(target)

    def _without_host(self, path: bytes) -> ModelTarget | None:
        """What the path names alone; the Host said that it is not of the caller's own namespace."""
        target = self._resolve(path, b"")
        return target and replace(target, is_plain=False)

    def with_declared(self, target: ModelTarget) -> ModelTarget:
        """The target with the component, or the canaries, that the model is declared with."""
        declaring = (
            (each.models[target.model], canaries)
            for each, canaries in zip(self._states, self._canaries, strict=True)
            if target.model in each.models
        )
        record, canaries = next(declaring, (None, None))
        if record is None or canaries is None:
            return target
        if target.openai_endpoint is not None and record.spec.served_name:
            target = replace(target, name=record.spec.served_name)  # pods take both in the body
        component = component_of(
            record.spec,
            verb=target.verb,
            openai_endpoint=target.openai_endpoint,
            is_direct=target.is_direct,
        )
        if component is not None:
            return replace(target, component=component)
        found = canaries.of(target.model)
        return replace(target, canaries=found) if found else target

    def as_direct(self, target: ModelTarget) -> ModelTarget:
        """The target of the same request if it had been sent to `NAME-predictor`."""
        return self.with_declared(replace(target, is_direct=True, component=None))


def parse_path(path: str, host: str, known: KnownNames | None) -> ModelPath:
    """Read the namespace and model from the prefix or the Host. Raises BadRequest."""
    match = _SERVING.fullmatch(path)
    if match:
        namespace, name = _unescape(match[1]), _unescape(match[2])
        return _by_own_name(ModelPath(match[3] or "/", namespace, name), known)
    named = model_of_host(host, known, named_model(path)) if host and known is not None else None
    if named is None:
        return ModelPath(path, is_plain=True)
    is_direct = labels_of(host)[0] == named.name + PREDICTOR_SUFFIX
    found = ModelPath(path, named.namespace, named.name, is_by_host=True, is_direct=is_direct)
    return _by_own_name(found, known)


def _by_own_name(found: ModelPath, known: KnownNames | None) -> ModelPath:
    """The path with the model's own name in place of a second one (`--model_name`)."""
    match = _MODEL.match(found.path)
    if match is None or found.name is None or known is None:
        return found
    called = unquote(match[1])
    if called == found.name or not known.has_alias(ModelName(found.namespace, found.name), called):
        return found
    begin, end = match.span(1)
    own_path = f"{found.path[:begin]}{quote(found.name)}{found.path[end:]}"
    return replace(found, path=own_path, called=called)


def named_model(path: str) -> str:
    """The model that a path of KServe's protocols names, without its prefix; empty: none."""
    match = _MODEL.match(path)
    return unquote(match[1]) if match else ""


def is_inference(path: str) -> bool:
    """True if a path, without its prefix, is an inference path."""
    if path.endswith(INFERENCE_SUFFIXES):
        return _INFERENCE.fullmatch(path) is not None
    return openai.PATH.fullmatch(path) is not None


def target_of(model_path: ModelPath) -> ModelTarget:
    """The target of an inference path. Raises BadRequest, UndeclaredModel."""
    if endpoint := openai.PATH.fullmatch(model_path.path):
        target = openai_target(model_path.namespace, model_path.name, endpoint[1])
        return replace(target, is_direct=model_path.is_direct, is_plain=model_path.is_plain)
    match = _INFERENCE.fullmatch(model_path.path)
    if match is None:
        raise BadRequest(f"{model_path.path!r} is not an inference path")
    name = _unescape(match[1] or match[3])
    _refuse_other_name(model_path, name)
    return ModelTarget(
        ModelName(model_path.namespace, name),
        model_path.called or name,
        Verb(match[2]) if match[1] else Verb.INFER,
        is_direct=model_path.is_direct,
        is_plain=model_path.is_plain,
    )


def refuse_other_name(model_path: ModelPath) -> None:
    """Raise UndeclaredModel for a model of KServe's protocols that the prefix or Host is not of."""
    if not model_path.path.startswith("/openai/") and (name := named_model(model_path.path)):
        _refuse_other_name(model_path, name)


def _refuse_other_name(model_path: ModelPath, name: str) -> None:
    if model_path.name is not None and model_path.name != name:
        raise UndeclaredModel(
            f"the path names model {name!r}, its prefix or Host "
            f"{model_path.namespace}/{model_path.name}"
        )


def graph_path(host: str) -> ModelPath:
    """The InferenceGraph that a Host such as `NAME.NAMESPACE.example.com` names, as it is written.

    Graphs are not part of the local cluster state: the scheduler of workflows knows them.
    """
    labels = labels_of(host)
    if len(labels) < 2:
        return ModelPath("/")
    return ModelPath("/", labels[1], labels[0], is_by_host=True)


def _unescape(segment: str) -> str:
    """A path segment with escapes resolved. Raises BadRequest for an escaped slash and similar."""
    text = unquote(segment)
    if any(c in text for c in "/~\\") or not text.isprintable() or text in (".", ".."):
        raise BadRequest(f"a name in the path may not contain {segment!r}")
    return text
