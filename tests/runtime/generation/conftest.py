"""A device for engines."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from runtime.device.worker import DeviceWorker

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def device() -> Iterator[DeviceWorker]:
    worker = DeviceWorker(threads=1, max_queued=64)
    worker.start()
    yield worker
    worker.close()
