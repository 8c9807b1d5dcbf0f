"""Outputs that stay on the device: their memory, and who gets it back."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from common.inference_protocol.tensors import BF16, numeric_tensor
from runtime.device.device_tensor import (
    DeviceTensor,
    KeptMemory,
    SpillReason,
    concatenated,
    on_host,
    wait_for,
)
from runtime.device.worker import DeviceWorker
from runtime.serving.tensor_store import TensorStore

SIZE = 4000
DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=[
            pytest.mark.gpu,
            pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
        ],
    ),
]


def output(device: str = "cpu", value: float = 1.0) -> DeviceTensor:
    return DeviceTensor("x", "FP32", torch.full((10, 100), value, device=device))


def kept(memory: KeptMemory, value: float = 1.0) -> DeviceTensor:
    tensor = memory.keep(output(value=value))
    assert tensor is not None
    return tensor


def store_of(memory: KeptMemory) -> tuple[TensorStore, Callable[[float], str]]:
    """A store, and what keeps a tensor in it."""
    store = TensorStore(1 << 20, device=memory)

    def keep(value: float) -> str:
        identity = store.keep("team", "r", kept(memory, value))
        assert identity is not None
        return identity

    return store, keep


@pytest.mark.parametrize("device", DEVICES)
def test_a_kept_tensor_has_memory_of_its_own_on_the_device(device: str) -> None:
    memory, batch = KeptMemory(1 << 20, 1 << 20), output(device)
    part = memory.keep(batch.rows(2, 4))
    assert part is not None
    wait_for([part])
    batch.values.zero_()
    assert part.values.device == batch.values.device
    assert part.values.untyped_storage().nbytes() == part.host_bytes == 800
    assert on_host([part])[0].data.sum() == 200
    assert memory.used_bytes == 800


@pytest.mark.parametrize("device", DEVICES)
def test_a_tensor_is_read_beside_what_runs(device: str) -> None:
    for dtype, datatype in (
        (torch.float32, "FP32"),
        (torch.bfloat16, BF16),
        (torch.int64, "INT64"),
    ):
        values = torch.arange(6, device=device).reshape(2, 3).to(dtype)
        tensor = DeviceTensor("x", datatype, values.T)
        wait_for([tensor])
        target = np.empty(tensor.shape, tensor.host_type)
        tensor.copy_to(target)
        assert target.tolist() == tensor.data.tolist() == [[0, 3], [1, 4], [2, 5]]
        assert tensor.is_finite()
    for number in (float("nan"), float("inf"), -float("inf")):
        values = torch.tensor([1.0, number, 2.0], device=device)
        wait_for([found := DeviceTensor("x", "FP32", values)])
        assert not found.is_finite()
    assert DeviceTensor("x", "FP32", values[:0]).is_finite()


@pytest.mark.parametrize("device", DEVICES)
def test_tensors_of_host_and_device_are_joined_on_the_device(device: str) -> None:
    here = numeric_tensor("x", np.zeros((1, 100), np.float32))
    joined = concatenated([here, output(device)])
    assert joined is not None
    assert joined.values.device.type == device
    assert joined.values.sum(1).tolist() == [0.0] + [100.0] * 10
    assert concatenated([here, here]) is None


def test_memory_counts_until_the_last_user_of_a_tensor_is_gone() -> None:
    memory = KeptMemory(SIZE, 1 << 20)
    user = kept(memory).renamed("y").rows(0, 1)
    assert memory.used_bytes == SIZE
    assert memory.keep(output()) is None
    del user
    assert memory.used_bytes == 0
    kept(memory)


def test_tensors_take_what_models_leave() -> None:
    memory = KeptMemory(1 << 20, 10 * SIZE)
    memory.set_models_bytes(9 * SIZE)
    assert memory.room_bytes == SIZE
    first = kept(memory)
    assert memory.keep(output()) is None
    memory.set_models_bytes(10 * SIZE)
    assert memory.excess_bytes == SIZE
    del first
    assert memory.excess_bytes == 0


def test_the_oldest_are_copied_to_the_host_for_newer_ones() -> None:
    memory = KeptMemory(2 * SIZE, 1 << 20)
    store, keep = store_of(memory)
    names = [keep(value) for value in (1.0, 2.0, 3.0)]
    assert [store.is_on_device([name]) for name in names] == [False, True, True]
    assert memory.used_bytes == 2 * SIZE
    assert store.used_bytes == 3 * SIZE
    for name, value in zip(names, (1.0, 2.0, 3.0), strict=True):
        found = store.find("team", "r", name)
        assert found is not None
        assert (found.data == value).all()


def test_a_load_gets_what_is_missing_and_no_more() -> None:
    memory = KeptMemory(1 << 20, 4 * SIZE)
    store, keep = store_of(memory)
    names = [keep(1.0) for _ in range(4)]
    memory.set_models_bytes(SIZE)
    assert memory.free_for_load()
    assert not memory.free_for_load()
    assert memory.free_for_load(missing_bytes=1)
    assert [store.is_on_device([name]) for name in names] == [False, False, True, True]
    assert memory.free_for_load(missing_bytes=1 << 30)
    assert memory.used_bytes == 0
    assert not memory.free_for_load(missing_bytes=1)


def test_a_tensor_in_use_is_copied_but_not_freed() -> None:
    memory = KeptMemory(SIZE, 1 << 20)
    store, keep = store_of(memory)
    name = keep(1.0)
    user = store.find("team", "r", name)
    assert not memory.free_for_load(missing_bytes=1)
    assert not store.is_on_device([name])
    assert memory.used_bytes == SIZE
    del user
    assert memory.used_bytes == 0


def test_tensors_of_a_device_that_failed_are_lost_and_others_are_not() -> None:
    device = DeviceWorker(threads=1, max_queued=1)
    device.kept = KeptMemory(1 << 20, 1 << 20)
    store, keep = store_of(device.kept)
    there, here = keep(1.0), store.keep("team", "r", numeric_tensor("x", np.ones(9)))
    assert here is not None
    device.mark_lost(RuntimeError("an illegal memory access was encountered"))
    assert store.find("team", "r", there) is None
    assert store.find("team", "r", here) is not None
    assert (device.kept.used_bytes, store.used_bytes) == (0, 72)
    assert device.kept.keep(output()) is None


class Unreadable(DeviceTensor):
    """A tensor of a device whose copies fail."""

    def copy_to(self, target: object) -> None:
        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")


def test_a_tensor_that_cannot_be_copied_is_lost(caplog: pytest.LogCaptureFixture) -> None:
    memory = KeptMemory(1 << 20, 1 << 20)
    errors: list[Exception] = []
    memory.on_failed = errors.append
    store, _ = store_of(memory)
    good = kept(memory)
    identity = store.keep("team", "r", Unreadable("x", "FP32", good.values, good.lease))
    assert identity is not None
    assert store.find_on_host("team", "r", identity) is None
    assert store.used_bytes == 0
    assert len(errors) == 1
    assert "a kept tensor is lost" in caplog.text


def test_a_spill_that_frees_enough_stops() -> None:
    memory = KeptMemory(1 << 20, 1 << 20)
    store, keep = store_of(memory)
    names = [keep(1.0), keep(1.0)]
    store.spill(SIZE, SpillReason.LOAD)
    assert [store.is_on_device([name]) for name in names] == [False, True]


def test_no_other_tensor_has_the_content_of_one_that_is_gone() -> None:
    """Requests that are suspected of hangs are known by it."""
    assert len({output(value=number).content() for number in range(50)}) == 50


def test_the_same_rows_have_the_same_content() -> None:
    whole = output()
    assert whole.rows(0, 5).content() == whole.renamed("y").rows(0, 5).content()
    assert whole.rows(0, 5).content() != whole.rows(5, 10).content()
    assert whole.rows(0, 5).content() != whole.content()
