"""Reads InferenceApplication YAML; all mistakes of all objects are reported together."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from common.sizes import parse_duration_s
from registry.domain.application import (
    DEFAULT_DEADLINE_S,
    DEFAULT_WINDOW_S,
    INPUT_DATATYPES,
    ApplicationSpec,
    InputTensor,
    Penalty,
    Prior,
    SelectionPolicy,
    SneakPeekSpec,
)
from registry.domain.loading_choice import SELECTION
from registry.inference_service.document_checks import (
    DocumentChecks,
    is_kind,
    read_kind,
    read_parsed,
)
from registry.inference_service.storage_uri import storage_uri_rule

API_VERSION: Final = "pilotlight.io/v1alpha1"
KIND: Final = "InferenceApplication"
MAX_CLASSES: Final = 1000
_MAX_K: Final = 100
_MAX_DURATION_S: Final = 3600.0
_FIELDS: Final = (
    "classes", "inputs", "output", "deadline", "late", "penalty", "policy", "window", "prior",
    "sneakPeek", "normaliseAccuracy",
)  # fmt: skip
_SNEAK_PEEK_FIELDS: Final = ("uri", "k", "shortCircuit", "splitGroups")
_Choice = TypeVar("_Choice", bound=str)


@dataclass(slots=True)
class _Reader:
    """Reads one document."""

    checks: DocumentChecks

    def read(self, document: dict[str, Any]) -> ApplicationSpec:
        name = self.checks.head(document, API_VERSION)
        spec = self.checks.mapping(document, "spec")
        self.checks.known(spec, _FIELDS, "spec")
        classes = self._classes(spec)
        prior, frequencies = self._prior(spec.get("prior", "uninformative"), len(classes))
        late = spec.get("late", "serve")
        if late not in ("serve", "refuse"):
            self.checks.reject("spec.late", "must be one of serve, refuse", late)
        output = spec.get("output", "label")
        if not isinstance(output, str) or not output:
            self.checks.reject("spec.output", "must be the name of an output tensor", output)
        window_s, is_fixed = self._window(spec.get("window"))
        return ApplicationSpec(
            name,
            classes,
            self._inputs(spec.get("inputs")),
            str(output),
            self._duration(spec, "deadline", DEFAULT_DEADLINE_S),
            late == "refuse",
            self._choice(spec, "penalty", Penalty, Penalty.SIGMOID),
            self._choice(spec, "policy", SELECTION, SelectionPolicy.REFINED),
            window_s,
            is_fixed,
            prior,
            frequencies,
            self._sneak_peek(spec.get("sneakPeek")),
            normalises_accuracy=self._boolean(spec, "normaliseAccuracy", default=False),
        )

    def _classes(self, spec: dict[str, Any]) -> tuple[str, ...]:
        value = spec.get("classes")
        if isinstance(value, list) and all(isinstance(each, (str, int)) for each in value):
            names = tuple(str(each) for each in value)
            if 2 <= len(names) <= MAX_CLASSES and len(set(names)) == len(names):
                return names
        allowed = f"must list 2 to {MAX_CLASSES} different class names, in the order of labels"
        self.checks.reject("spec.classes", allowed, value)
        return ()

    def _inputs(self, value: object) -> tuple[InputTensor, ...]:
        if value is None:
            return ()
        allowed = (
            "must list objects with name, datatype (one of "
            f"{', '.join(INPUT_DATATYPES)}) and shape (whole numbers, -1 for the rows first)"
        )
        found = []
        for each in value if isinstance(value, list) else [value]:
            tensor = each if isinstance(each, dict) else {}
            shape, datatype = tensor.get("shape", [-1]), tensor.get("datatype", "FP32")
            is_shape = isinstance(shape, list) and shape[:1] == [-1] and all(
                type(size) is int and (size > 0 or at == 0) for at, size in enumerate(shape)
            )  # fmt: skip
            is_named = isinstance(tensor.get("name"), str) and tensor["name"]
            if not is_shape or not is_named or datatype not in INPUT_DATATYPES:
                self.checks.reject("spec.inputs", allowed, each)
            else:
                found.append(InputTensor(tensor["name"], datatype, tuple(shape)))
        return tuple(found)

    def _duration(self, mapping: dict[str, Any], key: str, default_s: float) -> float:
        text = mapping.get(key)
        if text is None:
            return default_s
        try:
            seconds = parse_duration_s(str(text))
        except ValueError:
            seconds = math.nan
        if not 0 < seconds <= _MAX_DURATION_S:
            allowed = "must be a positive duration of at most 1h, such as '150ms' or '2s'"
            self.checks.reject(f"spec.{key}", allowed, text)
            return default_s
        return seconds

    def _window(self, value: object) -> tuple[float, bool]:
        """A duration, or an object with `length` and `fixed`."""
        if not isinstance(value, dict):
            return self._duration({"window": value}, "window", DEFAULT_WINDOW_S), False
        self.checks.known(value, ("length", "fixed"), "spec.window")
        window_s = self._duration({"window": value.get("length")}, "window", DEFAULT_WINDOW_S)
        return window_s, self._boolean(value, "fixed", default=False)

    def _boolean(self, mapping: dict[str, Any], key: str, *, default: bool) -> bool:
        value = mapping.get(key, default)
        if not isinstance(value, bool):
            self.checks.reject(key, "must be true or false", value)
        return bool(value)

    def _choice(
        self, spec: dict[str, Any], key: str, allowed: Iterable[_Choice], default: _Choice
    ) -> _Choice:
        value = spec.get(key, default)
        for each in allowed:
            if value == each:
                return each
        self.checks.reject(f"spec.{key}", f"must be one of {', '.join(allowed)}", value)
        return default

    def _prior(self, value: object, classes: int) -> tuple[Prior, tuple[float, ...]]:
        """`uninformative`, or an object with `kind` and `frequencies`, which sum to 1."""
        if value == Prior.UNINFORMATIVE:
            return Prior.UNINFORMATIVE, ()
        prior = value if isinstance(value, dict) else {}
        kind, stated = prior.get("kind"), prior.get("frequencies")
        if (
            kind in (Prior.WEAK, Prior.STRONG)
            and isinstance(stated, list)
            and len(stated) == classes
            and all(type(each) in (int, float) and 0 < each < math.inf for each in stated)
            and math.isclose(sum(stated), 1.0, abs_tol=1e-6)
        ):
            return Prior(kind), tuple(float(each) for each in stated)
        allowed = (
            "must be uninformative, or an object with kind (weak or strong) and frequencies: one "
            "positive number per class, which sum to 1"
        )
        self.checks.reject("spec.prior", allowed, value)
        return Prior.UNINFORMATIVE, ()

    def _sneak_peek(self, value: object) -> SneakPeekSpec | None:
        if value is None:
            return None
        peek = value if isinstance(value, dict) else {}
        self.checks.known(peek, _SNEAK_PEEK_FIELDS, "spec.sneakPeek")
        uri, k = peek.get("uri"), peek.get("k")
        if (rule := storage_uri_rule(uri)) is not None:
            self.checks.reject("spec.sneakPeek.uri", f"must {rule}", uri)
        if k is not None and (type(k) is not int or not 1 <= k <= _MAX_K):
            self.checks.reject("spec.sneakPeek.k", f"must be a whole number from 1 to {_MAX_K}", k)
            k = None
        return SneakPeekSpec(
            str(uri),
            k,
            self._boolean(peek, "shortCircuit", default=True),
            self._boolean(peek, "splitGroups", default=True),
        )


def _read(checks: DocumentChecks, document: dict[str, Any]) -> ApplicationSpec:
    return _Reader(checks).read(document)


is_application = partial(is_kind, KIND)
read_applications = partial(read_kind, KIND, _read)
"""Those among the documents of `(source name, YAML text)` pairs. Raises InvalidModel."""
read_application = partial(read_parsed, KIND, _read)
"""One that is parsed already. Raises InvalidModel."""
