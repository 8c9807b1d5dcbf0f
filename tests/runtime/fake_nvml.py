"""NVML without a driver: the functions of `cuda.bindings.nvml` that a pod calls, for one GPU."""

from collections import deque
from enum import IntEnum
from types import SimpleNamespace


class FakeNvml:
    class NvmlError(Exception): ...

    class TimeoutError(NvmlError): ...  # the library's name

    class NotSupportedError(NvmlError): ...

    class NotFoundError(NvmlError): ...

    class GpuIsLostError(NvmlError): ...

    class ResetRequiredError(NvmlError): ...

    class EventType(IntEnum):
        XID_CRITICAL_ERROR = 8

    class TemperatureSensors(IntEnum):
        GPU = 0

    def __init__(self, uuid: str) -> None:
        self.uuid = uuid
        self.busy, self.used, self.heat = 37, 12_500_000_000, 61
        self.xids: deque[int] = deque()
        self.unsupported: set[str] = set()
        """Functions that the driver lacks for this GPU."""
        self.lost: Exception | None = None
        self.users = 0
        """Calls of `init_v2` less those of `shutdown`."""
        self.event_sets = 0

    def _answer(self, function: str) -> None:
        if self.lost is not None:
            raise self.lost
        if function in self.unsupported:
            raise self.NotSupportedError(function)

    def init_v2(self) -> None:
        self.users += 1

    def shutdown(self) -> None:
        self.users -= 1

    def device_get_handle_by_uuid(self, uuid: str) -> int:
        if uuid != self.uuid:
            raise self.NotFoundError(uuid)
        return 7

    def device_get_utilization_rates(self, device: int) -> SimpleNamespace:
        self._answer("utilization")
        return SimpleNamespace(gpu=self.busy, memory=0)

    def device_get_memory_info_v2(self, device: int) -> SimpleNamespace:
        self._answer("memory")
        return SimpleNamespace(used=self.used)

    def device_get_temperature_v(self, device: int, sensor: int) -> int:
        self._answer("temperature")
        return self.heat

    def event_set_create(self) -> int:
        self.event_sets += 1
        return 3

    def event_set_free(self, events: int) -> None:
        self.event_sets -= 1

    def device_register_events(self, device: int, kinds: int, events: int) -> None:
        self._answer("events")

    def event_set_wait_v2(self, events: int, timeout_ms: int) -> SimpleNamespace:
        if not self.xids:
            raise self.TimeoutError
        return SimpleNamespace(event_type=8, event_data=self.xids.popleft())
