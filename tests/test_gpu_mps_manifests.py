"""The component `gpu-mps`, rendered: what pods and autoscaler read, and where pods run."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

import pytest

from autoscaler.service.settings import AutoscalerSettings
from registry.settings_table import read_settings
from runtime.settings import RuntimeSettings
from tests.rendered import kustomized

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.rendered import OBJECTS


@pytest.fixture(scope="module", params=["minimal", "production"])
def rendered(request: pytest.FixtureRequest) -> OBJECTS:
    return kustomized("gpu-mps", overlay=request.param)


def environment(pod: Mapping[str, Any]) -> dict[str, str]:
    [container] = pod["containers"]
    return {each["name"]: each["value"] for each in container["env"] if "value" in each}


def test_pods_take_places_on_their_gpu_within_the_plugins_cap(rendered: OBJECTS) -> None:
    predictor = rendered["InferenceService", "pool"]["spec"]["predictor"]
    known = {f"PILOTLIGHT_{each.name.upper()}" for each in fields(RuntimeSettings)}
    given = {name: value for name, value in environment(predictor).items() if name in known}
    given |= {"PILOTLIGHT_POD_NAME": "pod-a", "PILOTLIGHT_POD_SECRET_FILE": ""}
    settings = read_settings(RuntimeSettings, [], given, prog="runtime")
    assert (settings.takes_places, settings.max_share, settings.share) == ("gpu", 25.0, 0.0)
    assert predictor["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "1"


def test_pods_run_where_gpus_are_of_the_profiled_product(rendered: OBJECTS) -> None:
    predictor = rendered["InferenceService", "pool"]["spec"]["predictor"]
    assert set(predictor["nodeSelector"]) == {"nvidia.com/gpu.product", "nvidia.com/mps.capable"}


def test_the_autoscaler_plans_placements_of_the_cluster(rendered: OBJECTS) -> None:
    autoscaler = rendered["Deployment", "pilotlight-autoscaler"]
    given = environment(autoscaler["spec"]["template"]["spec"])
    given["PILOTLIGHT_POD_SECRET_FILE"] = ""
    settings = read_settings(AutoscalerSettings, [], given, prog="autoscaler")
    assert (settings.placement, settings.kubernetes) == ("predicted-goodput", True)
