import os
from pathlib import Path

import pytest
import torch

from registry.domain.pod import Accelerator
from runtime.device import accelerator
from runtime.device.accelerator import (
    cores_near,
    find_accelerator,
    memory_budget,
    mig_share,
    mps_share,
)
from runtime.pod_process import MPS_PERCENTAGE

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("percentage", "share"),
    [
        pytest.param(None, 1.0, id="not-set"),
        pytest.param("25", 0.25, id="a-quarter"),
        pytest.param("12.5", 0.125, id="fraction"),
        pytest.param("100", 1.0, id="whole"),
        pytest.param("0", 1.0, id="zero"),
        pytest.param("300", 1.0, id="too-much"),
        pytest.param("half", 1.0, id="not-a-number"),
    ],
)
def test_share_by_mps(percentage: str | None, share: float) -> None:
    assert mps_share({} if percentage is None else {MPS_PERCENTAGE: percentage}) == share


@pytest.mark.parametrize(
    ("product", "share"),
    [
        ("NVIDIA H200", 1.0),
        ("NVIDIA H200 MIG 1g.18gb", 1 / 7),
        ("NVIDIA A100-SXM4-40GB MIG 3g.20gb", 3 / 7),
        ("NVIDIA A100-SXM4-40GB MIG 1c.3g.20gb", 1 / 7),
    ],
)
def test_share_by_mig_profile(product: str, share: float) -> None:
    assert mig_share(product) == pytest.approx(share)


@pytest.mark.parametrize(
    ("uuid", "percentage", "budget"),
    [
        pytest.param("GPU-1", "100", 800, id="as-configured"),
        pytest.param("GPU-1", "50", 500, id="half-of-the-memory"),
        pytest.param("", "50", 800, id="cpu"),
    ],
)
def test_the_budget_is_within_the_share(uuid: str, percentage: str, budget: int) -> None:
    accelerator = Accelerator(uuid, memory_bytes=1000)
    assert memory_budget(800, accelerator, {MPS_PERCENTAGE: percentage}) == budget


def test_a_budget_that_is_not_configured_follows_the_device() -> None:
    gpu = Accelerator("GPU-1", memory_bytes=1000)
    assert memory_budget(0, gpu, {}) == 850
    assert memory_budget(0, gpu, {MPS_PERCENTAGE: "50"}) == 425
    assert memory_budget(0, Accelerator("", memory_bytes=1000), {}) == 2 << 30


def test_a_cpu_has_the_cores_and_memory_of_its_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {
        (accelerator, "CPU_INFO"): "processor : 0\nmodel name\t: AMD EPYC 9V74\n",
        (accelerator, "CGROUP_CPU"): "50000 100000\n",
        (accelerator, "CGROUP_LIMIT"): "1048576\n",
    }
    for (module, name), text in files.items():
        (tmp_path / name).write_text(text)
        monkeypatch.setattr(module, name, tmp_path / name)
    found = find_accelerator(CPU, {})
    assert (found.uuid, found.product, found.cores) == ("", "AMD EPYC 9V74", 1)
    assert found.memory_bytes == 1 << 20


def test_a_cpu_without_limits_has_those_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, name in (
        (accelerator, "CPU_INFO"),
        (accelerator, "CGROUP_CPU"),
        (accelerator, "CGROUP_LIMIT"),
    ):
        monkeypatch.setattr(module, name, tmp_path / "absent")
    found = find_accelerator(CPU, {})
    assert found.product == os.uname().machine
    assert found.cores == len(os.sched_getaffinity(0))
    assert found.memory_bytes > 1 << 28


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_has_the_facts_of_its_driver() -> None:
    device = torch.device("cuda", 0)
    found = find_accelerator(device, {})
    assert found.uuid.startswith("GPU-")
    assert found.product == torch.cuda.get_device_name(device)
    assert found.memory_bytes == torch.cuda.mem_get_info(device)[1]
    assert found.cores > 1


def test_cores_of_a_gpus_numa_node(tmp_path: Path) -> None:
    device, node = tmp_path / "bus/pci/devices/0000:3b:00.0", tmp_path / "devices/system/node/node1"
    for folder in (device, node):
        folder.mkdir(parents=True)
    (device / "numa_node").write_text("1\n")
    (node / "cpulist").write_text("2-4,9\n")
    assert cores_near("0000:3b:00.0", tmp_path) == {2, 3, 4, 9}
    (device / "numa_node").write_text("-1\n")  # the kernel knows of none
    assert cores_near("0000:3b:00.0", tmp_path) == set()
    assert cores_near("0000:af:00.0", tmp_path) == set()
