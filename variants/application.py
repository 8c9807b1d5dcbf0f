"""Applications: reads their YAML, with all mistakes together; which models are their variants."""

from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar

from common.sizes import parse_duration_s
from registry.domain.application import (
    DEFAULT_DEADLINE_S,
    DEFAULT_WINDOW_S,
    INPUT_DATATYPES,
    KIND,
    ApplicationSpec,
    InputTensor,
    Penalty,
    SelectionPolicy,
    SneakPeekSpec,
)
from registry.domain.cluster import ClusterState
from registry.domain.model import ModelSpec
from registry.inference_service.documents import (
    DocumentChecks,
    is_kind,
    read_kind,
    read_parsed,
    storage_uri_rule,
)
from registry.policy_names import SELECTION

API_VERSION: Final = "pilotlight.io/v1alpha1"
MAX_CLASSES: Final = 1000
_MAX_DURATION_S: Final = 3600.0
_FIELDS: Final = (
    "classes", "inputs", "output", "deadline", "late", "penalty", "policy", "window", "sneakPeek",
)  # fmt: skip
_Choice = TypeVar("_Choice", bound=str)


def _read(checks: DocumentChecks, document: dict[str, Any]) -> ApplicationSpec:
    name = checks.head(document, API_VERSION)
    spec = checks.mapping(document, "spec")
    checks.known(spec, _FIELDS, "spec")
    classes = _classes(checks, spec.get("classes"))
    output = spec.get("output", "label")
    if not isinstance(output, str) or not output:
        checks.reject("spec.output", "must be the name of an output tensor", output)
    window = spec.get("window")
    window = window if isinstance(window, dict) else {"length": window}
    checks.known(window, ("length", "fixed"), "spec.window")
    return ApplicationSpec(
        name,
        classes,
        _inputs(checks, spec.get("inputs")),
        str(output),
        _duration(checks, "spec.deadline", spec.get("deadline"), DEFAULT_DEADLINE_S),
        _choice(checks, spec, "late", ("serve", "refuse"), "serve") == "refuse",
        _choice(checks, spec, "penalty", Penalty, Penalty.SIGMOID),
        _choice(checks, spec, "policy", SELECTION, SelectionPolicy.REFINED),
        _duration(checks, "spec.window", window.get("length"), DEFAULT_WINDOW_S),
        _boolean(checks, window, "fixed", default=False),
        _sneak_peek(checks, spec.get("sneakPeek")),
    )


def _classes(checks: DocumentChecks, value: object) -> tuple[str, ...]:
    if isinstance(value, list) and all(isinstance(each, (str, int)) for each in value):
        names = tuple(str(each) for each in value)
        if 2 <= len(names) <= MAX_CLASSES and len(set(names)) == len(names):
            return names
    allowed = f"must list 2 to {MAX_CLASSES} different class names, in the order of labels"
    checks.reject("spec.classes", allowed, value)
    return ()


def _inputs(checks: DocumentChecks, value: object) -> tuple[InputTensor, ...]:
    if value is None:
        return ()
    allowed = (
        f"must list objects with name, datatype (one of {', '.join(INPUT_DATATYPES)}) and shape "
        "(whole numbers, -1 for the rows first)"
    )
    found = []
    for each in value if isinstance(value, list) else [value]:
        tensor = each if isinstance(each, dict) else {}
        shape, datatype = tensor.get("shape", [-1]), tensor.get("datatype", "FP32")
        is_shape = (
            isinstance(shape, list)
            and shape[:1] == [-1]
            and all(type(size) is int and (size > 0 or at == 0) for at, size in enumerate(shape))
        )
        is_named = isinstance(tensor.get("name"), str) and tensor["name"]
        if not is_shape or not is_named or datatype not in INPUT_DATATYPES:
            checks.reject("spec.inputs", allowed, each)
        else:
            found.append(InputTensor(tensor["name"], datatype, tuple(shape)))
    return tuple(found)


def _duration(checks: DocumentChecks, path: str, text: object, default_s: float) -> float:
    if text is None:
        return default_s
    with suppress(ValueError):
        if 0 < (seconds := parse_duration_s(str(text))) <= _MAX_DURATION_S:
            return seconds
    checks.reject(path, "must be a positive duration of at most 1h, such as '150ms' or '2s'", text)
    return default_s


def _boolean(checks: DocumentChecks, mapping: dict[str, Any], key: str, *, default: bool) -> bool:
    value = mapping.get(key, default)
    if not isinstance(value, bool):
        checks.reject(key, "must be true or false", value)
    return bool(value)


def _choice(
    checks: DocumentChecks,
    spec: dict[str, Any],
    key: str,
    allowed: Iterable[_Choice],
    default: _Choice,
) -> _Choice:
    value = spec.get(key, default)
    for each in allowed:
        if value == each:
            return each
    checks.reject(f"spec.{key}", f"must be one of {', '.join(allowed)}", value)
    return default


def _sneak_peek(checks: DocumentChecks, value: object) -> SneakPeekSpec | None:
    if value is None:
        return None
    peek = value if isinstance(value, dict) else {}
    checks.known(peek, ("uri", "shortCircuit"), "spec.sneakPeek")
    uri = peek.get("uri")
    if (rule := storage_uri_rule(uri)) is not None:
        checks.reject("spec.sneakPeek.uri", f"must {rule}", uri)
    return SneakPeekSpec(str(uri), _boolean(checks, peek, "shortCircuit", default=True))


is_application = partial(is_kind, KIND)
read_applications = partial(read_kind, KIND, _read)
"""Those among the documents of `(source name, YAML text)` pairs. Raises InvalidModel."""
read_application = partial(read_parsed, KIND, _read)
"""One that is parsed already. Raises InvalidModel."""


def named_variants(
    application: ApplicationSpec, state: ClusterState
) -> list[tuple[ModelSpec, str | None]]:
    """The models of its namespace that name it, by name; each with its problem, None: none."""
    name = application.name
    specs = [
        record.serving
        for model, record in sorted(state.models.items())
        if model.namespace == name.namespace and record.serving.policy.application == name.name
    ]
    return [(spec, _problem(application, spec, state)) for spec in specs]


def no_variants(application: ApplicationSpec) -> str:
    """What to do about an application that no model names."""
    name = application.name
    return (
        f"application {name} has no variants: annotate models of its namespace with "
        f"pilotlight.io/application: {name.name}"
    )


def _problem(application: ApplicationSpec, spec: ModelSpec, state: ClusterState) -> str | None:
    profile = state.accuracies.get(spec.name)
    if profile is None:
        return "has no accuracy profile"
    if profile.key != spec.key:
        return "its accuracy profile is of another generation"
    if profile.classes != application.classes:
        return "its accuracy profile is of other classes"
    return None
