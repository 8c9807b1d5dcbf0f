"""What the registry knows beside the watched copy: reports of heartbeats, times of declarations."""

from collections.abc import Mapping
from datetime import UTC, datetime

from registry.domain.pod import CopyReport, GpuReading
from registry.domain.records import decode_copies, decode_gpu
from registry.redis.client import Registry


async def read_copy_reports(
    registry: Registry,
) -> dict[str, tuple[float, Mapping[str, CopyReport]]]:
    """By pod: registry time of its last report, and its copies by model key.

    Raises RegistryUnavailable. Pods of an older version are absent.
    """
    found = await registry.transactions.submit("copies")
    return {
        str(pod): (float(at_ms) / 1000, decode_copies(text)) for pod, at_ms, text in found or ()
    }


async def read_gpu_readings(registry: Registry) -> dict[str, GpuReading]:
    """By pod; pods without a GPU are absent. Raises RegistryUnavailable."""
    found = await registry.transactions.submit("gpus")
    return {str(pod): decode_gpu(text) for pod, text in found or ()}


async def read_declared_times(registry: Registry) -> dict[str, str]:
    """By `namespace/name`, in Redis' time, as ISO 8601 writes it. Raises RegistryUnavailable."""
    found = list(await registry.transactions.submit("declared") or ())
    return {
        str(name): datetime.fromtimestamp(int(at_ms) / 1000, UTC).isoformat(timespec="milliseconds")
        for name, at_ms in zip(found[::2], found[1::2], strict=True)
    }


async def restore_declared_times(registry: Registry, times: Mapping[str, str]) -> None:
    """Of models that an earlier run declared, as `read_declared_times` gave them."""
    pairs = [
        (name, int(datetime.fromisoformat(at).timestamp() * 1000)) for name, at in times.items()
    ]
    await registry.transactions.submit("declared_at", pairs)
