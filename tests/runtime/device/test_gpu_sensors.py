"""The driver's word on a GPU: readings, metrics, errors, and a GPU that is lost."""

import asyncio

import pytest
from prometheus_client import REGISTRY

from registry.domain.pod import Accelerator, GpuReading
from runtime.device.accelerator import GpuLost, GpuSensors, GpuWatch, open_sensors
from runtime.device.worker import DeviceWorker
from tests.runtime.fake_nvml import FakeNvml
from tests.servers import wait_until

GPU = Accelerator("GPU-6b1f", "NVIDIA H200", 141 * 10**9, 132)


@pytest.fixture
def nvml() -> FakeNvml:
    return FakeNvml(GPU.uuid)


def test_reads_use_memory_and_temperature(nvml: FakeNvml) -> None:
    sensors = GpuSensors(GPU, nvml)
    assert sensors.read() == GpuReading(37, 12_500_000_000, 61, xid=0)
    sensors.close()
    assert (nvml.users, nvml.event_sets) == (0, 0)


def test_what_the_driver_does_not_tell_is_absent(nvml: FakeNvml) -> None:
    nvml.unsupported = {"utilization", "events"}  # as of a MIG instance
    assert GpuSensors(GPU, nvml).read() == GpuReading(None, 12_500_000_000, 61)


def test_error_of_one_process_is_told_and_does_not_lose_the_gpu(nvml: FakeNvml) -> None:
    sensors = GpuSensors(GPU, nvml)
    nvml.xids.extend([13, 31])
    assert sensors.read().xid == 31
    assert sensors.read().xid == 31  # the last one stays


@pytest.mark.parametrize(("xid", "why"), [(79, "fallen off the bus"), (48, "memory")])
def test_fatal_error_names_the_gpu(nvml: FakeNvml, xid: int, why: str) -> None:
    sensors = GpuSensors(GPU, nvml)
    nvml.xids.append(xid)
    with pytest.raises(GpuLost, match=rf"GPU-6b1f \(NVIDIA H200\): .*{why}.*XID {xid}"):
        sensors.read()


def test_gpu_that_does_not_answer_any_more_is_lost(nvml: FakeNvml) -> None:
    sensors = GpuSensors(GPU, nvml)
    nvml.lost = nvml.GpuIsLostError("GPU is lost")
    with pytest.raises(GpuLost, match="GPU-6b1f"):
        sensors.read()


def test_unknown_gpu_leaves_the_library(nvml: FakeNvml) -> None:
    with pytest.raises(nvml.NotFoundError):
        GpuSensors(Accelerator("GPU-other"), nvml)
    assert nvml.users == 0


def test_without_a_driver_a_pod_has_no_sensors(caplog: pytest.LogCaptureFixture) -> None:
    assert open_sensors(Accelerator("GPU-that-no-machine-has")) is None
    assert "no metrics of the GPU" in caplog.text


def test_fake_has_the_names_of_the_library() -> None:
    real = pytest.importorskip("cuda.bindings.nvml")
    names = [name for name in vars(FakeNvml) if not name.startswith("_")]
    assert [name for name in names if not hasattr(real, name)] == []
    assert real.EventType.XID_CRITICAL_ERROR == FakeNvml.EventType.XID_CRITICAL_ERROR
    assert issubclass(real.GpuIsLostError, real.NvmlError)


def _metric(name: str) -> float | None:
    return REGISTRY.get_sample_value(name, {"gpu": GPU.uuid})


async def test_readings_are_metrics_and_a_lost_gpu_ends_the_pod(
    nvml: FakeNvml, device: DeviceWorker
) -> None:
    reasons: list[str] = []
    device.on_lost = reasons.append
    watch = GpuWatch(
        GPU, device.mark_lost, interval_s=0.001, open_=lambda gpu: GpuSensors(gpu, nvml)
    )

    task = asyncio.create_task(watch.run())
    await asyncio.to_thread(wait_until, lambda: watch.reading is not None, what="a reading")
    assert _metric("pilotlight_gpu_busy_ratio") == 0.37
    assert _metric("pilotlight_gpu_used_bytes") == 12_500_000_000
    assert _metric("pilotlight_gpu_temperature_celsius") == 61
    nvml.xids.append(79)
    await task
    assert len(reasons) == 1
    assert "GPU-6b1f (NVIDIA H200): it has fallen off the bus (XID 79)" in reasons[0]
    assert not device.is_alive


def test_a_cpu_has_no_sensors(nvml: FakeNvml, device: DeviceWorker) -> None:
    watch = GpuWatch(
        Accelerator("", "AMD EPYC"),
        device.mark_lost,
        interval_s=0.001,
        open_=lambda gpu: GpuSensors(gpu, nvml),
    )
    asyncio.run(watch.run())
    assert (watch.reading, nvml.users) == (None, 0)
