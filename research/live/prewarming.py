"""A compressed trace on a platform with one pod, under one loading policy of its autoscaler."""

import asyncio
from dataclasses import replace
from pathlib import Path

from load.generator.records import claimed_output
from load.generator.run import prepare, run_trace
from load.generator.settings import RunSettings
from load.report.run import Run
from load.report.run_file import read_run
from pilotlight.platform.settings import PlatformSettings
from pilotlight.sample_models import BUCKET
from registry.domain.model import ModelName, ModelSpec
from registry.redis.client import Registry
from registry.redis.reports import AutoscalerLog
from research.demo.session import LiveSession
from research.experiments.prewarm.live_slice import PACE, SAMPLE, TraceSlice, live_value

_SLOTS = 16
_READY_TIMEOUT_S = 60.0


def prewarming_settings(
    settings: PlatformSettings, trace_slice: TraceSlice, policy: str, value: float
) -> PlatformSettings:
    """One pod with memory for every model, and an autoscaler with the trace's time scale."""
    model_bytes = _model_bytes(settings)
    pod = {
        **settings.pod,
        "slots": _SLOTS,
        "memory_bytes": 2 * model_bytes * (len(trace_slice.models()) + 1),
        "allow_simulated_work": False,
    }
    autoscaler = {
        "loading": policy,
        "loading_value": live_value(policy, value, model_bytes),
        "pace": PACE,
    }
    return replace(settings, pods=1, pod=pod, autoscaler=autoscaler)


def _model_bytes(settings: PlatformSettings) -> int:
    folder = settings.objects / BUCKET / SAMPLE
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


async def play_slice(session: LiveSession, trace_slice: TraceSlice, output: Path) -> Run:
    """Create the models, wait until the autoscaler plans, play the trace, read its records."""
    specs = [
        ModelSpec(ModelName("default", each), f"s3://{BUCKET}/{SAMPLE}")
        for each in trace_slice.models()
    ]
    await session.create_models(specs)
    await _wait_leader(session.platform.cluster.registry)
    prepared = await prepare(
        RunSettings(trace_slice.compressed, session.platform.gateway_url, seed=1)
    )
    with claimed_output(output, overwrite=True):
        await run_trace(prepared, output, stop=asyncio.Event(), on_progress=lambda _: None)
    found = read_run(output, output.stem)
    model_bytes = _model_bytes(session.platform.settings)
    return replace(found, metadata={**found.metadata, "model_bytes": model_bytes})


async def _wait_leader(registry: Registry) -> None:
    """Return when an autoscaler is the leader."""
    log = AutoscalerLog(registry)
    async with asyncio.timeout(_READY_TIMEOUT_S):
        while (await log.records()).leader is None:  # noqa: ASYNC110 - it is not published
            await asyncio.sleep(0.05)
