"""What simulated devices have done: loads, batches, and how their time went (figure 9)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(eq=False, slots=True)
class SimulatedStep:
    """One call of one request."""

    run: int
    number: int
    model: str
    device: int = -1
    ready_s: float | None = None
    """When its inputs are at its device; None: they are not all computed."""
    begun_s: float | None = None
    end_s: float | None = None


@dataclass(slots=True)
class DeviceCounts:
    """Times in seconds."""

    loads: int = 0
    unused: int = 0
    """Loads of models that left the device without a step."""
    batches: int = 0
    steps: int = 0
    running_s: float = 0.0
    """Running without loading; `loading_s` the reverse."""
    loading_s: float = 0.0
    both_s: float = 0.0
    _since_s: float = 0.0
    _is_running: bool = False
    _is_loading: bool = False

    def begin(self, now_s: float, *, is_running: bool, is_loading: bool) -> None:
        """The device is in this state from now on."""
        passed_s, self._since_s = now_s - self._since_s, now_s
        if self._is_running and self._is_loading:
            self.both_s += passed_s
        elif self._is_running:
            self.running_s += passed_s
        elif self._is_loading:
            self.loading_s += passed_s
        self._is_running, self._is_loading = is_running, is_loading
