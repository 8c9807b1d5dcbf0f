"""Weights that are cast, joined or left out: mapped, staged to a device, and served."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from registry.domain.model import ModelName, ModelSpec, Precision
from runtime.device.memory import dtype_on
from runtime.device.staged_memory import StagedMemory
from runtime.errors import ModelInvalid
from runtime.weights.converted_weights import DTYPE_NAMES, Conversion, ConvertedWeights
from runtime.weights.safetensors_files import DTYPES, StoredTensor
from runtime.weights.weight_source import DiskWeights, WeightSource
from tests.runtime.fake_engine import FakeEngine
from tests.runtime.local_pod import local_pod, spec_of
from tests.tiny_models import make_model


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


def cast(path: Path, dtype: torch.dtype) -> ConvertedWeights:
    """All floats of 16 bits and more in the type."""
    source = DiskWeights([path])
    conversions = []
    for tensor in source.layout.tensors:
        kept = DTYPES[tensor.dtype] in {torch.int64, torch.float8_e4m3fn}
        new = DTYPES[tensor.dtype] if kept else dtype
        size = tensor.size_bytes // DTYPES[tensor.dtype].itemsize * new.itemsize
        result = replace(tensor, dtype=DTYPE_NAMES[new], size_bytes=size)
        conversions.append(Conversion((tensor.name,), (result,)))
    return ConvertedWeights(source, conversions)


def joined(source: WeightSource) -> ConvertedWeights:
    """`e.0` and so on stacked, `split` in halves, `plain` as it is, and nothing else."""
    experts = tuple(f"e.{number}" for number in range(5))
    stack = StoredTensor("stack", "F32", (5, 7, 11), 0, 5 * 7 * 11 * 4)
    halves = tuple(StoredTensor(name, "F32", (3, 5), 0, 60) for name in ("left", "right"))
    plain = next(each for each in source.layout.tensors if each.name == "plain")
    return ConvertedWeights(
        source,
        [
            Conversion(("plain",), (plain,)),
            Conversion(("split",), halves, lambda given: [half.T for half in given[0].chunk(2, 1)]),
            Conversion(experts, (stack,), lambda given: [torch.stack(list(given))]),
        ],
    )


@pytest.fixture
def parts_file(tmp_path: Path) -> tuple[Path, dict[str, torch.Tensor]]:
    """A file, and what `joined` makes of it."""
    generator = torch.Generator().manual_seed(1)
    experts = {f"e.{number}": torch.randn(7, 11, generator=generator) for number in range(5)}
    split, plain = torch.randn(5, 6, generator=generator), torch.randn(9, generator=generator)
    others = {"split": split, "plain": plain, "unused": torch.ones(1000)}
    save_file(experts | others, tmp_path / "parts.safetensors")
    left, right = split.chunk(2, 1)
    wanted = {"stack": torch.stack(list(experts.values())), "left": left.T, "right": right.T}
    return tmp_path / "parts.safetensors", wanted | {"plain": plain}


def assert_same(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> None:
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name].view(torch.uint8), tensor.contiguous().view(torch.uint8))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("buffer_bytes", [256, 4096])
def test_staged_tensors_are_converted(path: Path, dtype: torch.dtype, buffer_bytes: int) -> None:
    memory = StagedMemory(FakeEngine(), buffers=3, buffer_bytes=buffer_bytes, readers=2)
    source = cast(path, dtype)
    weights = memory.put(source)
    memory.close()
    assert_same(weights.tensors, expected(path, dtype))
    assert weights.size_bytes == source.layout.size_bytes


def test_mapped_tensors_are_converted(path: Path) -> None:
    source = cast(path, torch.bfloat16)
    assert_same(source.map_tensors(), expected(path, torch.bfloat16))
    assert source.layout.size_bytes < DiskWeights([path]).layout.size_bytes


@pytest.mark.parametrize("buffer_bytes", [64, 4096])
def test_joined_tensors_are_staged(
    parts_file: tuple[Path, dict[str, torch.Tensor]], buffer_bytes: int
) -> None:
    path, wanted = parts_file
    memory = StagedMemory(FakeEngine(), buffers=3, buffer_bytes=buffer_bytes, readers=2)
    source = joined(DiskWeights([path]))
    for _ in range(2):  # a load that is tried again reads all again
        assert_same(memory.put(source).tensors, wanted)
    memory.close()
    assert source.layout.size_bytes < DiskWeights([path]).layout.size_bytes - 4000


def test_joined_tensors_are_mapped_and_others_not_copied(
    parts_file: tuple[Path, dict[str, torch.Tensor]],
) -> None:
    path, wanted = parts_file
    assert_same(joined(DiskWeights([path])).map_tensors(), wanted)


def test_a_truncated_file_is_told(path: Path) -> None:
    source = cast(path, torch.bfloat16)
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


async def test_a_program_keeps_its_types(tmp_path: Path) -> None:
    folder = make_model("tiny-program", tmp_path / "model")
    spec = replace(spec_of("p", folder), precision=Precision.BFLOAT16)

    async with local_pod(tmp_path) as pod:
        with pytest.raises(ModelInvalid, match=r"is bfloat16, but a model of torch.export"):
            await pod.load(spec)


def test_auto_is_the_type_of_the_files(models: Path, tmp_path: Path) -> None:
    """Also on a device with bfloat16, and for formats that have no other type."""
    program = make_model("tiny-program", tmp_path / "model")
    engine = FakeEngine(has_bfloat16=True)

    async def run() -> tuple[torch.dtype, int, int]:
        async with local_pod(tmp_path / "pod", memory=StagedMemory(engine)) as pod:
            stored = spec_of("stored", models / "tiny-bert")
            auto, other = (
                replace(spec_of(name, folder), precision=Precision.AUTO)
                for name, folder in (("auto", models / "tiny-bert"), ("program", program))
            )
            for spec in (stored, auto, other):
                await pod.load(spec)
            dtype = pod.loader.store.by_key[auto.key].model._network_in_use().dtype
            return dtype, *(pod.loader.store.bytes_of(each.key) for each in (stored, auto))

    dtype, stored_bytes, auto_bytes = asyncio.run(run())
    assert dtype is torch.float32
    assert auto_bytes == stored_bytes
