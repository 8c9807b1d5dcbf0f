"""Device memory on a real GPU, and imports that must not initialise CUDA before a fork."""

import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch

from runtime.device.accelerator import PeakMemory, available_bytes
from runtime.device.memory import CudaEngine
from runtime.errors import DeviceFull
from tests import servers

MIB = 1024**2
gpu = pytest.mark.gpu
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

FORK = """
import os
import torch
from runtime.pod_process import import_everything

import_everything()
child = os.fork()
if child == 0:
    os._exit(int(torch.cuda._is_in_bad_fork()))
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.fixture
def little_memory() -> Iterator[int]:
    """A limit of this process's device memory, in bytes."""
    total = torch.cuda.mem_get_info()[1]
    torch.cuda.empty_cache()
    bound = torch.cuda.memory_reserved() + 512 * MIB
    torch.cuda.set_per_process_memory_fraction(bound / total)
    yield bound
    torch.cuda.set_per_process_memory_fraction(1.0)


@gpu
@needs_cuda
def test_full_gpu_raises_and_frees_memory(little_memory: int) -> None:
    engine = CudaEngine()
    before = torch.cuda.memory_allocated()
    held = engine.allocate(400 * MIB)
    with pytest.raises(DeviceFull, match="bytes free"):
        engine.allocate(400 * MIB)
    del held
    engine.allocate(450 * MIB)  # its pool is dropped with it
    assert torch.cuda.memory_allocated() == before


@gpu
@needs_cuda
def test_memory_cached_by_torch_is_available() -> None:
    torch.empty(1, device="cuda")
    before = available_bytes("cuda:0")
    freed = torch.empty(512 * MIB, dtype=torch.uint8, device="cuda")
    assert available_bytes("cuda:0") <= before - 500 * MIB
    del freed
    assert available_bytes("cuda:0") >= before - 12 * MIB


@gpu
@needs_cuda
def test_measures_peak_memory_of_an_inference() -> None:
    peak = PeakMemory("cuda:0")
    torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
    taken = peak.used_bytes()
    assert taken is not None
    assert 64 * MIB <= taken < 80 * MIB


@pytest.mark.slow
def test_forked_pod_can_use_a_gpu() -> None:
    """A process that has queried CUDA for devices cannot fork: no import may do so."""
    subprocess.run([sys.executable, "-c", FORK], check=True, cwd=servers.REPOSITORY)
