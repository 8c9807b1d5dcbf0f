"""What the drivers say of the GPUs of a pool's pods, as their heartbeats report it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from registry.domain.codec import decode_gpu

if TYPE_CHECKING:
    from registry.domain.accelerator import GpuReading
    from registry.redis.client import Registry


async def read_gpu_readings(registry: Registry) -> dict[str, GpuReading]:
    """By pod; pods without a GPU are absent. Raises RegistryUnavailable."""
    found = await registry.transactions.submit("gpus")
    return {str(pod): decode_gpu(text) for pod, text in found or ()}
