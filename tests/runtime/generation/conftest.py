"""A device for engines."""

from collections.abc import Iterator

import pytest

from runtime.device.worker import DeviceWorker


@pytest.fixture
def device() -> Iterator[DeviceWorker]:
    worker = DeviceWorker(threads=1, max_queued=64)
    worker.start()
    yield worker
    worker.close()
