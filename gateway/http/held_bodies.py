"""What the bodies of all requests together occupy, and may, in memory and temporary files."""

from typing import Final

from gateway.errors import BodiesFull

UNCOUNTED_BYTES: Final = 64 << 10
"""The beginning of each body, which connections bound: small requests are served even when
large ones have filled the budget."""


class HeldBodies:
    def __init__(self, memory_limit: int, disk_limit: int) -> None:
        self._memory_limit = memory_limit
        self._disk_limit = disk_limit
        self.memory_bytes = 0
        self.disk_bytes = 0

    def check(self, declared: int, *, in_file: bool) -> None:
        """Refuse a body of this declared length before it is read. Raises BodiesFull."""
        if in_file:
            self._check_disk(declared)
        elif declared > UNCOUNTED_BYTES:
            self._check_memory(declared)

    def take_memory(self, byte_count: int) -> None:
        self._check_memory(byte_count)
        self.memory_bytes += byte_count

    def may_take_memory(self, byte_count: int) -> bool:
        """Take it, if there is so much."""
        is_free = self.memory_bytes + byte_count <= self._memory_limit
        if is_free:
            self.memory_bytes += byte_count
        return is_free

    def take_disk(self, byte_count: int) -> None:
        self._check_disk(byte_count)
        self.disk_bytes += byte_count

    def release(self, memory_bytes: int, disk_bytes: int) -> None:
        self.memory_bytes -= memory_bytes
        self.disk_bytes -= disk_bytes

    def _check_memory(self, more: int) -> None:
        _check(self.memory_bytes, more, self._memory_limit, "memory", "--held-body-bytes")

    def _check_disk(self, more: int) -> None:
        _check(self.disk_bytes, more, self._disk_limit, "files", "--spool-bytes")


def _check(held: int, more: int, limit: int, where: str, setting: str) -> None:
    if held + more > limit:
        raise BodiesFull(
            f"the gateway holds {held} bytes of other requests' bodies in {where}; {more} more"
            f" exceed {limit} ({setting})",
            retry_after_s=1.0,
        )
