"""Runs the live parts of experiments, each on a platform of its own.

Implements `load.experiments.live_platform.LivePlatform`; each call starts and stops a platform.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import tempfile
import time
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import httpx

from load.experiments.liu.scenarios import POLICIES, WIN_SCENARIOS
from pilotlight.errors import StartFailed
from pilotlight.live_experiments import elastic
from pilotlight.live_experiments.liu_workloads import (
    create_models,
    measure_machine_pace,
    run_simple,
    run_win,
    wait_measured,
)
from pilotlight.live_experiments.prewarming import play_slice, prewarming_settings
from pilotlight.output import progress_bar
from pilotlight.platform.bundled_servers import redis_binary
from pilotlight.platform.platform import Platform
from pilotlight.platform.processes import free_port, python_environment
from pilotlight.platform.settings import (
    LocalAutoscalerSettings,
    LocalPodSettings,
    PlatformSettings,
)
from pilotlight.platform.supervisor import log_to_file
from pilotlight.sample_models.samples import (
    LARGER_SAMPLES,
    SAMPLES,
    make_model_command,
    prepare_samples,
)
from pilotlight.signals import cancelled_by_signals
from pilotlight.state_dir import StateDir

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from load.experiments.elastic.live_burst import LiveBurst
    from load.experiments.elastic.scenario import Scenario
    from load.experiments.elastic.spiking import Spiked
    from load.experiments.liu.runs import SimpleRun, WinRun
    from load.experiments.liu.scenarios import DemoScale
    from load.experiments.prewarm.live import Slice
    from load.report.run import Run
    from pilotlight.output import Output

_REQUEST_TIMEOUT_S = 300.0
_REDIS_START_TIMEOUT_S = 30.0
_SPIKE_MODEL = "tiny-t5"
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
        settings = self._settings_with_samples(link_bytes_per_s, model)

        async def run_all() -> list[SimpleRun]:
            runs = []
            async with _started(settings) as (platform, client):
                with progress_bar(f"live: {model}") as update:
                    for done, (policy, seed) in enumerate(plan):
                        update(done, len(plan), f"{policy}, seed {seed}")
                        runs.append(
                            await run_simple(
                                platform, client, policy, seed, model=model, requests=requests
                            )
                        )
            return runs

        return asyncio.run(run_all())

    def wins(self, scale: DemoScale) -> list[WinRun]:
        """The workloads of section 6.4 under every fixed policy and `auto`, each once."""
        settings = self._settings_with_samples(scale.win_link_bytes_per_s)

        async def run_all() -> list[WinRun]:
            runs: list[WinRun] = []
            total = len(WIN_SCENARIOS) * len(POLICIES)
            async with _started(settings) as (platform, client):
                with progress_bar("live: section 6.4") as update:
                    pace = await measure_machine_pace(platform, client)
                    for scenario in WIN_SCENARIOS:
                        sleep_s = scenario.sleep_s(scale, pace)
                        for policy in POLICIES:
                            update(len(runs), total, f"{scenario.section} {policy}")
                            if policy == "auto":  # it uses what the other policies measured
                                await wait_measured(platform, scenario)
                            runs.append(await run_win(platform, client, scenario, policy, sleep_s))
            return runs

        return asyncio.run(run_all())

    def burst(self, models: int, *, pods: int, model: str) -> list[LiveBurst]:
        """One request per model, all at once, to a pool without pods: for new, then known models.

        The second burst is left out if the pool keeps a pod because of its forecast.
        """
        settings = self._elastic_settings(pods, min_pods=0)

        async def run_all(uri: str) -> list[LiveBurst]:
            specs = elastic.burst_models(models, uri)
            async with _started(settings) as (platform, client):
                await create_models(platform, client, specs)
                first = await elastic.run_burst(platform, client, specs, is_known=False)
                try:
                    return [first, await elastic.run_burst(platform, client, specs, is_known=True)]
                except StartFailed as error:
                    self._output.note(f"no second burst at {models} models: {error}")
                    return [first]

        with _made_model(model) as uri:
            return asyncio.run(run_all(uri))

    def spike(self, scenario: Scenario, seed: int) -> Spiked:
        """A sudden rise of the load, under the platform's autoscaler."""
        settings = self._elastic_settings(scenario.most_pods, min_pods=scenario.first_pods)

        async def run_one(uri: str) -> Spiked:
            spec = elastic.spike_model(uri)
            async with _started(settings) as (platform, client):
                await create_models(platform, client, [spec])
                return await elastic.run_spike(platform, client, spec, scenario, seed)

        with _made_model(_SPIKE_MODEL) as uri:
            return asyncio.run(run_one(uri))

    def _elastic_settings(self, pods: int, *, min_pods: int) -> PlatformSettings:
        settings = PlatformSettings(
            state_dir=self._state_dir,
            objects=self._objects,
            pods=pods,
            port=0,
            pod=LocalPodSettings(allow_simulated_work=True),
            s3=False,
            autoscaler=LocalAutoscalerSettings(
                min_pods=min_pods, pod_idle_s=_POD_IDLE_S, pod_stable_s=_POD_STABLE_S
            ),
        )
        return self._require_free(settings)

    def prewarming(self, piece: Slice, policy: str, value: float, output: Path) -> Run:
        """A compressed trace under a loading policy, on one pod without any model."""
        settings = prewarming_settings(self._settings_with_samples(None), piece, policy, value)

        async def run() -> Run:
            async with _started(settings) as (platform, client):
                return await play_slice(platform, client, piece, output)

        return asyncio.run(run())

    @contextmanager
    def redis(self) -> Iterator[str]:
        """URL of an empty Redis server, which runs until the context ends."""
        with tempfile.TemporaryDirectory(prefix="pilotlight-redis-") as folder:
            port = free_port()
            server = subprocess.Popen(
                [
                    redis_binary(), "--bind", "127.0.0.1", "--port", str(port),
                    "--dir", folder, "--save", "", "--appendonly", "no",
                ],
                stdout=subprocess.DEVNULL,
            )  # fmt: skip
            try:
                _wait_accepting(server, port)
                yield f"redis://127.0.0.1:{port}/0"
            finally:
                server.terminate()
                server.wait()

    def _settings_with_samples(
        self, link_bytes_per_s: float | None, model: str = ""
    ) -> PlatformSettings:
        settings = PlatformSettings(
            state_dir=self._state_dir,
            objects=self._objects,
            port=0,
            pod=LocalPodSettings(
                link_bytes_per_s=link_bytes_per_s, allow_simulated_work=True, retire_grace_s=0.1
            ),
        )
        larger = [sample for sample in LARGER_SAMPLES if sample.folder == model]
        prepare_samples(settings.objects, self._output, (*SAMPLES, *larger))
        return self._require_free(settings)

    def _require_free(self, settings: PlatformSettings) -> PlatformSettings:
        """The settings; raises AlreadyRunning if a platform uses their state directory."""
        if settings.state_dir.is_locked():
            raise settings.state_dir.already_running_error()
        log_to_file(settings)
        return settings


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


@asynccontextmanager
async def _started(
    settings: PlatformSettings,
) -> AsyncIterator[tuple[Platform, httpx.AsyncClient]]:
    with progress_bar("platform") as update:
        platform = Platform(settings, lambda step: update(step.done, step.total, step.text))
        async with (
            cancelled_by_signals(),
            platform,
            httpx.AsyncClient(
                base_url=platform.gateway_url,
                trust_env=False,
                timeout=_REQUEST_TIMEOUT_S,
                limits=httpx.Limits(max_connections=None),
            ) as client,
        ):
            yield platform, client


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
