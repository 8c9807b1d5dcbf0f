"""Runs the live parts of experiments, each on a platform of its own.

Implements `research.experiments.harness.live_platform.LivePlatform`. Each call starts and stops
one.
"""

import asyncio
import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, TypeVar

from common.child_process import python_environment
from load.report.run import Run
from pilotlight.errors import StartFailed
from pilotlight.output import Output, ProgressReporter, progress_bar
from pilotlight.platform.processes import free_port, redis_binary
from pilotlight.platform.settings import PlatformSettings
from pilotlight.platform.supervisor import log_to_file
from pilotlight.sample_models import SAMPLES, SampleModel, make_model_command, prepare_samples
from pilotlight.state_dir import StateDir
from research.demo import FULL, POLICIES, WIN_SCENARIOS, DemoScale, SimpleRun, WinRun
from research.demo.session import (
    LiveSession,
    live_session,
    measure_machine_times,
    run_simple,
    run_win,
)
from research.experiments.elastic.burst_run import LiveBurst
from research.experiments.elastic.spike_run import SpikeResult
from research.experiments.elastic.spike_scenario import SpikeScenario
from research.experiments.liu.replicas_run import ReplicasRun
from research.experiments.prewarm.live_slice import TraceSlice
from research.experiments.regret.live_slice import LIVE_POLICIES, LiveCell, LiveRun
from research.live.elastic import burst_models, run_burst, run_spike, spike_model
from research.live.prewarming import play_slice, prewarming_settings
from research.live.regret_cells import REGRET_LINK_BYTES_PER_S, regret_settings, replay_cell
from research.live.replicas import run_concurrent

T = TypeVar("T")

_REDIS_START_TIMEOUT_S = 30.0
_SPIKE_MODEL = "tiny-t5"
_LARGER_SAMPLES = (
    SampleModel("t5-base", "t5-base", 892_000_000),
    SampleModel("t5-large", "t5-large", 2_951_000_000),
)
_POD_IDLE_S = 8.0
_POD_STABLE_S = 8.0
"""Short, since a pool must shrink to no pods, or to its first ones, before each run."""


