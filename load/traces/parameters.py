"""Typed parameters of the stages of a trace specification; all mistakes are reported together."""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Generic, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)

from common.sizes import parse_duration_s
from load.traces.batches import DEFAULT_TENANT

T = TypeVar("T")


class Parameters(BaseModel):
    """Parameters of a source or transformation; `value` is the parameter given without a name."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Value(Parameters, Generic[T]):
    """Exactly one parameter, given without a name."""

    value: T


def _duration(text: object) -> float:
    if isinstance(text, str):
        return parse_duration_s(text)
    raise ValueError("a duration such as '150ms', '2s' or '10m'")


def _name(text: str) -> str:
    if not text or "/" in text or text.split() != [text]:
        raise ValueError("a name without '/' or spaces")
    return text


def _slash_separated(text: object) -> object:
    return tuple(text.split("/")) if isinstance(text, str) else text


def _duration_range(text: object, validate: ValidatorFunctionWrapHandler) -> Any:
    bounds = text
    if isinstance(text, str):
        if text.count(":") != 1:
            raise ValueError("FROM:TO in durations, such as 500ms:1s")
        bounds = validate(tuple(text.split(":")))
        if bounds[1] < bounds[0]:
            raise ValueError("FROM:TO with FROM not above TO")
    return bounds


def _size_range(text: object, validate: ValidatorFunctionWrapHandler) -> Any:
    low, _, high = str(text).partition(":")
    if ":" in high:
        raise ValueError("a whole number, or LOW:HIGH")
    bounds = validate((low, high or low))
    if bounds[1] < bounds[0]:
        raise ValueError("LOW:HIGH with LOW not above HIGH")
    return bounds


def _slice(text: object) -> tuple[float, float]:
    start, colon, end = str(text).partition(":")
    try:
        if not colon:
            raise ValueError("no colon")
        bounds = parse_duration_s(start or "0s"), parse_duration_s(end) if end else float("inf")
    except ValueError:
        raise ValueError("START:END in durations, such as 10m:1h, 10m: or :1h") from None
    if bounds[1] <= bounds[0]:
        raise ValueError("should end after it starts")
    return bounds


DurationS = Annotated[float, BeforeValidator(_duration)]
"""Seconds, written as a Go duration."""
PositiveS = Annotated[float, BeforeValidator(_duration), Field(gt=0)]
"""Seconds above 0."""
Rate = Annotated[float, Field(gt=0, le=10_000_000)]
"""Arrivals per second."""
NotNegative = Annotated[float, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]
Count = Annotated[int, Field(ge=1, le=1_000_000)]
Name = Annotated[str, AfterValidator(_name)]
"""A name without slashes and spaces, like names in Kubernetes."""
NameList = Annotated[tuple[Name, ...], BeforeValidator(_slash_separated), Field(min_length=1)]
"""Names separated by slashes."""
CountList = Annotated[tuple[Count, ...], BeforeValidator(_slash_separated), Field(min_length=1)]
DurationRange = Annotated[tuple[DurationS, DurationS], WrapValidator(_duration_range)]
"""Seconds, written as `FROM:TO` in Go durations."""
_Size = Annotated[int, Field(ge=0, le=2**31 - 1)]
SizeRange = Annotated[tuple[_Size, _Size], WrapValidator(_size_range)]
"""`64`, or `64:512`: the lowest and the highest size."""
TimeSlice = Annotated[
    tuple[float, Annotated[float, Field(allow_inf_nan=True)]], BeforeValidator(_slice)
]
"""Seconds, written as `START:END` in Go durations; either may be missing."""
Burstiness = Annotated[float, Field(ge=0, le=20)]
"""Coefficient of variation of gaps; 0: equal gaps, 1: Poisson, higher: bursty."""


class FileParameters(Parameters):
    """A file, or several by a pattern; each continues where the file before it ends."""

    value: str


class RequestParameters(FileParameters):
    """A row per request."""

    window: DurationS | None = None
    """By how much a row may be earlier than a row above it; None: the format's default."""


class TenantParameters(RequestParameters):
    """A row per request, without a tenant."""

    tenant: Name = DEFAULT_TENANT


class OneModelParameters(TenantParameters):
    """A row per request, all for one model."""

    model: Name = "llm"


class CountParameters(FileParameters):
    """Counts per minute, from which arrivals are drawn."""

    within: Literal["uniform", "gamma"] = "uniform"
    cv: Burstiness | None = None

    @model_validator(mode="after")
    def _cv_belongs_to_gamma(self) -> "CountParameters":
        if (self.cv is not None) != (self.within == "gamma"):
            raise ValueError("should have both within=gamma and cv=…, or neither")
        return self


class TenantCountParameters(CountParameters):
    """Counts per minute, without a tenant."""

    tenant: Name = DEFAULT_TENANT


_SHORT_RULES: Final = dict.fromkeys(
    ("int_parsing", "int_from_float", "int_type"), "a whole number"
) | {"float_parsing": "a number"}
"""Rules by pydantic's error type, shorter than pydantic's messages."""

P = TypeVar("P", bound=Parameters)


def validated(
    kind: type[P], given: Mapping[str, str], *, stage: str, problems: list[str]
) -> P | None:
    """The parameters; None if they have mistakes, all of which are added to `problems`."""
    try:
        return kind.model_validate(dict(given))
    except ValidationError as error:
        found = [_problem(kind, dict(item), stage) for item in error.errors()]
        problems += dict.fromkeys(found)
        return None


def _problem(kind: type[Parameters], item: Mapping[str, Any], stage: str) -> str:
    field = item["loc"][0] if item["loc"] else "value"
    name = f"{stage}: {field}" if field != "value" else stage
    if item["type"] == "missing":
        return f"{stage} needs a value" if field == "value" else f"{stage} needs {field}=…"
    if item["type"] == "extra_forbidden":
        allowed = ", ".join(key for key in kind.model_fields if key != "value") or "none"
        if field == "value":
            return f"{stage} takes no value without a name, only {allowed}; was {item['input']!r}"
        return f"{stage} has no parameter {field!r}; it has: {allowed}"
    rule = _SHORT_RULES.get(item["type"]) or item["msg"].removeprefix("Value error, ")
    rule = rule.removeprefix("Input ").replace("should ", "must ")
    verb = "" if rule.startswith("must") else "must be "
    return f"{name} {verb}{rule}, was {_as_written(item['input'])}"


def _as_written(value: object) -> str:
    """An invalid input as the user wrote it; for a check of several parameters, all of them."""
    if isinstance(value, dict):
        named = [f"{key}={text}" for key, text in value.items() if key != "value"]
        return repr(",".join([*([value["value"]] if "value" in value else []), *named]))
    return repr(value)
