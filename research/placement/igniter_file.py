"""iGniter's coefficients as a plug-in: of profiles, of its published measurements, simulated.

A file of measurements is one JSON object of `hardware` and a key per model.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from autoscaler.placement import ProfileFit
from autoscaler.placement.problem import InvalidPlacementInput
from registry.domain.pod import IMPORTED, Profile, ProfilePoint, ShareFactor
from research.placement.igniter_fit import (
    BATCHES,
    SHARES_PCT,
    HardwareMeasurements,
    ModelMeasurements,
    Table,
    fit_hardware,
    fit_model,
    fit_profile,
)
from research.placement.igniter_model import NAME, IgniterFit, decode_fit

_HARDWARE: Final = "hardware"
_SOURCE: Final = "imported: iGniter's measurements, times of the accelerator alone"


def igniter_profiles(text: str, kind: str, file: str) -> list[Profile] | None:
    """Batches, shares and coefficients, by the names of models; None: not JSON of iGniter's form.

    Raises InvalidPlacementInput with all mistakes.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not (isinstance(document, dict) and isinstance(document.get(_HARDWARE), dict)):
        return None
    return [
        Profile(
            name,
            kind,
            tuple(
                ProfilePoint(size, row[-1] / 1000)
                for size, row in zip(BATCHES, measured.latency_ms, strict=True)
            ),
            source=IMPORTED,
            shares=tuple(
                sorted(
                    ShareFactor(share, size, max(1.0, ms / row[-1]))
                    for size, row in zip(BATCHES, measured.latency_ms, strict=True)
                    for share, ms in zip(SHARES_PCT[:-1], row, strict=False)
                )
            ),
            fits={NAME: _stored(fit)},
        )
        for name, (measured, fit) in _fitted(document, file).items()
    ]


def _fitted(
    document: Mapping[str, Any], file: str
) -> dict[str, tuple[ModelMeasurements, IgniterFit]]:
    """By model; raises InvalidPlacementInput with all mistakes."""
    reader = _Reader(file)
    hardware = reader.hardware(document.get(_HARDWARE))
    models = {
        name: reader.model(content, name) for name, content in document.items() if name != _HARDWARE
    }
    if reader.problems:
        raise InvalidPlacementInput(reader.problems)
    coefficients = fit_hardware(hardware)
    return {
        name: (measured, IgniterFit(fit_model(measured, hardware), coefficients, _SOURCE))
        for name, measured in sorted(models.items())
    }


def _fit(profile: Profile, neighbour_used_pct: Mapping[str, float]) -> dict[str, Any] | None:
    found = fit_profile(profile, neighbour_used_pct)
    return None if found is None else _stored(found)


def _stored(fit: IgniterFit) -> dict[str, Any]:
    """Without tuples: as it is read again."""
    stored: dict[str, Any] = json.loads(json.dumps(asdict(fit)))
    return stored


def is_fit(stored: Any) -> bool:
    """Whether no field of an exported fit is missing or no number."""
    try:
        fit = decode_fit(stored)
        model, hardware = fit.model, fit.hardware
        numbers = [
            *model.k,
            *model.power,
            *model.l2,
            model.idle_ms,
            model.cache_slope,
            model.kernels,
            model.input_bytes,
            model.output_bytes,
            hardware.power_cap_w,
            hardware.idle_power_w,
            hardware.frequency_slope,
            hardware.idle_slope_ms,
            hardware.idle_offset_ms,
        ]
        positive = (
            hardware.max_frequency_mhz,
            hardware.share_step_pct,
            hardware.bandwidth_bytes_per_ms,
        )
        is_valid = all(map(math.isfinite, numbers)) and all(
            0 < each < math.inf for each in positive
        )
    except (TypeError, LookupError, AttributeError):
        return False
    sizes = len(model.k), len(model.power), len(model.l2)
    return is_valid and sizes == (5, 2, 2) and isinstance(fit.source, str)


FIT: Final = ProfileFit("iGniter's coefficients", _fit, is_fit)


class _Reader:
    """Collects all mistakes of one file."""

    def __init__(self, file: str) -> None:
        self._file = file
        self.problems: list[str] = []

    def hardware(self, content: Any) -> HardwareMeasurements:
        return HardwareMeasurements(
            self._number(content, "maxGPUpower", _HARDWARE),
            self._number(content, "idlepower", _HARDWARE),
            self._number(content, "maxGPUfrequency", _HARDWARE),
            self._row(content, "power", _HARDWARE),
            self._row(content, "frequency", _HARDWARE),
            self._row(content, "idletime", _HARDWARE),
            self._number(content, "unit", _HARDWARE),
            self._number(content, "bandwidth", _HARDWARE),
        )

    def model(self, content: Any, name: str) -> ModelMeasurements:
        return ModelMeasurements(
            self._table(content, "gpulatency", name),
            self._table(content, "power", name),
            self._table(content, "frequency", name),
            self._row(content, "l2caches", name, len(BATCHES)),
            self._number(content, "idletime_1", name),
            self._number(content, "activetime_1", name),
            self._number(content, "activetime_2", name),
            self._number(content, "frequency_2", name),
            self._number(content, "l2cache", name),
            int(self._number(content, "kernel", name)),
            self._number(content, "inputdata", name),
            self._number(content, "outputdata", name),
        )

    def _number(self, content: Any, key: str, at: str) -> float:
        value = content.get(key) if isinstance(content, dict) else None
        if isinstance(value, int | float) and math.isfinite(value) and value > 0:
            return float(value)
        self._refuse(f"{at}.{key}", "must be a positive number", value)
        return 1.0

    def _row(self, content: Any, key: str, at: str, length: int = 5) -> tuple[float, ...]:
        value = content.get(key) if isinstance(content, dict) else None
        return self._numbers(value, f"{at}.{key}", length)

    def _table(self, content: Any, key: str, at: str) -> Table:
        value = content.get(key) if isinstance(content, dict) else None
        if isinstance(value, list) and len(value) == len(BATCHES):
            return tuple(self._numbers(row, f"{at}.{key}", len(SHARES_PCT)) for row in value)
        self._refuse(f"{at}.{key}", f"must have {len(BATCHES)} rows", value)
        return ((1.0,) * len(SHARES_PCT),) * len(BATCHES)

    def _numbers(self, value: Any, at: str, length: int) -> tuple[float, ...]:
        if (
            isinstance(value, list)
            and len(value) == length
            and all(isinstance(each, int | float) and 0 < each < math.inf for each in value)
        ):
            return tuple(map(float, value))
        self._refuse(at, f"must be {length} positive numbers", value)
        return (1.0,) * length

    def _refuse(self, at: str, allowed: str, value: object) -> None:
        self.problems.append(f"{self._file}: {at} {allowed}, was {json.dumps(value)[:100]}")
