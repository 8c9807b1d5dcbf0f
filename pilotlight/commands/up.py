"""`up` and `down`: start the platform in the foreground or detached, and stop it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import time
from typing import TYPE_CHECKING

from pilotlight.commands.apply import put, read_models, tell_applied
from pilotlight.commands.target import PlatformTarget
from pilotlight.errors import AlreadyRunning, RequestFailed, StartFailed
from pilotlight.output import progress_bar
from pilotlight.platform.platform import Platform, StartProgress, describe
from pilotlight.platform.processes import python_environment, python_module
from pilotlight.platform.supervisor import log_to, supervise
from pilotlight.quantities import format_bytes
from pilotlight.samples import SAMPLES, make_samples, missing_samples

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pilotlight.output import Output
    from pilotlight.platform.settings import PlatformSettings
    from pilotlight.samples import Sample
    from pilotlight.state_dir import PlatformState, StateDir
    from registry.domain.model import ModelSpec

_STOP_S = 60.0


def up(
    settings: PlatformSettings, output: Output, *, files: Sequence[str], detach: bool,
    namespace: str | None,
) -> None:  # fmt: skip
    """Start the platform with the models in `files`; returns when it stopped, or is detached."""
    specs = read_models(files, namespace) if files else []
    if settings.home.is_locked():
        raise settings.home.already_running()
    if settings.s3 and settings.objects == settings.home.objects:  # a folder of yours stays yours
        prepare_samples(settings, output)
    if detach:
        state = _start_detached(settings)
        tell_ready(output, state)
        if specs:
            asyncio.run(_apply(PlatformTarget(settings.home), output, specs))
    else:
        _run_here(settings, output, specs)


def prepare_samples(
    settings: PlatformSettings, output: Output, wanted: Sequence[Sample] = SAMPLES
) -> None:
    """Make the sample models where they are not there yet."""
    missing = missing_samples(settings.objects, wanted)
    if not missing:
        return
    size = format_bytes(sum(sample.size_bytes for sample in missing))
    output.note(f"Sample models: {size} in {settings.objects}, once, about 15 s.")
    with progress_bar("sample models") as update:
        make_samples(settings.objects, update, wanted)


def tell_ready(output: Output, state: PlatformState) -> None:
    """Say where everything is."""
    output.result(
        describe(state),
        [
            f"gateway       {state.gateway}",
            f"registry      {state.redis_url}",
            f"object store  {state.s3_endpoint or 'none'}",
            f"pods          {len(state.pods)}",
            f"autoscaler    {state.autoscaler_metrics or 'none'}",
            f"supervisor    pid {state.pid}",
        ],
    )


async def _apply(target: PlatformTarget, output: Output, specs: Sequence[ModelSpec]) -> None:
    async with target.registry() as registry:
        applied = await put(registry, specs)
    for each in applied if output.as_json else ():
        output.note(f"{each.name} {each.outcome}")
    if not output.as_json:
        tell_applied(output, applied)


def _run_here(settings: PlatformSettings, output: Output, specs: Sequence[ModelSpec]) -> None:
    log_to(settings)
    started_s = time.monotonic()
    bar = progress_bar("platform")
    update = bar.__enter__()
    is_ready = False

    def on_progress(step: StartProgress) -> None:
        if is_ready:
            output.note(step.text)
        else:
            update(step.done, step.total, step.text)

    async def on_ready(platform: Platform) -> None:
        nonlocal is_ready
        is_ready = True
        bar.__exit__(None, None, None)
        tell_ready(output, platform.state)
        if specs:
            applied = await put(platform.registry, specs)
            for each in applied:
                output.note(f"{each.name} {each.outcome}")
        output.note(f"Ready after {time.monotonic() - started_s:.1f} s. Ctrl-C stops everything.")

    try:
        asyncio.run(supervise(settings, on_progress=on_progress, on_ready=on_ready))
    finally:
        if not is_ready:
            bar.__exit__(None, None, None)
    output.note("stopped")


def _start_detached(settings: PlatformSettings) -> PlatformState:
    settings.home.logs.mkdir(parents=True, exist_ok=True)
    with (settings.home.logs / "supervisor.err").open("wb") as errors:
        supervisor = subprocess.Popen(
            [*python_module("pilotlight.platform.supervisor"), settings.to_json()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=python_environment(os.environ),
            start_new_session=True,
        )
    try:
        with progress_bar("platform") as update:
            state = _listen(supervisor, update)
    except BaseException:
        supervisor.terminate()
        raise
    finally:
        if supervisor.stdout is not None:
            supervisor.stdout.close()
    if state is None:
        status = supervisor.wait()
        tail = (settings.home.logs / "supervisor.err").read_text()[-1000:]
        raise StartFailed(f"the supervisor ended with status {status}: {tail}")
    return state


def _listen(
    supervisor: subprocess.Popen[bytes], update: Callable[[int, int, str], None]
) -> PlatformState | None:
    from pilotlight.state_dir import PlatformState

    for line in supervisor.stdout or ():
        match json.loads(line):
            case {"ready": dict(state)}:
                supervisor.returncode = 0  # it goes on without us: no warning when we forget it
                return PlatformState(**{**state, "pods": tuple(state["pods"])})
            case {"error": str(text), "status": int(status)}:
                supervisor.wait()
                raise AlreadyRunning(text) if status == 2 else StartFailed(text)
            case {"done": int(done), "total": int(total), "text": str(text)}:
                update(done, total, text)
    return None


def down(home: StateDir, output: Output) -> None:
    """Stop the platform of a home folder; return when nothing of it is left."""
    state = home.running()
    if state is None:
        output.result(
            {"stopped": False, "home": str(home.root)}, [f"no platform runs in {home.root}"]
        )
        return
    give_up_at_s = time.monotonic() + _STOP_S
    while state is not None and state.pid == 0 and time.monotonic() < give_up_at_s:
        time.sleep(0.02)  # it has just taken the lock and not yet written its state
        state = home.running()
    if state is not None and state.pid:
        try:
            os.kill(state.pid, signal.SIGTERM)
        except ProcessLookupError:
            pass
        except PermissionError as error:
            raise RequestFailed(f"pid {state.pid} belongs to another user") from error
    while home.is_locked():
        if time.monotonic() > give_up_at_s:
            raise RequestFailed(
                f"the platform (pid {state.pid if state else '?'}) did not stop within "
                f"{_STOP_S:g} s; its log is {home.logs / 'supervisor.log'}"
            )
        time.sleep(0.05)
    pid = state.pid if state else 0
    output.result({"stopped": True, "home": str(home.root), "pid": pid}, [f"stopped (pid {pid})"])
