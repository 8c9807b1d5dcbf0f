"""Weights in another type than they are stored in: mapped, staged to a device, and served."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import save_file

from pilotlight.sample_models.make_model import make_model
from registry.domain.model import ModelName, ModelSpec, Precision
from runtime.device.precision import dtype_on, use_tf32
from runtime.device.staged_memory import StagedMemory
from runtime.errors import ModelInvalid
from runtime.weights.cast_weights import CastWeights
from runtime.weights.weight_source import DiskWeights
from tests.runtime.fake_engine import FakeEngine
from tests.runtime.local_pod import local_pod, spec_of

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    generator = torch.Generator().manual_seed(0)
    tensors = {
        "wide": torch.randn(70, 131, generator=generator),
        "half": torch.randn(333, generator=generator).to(torch.float16),
        "double": torch.randn(9, 3, generator=generator, dtype=torch.float64),
        "brain": torch.randn(33, 5, generator=generator).to(torch.bfloat16),
        "whole": torch.randint(-9, 9, (77,), generator=generator),
        "scaled": torch.randn(16, generator=generator).to(torch.float8_e4m3fn),
        "none": torch.empty(0, 4),
    }
    save_file(tensors, tmp_path / "weights.safetensors")
    return tmp_path / "weights.safetensors"


def expected(path: Path, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    stored = DiskWeights([path]).map_tensors()
    kept = (torch.int64, torch.float8_e4m3fn)
    return {name: each if each.dtype in kept else each.to(dtype) for name, each in stored.items()}


def assert_same(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> None:
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name].view(torch.uint8), tensor.contiguous().view(torch.uint8))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("buffer_bytes", [256, 4096])
def test_staged_tensors_are_converted(path: Path, dtype: torch.dtype, buffer_bytes: int) -> None:
    memory = StagedMemory(FakeEngine(), buffers=3, buffer_bytes=buffer_bytes, readers=2)
    source = CastWeights(DiskWeights([path]), dtype)
    weights = memory.put(source)
    memory.close()
    assert_same(weights.tensors, expected(path, dtype))
    assert weights.size_bytes == source.layout.size_bytes


def test_mapped_tensors_are_converted(path: Path) -> None:
    source = CastWeights(DiskWeights([path]), torch.bfloat16)
    assert_same(source.map_tensors(), expected(path, torch.bfloat16))
    assert source.layout.size_bytes < DiskWeights([path]).layout.size_bytes


def test_a_truncated_file_is_told(path: Path) -> None:
    source = CastWeights(DiskWeights([path]), torch.bfloat16)
    with path.open("r+b") as file:
        file.truncate(2000)
    with pytest.raises(ModelInvalid, match="cut short"):
        source.read_into(0, memoryview(bytearray(source.layout.size_bytes)))


def test_a_gpu_without_bfloat16_keeps_the_stored_type() -> None:
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    assert dtype_on(gpu, Precision.BFLOAT16, has_bfloat16=False) is None
    assert dtype_on(gpu, Precision.BFLOAT16, has_bfloat16=True) is torch.bfloat16
    assert dtype_on(cpu, Precision.BFLOAT16, has_bfloat16=False) is torch.bfloat16
    assert dtype_on(gpu, Precision.FLOAT32, has_bfloat16=True) is torch.float32
    assert dtype_on(gpu, None, has_bfloat16=True) is None


def test_tf32_is_what_torch_calls_high() -> None:
    before = torch.get_float32_matmul_precision()
    try:
        use_tf32()
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(before)


def test_precision_is_part_of_the_generation() -> None:
    specs = [
        ModelSpec(ModelName("a", "b"), "s3://x/y", precision=each) for each in (None, *Precision)
    ]
    assert len({each.key for each in specs}) == 4


def test_a_model_answers_nearly_the_same_in_bfloat16(models: Path, tmp_path: Path) -> None:
    """Probabilities within 0.01; its weights, which are stored in 32 bits, take half."""
    stored = spec_of("stored", models / "tiny-bert")
    half = replace(spec_of("half", models / "tiny-bert"), precision=Precision.BFLOAT16)

    async def run() -> tuple[list[float], list[float], int, int]:
        async with local_pod(tmp_path, memory=StagedMemory(FakeEngine())) as pod:
            answers = []
            for spec in (stored, half):
                await pod.load(spec)
                entry = pod.loader.store.by_key[spec.key]
                outputs = await entry.model.infer(entry.model.processor.preprocess(["some words"]))
                answers.append([float(each) for each in outputs.value[0].data.ravel()])
            sizes = [pod.loader.store.bytes_of(spec.key) for spec in (stored, half)]
            return answers[0], answers[1], sizes[0], sizes[1]

    exact, near, whole, halved = asyncio.run(run())
    assert near == pytest.approx(exact, abs=0.01)
    assert near != exact
    assert halved <= whole * 0.52


@pytest.mark.parametrize("name", ["tiny-t5", "tiny-vit", "tiny-gpt2"])
def test_every_kind_of_network_runs_in_bfloat16(models: Path, tmp_path: Path, name: str) -> None:
    spec = replace(spec_of(name, models / name), precision=Precision.BFLOAT16)

    async def run() -> torch.dtype:
        async with local_pod(tmp_path) as pod:
            await pod.load(spec)  # with a first inference, or a first token
            dtype: torch.dtype = pod.loader.store.by_key[spec.key].model._network_in_use().dtype
            return dtype

    assert asyncio.run(run()) is torch.bfloat16


def test_a_program_keeps_its_types(tmp_path: Path) -> None:
    folder = make_model("tiny-program", tmp_path / "model")
    spec = replace(spec_of("p", folder), precision=Precision.BFLOAT16)

    async def run() -> None:
        async with local_pod(tmp_path) as pod:
            with pytest.raises(ModelInvalid, match=r"is bfloat16, but a model of torch.export"):
                await pod.load(spec)

    asyncio.run(run())
