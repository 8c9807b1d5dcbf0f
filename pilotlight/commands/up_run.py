"""Runs the platform that `up` starts, detached or in the foreground; prints where its parts are."""

import asyncio
import time
from collections.abc import Sequence

from pilotlight.commands.apply import Declared, declare_and_check
from pilotlight.commands.target import PlatformTarget
from pilotlight.output import Output, ProgressReporter, progress_bar
from pilotlight.platform.platform import Platform
from pilotlight.platform.settings import PlatformSettings
from pilotlight.platform.supervisor import log_to_file, start_detached, supervise
from pilotlight.state_dir import PlatformState


def run_detached(settings: PlatformSettings, output: Output, specs: Sequence[Declared]) -> None:
    with progress_bar("platform") as update:
        state = start_detached(settings, update)
    print_ready(output, state)
    target = PlatformTarget(settings.state_dir)
    if specs:
        asyncio.run(_apply(target, output, specs))
    note_next(output, has_models=bool(asyncio.run(target.cluster()).models))


async def _apply(target: PlatformTarget, output: Output, specs: Sequence[Declared]) -> None:
    async with target.registry() as registry:
        await declare_and_check(target, registry, output, specs, is_note=output.as_json)


def run_in_foreground(
    settings: PlatformSettings, output: Output, specs: Sequence[Declared]
) -> None:
    log_to_file(settings)
    started_s = time.monotonic()
    reporter = ProgressReporter(output)

    async def on_ready(platform: Platform) -> None:
        reporter.close_bar()
        print_ready(output, platform.state)
        if specs:
            target = PlatformTarget(settings.state_dir)
            registry = platform.cluster.registry
            await declare_and_check(target, registry, output, specs, is_note=True)
        output.note(f"Ready after {time.monotonic() - started_s:.1f} s. Ctrl-C stops everything.")
        note_next(output, has_models=bool(specs or platform.cluster.state.models))

    try:
        asyncio.run(supervise(settings, on_progress=reporter.on_progress, on_ready=on_ready))
    finally:
        reporter.close_bar()
    output.note("stopped")


def print_ready(output: Output, state: PlatformState) -> None:
    output.result(
        {
            "gateway": state.gateway,
            "grpc": state.grpc or None,
            "pid": state.pid,
            "redis_url": state.redis_url,
            "pool": state.pool,
            "s3_endpoint": state.s3_endpoint,
            "autoscaler_metrics": state.autoscaler_metrics,
            "pods": list(state.pods),
        },
        [
            f"gateway       {state.gateway}",
            f"grpc          {state.grpc or 'none (--grpc-port)'}",
            f"console       {state.gateway}/console",
            f"registry      {state.redis_url}",
            f"object store  {state.s3_endpoint or 'none'}",
            f"pods          {len(state.pods)}",
            f"autoscaler    {state.autoscaler_metrics or 'none'}",
            f"supervisor    pid {state.pid}",
        ],
    )


def note_next(output: Output, *, has_models: bool) -> None:
    """What to do with a platform that has just started."""
    if has_models:
        output.note("next: pilotlight get models")
        return
    output.note("next: pilotlight apply -f manifests/samples")
    output.note("your own model, from training to answers: docs/first-model.md")
