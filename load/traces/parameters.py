"""Parameters of trace specifications, and draws shared by sources: seeds, popularity, arrivals.

All mistakes of the parameters are reported together.
"""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
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


class TenantParameters(FileParameters):
    """A row per request, without a tenant."""

    window: DurationS | None = None
    """Seconds by which a row may precede a row above it; None: the format's default."""
    tenant: Name = DEFAULT_TENANT


_SHORT_RULES: Final = dict.fromkeys(
    ("int_parsing", "int_from_float", "int_type"), "a whole number"
) | {"float_parsing": "a number"}
"""Rules by pydantic's error type, shorter than pydantic's messages."""

P = TypeVar("P", bound=Parameters)


def validated(
    kind: type[P], given: Mapping[str, str], *, stage: str, problems: list[str]
) -> P | None:
    """The parameters of a stage; None if invalid, with all mistakes added to `problems`."""
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
    """An invalid input as the user wrote it; all parameters if the check is of several."""
    if isinstance(value, dict):
        named = [f"{key}={text}" for key, text in value.items() if key != "value"]
        return repr(",".join([*([value["value"]] if "value" in value else []), *named]))
    return repr(value)


@dataclass(frozen=True, slots=True)
class Seed:
    """A node in a tree of random streams: the same root and path always give the same numbers."""

    root: int
    path: tuple[int, ...] = ()

    def derive(self, *purpose: str | int) -> "Seed":
        """The seed of one purpose, independent of draws for other purposes."""
        keys = (zlib.crc32(part.encode()) if isinstance(part, str) else part for part in purpose)
        return Seed(self.root, (*self.path, *keys))

    def rng(self) -> np.random.Generator:
        """A generator at the start of this stream."""
        return np.random.default_rng(np.random.SeedSequence(self.root, spawn_key=self.path))


def zipf_shares(models: int, exponent: float) -> NDArray[np.float64]:
    """The share of requests of each rank: proportional to 1 / rank^exponent; 0 is uniform."""
    weights = np.arange(1, models + 1, dtype=np.float64) ** -exponent
    shares: NDArray[np.float64] = weights / weights.sum()
    return shares


class Popularity:
    """Draws models by rank; every `drift_s` seconds a random model becomes the most popular one.

    The models that ranked above it move down by a rank. Ranks are constant if `drift_s` is None.
    """

    def __init__(
        self, *, models: int, exponent: float, drift_s: float | None, rng: np.random.Generator
    ) -> None:
        self._cumulative = np.cumsum(zipf_shares(models, exponent))
        self._by_rank = np.arange(models, dtype=np.int32)
        self._drift_s = drift_s
        self._epoch = 0
        self._draws, self._changes = rng.spawn(2)

    def models_at(self, at_s: NDArray[np.float64]) -> NDArray[np.int32]:
        """A model for each time; times are sorted and not before those of earlier calls."""
        draws = self._draws.random(len(at_s)) * self._cumulative[-1]
        ranks = np.searchsorted(self._cumulative, draws, side="right")
        ranks = np.minimum(ranks, len(self._cumulative) - 1)
        if self._drift_s is None:
            steady: NDArray[np.int32] = self._by_rank[ranks]
            return steady
        epochs = np.floor(at_s / self._drift_s).astype(np.int64)
        models = np.empty(len(at_s), np.int32)
        for epoch in np.unique(epochs).tolist():
            self._advance(epoch)
            chosen = epochs == epoch
            models[chosen] = self._by_rank[ranks[chosen]]
        return models

    def _advance(self, epoch: int) -> None:
        while self._epoch < epoch:
            rank = int(self._changes.integers(len(self._by_rank)))
            self._by_rank[: rank + 1] = np.roll(self._by_rank[: rank + 1], 1)
            self._epoch += 1


_MIN_CV: Final = 1e-6
"""Below this coefficient of variation, gaps are drawn as equal."""


def unit_gaps(count: int, cv: float, rng: np.random.Generator) -> NDArray[np.float64]:
    """Gaps of mean 1 with coefficient of variation `cv`: Gamma of shape 1/cv^2, or all equal."""
    if cv < _MIN_CV:
        return np.ones(count)
    shape = 1.0 / cv**2
    return rng.standard_gamma(shape, count) / shape
