"""Runs the platform that `up` starts, detached or in the foreground; prints where its parts are."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from pilotlight.commands.apply import print_applied, put_declared
from pilotlight.commands.target import PlatformTarget
from pilotlight.output import ProgressReporter, progress_bar
from pilotlight.platform.supervisor import log_to_file, start_detached, supervise

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pilotlight.commands.apply import Declared
    from pilotlight.output import Output
    from pilotlight.platform.platform import Platform
    from pilotlight.platform.settings import PlatformSettings
    from pilotlight.state_dir import PlatformState


def run_detached(settings: PlatformSettings, output: Output, specs: Sequence[Declared]) -> None:
    with progress_bar("platform") as update:
        state = start_detached(settings, update)
    _print_ready(output, state)
    if specs:
        asyncio.run(_apply(PlatformTarget(settings.state_dir), output, specs))


async def _apply(target: PlatformTarget, output: Output, specs: Sequence[Declared]) -> None:
    async with target.registry() as registry:
        outcomes = await put_declared(registry, specs)
        has_server = (await registry.cluster()).has_server
    if output.as_json:
        _note_applied(output, specs, outcomes)
    else:
        print_applied(output, specs, outcomes, has_server=has_server)


def _note_applied(output: Output, specs: Sequence[Declared], outcomes: Sequence[str]) -> None:
    for spec, outcome in zip(specs, outcomes, strict=True):
        output.note(f"{spec.name} {outcome}")


def run_in_foreground(
    settings: PlatformSettings, output: Output, specs: Sequence[Declared]
) -> None:
    log_to_file(settings)
    started_s = time.monotonic()
    reporter = ProgressReporter(output)

    async def on_ready(platform: Platform) -> None:
        reporter.close_bar()
        _print_ready(output, platform.state)
        if specs:
            _note_applied(output, specs, await put_declared(platform.cluster.registry, specs))
        output.note(f"Ready after {time.monotonic() - started_s:.1f} s. Ctrl-C stops everything.")

    try:
        asyncio.run(supervise(settings, on_progress=reporter.on_progress, on_ready=on_ready))
    finally:
        reporter.close_bar()
    output.note("stopped")


def _print_ready(output: Output, state: PlatformState) -> None:
    output.result(
        {
            "gateway": state.gateway,
            "pid": state.pid,
            "redis_url": state.redis_url,
            "pool": state.pool,
            "s3_endpoint": state.s3_endpoint,
            "autoscaler_metrics": state.autoscaler_metrics,
            "pods": list(state.pods),
        },
        [
            f"gateway       {state.gateway}",
            f"console       {state.gateway}/console",
            f"registry      {state.redis_url}",
            f"object store  {state.s3_endpoint or 'none'}",
            f"pods          {len(state.pods)}",
            f"autoscaler    {state.autoscaler_metrics or 'none'}",
            f"supervisor    pid {state.pid}",
        ],
    )
