"""One compressed trace on a platform with one pod, under one loading policy of its autoscaler."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from load.experiments.prewarm.live import PACE, SAMPLE, live_value
from load.generator.output_file import claimed_output
from load.generator.run import play, prepare
from load.generator.settings import RunSettings
from load.report.run_file import read_run
from pilotlight.demo.workloads import declare
from pilotlight.platform.settings import AutoscalerChoice
from pilotlight.samples import BUCKET
from registry.domain.model import ModelName, ModelSpec
from registry.redis.autoscaler_log import AutoscalerLog

if TYPE_CHECKING:
    from pathlib import Path

    import httpx

    from load.experiments.prewarm.live import Slice
    from load.report.run import Run
    from pilotlight.platform.platform import Platform
    from pilotlight.platform.settings import PlatformSettings

_SLOTS = 16
_READY_S = 60.0


def prewarming_settings(
    settings: PlatformSettings, piece: Slice, policy: str, value: float
) -> PlatformSettings:
    """One pod with room for every model, and an autoscaler that plans at the trace's pace."""
    model_bytes = model_size(settings)
    pod = replace(
        settings.pod,
        slots=_SLOTS,
        memory_bytes=2 * model_bytes * (len(piece.models()) + 1),
        allow_simulated_work=False,
    )
    choice = AutoscalerChoice(
        loading=policy,
        loading_value=live_value(policy, value, model_bytes),
        pace=PACE,
        forecast_every_s=60.0 / PACE,
    )
    return replace(settings, pods=1, pod=pod, autoscaler=choice)


def model_size(settings: PlatformSettings) -> int:
    """Bytes of the sample's weights."""
    folder = settings.objects / BUCKET / SAMPLE
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


async def play_slice(
    platform: Platform, client: httpx.AsyncClient, piece: Slice, output: Path
) -> Run:
    """Declare the models, wait until the autoscaler plans, play, and read the records."""
    specs = [
        ModelSpec(ModelName("default", each), f"s3://{BUCKET}/{SAMPLE}") for each in piece.models()
    ]
    await declare(platform, client, specs)
    await _until_planned(platform)
    prepared = await prepare(RunSettings(piece.compressed, platform.gateway_url, seed=1))
    with claimed_output(output, overwrite=True):
        await play(prepared, output, stop=asyncio.Event(), on_progress=lambda _: None)
    found = read_run(output, output.stem)
    return replace(found, about={**found.about, "model_bytes": model_size(platform.settings)})


async def _until_planned(platform: Platform) -> None:
    """An autoscaler leads."""
    autoscaling = AutoscalerLog(platform.registry)
    async with asyncio.timeout(_READY_S):
        while (await autoscaling.records()).leader is None:  # noqa: ASYNC110 - it is not published
            await asyncio.sleep(0.05)
