"""The files of `pilotlight place`: profiles in three forms, and rates.

Models are named as in `predict`: those of the namespace `default` by their name alone.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import orjson

from autoscaler.placement.planners.problem import (
    InvalidPlacementInput,
    ModelFits,
    ModelProfile,
    Profiles,
    Workload,
    model_profile,
    profile_problems,
    slowed_pairs,
)
from autoscaler.placement.planners.profile_fit import profile_fits
from pilotlight.errors import InvalidInput
from registry.domain.model import ModelSpec
from registry.domain.pod import (
    IMPORTED,
    PLACEMENT_FIELDS,
    PairFactor,
    Profile,
    ProfilePoint,
    ShareFactor,
)
from research.placement.profile_csv import read_profiles, read_workloads

_VERSION: Final = 1
_MAX_ROWS: Final = 1_000_000
_MAX_TEXT: Final = 200
_FILE_FIELDS: Final = ("pilotlight_profiles", "model", "generation", "weights_bytes", "profiles")
_PROFILE_FIELDS: Final = (
    "accelerator",
    "accelerator_memory_bytes",
    "source",
    "limited_by",
    "points",
    "shares",
    "pairs",
)
_POINT_FIELDS: Final = ("rows", "latency_s", "rows_per_s", "memory_bytes", *PLACEMENT_FIELDS)
_SHARE_FIELDS: Final = ("share_pct", "rows", "factor")
_PAIR_FIELDS: Final = ("neighbour", "factor")
_MAX_FACTOR: Final = 1e6
_LIMITS: Final = ("", "throughput", "memory", "size")


@dataclass(frozen=True, slots=True)
class ExportedProfile:
    """A profile and what a plan needs beside it."""

    model: str
    profile: Profile
    weights_bytes: int
    """0: unknown."""
    memory_bytes: int
    """Of the accelerator; 0: unknown."""


def profiles_document(
    spec: ModelSpec,
    profiles: Sequence[Profile],
    *,
    weights_bytes: int = 0,
    memory_bytes: Mapping[str, int] = MappingProxyType({}),
) -> dict[str, Any]:
    """The profiles of one model generation as a JSON document.

        {"pilotlight_profiles": 1, "model": "default/translate", "generation": "0a1b2c3d4e",
         "weights_bytes": 242041896,
         "profiles": [{"accelerator": "NVIDIA H200", "accelerator_memory_bytes": 150754820096,
                       "source": "measured", "limited_by": "throughput",
                       "points": [{"rows": 1, "latency_s": 0.01, "rows_per_s": 100.0,
                                   "memory_bytes": 1048576}]}]}

    `rows` is the batch size, `memory_bytes` the memory of an inference without the weights.
    Required are `profiles`, `accelerator`, `points`, `rows` and `latency_s`. Points measured for
    placement also have `PLACEMENT_FIELDS`, and profiles the slowdowns `shares` (`share_pct`,
    `rows`, `factor`) and `pairs` (`neighbour`, `factor`), and a plug-in's fit under its name.
    Argument `memory_bytes`: of accelerators by product.
    """
    return {
        "pilotlight_profiles": _VERSION,
        "model": str(spec.name),
        "generation": spec.generation,
        **({"weights_bytes": weights_bytes} if weights_bytes else {}),
        "profiles": [
            {
                "accelerator": profile.product,
                **(
                    {"accelerator_memory_bytes": found}
                    if (found := memory_bytes.get(profile.product))
                    else {}
                ),
                "source": profile.source,
                "limited_by": profile.limited_by,
                "points": [
                    {
                        "rows": point.rows,
                        "latency_s": point.latency_s,
                        "rows_per_s": round(point.rows_per_s, 2),
                        "memory_bytes": point.memory_bytes,
                        **{
                            name: value
                            for name in PLACEMENT_FIELDS
                            if (value := getattr(point, name)) is not None
                        },
                    }
                    for point in profile.points
                ],
                **({"shares": [asdict(each) for each in profile.shares]} if profile.shares else {}),
                **({"pairs": [asdict(each) for each in profile.pairs]} if profile.pairs else {}),
                **profile.fits,
            }
            for profile in profiles
        ],
    }


def parse_profiles(text: str, spec: ModelSpec, *, file: str) -> list[Profile]:
    """The profiles in a file, for this generation; raises InvalidInput with every mistake.

    A file of another generation is refused: its weights differ. A profile without a source is
    `imported`.
    """
    reader = _Reader(file)
    exported = reader.read(_json(text, file), spec)
    if reader.problems:
        raise InvalidInput(reader.problems)
    return [each.profile for each in exported]


def parse_exported(text: str, *, file: str) -> list[ExportedProfile]:
    """The profiles in a file of any model; raises InvalidInput with every mistake."""
    reader = _Reader(file)
    exported = reader.read(_json(text, file), None)
    if reader.problems:
        raise InvalidInput(reader.problems)
    return exported


def _json(text: str, file: str) -> Any:
    try:
        document = json.loads(text)
        orjson.dumps(document)  # refuses what the registry cannot store, such as 70-bit integers
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidInput([f"{file}: not JSON: {error}"]) from None
    return document


def parse_profile_csv(text: str, spec: ModelSpec, *, file: str, product: str) -> list[Profile]:
    """The model's rows of a CSV file for placement, without uncertain ones.

    `product`: of the accelerator, where the file has no such column. Raises InvalidInput.
    """
    try:
        known = read_profiles(text.splitlines(), kind=product, file=file)
        problems = [each for profile in known for each in profile_problems(profile)]
    except InvalidPlacementInput as error:
        raise InvalidInput(error.problems) from error
    mine = [each for each in known if each.model in (spec.name.name, str(spec.name))]
    if not mine:
        models = ", ".join(sorted({each.model for each in known})) or "none"
        problems.append(f"{file}: has no rows of {spec.name.name}; its models: {models}")
    problems += [problem for each in mine for problem in _no_product(each.kind, file)]
    if problems:
        raise InvalidInput(problems)
    return [
        Profile(
            spec.key,
            each.kind,
            tuple(
                ProfilePoint(
                    point.batch_size,
                    point.latency_s,
                    None,
                    point.throughput_rps,
                    point.memory_pct,
                    point.occupancy_pct,
                    point.mean_occupancy_pct,
                    point.sm_utilization_pct,
                )
                for point in each.points
            ),
            source=IMPORTED,
        )
        for each in mine
    ]


def parse_fitted(text: str, *, file: str, product: str) -> list[Profile] | None:
    """The profiles of a plug-in's format, by the names of models; None: it is of none.

    Raises InvalidInput.
    """
    try:
        for each in profile_fits().values():
            if (found := each.read(text, product, file)) is not None:
                return found
    except InvalidPlacementInput as error:
        raise InvalidInput([*_no_product(product, file), *error.problems]) from error
    return None


def imported(found: Sequence[Profile], spec: ModelSpec, *, file: str, product: str) -> Profile:
    """The model's own of the profiles in a file. Raises InvalidInput."""
    problems = _no_product(product, file)
    named = {each.key: each for each in found}
    mine = named.get(str(spec.name)) or named.get(spec.name.name)
    if mine is None:
        models = ", ".join(sorted(named)) or "none"
        problems.append(f"{file}: has no measurements of {spec.name.name}; its models: {models}")
    if problems or mine is None:
        raise InvalidInput(problems)
    return replace(mine, key=spec.key)


