"""Simulated devices and runs: nothing is lost, memory holds, policies differ as they must."""

import gzip
import random
from dataclasses import replace
from pathlib import Path

import pytest

from registry.domain.prices import characteristic_time_s, eviction_loss_s
from research.simulated_workflows import constants
from research.simulated_workflows.applications import (
    APPLICATIONS,
    GENERATORS,
    WorkflowRequest,
    arrivals,
    models_of,
)
from research.simulated_workflows.devices import SimulatedDevice, SimulatedRun, SimulatedStep
from research.simulated_workflows.reactive_placer import SharingDevice
from research.simulated_workflows.simulation import POLICIES, WorkflowSimulation, WorkflowTask


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """A trace of three models with one request each a minute."""
    file = tmp_path / "trace.csv.gz"
    first = 227 * 120
    lines = [f"{first + minute},M{model:04},1" for minute in range(2) for model in range(3)]
    with gzip.open(file, "wt") as out:
        out.write("\n".join(("minute,model,count", *lines)) + "\n")
    return file


def task(trace: Path, application: str, policy: str, rate_per_s: float = 0.4) -> WorkflowTask:
    memory = constants.MEMORY_BYTES[application]
    return WorkflowTask(application, policy, 1, 3, memory, rate_per_s, trace, 1)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("application", list(APPLICATIONS))
def test_every_step_runs_once_after_its_inputs(trace: Path, application: str, policy: str) -> None:
    simulation = WorkflowSimulation(task(trace, application, policy))
    result = simulation.run()
    assert result.requests >= 20
    for run in simulation.runs:
        assert len(run.steps) == len(run.request.calls)
        for step, call in zip(run.steps, run.request.calls, strict=True):
            assert step.begun_s is not None
            for number in (*call.inputs, *call.known_after):
                assert (run.steps[number].end_s or 0.0) <= step.begun_s
    for device in simulation.devices:
        if isinstance(device, SharingDevice):
            models = [copy.model for copy in device.copies]
            assert not any(copy.queue or copy.running for copy in device.copies)
        else:
            assert isinstance(device, SimulatedDevice)
            models = list(device.loaded)
            assert not device.queue
            assert not device.wanted
        held = sum(constants.MODELS[model].size_bytes for model in models)
        assert held <= device.memory_bytes
        assert policy != "reactive-alone" or len(models) <= 1
    shares = result.running_share + result.loading_share + result.both_share
    assert 0 < shares <= 1


def test_static_loads_nothing(trace: Path) -> None:
    assert WorkflowSimulation(task(trace, "mix", "static")).run().loads == 0


def test_an_eviction_costs_what_it_does_in_production(trace: Path) -> None:
    """By rates, copies and times of loads; two models do not fit on a device together."""
    simulation = WorkflowSimulation(task(trace, "gill", "greedy", 1.0))
    devices = simulation.cluster.devices
    encoder, language, diffusion = models_of("gill")
    assert devices[0].harm_s(diffusion) == 0.0  # no requests so far
    simulation.run()
    rates = simulation.cluster.state.arrivals.rates_per_s(simulation.events.now_s)
    assert rates.keys() == {encoder, language, diffusion}
    sizes = [constants.MODELS[model].size_bytes for model in rates]
    memory_bytes = sum(device.memory_bytes for device in devices)
    kept_s = characteristic_time_s(list(rates.values()), sizes, memory_bytes)
    priced = 0
    for device in devices:
        if language not in device.loaded:
            continue
        copies = sum(language in each.loaded for each in devices)
        reload_s = constants.load_seconds(language)
        serve_s = constants.MODELS[language].first_s
        loss_s = eviction_loss_s(reload_s, rates[language], kept_s, copies, serve_s)
        assert device.harm_s(diffusion) == pytest.approx(loss_s, rel=0.01)
        assert device.harm_s(language) == 0.0
        priced += 1
    assert priced


def test_copies_on_one_device_share_its_time(trace: Path) -> None:
    """Two batches that run together take as long as one after the other."""
    simulation = WorkflowSimulation(replace(task(trace, "debate", "reactive"), devices=1))
    [device] = simulation.devices
    assert isinstance(device, SharingDevice)
    other = device.add("language", is_loaded=True)
    for number, copy in enumerate([device.copies[0], other]):
        copy.queue.append(SimulatedStep(0, number, "language", 0, ready_s=0.0))
    ended: list[float] = []
    device.on_end = lambda step: ended.append(step.end_s or 0.0)
    device.poke()
    while simulation.events.run_some(1, until=lambda: False):
        pass
    assert ended == pytest.approx([2 * constants.MODELS["language"].first_s] * 2)


