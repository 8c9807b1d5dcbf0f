"""The memory that idle models held during a run, from gateways and pods."""

import asyncio
from pathlib import Path

from load.generator.records import claimed_output
from load.generator.run import prepare, run_trace
from load.generator.settings import RunSettings
from load.report.run_file import read_run
from registry.domain.pod import PodPhase, PodReport
from registry.redis.client import Registry
from tests.gateway.gateway_harness import GatewayHarness
from tests.load.generator.conftest import LoadRun, WriteTrace
from tests.load.generator.odd_server import odd_server
from tests.registry.redis.clients import Pod


def test_a_run_counts_the_idle_memory_of_a_deregistered_pod(
    harness: GatewayHarness, write_trace: WriteTrace, tmp_path: Path
) -> None:
    warm = harness.declare()
    harness.start_pods("pod-a", warm=warm)
    trace = write_trace([warm.name.name], count=2, gap_s=3600.0)
    output = tmp_path / "run.parquet"

    async def run(registry: Registry) -> None:
        pod = await Pod.join(registry, "other", lease_ttl_s=3600)
        await registry.set_phase("other", pod.epoch, PodPhase.DRAINING)
        await pod.heartbeat(PodReport(idle_byte_s=3e9))
        prepared = await prepare(RunSettings(trace, harness.gateway.url))
        has_started, stop = asyncio.Event(), asyncio.Event()
        with claimed_output(output, overwrite=False):
            async with asyncio.TaskGroup() as group:
                playing = group.create_task(
                    run_trace(
                        prepared,
                        output,
                        stop=stop,
                        on_progress=lambda progress: has_started.set() if progress.done else None,
                    )
                )
                await has_started.wait()
                await pod.heartbeat(PodReport(idle_byte_s=8e9))
                await registry.deregister_pod("other", pod.epoch)
                stop.set()
        assert playing.result().has_idle_memory

    harness.run(run)
    assert read_run(output, "run").wasted_memory_byte_s == 5e9


def test_idle_memory_is_unknown_for_other_servers(
    load_run: LoadRun, write_trace: WriteTrace
) -> None:
    with odd_server() as server:
        ran = load_run(write_trace(["m"], count=1, gap_s=1.0), server.url)
    assert ran.status == 0, ran.err
    assert "idle memory is not recorded" in ran.err
    assert "not reported" in ran.out
    assert read_run(load_run.output, "run").wasted_memory_byte_s is None
