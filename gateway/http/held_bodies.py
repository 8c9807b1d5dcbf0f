"""What the bodies of all requests together may occupy, in memory and in temporary files."""

from __future__ import annotations

from typing import Final

from gateway.errors import BodiesFull

UNCOUNTED_BYTES: Final = 64 << 10
"""The beginning of each body, which connections bound: small requests are served even when
large ones have filled the budget."""


class HeldBodies:
    """Counts bytes; `memory_limit` and `disk_limit` are budgets of the gateway."""

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

    def take_disk(self, byte_count: int) -> None:
        self._check_disk(byte_count)
        self.disk_bytes += byte_count

    def release(self, memory_bytes: int, disk_bytes: int) -> None:
        self.memory_bytes -= memory_bytes
        self.disk_bytes -= disk_bytes

    def _check_memory(self, more: int) -> None:
        if self.memory_bytes + more > self._memory_limit:
            raise BodiesFull(
                f"the gateway holds {self.memory_bytes} bytes of other requests' bodies in memory;"
                f" {more} more exceed {self._memory_limit} (--held-body-bytes)",
                retry_after_s=1.0,
            )

    def _check_disk(self, more: int) -> None:
        if self.disk_bytes + more > self._disk_limit:
            raise BodiesFull(
                f"the gateway holds {self.disk_bytes} bytes of other requests' bodies in files;"
                f" {more} more exceed {self._disk_limit} (--spool-bytes)",
                retry_after_s=1.0,
            )