def test_several_schedulers_plan_what_one_cannot(trace: Path) -> None:
    slow = replace(task(trace, "gill", "speculative", 2.0), planning_s=1.0, is_filtered=True)
    one = WorkflowSimulation(slow).run()
    several = WorkflowSimulation(replace(slow, schedulers=8)).run()
    assert several.mean_s < one.mean_s / 2


def test_requests_change_at_the_time_asked_for(trace: Path) -> None:
    changed = replace(task(trace, "mix", "greedy", 2.0), minutes=2, changes_at_s=60.0)
    simulation = WorkflowSimulation(changed)
    result = simulation.run()
    assert result.before_s > 0
    assert result.after_s > 0
    gill = [run.arrival_s >= 60 for run in simulation.runs if run.request.workflow == "gill"]
    others = [run.arrival_s >= 60 for run in simulation.runs if run.request.workflow != "gill"]
    assert sum(gill) == pytest.approx(2 * (len(gill) - sum(gill)), rel=0.1)
    assert sum(others) == pytest.approx((len(others) - sum(others)) / 2, rel=0.1)


def test_the_same_seed_gives_the_same_result(trace: Path) -> None:
    first = WorkflowSimulation(task(trace, "mix", "speculative")).run()
    assert WorkflowSimulation(task(trace, "mix", "speculative")).run() == first


def test_steps_of_several_runs_share_batches_under_load(trace: Path) -> None:
    low = WorkflowSimulation(task(trace, "debate", "greedy", 0.1)).run()
    high = WorkflowSimulation(task(trace, "debate", "greedy", 5.0)).run()
    assert high.batch > 2 * low.batch


@pytest.mark.parametrize("workflow", list(GENERATORS))
def test_requests_call_their_workflows_models(workflow: str) -> None:
    rng = random.Random(1)
    seen = {call.model for _ in range(400) for call in GENERATORS[workflow](rng).calls}
    models = set(models_of(workflow))
    assert seen == models or (workflow == "gentd26" and seen < models)


def test_requests_of_gentd26_ask_for_the_models_of_their_minute(trace: Path) -> None:
    with gzip.open(trace, "wt") as out:
        out.write(f"minute,model,count\n{227 * 120},M0003,2\n{227 * 120 + 1},M0011,1\n")
    found = arrivals(trace, "gentd26", 1.0, random.Random(1), 2)
    bases = {(int(time_s // 60), request.calls[-1].model) for time_s, request in found}
    assert bases == {(0, "base-M0003"), (1, "base-M0011")}
    with_loras = [request for _, request in found if len(request.calls) > 2]
    assert {call.model for request in with_loras for call in request.calls[1:-1]} <= set(
        constants.lora_models("M0003")
    )
    assert len(with_loras) > 60  # of 80


def test_static_loads_a_model_that_fits_nowhere(trace: Path) -> None:
    """87 base models of 6.9 GB on three devices of 16 GB."""
    result = WorkflowSimulation(task(trace, "gentd26", "static")).run()
    assert result.requests >= 20


def test_a_scheduler_sees_the_sent_steps_of_another_and_no_others(trace: Path) -> None:
    asked = replace(task(trace, "debate", "speculative"), schedulers=2)
    simulation = WorkflowSimulation(asked)
    cluster = simulation.cluster
    first, second = (SimulatedRun(number, _request(), 0.0) for number in (0, 1))
    cluster.active = {0: first, 1: second}
    sent, planned = (SimulatedStep(0, number, "language") for number in (0, 1))
    sent.ready_s = 1.0  # its inputs are on their way
    cluster.assign(sent, 0)
    cluster.assign(planned, 1)
    busy_s = constants.MODELS["language"].batch_s(1)
    assert [queue.free_s for queue in cluster.queues(second, range(3))] == [busy_s, 0.0, 0.0]
    third = SimulatedRun(2, _request(), 0.0)
    own = [len(queue.batches) for queue in cluster.queues(third, range(3))]
    assert own == [1, 1, 0]


def test_several_schedulers_lose_no_step(trace: Path) -> None:
    asked = replace(task(trace, "mix", "speculative"), schedulers=3, planning_s=0.01)
    simulation = WorkflowSimulation(asked)
    result = simulation.run()
    assert result.requests == len(simulation.runs) >= 20
    assert all(run.is_over for run in simulation.runs)


def _request() -> WorkflowRequest:
    return GENERATORS["debate"](random.Random(1))
