"""A slice of the experiment: the live planner decides as the simulated one on the same requests.

The simulation's events are replayed to a live planner, whose cluster state tells the same devices,
models and times, on the simulation's clock.
"""

import asyncio
import gzip
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from common.pod_secret import PodSecret
from registry.domain.cluster import ClusterState
from registry.domain.model import ModelName, ModelPolicy, ModelRecord, ModelSpec, Tier
from registry.domain.pod import PodInfo, Profile, ProfilePoint
from registry.domain.pod_index import Residency
from registry.domain.pod_state import PodState
from registry.redis.client import Registry
from registry.redis.watch import ClusterWatch
from research.simulated_workflows import constants
from research.simulated_workflows.devices import SimulatedRun, SimulatedStep
from research.simulated_workflows.placers import Placer
from research.simulated_workflows.simulation import WorkflowSimulation, WorkflowTask
from workflows.metrics import SchedulerMetrics
from workflows.plan import pods
from workflows.plan.planner import Planner
from workflows.plan.problem import SchedulingPolicy
from workflows.preloads import Preloads
from workflows.run import Run, RunStep, StepState
from workflows.values import StoredTensor

DEVICES = 4
MEMORY_BYTES = 30e9
"""All models of GILL fit."""
SAME_AT_LEAST = 0.95
"""Share of steps placed alike. The live scheduler does not see when a batch really begins."""


@dataclass
class LivePlanner:
    """The live planner on the simulation's cluster and clock."""

    planner: Planner
    state: ClusterState
    now_s: float = 0.0
    runs: dict[int, Run] = field(default_factory=dict)
    chosen: dict[tuple[int, int], str] = field(default_factory=dict)

    def called(self, run: SimulatedRun, begun: int) -> None:
        if begun == 0:
            self.runs[run.number] = live = Run(
                str(run.number),
                ModelName("default", run.request.workflow),
                {},
                self.now_s,
                self.now_s + 1e6,
                SchedulingPolicy.SPECULATIVE,
                run.request.features,
            )
            self.planner.begin(live)
        live = self.runs[run.number]
        for step in run.steps[begun:]:
            inputs = run.request.calls[step.number].inputs
            sources = {f"i{each}": {"step": each, "output": None} for each in inputs}
            live.steps.append(
                RunStep(step.number, ModelName("default", step.model), sources, self.now_s)
            )
            self.planner.call(live, live.steps[-1])

    def ready(self, step: SimulatedStep) -> None:
        live = self.runs[step.run]
        sent = live.steps[step.number]
        sent.state, sent.sent_s = StepState.RUNNING, self.now_s
        self.chosen[step.run, step.number] = sent.pod = self.planner.place(live, sent)

    def ended(self, step: SimulatedStep) -> None:
        live = self.runs[step.run]
        done = live.steps[step.number]
        size = int(constants.MODELS[step.model].output_bytes)
        done.outputs = {"out": StoredTensor("out", "BYTES", (1,), bytes(size))}
        done.state, done.ended_s = StepState.DONE, self.now_s
        self.planner.ended(live, done)


class ReplayedSimulation(WorkflowSimulation):
    """Tells a live planner what happens."""

    def __init__(self, task: WorkflowTask, live: LivePlanner) -> None:
        self.live = live
        super().__init__(task)

    def _make_placer(self, task: WorkflowTask) -> Placer:
        return ReplayingPlacer(super()._make_placer(task), self)

    def on_end(self, step: SimulatedStep) -> None:
        self.live.now_s = self.events.now_s
        self.live.ended(step)
        super().on_end(step)


