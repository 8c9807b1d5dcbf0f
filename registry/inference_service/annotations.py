"""Every `pilotlight.io/` annotation: its key, what it allows, and the policy field it sets.

The one place that knows the keys; everybody else sees a typed `ModelPolicy`. All mistakes of one
object are collected, and an unknown key under the prefix is a mistake, too.
"""

from __future__ import annotations

import difflib
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from registry.domain.model import ModelPolicy, Preload, RoutingPolicy, Task, Tier
from registry.inference_service.durations import parse_duration_s

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from enum import StrEnum

PREFIX = "pilotlight.io/"
_MAX_DURATION_S = 30 * 86400.0


@dataclass(frozen=True, slots=True)
class ParsedAnnotations:
    """What an object's annotations say, and every mistake in them."""

    policy: ModelPolicy
    pool: str
    task: Task | None
    problems: tuple[str, ...]
    """One line each: the field, the value seen, what is allowed."""


@dataclass(frozen=True, slots=True)
class _Key:
    """One annotation: how to read it, and where its value goes."""

    field: str
    read: Callable[[str], Any]
    """Raises ValueError whose text completes the sentence 'must be …'."""
    meaning: str


def _whole(low: int, high: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        allowed = f"a whole number from {low} to {high}"
        try:
            value = int(text)
        except ValueError:
            raise ValueError(allowed) from None
        if not low <= value <= high or str(value) != text.strip():
            raise ValueError(allowed)
        return value

    return read


def _duration(*, positive: bool) -> Callable[[str], float]:
    def read(text: str) -> float:
        kind = "positive " if positive else ""
        allowed = f"a {kind}duration of at most 30 days, such as '150ms', '2s' or '10m'"
        try:
            value = parse_duration_s(text)
        except ValueError:
            raise ValueError(allowed) from None
        if not math.isfinite(value) or value > _MAX_DURATION_S or (positive and value <= 0):
            raise ValueError(allowed)
        return value

    return read


def _one_of(kind: type[StrEnum], *values: StrEnum) -> Callable[[str], StrEnum]:
    allowed = values or tuple(kind)

    def read(text: str) -> StrEnum:
        for value in allowed:
            if text == value:
                return value
        raise ValueError(f"one of {', '.join(allowed)}")

    return read


def _boolean(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError("'true' or 'false'")
    return text == "true"


def _label(text: str) -> str:
    allowed = "a name of 1 to 63 lower-case letters, digits and '-'"
    plain = text.replace("-", "a")
    if not text or len(text) > 63 or not plain.isascii() or not plain.isalnum():
        raise ValueError(allowed)
    if text != text.lower() or text[0] == "-" or text[-1] == "-":
        raise ValueError(allowed)
    return text


KEYS: Mapping[str, _Key] = {
    "pool": _Key("pool", _label, "the pool of pods that may serve the model"),
    "task": _Key("task", _one_of(Task), "what the model does; else read from its config.json"),
    "policy": _Key("routing", _one_of(RoutingPolicy), "how the gateway chooses a pod"),
    "target-ongoing-requests": _Key(
        "target_ongoing_requests",
        _whole(1, 10_000),
        "requests in their inference stage above which a pod takes no more by remote proxying",
    ),
    "queue-depth": _Key("queue_depth", _whole(0, 1_000_000), "requests that may wait; then 429"),
    "queue-timeout": _Key(
        "queue_timeout_s", _duration(positive=True), "longest wait in the gateway's queue"
    ),
    "deadline": _Key(
        "deadline_s", _duration(positive=True), "time to answer, from arrival at the gateway"
    ),
    "priority": _Key("priority", _whole(-1000, 1000), "higher goes first inside one tenant"),
    "min-copies": _Key("min_copies", _whole(0, 10_000), "pods that hold the model at least"),
    "max-copies": _Key("max_copies", _whole(1, 10_000), "pods that hold the model at most"),
    "keep-alive": _Key(
        "keep_alive_s", _duration(positive=False), "time an idle model stays on the device"
    ),
    "pin": _Key("pin", _boolean, "never evicted once on the device"),
    "preload": _Key("preload", _one_of(Preload), "when the model is loaded ahead of requests"),
    "preload-tier": _Key(
        "preload_tier", _one_of(Tier, Tier.DEVICE, Tier.HOST), "how near preloading brings it"
    ),
    "max-batch-size": _Key(
        "max_batch_size", _whole(1, 4096), "items of requests in one inference; else as measured"
    ),
    "max-batch-wait": _Key(
        "max_batch_wait_s", _duration(positive=False), "how long a batch waits to fill"
    ),
    "max-infer-time": _Key(
        "max_infer_s",
        _duration(positive=True),
        "time of one inference after which the model counts as hung",
    ),
    "canary-of": _Key("canary_of", _label, "the model of whose requests this one takes a share"),
    "canary-percent": _Key(
        "canary_percent", _whole(0, 100), "of a hundred requests to `canary-of`, so many"
    ),
}


def parse_annotations(annotations: Mapping[str, str]) -> ParsedAnnotations:
    """Read every annotation under our prefix; others are nobody's business here."""
    values: dict[str, Any] = {}
    problems: list[str] = []
    for full_key, text in annotations.items():
        if not full_key.startswith(PREFIX):
            continue
        key = KEYS.get(full_key.removeprefix(PREFIX))
        if key is None:
            problems.append(_unknown(full_key, text))
            continue
        try:
            values[key.field] = key.read(text)
        except ValueError as allowed:
            problems.append(f"metadata.annotations[{full_key}] must be {allowed}, was {text!r}")
    problems += _contradictions(values)
    pool = values.pop("pool", "default")
    task = values.pop("task", None)
    policy = ModelPolicy() if problems else ModelPolicy(**values)
    return ParsedAnnotations(policy=policy, pool=pool, task=task, problems=tuple(problems))


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
    return problems
