"""Measurements as iGniter publishes them, and profiles with what is fitted to them."""

import json
from typing import Any

from autoscaler.placement.problem import ModelFits, Profiles
from registry.domain.pod import Profile
from research.placement.igniter_file import igniter_profiles
from research.placement.igniter_fit import BATCHES, SHARES_PCT
from research.placement.igniter_model import KindCoefficients, kind_coefficients


def fitted(*profiles: Profile) -> Profiles:
    return Profiles((), fits=tuple(ModelFits(p.key, p.product, p.fits) for p in profiles))


def measured(document: dict[str, Any] | str, kind: str) -> Profiles:
    """As read from a file of measurements."""
    text = document if isinstance(document, str) else json.dumps(document)
    profiles = igniter_profiles(text, kind, "igniter.json")
    assert profiles is not None
    return fitted(*profiles)


def coefficients(profiles: Profiles, kind: str) -> KindCoefficients:
    found = kind_coefficients(profiles, kind)
    assert found is not None
    return found


def igniter_document() -> dict[str, Any]:
    """A GPU that slows down from three co-located models on, and a small and a large model."""

    def model(scale: float) -> dict[str, Any]:
        latency = [
            [scale * (20 + 10 * batch) / (share + 2) + 0.5 for share in SHARES_PCT]
            for batch in BATCHES
        ]
        return {
            "gpulatency": latency,
            "power": [[90.0, 120.0, 150.0]] * 3,
            "frequency": [[1000.0] * 3] * 3,
            "l2caches": [2.0, 8.0, 14.0],
            "idletime_1": 0.05,
            "activetime_1": 10.0,
            "activetime_2": 11.0,
            "frequency_2": 1000.0,
            "l2cache": 20.0,
            "kernel": 50,
            "inputdata": 600_000,
            "outputdata": 4_000,
        }

    return {
        "hardware": {
            "idlepower": 50.0,
            "maxGPUpower": 300,
            "maxGPUfrequency": 1000,
            "power": [100.0, 180.0, 260.0, 300.0, 300.0],
            "frequency": [1000.0, 1000.0, 1000.0, 960.0, 880.0],
            "idletime": [0.001, 0.002, 0.004, 0.006, 0.008],
            "unit": 2.5,
            "bandwidth": 10_000_000,
        },
        "small": model(1.0),
        "large": model(8.0),
    }