def _no_product(product: str, file: str) -> list[str]:
    if product.strip():
        return []
    return [f"--accelerator must name the product that {file} was measured on, such as 'NVIDIA L4'"]


class _Reader:
    """Reads one file and collects all problems in it."""

    def __init__(self, file: str) -> None:
        self._file = file
        self.problems: list[str] = []

    def read(self, document: Any, spec: ModelSpec | None) -> list[ExportedProfile]:
        """`spec`: of the model that the file must be of; None: of whichever it names."""
        content = self._object(document, "the file", _FILE_FIELDS)
        version = content.get("pilotlight_profiles", _VERSION)
        if version != _VERSION:
            self._refuse("pilotlight_profiles", f"must be {_VERSION}", version)
        model = content.get("model")
        if spec is None:
            if not (isinstance(model, str) and model.strip()):
                self._refuse("model", "must be a model's name", model)
            key = str(model)
        else:
            key, generation = spec.key, content.get("generation", spec.generation)
            if generation != spec.generation:
                allowed = f"must be {spec.generation}, that of {spec.name}: profile the new weights"
                self._refuse("generation", allowed, generation)
        weights_bytes = self._bytes(content, "weights_bytes", "")
        listed = self._list(content, "profiles", "")
        profiles = [
            ExportedProfile(
                str(model),
                self._profile(each, f"profiles[{at}]", key),
                weights_bytes,
                self._bytes(each, "accelerator_memory_bytes", f"profiles[{at}]."),
            )
            for at, each in enumerate(listed)
        ]
        products = [each.profile.product for each in profiles]
        for product in sorted({each for each in products if products.count(each) > 1}):
            self._refuse("profiles", "must hold one profile per accelerator", product)
        return profiles

    def _profile(self, value: Any, at: str, key: str) -> Profile:
        known = profile_fits()
        content = self._object(value, at, (*_PROFILE_FIELDS, *known))
        product, source = content.get("accelerator"), content.get("source", IMPORTED)
        for name, text in (("accelerator", product), ("source", source)):
            if not isinstance(text, str) or not 0 < len(text.strip()) <= _MAX_TEXT:
                self._refuse(f"{at}.{name}", f"must be a text of 1 to {_MAX_TEXT} letters", text)
        limited_by = content.get("limited_by", "")
        if limited_by not in _LIMITS:
            allowed = ", ".join(repr(each) for each in _LIMITS)
            self._refuse(f"{at}.limited_by", f"must be one of {allowed}", limited_by)
        listed = self._list(content, "points", f"{at}.")
        points = [self._point(each, f"{at}.points[{row}]") for row, each in enumerate(listed)]
        rows = [point.rows for point in points]
        if rows != sorted(set(rows)):
            self._refuse(f"{at}.points", "must ascend by rows, each size once", rows)
        shares = tuple(
            ShareFactor(
                self._number(each, "share_pct", where, 1, 100),
                int(self._number(each, "rows", where, 1, _MAX_ROWS)),
                self._number(each, "factor", where, 1, _MAX_FACTOR),
            )
            for each, where in self._factors(content, "shares", at, _SHARE_FIELDS)
        )
        pairs = tuple(
            PairFactor(
                str(each.get("neighbour")), self._number(each, "factor", where, 1, _MAX_FACTOR)
            )
            for each, where in self._factors(content, "pairs", at, _PAIR_FIELDS)
        )
        fits = {name: content[name] for name in known if content.get(name) is not None}
        for name, fit in fits.items():
            if not known[name].is_valid(fit):
                self._refuse(f"{at}.{name}", "must hold all coefficients, as exported", fit)
        return Profile(
            key, str(product), tuple(points), str(limited_by), str(source), shares, pairs, fits
        )

    def _bytes(self, content: Any, name: str, prefix: str) -> int:
        value = content.get(name, 0) if isinstance(content, dict) else 0
        if type(value) is int and value >= 0:
            return value
        self._refuse(f"{prefix}{name}", "must be bytes, 0 or more", value)
        return 0

    def _factors(
        self, content: dict[str, Any], name: str, at: str, allowed: Sequence[str]
    ) -> list[tuple[dict[str, Any], str]]:
        """The objects of an optional list, and where they are."""
        listed = self._list(content, name, f"{at}.") if name in content else []
        places = [f"{at}.{name}[{row}]" for row in range(len(listed))]
        return [
            (self._object(each, where, allowed), where)
            for each, where in zip(listed, places, strict=True)
        ]

    def _number(
        self, content: dict[str, Any], name: str, at: str, low: float, high: float
    ) -> float:
        value: Any = content.get(name)
        if type(value) in (int, float) and low <= value <= high:
            return float(value)
        self._refuse(f"{at}.{name}", f"must be a number from {low:g} to {high:g}", value)
        return low

    def _point(self, value: Any, at: str) -> ProfilePoint:
        content = self._object(value, at, _POINT_FIELDS)
        rows, memory_bytes = content.get("rows"), content.get("memory_bytes")
        latency_s: Any = content.get("latency_s")
        if type(rows) is not int or not 1 <= rows <= _MAX_ROWS:
            self._refuse(f"{at}.rows", f"must be an integer from 1 to {_MAX_ROWS}", rows)
            rows = 1
        if (
            type(latency_s) not in (int, float)
            or not 0 < latency_s < math.inf
            or math.isinf(rows / latency_s)
        ):
            self._refuse(f"{at}.latency_s", "must be a positive number of seconds", latency_s)
            latency_s = 1.0
        if memory_bytes is not None and (type(memory_bytes) is not int or memory_bytes < 0):
            self._refuse(f"{at}.memory_bytes", "must be null or bytes, 0 or more", memory_bytes)
        needs = {name: self._need(content, name, at) for name in PLACEMENT_FIELDS}
        return ProfilePoint(rows, float(latency_s), memory_bytes, **needs)

    def _need(self, content: dict[str, Any], name: str, at: str) -> float | None:
        value = content.get(name)
        if value is None:
            return None
        highest = 100 if name.endswith("_pct") else math.inf
        if type(value) in (int, float) and 0 <= value <= highest and math.isfinite(value):
            return float(value)
        allowed = "must be a percentage" if highest == 100 else "must be a rate of 0 or more"
        self._refuse(f"{at}.{name}", allowed, value)
        return None

    def _object(self, value: Any, at: str, allowed: Sequence[str]) -> dict[str, Any]:
        if not isinstance(value, dict):
            self._refuse(at, f"must be an object with {', '.join(allowed)}", value)
            return {}
        for name in value:
            if name not in allowed:
                self._refuse(at, f"may hold {', '.join(allowed)}", name)
        return value

    def _list(self, content: dict[str, Any], name: str, prefix: str) -> list[Any]:
        value = content.get(name)
        if isinstance(value, list) and value:
            return value
        self._refuse(f"{prefix}{name}", "must be a list that is not empty", value)
        return []

    def _refuse(self, at: str, allowed: str, value: object) -> None:
        shown = json.dumps(value, default=repr)
        self.problems.append(f"{self._file}: {at} {allowed}, was {shown[:_MAX_TEXT]}")