class LocalLivePlatform:
    """Runs workloads on real processes, with a state directory inside the given one."""

    def __init__(self, state_dir: StateDir, output: Output) -> None:
        self._state_dir = StateDir(state_dir.root / "experiment")
        self._objects = state_dir.objects
        self._output = output

    def simple(
        self, model: str, plan: Sequence[tuple[str, int]], *, requests: int, link_bytes_per_s: float
    ) -> list[SimpleRun]:
        """Section 6.2 per policy and seed; makes the model if it is missing."""

        async def run_all(session: LiveSession) -> list[SimpleRun]:
            runs = []
            with progress_bar(f"live: {model}") as update:
                for done, (policy, seed) in enumerate(plan):
                    update(done, len(plan), f"{policy}, seed {seed}")
                    runs.append(
                        await run_simple(session, policy, seed, model=model, requests=requests)
                    )
            return runs

        return self._run(self._settings_with_samples(link_bytes_per_s, model), run_all)

    def concurrent(self, requests: int, *, pods: int) -> ReplicasRun:
        """Section 3.1, under the platform's autoscaler."""
        settings = replace(
            self._settings_with_samples(FULL.simple_link_bytes_per_s),
            pods=pods,
            autoscaler={"min_pods": 1},
        )
        return self._run(settings, lambda session: run_concurrent(session, requests))

    def wins(self, scale: DemoScale) -> list[WinRun]:
        """The workloads of section 6.4 under every fixed policy and `auto`, each once."""

        async def run_all(session: LiveSession) -> list[WinRun]:
            runs: list[WinRun] = []
            total = len(WIN_SCENARIOS) * len(POLICIES)
            with progress_bar("live: section 6.4") as update:
                pace = await measure_machine_times(session)
                for scenario, policy in product(WIN_SCENARIOS, POLICIES):
                    update(len(runs), total, f"{scenario.section} {policy}")
                    sleep_s = scenario.sleep_s(scale, pace)
                    runs.append(await run_win(session, scenario, policy, sleep_s))
            return runs

        return self._run(self._settings_with_samples(scale.win_link_bytes_per_s), run_all)

    def burst(self, models: int, *, pods: int, model: str) -> list[LiveBurst]:
        """One request per model, all at once, to a pool without pods: for new, then known models.

        The second burst is left out if the pool keeps a pod because of its forecast.
        """

        async def run_all(session: LiveSession) -> list[LiveBurst]:
            await session.create_models(specs)
            first = await run_burst(session, specs, is_known=False)
            try:
                return [first, await run_burst(session, specs, is_known=True)]
            except StartFailed as error:
                self._output.note(f"no second burst at {models} models: {error}")
                return [first]

        with _made_model(model) as uri:
            specs = burst_models(models, uri)
            return self._run(self._elastic_settings(pods, min_pods=0), run_all)

    def spike(self, scenario: SpikeScenario, seed: int) -> SpikeResult:
        """A sudden rise of the load, under the platform's autoscaler."""
        settings = self._elastic_settings(scenario.most_pods, min_pods=scenario.first_pods, slots=1)
        with _made_model(_SPIKE_MODEL) as uri:
            spec = spike_model(uri)
            return self._run(settings, lambda session: run_spike(session, spec, scenario, seed))

    def prewarming(self, trace_slice: TraceSlice, policy: str, value: float, output: Path) -> Run:
        """A compressed trace under a loading policy, on one pod without any model."""
        settings = prewarming_settings(
            self._settings_with_samples(None), trace_slice, policy, value
        )
        return self._run(settings, lambda session: play_slice(session, trace_slice, output))

    def regret(self, cell: LiveCell) -> list[LiveRun]:
        """A cell of the experiment regret under each policy, on one platform."""
        settings = regret_settings(self._settings_with_samples(REGRET_LINK_BYTES_PER_S), cell)

        async def run_all(session: LiveSession) -> list[LiveRun]:
            runs = []
            with progress_bar(f"live: {cell.name}") as update:
                for done, policy in enumerate(LIVE_POLICIES):
                    update(done, len(LIVE_POLICIES), str(policy))
                    runs.append(await replay_cell(session, cell, policy))
            return runs

        return self._run(settings, run_all)

    def _run(
        self, settings: PlatformSettings, work: Callable[[LiveSession], Coroutine[Any, Any, T]]
    ) -> T:
        """Start a platform, do the work, stop the platform; raises AlreadyRunning."""
        if settings.state_dir.is_locked():
            raise settings.state_dir.already_running_error()
        log_to_file(settings)

        async def run() -> T:
            reporter = ProgressReporter(self._output)
            try:
                async with live_session(settings, reporter.on_progress) as session:
                    reporter.close_bar()
                    reporter.is_quiet = True
                    return await work(session)
            finally:
                reporter.close_bar()

        return asyncio.run(run())

    def _elastic_settings(self, pods: int, *, min_pods: int, slots: int = 0) -> PlatformSettings:
        return PlatformSettings(
            state_dir=self._state_dir,
            objects=self._objects,
            pods=pods,
            port=0,
            pod={"slots": slots, "allow_simulated_work": True},
            s3=False,
            autoscaler={"min_pods": min_pods, "pod_idle": _POD_IDLE_S, "pod_stable": _POD_STABLE_S},
        )

    @contextmanager
    def redis(self) -> Iterator[str]:
        """URL of an empty Redis server, which runs until the context ends."""
        with tempfile.TemporaryDirectory(prefix="pilotlight-redis-") as folder:
            port = free_port()
            server = subprocess.Popen(
                [
                    redis_binary(),
                    "--bind",
                    "127.0.0.1",
                    "--port",
                    str(port),
                    "--dir",
                    folder,
                    "--save",
                    "",
                    "--appendonly",
                    "no",
                ],
                stdout=subprocess.DEVNULL,
            )
            try:
                _wait_accepting(server, port)
                yield f"redis://127.0.0.1:{port}/0"
            finally:
                server.terminate()
                server.wait()

    def _settings_with_samples(
        self, link_bytes_per_s: float | None, model: str = ""
    ) -> PlatformSettings:
        larger = [sample for sample in _LARGER_SAMPLES if sample.folder == model]
        prepare_samples(self._objects, self._output, (*SAMPLES, *larger))
        return PlatformSettings(
            state_dir=self._state_dir,
            objects=self._objects,
            port=0,
            pod={
                "slots": 1,
                "link_rate": int(link_bytes_per_s or 0),
                "allow_simulated_work": True,
                "retire_grace": 0.1,
            },
        )


@contextmanager
def _made_model(name: str) -> Iterator[str]:
    """URI of a temporary folder with a model of `make-model`."""
    with tempfile.TemporaryDirectory(prefix="pilotlight-model-") as folder:
        subprocess.run(
            make_model_command(name, Path(folder)),
            stdout=subprocess.DEVNULL,
            env=python_environment(os.environ),
            check=True,
        )
        yield f"file://{folder}"


def _wait_accepting(server: subprocess.Popen[bytes], port: int) -> None:
    deadline_s = time.monotonic() + _REDIS_START_TIMEOUT_S
    while time.monotonic() < deadline_s and server.poll() is None:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1):
                return
        except OSError:
            time.sleep(0.02)
    raise StartFailed(
        f"redis-server does not accept connections after {_REDIS_START_TIMEOUT_S:g} s"
    )
