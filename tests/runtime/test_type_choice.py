"""`pilotlight.io/dtype: auto`: bfloat16 where the device has it and outputs stay near."""

from __future__ import annotations

import asyncio
import json
import math
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import load_file, save_file

from pilotlight.sample_models.make_model import make_model
from registry.domain.model import Precision
from runtime.device.staged_memory import StagedMemory
from runtime.loading.type_choice import CHOICE, TOLERANCE, difference, is_bfloat16_chosen
from tests.runtime.fake_engine import FakeEngine
from tests.runtime.local_pod import LocalPod, local_pod, spec_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from registry.domain.model import ModelSpec

KINDS = ("tiny-bert", "tiny-t5", "tiny-vit", "tiny-gpt2")


def auto(name: str, folder: Path) -> ModelSpec:
    return replace(spec_of(name, folder), precision=Precision.AUTO)


def far_model(folder: Path) -> Path:
    """A classifier whose logits are small differences of large numbers."""
    make_model("tiny-bert", folder)
    tensors = load_file(folder / "model.safetensors")
    tensors["classifier.weight"] = tensors["classifier.weight"] * 0 + 0.01
    tensors["classifier.weight"][:, ::2] *= -1
    tensors["bert.pooler.dense.weight"] *= 0
    tensors["bert.pooler.dense.bias"] = torch.linspace(
        0.1, 0.1001, len(tensors["bert.pooler.dense.bias"])
    )
    tensors["classifier.bias"] *= 0
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


def run(
    folder: Path,
    work: Callable[[LocalPod, FakeEngine], Awaitable[None]],
    *,
    has_bfloat16: bool = True,
) -> None:
    async def main() -> None:
        engine = FakeEngine(has_bfloat16=has_bfloat16)
        async with local_pod(folder, memory=StagedMemory(engine, readers=2)) as pod:
            await work(pod, engine)

    asyncio.run(main())


def dtype_of(pod: LocalPod, spec: ModelSpec) -> torch.dtype:
    dtype: torch.dtype = pod.loader.store.by_key[spec.key].model._network_in_use().dtype
    return dtype


def choice_of(folder: Path) -> dict[str, object]:
    (path,) = (folder / "cache").rglob(CHOICE)
    fields: dict[str, object] = json.loads(path.read_text())
    return fields


@pytest.mark.parametrize("name", KINDS)
def test_near_outputs_choose_bfloat16(models: Path, tmp_path: Path, name: str) -> None:
    stored, spec = spec_of("stored", models / name), auto("chosen", models / name)

    async def work(pod: LocalPod, engine: FakeEngine) -> None:
        await pod.load(stored)
        whole = pod.loader.store.bytes_of(stored.key)
        assert engine.allocated_bytes <= whole
        await pod.unload(stored)
        await pod.load(spec)
        assert dtype_of(pod, spec) is torch.bfloat16
        assert pod.loader.store.bytes_of(spec.key) < 0.6 * whole
        assert engine.allocated_bytes <= pod.loader.store.bytes_of(spec.key)
        await pod.unload(spec)
        assert engine.allocated_bytes == 0

    run(tmp_path, work)
    assert choice_of(tmp_path)["bfloat16"] is True
    assert 0 < float(str(choice_of(tmp_path)["difference"])) <= TOLERANCE


def test_far_outputs_keep_the_stored_type(tmp_path: Path) -> None:
    spec = auto("far", far_model(tmp_path / "far"))

    async def work(pod: LocalPod, engine: FakeEngine) -> None:
        await pod.load(spec)
        assert dtype_of(pod, spec) is torch.float32
        await pod.unload(spec)
        assert engine.allocated_bytes == 0

    run(tmp_path, work)
    assert choice_of(tmp_path)["bfloat16"] is False
    assert float(str(choice_of(tmp_path)["difference"])) > TOLERANCE


def test_a_generation_is_compared_once(models: Path, tmp_path: Path) -> None:
    spec = auto("m", models / "tiny-bert")
    copied: list[int] = []

    async def work(pod: LocalPod, engine: FakeEngine) -> None:
        for _ in range(2):
            before = len(engine.done_order)
            await pod.load(spec)
            copied.append(len(engine.done_order) - before)
            await pod.unload(spec)

    run(tmp_path, work)
    run(tmp_path, work)  # another pod of the node
    first, *others = copied
    assert first > max(others)
    assert len(set(others)) == 1


def test_a_device_without_bfloat16_keeps_the_stored_type(models: Path, tmp_path: Path) -> None:
    spec = auto("m", models / "tiny-bert")

    async def work(pod: LocalPod, _engine: FakeEngine) -> None:
        await pod.load(spec)
        assert dtype_of(pod, spec) is torch.float32

    run(tmp_path, work, has_bfloat16=False)
    assert list((tmp_path / "cache").rglob(CHOICE)) == []


def test_a_model_that_has_no_type_to_choose_is_served(tmp_path: Path) -> None:
    spec = auto("p", make_model("tiny-program", tmp_path / "model"))

    async def work(pod: LocalPod, _engine: FakeEngine) -> None:
        await pod.load(spec)

    run(tmp_path, work)


def test_numbers_that_bfloat16_turns_into_none_are_far(tmp_path: Path) -> None:
    exact = torch.tensor([[1.0, -4.0]])
    assert difference(exact, exact) == 0
    assert difference(exact, torch.tensor([[1.02, -4.0]])) == pytest.approx(0.005)
    assert not difference(exact, torch.tensor([[math.nan, -4.0]])) <= TOLERANCE
    assert difference(exact, None) == math.inf
    assert is_bfloat16_chosen(tmp_path) is None