class ReplayingPlacer:
    """The simulated placer, with whose decisions those of the live planner are compared."""

    def __init__(self, simulated: Placer, simulation: ReplayedSimulation) -> None:
        self._simulated = simulated
        self._simulation = simulation

    def _live(self) -> LivePlanner:
        live = self._simulation.live
        live.now_s = self._simulation.events.now_s
        return live

    def called(self, run: SimulatedRun, begun: int) -> None:
        self._simulated.called(run, begun)
        self._live().called(run, begun)

    def ready(self, run: SimulatedRun, step: SimulatedStep) -> bool:
        is_ready = self._simulated.ready(run, step)
        if is_ready:
            self._live().ready(step)
        return is_ready

    def ended(self, run: SimulatedRun) -> None:
        self._simulated.ended(run)
        live = self._live()
        live.planner.end(live.runs.pop(run.number), is_learned=True)


@pytest.fixture
def live(monkeypatch: pytest.MonkeyPatch) -> Iterator[LivePlanner]:
    monkeypatch.setattr(pods, "LINKS", constants.LINKS)
    watch = ClusterWatch(Registry("redis://127.0.0.1:1/0", "nowhere"))
    preloads = Preloads(asyncio.TaskGroup(), PodSecret(""), SchedulerMetrics(), lambda: 0.0)
    found = LivePlanner(Planner(watch, preloads, SchedulerMetrics()), watch.state)
    monkeypatch.setattr(watch, "registry_now_s", lambda: found.now_s)
    for number in range(DEVICES):
        name = f"device-{number:04}"
        info = PodInfo(
            name,
            "127.0.0.1:1",
            "node-000",
            memory_bytes=int(MEMORY_BYTES),
            shared_memory="node-000",
        )
        watch.state.pods[name] = PodState(info)
    for model in ("gill-encoder", "gill-language", "gill-diffusion"):
        _declare(watch.state, model)
    yield found
    preloads.close()


def _declare(state: ClusterState, model: str) -> None:
    """A model that all pods hold, with the simulation's times."""
    figures, name = constants.MODELS[model], ModelName("default", model)
    policy = ModelPolicy(max_batch_size=figures.max_batch)
    spec = ModelSpec(name, f"s3://models/{model}", policy=policy)
    state.models[name] = ModelRecord(spec)
    points = tuple(
        ProfilePoint(rows, figures.batch_s(rows)) for rows in range(1, figures.max_batch + 1)
    )
    state.profiles[name] = {"cpu": Profile(spec.key, "cpu", points)}
    for pod in state.pods:
        residency = Residency(Tier.DEVICE, None, 0.0, int(figures.size_bytes))
        state.residency.put(spec.key, pod, residency)


def test_placements_are_those_of_the_simulator(live: LivePlanner, tmp_path: Path) -> None:
    task = WorkflowTask(
        "gill", "speculative", 1, DEVICES, MEMORY_BYTES, 0.5, _trace(tmp_path), 2, is_filtered=True
    )
    simulation = ReplayedSimulation(task, live)
    simulation.run()
    simulated: dict[tuple[int, int], Any] = {
        (step.run, step.number): f"device-{step.device:04}"
        for run in simulation.runs
        for step in run.steps
    }
    assert live.chosen.keys() == simulated.keys()
    assert len(simulated) > 100
    same = sum(live.chosen[each] == simulated[each] for each in simulated)
    assert same / len(simulated) >= SAME_AT_LEAST, f"{same} of {len(simulated)}"
    assert len(set(live.chosen.values())) == DEVICES
    now_s = simulation.events.now_s
    rates = simulation.cluster.state.arrivals.rates_per_s(now_s)  # of which evictions have prices
    assert live.state.arrivals.rates_per_s(now_s) == pytest.approx(
        {
            live.state.models[ModelName("default", model)].serving.key: rate
            for model, rate in rates.items()
        }
    )


def _trace(folder: Path) -> Path:
    file = folder / "trace.csv.gz"
    lines = [f"{227 * 120 + minute},M0000,1" for minute in range(2)]
    with gzip.open(file, "wt") as out:
        out.write("\n".join(("minute,model,count", *lines)) + "\n")
    return file
