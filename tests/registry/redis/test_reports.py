"""The use of copies and GPUs, as heartbeats report it."""

from registry.domain.pod import CopyReport, GpuReading, PodReport
from registry.redis.client import Registry
from registry.redis.reports import read_copy_reports, read_gpu_readings
from tests.registry.redis.clients import KEY, Pod


async def test_the_use_of_copies_is_stored_with_its_time_and_not_published(
    registry: Registry,
) -> None:
    first, second = await Pod.join(registry, "a"), await Pod.join(registry, "b")
    version = (await registry.cluster()).version
    copies = {KEY: CopyReport(ongoing=1, served=4, idle_s=0.25), "x": CopyReport()}
    await first.heartbeat(PodReport(copies=copies))
    before_s = (await read_copy_reports(registry))["a"][0]
    await first.heartbeat(PodReport(copies=copies))
    reports = await read_copy_reports(registry)
    assert reports["a"][1] == copies
    assert reports["a"][0] >= before_s > 1e9
    assert (await registry.cluster()).version == version
    await registry.deregister_pod("a", first.epoch)
    await second.heartbeat()
    assert {
        pod: dict(found) for pod, (_, found) in (await read_copy_reports(registry)).items()
    } == {"b": {}}


async def test_readings_of_gpus_are_stored_and_not_published(registry: Registry) -> None:
    first, _cpu = await Pod.join(registry, "a"), await Pod.join(registry, "b")
    version = (await registry.cluster()).version
    reading = GpuReading(37.0, 12_500_000_000, 61.0, xid=31)
    await first.heartbeat(PodReport(gpu=reading))
    assert await read_gpu_readings(registry) == {"a": reading}
    assert (await registry.cluster()).version == version
    await registry.deregister_pod("a", first.epoch)
    assert await read_gpu_readings(registry) == {}
