"""Serve one model of each kind from each tier, on the CPU and on another device.

Run as `python -m tests.runtime.rehearsal FOLDER other|cuda`, by `test_rehearsal.py`: prints as JSON
what each kind answered there and on the CPU. `other` needs no GPU.
"""

import asyncio
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import torch

from registry.domain.model import ModelName, ModelSpec, Task, Tier
from runtime.device.memory import CpuMemory, CudaEngine, DeviceMemory
from runtime.device.staged_memory import StagedMemory
from runtime.generation.engine import Sampling
from runtime.loading.model_store import ServedModel
from tests.runtime.local_pod import LocalPod, local_pod
from tests.runtime.other_device import OtherEngine, register_device
from tests.tiny_models import make_model

KINDS: dict[str, tuple[str, Task | None]] = {
    "text-to-text": ("tiny-t5", None),
    "text-classification": ("tiny-bert", None),
    "text-embedding": ("tiny-bert", Task.TEXT_EMBEDDING),
    "image-classification": ("tiny-vit", None),
    "text-generation": ("tiny-gpt2", None),
    "program": ("tiny-program", None),
    "text-to-image": ("tiny-diffusion", None),
}
TIERS = (Tier.REMOTE, Tier.DISK, Tier.HOST)
PICTURE = {"prompt": "a cat", "seed": 3, "num_inference_steps": 3}
SAMPLINGS = (
    Sampling(max_tokens=6, seed=1, temperature=0),
    Sampling(max_tokens=6, seed=2, temperature=1.3, top_p=0.9, frequency_penalty=0.5),
)


def kinds() -> dict[str, tuple[str, Task | None]]:
    """Those that can be served here."""
    has_images = importlib.util.find_spec("diffusers") is not None
    return {kind: of for kind, of in KINDS.items() if has_images or kind != "text-to-image"}


async def answers_on(memory: DeviceMemory, folder: Path) -> dict[str, Any]:
    """What each kind answers after a load from each tier."""
    async with local_pod(folder / memory.device.type, memory=memory, host_bytes=1 << 28) as pod:
        return {
            kind: [
                await _answer(
                    pod, ModelSpec(ModelName("default", kind), _uri(folder, name), task=task), tier
                )
                for tier in TIERS
            ]
            for kind, (name, task) in kinds().items()
        }


async def _answer(pod: LocalPod, spec: ModelSpec, tier: Tier) -> list[Any]:
    if tier is Tier.HOST:
        await pod.demote(spec)
    found = await pod.load(spec)
    assert found is tier, found
    entry = pod.loader.store.acquire(spec.key)
    assert entry is not None
    try:
        return await _infer(entry.model)
    finally:
        pod.loader.store.end_use(entry)
        await pod.unload(spec)


async def _infer(model: ServedModel) -> list[Any]:
    if model.generator is not None:
        made = [_generate(model, sampling) for sampling in SAMPLINGS]
        return await asyncio.gather(*made)
    processor = model.processor
    if _makes_pictures(model):
        inputs = processor.preprocess(processor.read_instances([PICTURE]))
        return [tensor.data.ravel()[:64].tolist() for tensor in (await model.infer(inputs)).value]
    examples = [processor.batching.example(rows, 6) for rows in (1, 2, 3)]
    ran = await asyncio.gather(*(model.infer(each) for each in examples))
    return [tensor.data.tolist() for each in ran for tensor in each.value]


async def _generate(model: ServedModel, sampling: Sampling) -> list[int]:
    assert model.generator is not None
    made = model.generator.generate(range(3, 9), sampling)
    return [token async for some in made for token in some.token_ids]


def _makes_pictures(model: ServedModel) -> bool:
    return model.spec.name.name == "text-to-image"


def _uri(folder: Path, name: str) -> str:
    return (folder / name).as_uri()


def main() -> None:
    """Make the models, serve them on both, print."""
    folder, name = Path(sys.argv[1]), sys.argv[2]
    for model, _ in kinds().values():
        make_model(model, folder / model)
    torch.set_num_threads(1)
    # First: libraries look for devices once.
    engine = OtherEngine(register_device()) if name == "other" else CudaEngine()
    on_cpu = asyncio.run(answers_on(CpuMemory(), folder))
    memory = StagedMemory(engine, buffers=3, buffer_bytes=64 * 1024, readers=2)
    there = asyncio.run(answers_on(memory, folder))
    left = engine.allocated_bytes if isinstance(engine, OtherEngine) else None
    answers = {"cpu": on_cpu, "there": there, "left": left}
    sys.stdout.write(json.dumps(answers))


if __name__ == "__main__":
    main()
