"""Profiles of one model from iGniter's published measurements, and its coefficients in exports."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, Final

from autoscaler.placement.planners.igniter_coefficients import BATCHES, SHARES_PCT
from autoscaler.placement.planners.igniter_json import read_igniter
from autoscaler.placement.planners.problem import InvalidPlacementInput
from pilotlight.errors import InvalidInput
from registry.domain.codec import decode_igniter
from registry.domain.igniter import IgniterFit
from registry.domain.profile import IMPORTED, Profile, ProfilePoint, ShareFactor

if TYPE_CHECKING:
    from registry.domain.model import ModelSpec

_LATENCY: Final = "gpulatency"
_SOURCE: Final = "imported: iGniter's measurements, times of the accelerator alone"


def is_igniter_file(text: str) -> bool:
    """Whether the text is JSON as iGniter publishes it."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(document, dict) and isinstance(document.get("hardware"), dict)


def parse_igniter_file(text: str, spec: ModelSpec, *, file: str, product: str) -> list[Profile]:
    """The model's measurements: batches, shares and coefficients; raises InvalidInput.

    `product`: of the accelerator, which the file does not name.
    """
    problems = []
    if not product.strip():
        problems.append(
            f"--accelerator must name the product that {file} was measured on, such as 'NVIDIA L4'"
        )
    try:
        known = read_igniter(text, kind=product, file=file)
    except InvalidPlacementInput as error:
        raise InvalidInput([*problems, *error.problems]) from error
    name = next((each for each in (str(spec.name), spec.name.name) if each in known.models), None)
    if name is None:
        models = ", ".join(sorted(known.models)) or "none"
        problems.append(f"{file}: has no measurements of {spec.name.name}; its models: {models}")
    if problems or name is None:
        raise InvalidInput(problems)
    table_ms = json.loads(text)[name][_LATENCY]
    points = tuple(
        ProfilePoint(size, row[-1] / 1000) for size, row in zip(BATCHES, table_ms, strict=True)
    )
    shares = tuple(
        ShareFactor(share, size, max(1.0, ms / row[-1]))
        for size, row in zip(BATCHES, table_ms, strict=True)
        for share, ms in zip(SHARES_PCT[:-1], row, strict=False)
    )
    fit = IgniterFit(known.models[name], known.hardware, _SOURCE)
    return [
        Profile(spec.key, product, points, source=IMPORTED, shares=tuple(sorted(shares)),
                igniter=fit)
    ]  # fmt: skip


def read_fit(stored: Any) -> IgniterFit | None:
    """The coefficients of an exported profile; None if a field is missing or no number."""
    try:
        fit = decode_igniter(stored)
        model, hardware = fit.model, fit.hardware
        numbers = [*model.k, *model.power, *model.l2, model.idle_ms, model.cache_slope,
                   model.kernels, model.input_bytes, model.output_bytes, hardware.power_cap_w,
                   hardware.idle_power_w, hardware.frequency_slope, hardware.idle_slope_ms,
                   hardware.idle_offset_ms]  # fmt: skip
        positive = (
            hardware.max_frequency_mhz, hardware.share_step_pct, hardware.bandwidth_bytes_per_ms,
        )  # fmt: skip
        is_valid = all(map(math.isfinite, numbers)) and all(
            0 < each < math.inf for each in positive
        )
    except (TypeError, LookupError, AttributeError):
        return None
    sizes = len(model.k), len(model.power), len(model.l2)
    return fit if is_valid and sizes == (5, 2, 2) and isinstance(fit.source, str) else None
