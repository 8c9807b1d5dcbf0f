"""Reads iGniter's published measurements: one JSON object of `hardware` and a key per model."""

from __future__ import annotations

import json
import math
from typing import Any, Final

from autoscaler.placement.planners.igniter_coefficients import (
    BATCHES,
    SHARES_PCT,
    HardwareMeasurements,
    ModelMeasurements,
    Table,
    fit_hardware,
    fit_model,
)
from autoscaler.placement.planners.problem import InvalidPlacementInput, KindCoefficients

_HARDWARE: Final = "hardware"


def read_igniter(text: str, *, kind: str, file: str) -> KindCoefficients:
    """Coefficients fitted to the measurements; raises InvalidPlacementInput with all mistakes."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidPlacementInput([f"{file}: not JSON: {error}"]) from None
    if not isinstance(document, dict) or _HARDWARE not in document:
        raise InvalidPlacementInput([f"{file}: must be an object with `{_HARDWARE}` and models"])
    reader = _Reader(file)
    hardware = reader.hardware(document[_HARDWARE])
    models = {
        name: reader.model(content, name) for name, content in document.items() if name != _HARDWARE
    }
    if reader.problems:
        raise InvalidPlacementInput(reader.problems)
    return KindCoefficients(
        kind, fit_hardware(hardware),
        {name: fit_model(measured, hardware) for name, measured in sorted(models.items())},
    )  # fmt: skip


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
