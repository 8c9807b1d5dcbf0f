"""What the stages of a trace's name take: typed, checked at once, with every mistake told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from registry.inference_service.durations import parse_duration_s

if TYPE_CHECKING:
    from collections.abc import Mapping


class Parameters(BaseModel):
    """Named parameters of a source or a transformation; `value` is the one without a name."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def _duration(text: object) -> float:
    if isinstance(text, str):
        return parse_duration_s(text)
    raise ValueError("a duration such as '150ms', '2s' or '10m'")


def _name(text: str) -> str:
    if not text or "/" in text or text.split() != [text]:
        raise ValueError("a name without '/' or spaces")
    return text


def _listed(text: object) -> object:
    return tuple(text.split("/")) if isinstance(text, str) else text


def _range(text: object) -> object:
    if not isinstance(text, str):
        return text
    if text.count(":") != 1:
        raise ValueError("FROM:TO in durations, such as 500ms:1s")
    return tuple(text.split(":"))


DurationS = Annotated[float, BeforeValidator(_duration)]
"""Seconds, written as a Go duration."""
PositiveS = Annotated[float, BeforeValidator(_duration), Field(gt=0)]
"""Seconds above 0."""
Rate = Annotated[float, Field(gt=0, le=10_000_000)]
"""Arrivals per second."""
NotNegative = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=1, le=1_000_000)]
Name = Annotated[str, AfterValidator(_name)]
"""A name without a slash or space, as Kubernetes' names are."""
NameList = Annotated[tuple[Name, ...], BeforeValidator(_listed), Field(min_length=1)]
"""Names with slashes between them."""
CountList = Annotated[tuple[Count, ...], BeforeValidator(_listed), Field(min_length=1)]
DurationRange = Annotated[tuple[DurationS, DurationS], BeforeValidator(_range)]
"""`FROM:TO`."""
Burstiness = Annotated[float, Field(ge=0, le=20)]
"""A coefficient of variation of gaps: 0 even, 1 Poisson, more bursty."""

_PLAIN: Final = dict.fromkeys(("int_parsing", "int_from_float", "int_type"), "a whole number") | {
    "float_parsing": "a number"
}
"""Plainer words for what pydantic says at length, by its type of error."""

_P = TypeVar("_P", bound=Parameters)


def checked(kind: type[_P], given: Mapping[str, str], *, stage: str) -> _P | list[str]:
    """The parameters, or every mistake in them, a line each."""
    try:
        return kind.model_validate(dict(given))
    except ValidationError as error:
        problems = [_problem(kind, dict(item), stage) for item in error.errors()]
        return list(dict.fromkeys(problems))


def _problem(kind: type[Parameters], item: Mapping[str, Any], stage: str) -> str:
    place = item["loc"][0] if item["loc"] else "value"
    name = f"{stage}: {place}" if place != "value" else stage
    if item["type"] == "missing":
        return f"{stage} needs a value" if place == "value" else f"{stage} needs {place}=…"
    if item["type"] == "extra_forbidden":
        allowed = ", ".join(key for key in kind.model_fields if key != "value") or "none"
        if place == "value":
            return f"{stage} takes no value of its own, only {allowed}; was {item['input']!r}"
        return f"{stage} has no parameter {place!r}; it has: {allowed}"
    rule = _PLAIN.get(item["type"]) or item["msg"].removeprefix("Value error, ")
    rule = rule.removeprefix("Input ").replace("should ", "must ")
    verb = "" if rule.startswith("must") else "must be "
    return f"{name} {verb}{rule}, was {_seen(item['input'])}"


def _seen(value: object) -> str:
    """What was given, as it was written where it is several parameters."""
    if isinstance(value, dict):
        named = [f"{key}={text}" for key, text in value.items() if key != "value"]
        return repr(",".join([*([value["value"]] if "value" in value else []), *named]))
    return repr(value)
