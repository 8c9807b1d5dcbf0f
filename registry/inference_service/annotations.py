"""All `pilotlight.io/` annotations: key, allowed values, and the policy field that each sets.

Other modules read a typed `ModelPolicy`. All mistakes of one object are reported together; an
unknown key under the prefix is a mistake.
"""

import difflib
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from common.sizes import parse_duration_s
from registry.domain.model import (
    Answers,
    EngineChoice,
    ModelPolicy,
    Precision,
    Preload,
    Scores,
    Task,
    Tier,
)
from registry.policy_names import LOADING, PLACEMENT, ROUTING, PolicyNames

PREFIX = "pilotlight.io/"
_MAX_DURATION_S = 30 * 86400.0
_LABEL = re.compile("[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class ParsedAnnotations:
    """The values of an object's annotations, and all mistakes in them."""

    policy: ModelPolicy
    problems: tuple[str, ...]
    """One line each: field, value, what is allowed."""
    pool: str = "default"
    task: Task | None = None
    precision: Precision | None = None
    base: str = ""
    engine: EngineChoice = EngineChoice.AUTO
    answers: Answers | None = None
    scores: Scores | None = None


class _Annotation(NamedTuple):
    field: str
    """Field of `ModelPolicy` that it sets; others of `ParsedAnnotations`."""
    parse: Callable[[str], Any]
    """Raises ValueError with a text that completes the sentence 'must be …'."""
    schema: Mapping[str, Any]
    """OpenAPI's, of the field with this meaning in a Model's spec."""


_Rule = tuple[Callable[[str], Any], Mapping[str, Any]]
"""`parse` and `schema`."""


def _integer(low: int, high: int) -> _Rule:
    def parse(text: str) -> int:
        allowed = f"a whole number from {low} to {high}"
        try:
            value = int(text)
        except ValueError:
            raise ValueError(allowed) from None
        if not low <= value <= high or str(value) != text.strip():
            raise ValueError(allowed)
        return value

    return parse, {"type": "integer", "minimum": low, "maximum": high}


def _duration(*, positive: bool) -> _Rule:
    def parse(text: str) -> float:
        kind = "positive " if positive else ""
        allowed = f"a {kind}duration of at most 30 days, such as '150ms', '2s' or '10m'"
        try:
            value = parse_duration_s(text)
        except ValueError:
            raise ValueError(allowed) from None
        if not math.isfinite(value) or value > _MAX_DURATION_S or (positive and value <= 0):
            raise ValueError(allowed)
        return value

    return parse, {"type": "string"}


def _one_of(kind: type[StrEnum], *values: StrEnum) -> _Rule:
    allowed = values or tuple(kind)

    def parse(text: str) -> StrEnum:
        for value in allowed:
            if text == value:
                return value
        raise ValueError(f"one of {', '.join(allowed)}")

    return parse, {"type": "string", "enum": [str(value) for value in allowed]}


def _named(names: PolicyNames) -> _Rule:
    def parse(text: str) -> str:
        if text in names:
            return text
        raise ValueError(f"one of {names}")

    return parse, {"type": "string"}  # plug-ins have more names


def _boolean(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError("'true' or 'false'")
    return text == "true"


def _label(text: str) -> str:
    if not _LABEL.fullmatch(text):
        raise ValueError("a name of 1 to 63 lower-case letters, digits and '-'")
    return text


_NAME: Final = {"type": "string", "pattern": f"^{_LABEL.pattern}$"}

KEYS: Mapping[str, _Annotation] = {
    "pool": _Annotation("pool", _label, _NAME),
    "task": _Annotation("task", *_one_of(Task)),
    "dtype": _Annotation("precision", *_one_of(Precision)),
    "base-model": _Annotation("base", _label, _NAME),
    "engine": _Annotation("engine", *_one_of(EngineChoice)),
    "answers": _Annotation("answers", *_one_of(Answers)),
    "scores": _Annotation("scores", *_one_of(Scores)),
    "policy": _Annotation("routing", *_named(ROUTING)),
    "target-ongoing-requests": _Annotation("target_ongoing_requests", *_integer(1, 10_000)),
    "queue-depth": _Annotation("queue_depth", *_integer(0, 1_000_000)),
    "queue-timeout": _Annotation("queue_timeout_s", *_duration(positive=True)),
    "deadline": _Annotation("deadline_s", *_duration(positive=True)),
    "priority": _Annotation("priority", *_integer(-1000, 1000)),
    "min-copies": _Annotation("min_copies", *_integer(0, 10_000)),
    "max-copies": _Annotation("max_copies", *_integer(1, 10_000)),
    "keep-alive": _Annotation("keep_alive_s", *_duration(positive=False)),
    "pin": _Annotation("pin", _boolean, {"type": "boolean"}),
    "preload": _Annotation("preload", *_one_of(Preload)),
    "preload-tier": _Annotation("preload_tier", *_one_of(Tier, Tier.DEVICE, Tier.HOST)),
    "max-batch-size": _Annotation("max_batch_size", *_integer(1, 4096)),
    "max-batch-wait": _Annotation("max_batch_wait_s", *_duration(positive=False)),
    "max-load-wait": _Annotation("max_load_wait_s", *_duration(positive=False)),
    "max-infer-time": _Annotation("max_infer_s", *_duration(positive=True)),
    "loading": _Annotation("loading", *_named(LOADING)),
    "placement": _Annotation("placement", *_named(PLACEMENT)),
    "profile": _Annotation("profile", _label, _NAME),
    "canary-of": _Annotation("canary_of", _label, _NAME),
    "canary-percent": _Annotation("canary_percent", *_integer(0, 100)),
    "application": _Annotation("application", _label, _NAME),
}
"""Each key without the prefix; docs/annotations.md describes what each one does."""


_MAX_UNKNOWN: Final = 8
"""That are named, since a search for near names takes milliseconds: an object may have 15,000."""


def parse_annotations(
    annotations: Mapping[str, str], defaults: Mapping[str, Any] = MappingProxyType({})
) -> ParsedAnnotations:
    """Parse the annotations whose keys begin with PREFIX; others are ignored.

    `defaults`: fields of `ModelPolicy` where no annotation sets them.
    """
    values: dict[str, Any] = dict(defaults)
    problems: list[str] = []
    unknown = 0
    for full_key, text in annotations.items():
        if not full_key.startswith(PREFIX):
            continue
        annotation = KEYS.get(full_key.removeprefix(PREFIX))
        if annotation is None:
            unknown += 1
            if unknown <= _MAX_UNKNOWN:
                problems.append(_unknown(full_key, text))
            continue
        try:
            values[annotation.field] = annotation.parse(text)
        except ValueError as allowed:
            problems.append(f"metadata.annotations[{full_key}] must be {allowed}, was {text!r}")
    if unknown > _MAX_UNKNOWN:
        problems.append(f"{unknown - _MAX_UNKNOWN} more annotations {PREFIX}* are no known keys")
    problems += _contradictions(values)
    own = {
        each.name: values.pop(each.name)
        for each in fields(ParsedAnnotations)
        if each.name in values
    }
    policy = ModelPolicy() if problems else ModelPolicy(**values)
    return ParsedAnnotations(policy, tuple(problems), **own)


def _unknown(full_key: str, text: str) -> str:
    known = [PREFIX + name for name in KEYS]
    near = difflib.get_close_matches(full_key, known, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    return (
        f"metadata.annotations[{full_key}] is not a known key (value {text!r}); {hint}"
        f"known keys: {', '.join(KEYS)}"
    )


def _contradictions(values: Mapping[str, Any]) -> list[str]:
    problems: list[str] = []
    low, high = values.get("min_copies"), values.get("max_copies")
    if low is not None and high is not None and low > high:
        problems.append(
            f"metadata.annotations[{PREFIX}min-copies] must be at most max-copies, "
            f"was {low} with max-copies {high}"
        )
    if values.get("canary_percent") and "canary_of" not in values:
        problems.append(
            f"metadata.annotations[{PREFIX}canary-percent] needs {PREFIX}canary-of, "
            "which names the model of whose requests it takes a share"
        )
    if values.get("base") and values.get("precision"):
        problems.append(
            f"metadata.annotations[{PREFIX}dtype] must be absent beside {PREFIX}base-model: an "
            "adapter has the type of its base"
        )
    return problems