_DEFAULT = "default/"


def read_profile_files(files: Sequence[Path], kind: str, problems: list[str]) -> Profiles:
    """All files together; `kind`: of the accelerator, where a file does not say. Adds problems."""
    models: list[ModelProfile] = []
    fits: list[ModelFits] = []
    exported: list[ExportedProfile] = []
    for file in files:
        lines = _lines(file, problems)
        if lines is None:
            continue
        try:
            if file.suffix != ".json":
                models += [
                    replace(each, model=_short(each.model))
                    for each in read_profiles(lines, kind=kind, file=str(file))
                ]
            elif fitted := parse_fitted("\n".join(lines), file=str(file), product=kind):
                fits += [ModelFits(_short(each.key), kind, each.fits) for each in fitted]
            else:
                exported += parse_exported("\n".join(lines), file=str(file))
        except (InvalidPlacementInput, InvalidInput) as error:
            problems += error.problems
    return Profiles(
        tuple(models + [_model(each) for each in exported]),
        slowed_pairs(
            (_short(each.model), _short(pair.neighbour), pair.factor)
            for each in exported
            for pair in each.profile.pairs
        ),
        (*fits, *_fits(exported)),
    )


def read_rates_file(file: Path, problems: list[str]) -> list[Workload]:
    """Adds problems."""
    lines = _lines(file, problems)
    if lines is None:
        return []
    try:
        workloads = read_workloads(lines, file=str(file))
    except InvalidPlacementInput as error:
        problems += error.problems
        return []
    return [replace(each, model=_short(each.model)) for each in workloads]


def _short(model: str) -> str:
    return model.removeprefix(_DEFAULT)


def _model(exported: ExportedProfile) -> ModelProfile:
    return model_profile(
        _short(exported.model),
        exported.profile,
        weights_bytes=exported.weights_bytes,
        memory_bytes=exported.memory_bytes,
    )


def _fits(exported: Sequence[ExportedProfile]) -> list[ModelFits]:
    return [
        ModelFits(_short(each.model), each.profile.product, each.profile.fits)
        for each in exported
        if each.profile.fits
    ]


def _lines(path: Path, problems: list[str]) -> list[str] | None:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeError) as error:
        problems.append(f"{path} cannot be read: {error}")
        return None
