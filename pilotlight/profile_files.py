"""The JSON of `profile --export` and `--import`: the profiles of one generation of a model.

    {"pilotlight_profiles": 1, "model": "default/translate", "generation": "0a1b2c3d4e",
     "profiles": [{"accelerator": "NVIDIA H200", "source": "measured", "limited_by": "throughput",
                   "points": [{"rows": 1, "latency_s": 0.01, "memory_bytes": 1048576}]}]}

`rows` is the batch size, `memory_bytes` the memory of an inference without the weights. Required
are `profiles`, `accelerator`, `points`, `rows` and `latency_s`.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from autoscaler.placement import profile_fits
from pilotlight.errors import InvalidInput
from registry.domain.model import ModelSpec
from registry.domain.pod import (
    IMPORTED,
    MEASURED_FIELDS,
    PairFactor,
    Profile,
    ProfilePoint,
    ShareFactor,
)

_MAX_SHOWN = 200
_Rows = Annotated[int, Field(ge=1, le=1_000_000)]
_Bytes = Annotated[int, Field(ge=0, lt=2**63)]
_Factor = Annotated[float, Field(ge=1, le=1e6)]
_Percentage = Annotated[float, Field(ge=0, le=100)]
_Name = Annotated[str, Field(min_length=1, max_length=200, pattern=r"\S")]


class _Object(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class _Point(_Object):
    rows: _Rows
    latency_s: float = Field(ge=1e-9)
    rows_per_s: Any = None
    """Of earlier versions, as the other fields of type Any; it follows from the others."""
    memory_bytes: _Bytes | None = None
    throughput_rps: float | None = Field(None, ge=0)
    reserved_pct: _Percentage | None = None
    occupancy_pct: _Percentage | None = None
    mean_occupancy_pct: _Percentage | None = None
    sm_utilization_pct: _Percentage | None = None
    cpu_s: float | None = Field(None, ge=0)


class _Share(_Object):
    share_pct: float = Field(ge=1, le=100)
    rows: _Rows
    factor: _Factor


class _Pair(_Object):
    neighbour: _Name
    factor: _Factor


class _Profile(_Object):
    model_config = ConfigDict(extra="allow")  # the fits of plug-ins, by plug-in

    accelerator: _Name
    accelerator_memory_bytes: Any = None
    source: _Name = IMPORTED
    limited_by: Literal["", "throughput", "memory", "size"] = ""
    points: list[_Point] = Field(min_length=1)
    shares: list[_Share] = []
    pairs: list[_Pair] = []


class _File(_Object):
    pilotlight_profiles: Literal[1] = 1
    model: Any = None
    generation: str = ""
    weights_bytes: Any = None
    profiles: list[_Profile] = Field(min_length=1)


def profiles_document(spec: ModelSpec, profiles: Sequence[Profile]) -> dict[str, Any]:
    return {
        "pilotlight_profiles": 1,
        "model": str(spec.name),
        "generation": spec.generation,
        "profiles": [
            {
                "accelerator": profile.product,
                "source": profile.source,
                "limited_by": profile.limited_by,
                "points": [_point_document(point) for point in profile.points],
                **({"shares": [asdict(each) for each in profile.shares]} if profile.shares else {}),
                **({"pairs": [asdict(each) for each in profile.pairs]} if profile.pairs else {}),
                **profile.fits,
            }
            for profile in profiles
        ],
    }


def _point_document(point: ProfilePoint) -> dict[str, Any]:
    """What not every pod measures is written where it was measured."""
    return {
        name: value
        for name, value in asdict(point).items()
        if value is not None or name not in MEASURED_FIELDS
    }


def parse_profiles(text: str, spec: ModelSpec, *, file: str) -> list[Profile]:
    """The profiles in a file, for this generation; raises InvalidInput with the mistakes.

    A file of another generation is refused: its weights differ. A profile without a source is
    `imported`.
    """
    try:
        read = _File.model_validate(orjson.loads(text))
    except orjson.JSONDecodeError as error:
        raise InvalidInput([f"{file}: not JSON: {error}"]) from None
    except ValidationError as error:
        raise InvalidInput([_problem(each, file) for each in error.errors()]) from None
    problems = []
    if read.generation not in ("", spec.generation):
        problems.append(
            f"generation must be {spec.generation}, that of {spec.name}, was {read.generation!r}:"
            " profile the new weights"
        )
    products = [each.accelerator for each in read.profiles]
    if len(set(products)) < len(products):
        problems.append(f"profiles must hold one profile per accelerator, had {products}")
    for at, each in enumerate(read.profiles):
        rows = [point.rows for point in each.points]
        if rows != sorted(set(rows)):
            problems.append(f"profiles[{at}].points must ascend by rows, each once, was {rows}")
        problems += [f"profiles[{at}].{text}" for text in _fit_problems(each.model_extra or {})]
    if problems:
        raise InvalidInput([f"{file}: {problem}" for problem in problems])
    return [_profile(each, spec.key) for each in read.profiles]


def _problem(error: Mapping[str, Any], file: str) -> str:
    """Such as `p.json: profiles[0].points[1].rows: Field required, was null`."""
    path = "".join(f"[{at}]" if isinstance(at, int) else f".{at}" for at in error["loc"])
    shown = json.dumps(error["input"], default=repr)[:_MAX_SHOWN]
    return f"{file}: {path.removeprefix('.') or 'the file'}: {error['msg']}, was {shown}"


def _fit_problems(fits: Mapping[str, Any]) -> list[str]:
    known = profile_fits()
    return [
        f"{name} must hold all coefficients, as exported"
        if name in known
        else f"{name} is no field of a profile, and of no plug-in here"
        for name, fit in fits.items()
        if name not in known or not known[name].is_valid(fit)
    ]


def _profile(read: _Profile, key: str) -> Profile:
    return Profile(
        key,
        read.accelerator,
        tuple(ProfilePoint(**each.model_dump(exclude={"rows_per_s"})) for each in read.points),
        read.limited_by,
        read.source,
        tuple(ShareFactor(**each.model_dump()) for each in read.shares),
        tuple(PairFactor(**each.model_dump()) for each in read.pairs),
        read.model_extra or {},
    )
