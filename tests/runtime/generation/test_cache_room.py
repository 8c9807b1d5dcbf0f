"""The key-value cache of a model that is loaded beside others on a GPU."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from runtime.device.staged_memory import StagedMemory
from runtime.generation.limits import PAGE_TOKENS
from runtime.settings import RuntimeSettings
from tests.runtime.fake_engine import FakeEngine
from tests.runtime.local_pod import local_pod, spec_of

if TYPE_CHECKING:
    from pathlib import Path

LIMITS = replace(
    RuntimeSettings().generation_limits, cache_bytes=1 << 30, counts_steps=True, max_concurrent=64
)


def test_what_is_free_bounds_the_cache(models: Path, tmp_path: Path) -> None:
    spec = spec_of("g", models / "tiny-gpt2")

    async def load(name: str, *, budget_bytes: int, device_bytes: int) -> tuple[int, int]:
        """Tokens of the cache, and the bytes that the model counts for."""
        memory = StagedMemory(FakeEngine(device_bytes))
        async with local_pod(
            tmp_path / name, memory=memory, budget_bytes=budget_bytes, limits=LIMITS
        ) as pod:
            await pod.load(spec)
            generator = pod.loader.store.by_key[spec.key].model.generator
            assert generator is not None
            pages: int = generator._processor.cache.num_blocks  # type: ignore[attr-defined]
            return pages * PAGE_TOKENS, pod.loader.store.bytes_of(spec.key)

    large, taken = asyncio.run(load("large", budget_bytes=1 << 30, device_bytes=1 << 40))
    budget_bytes = taken * 3 // 4
    by_budget, counted = asyncio.run(
        load("budget", budget_bytes=budget_bytes, device_bytes=1 << 40)
    )
    by_device, _ = asyncio.run(load("device", budget_bytes=1 << 30, device_bytes=budget_bytes))
    assert counted <= budget_bytes
    assert by_budget < large
    assert by_device < large
