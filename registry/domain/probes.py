"""How often work that measurements call hopeless is tried all the same.

Measurements may be of larger requests, or out of date, and a model that serves nothing gets no
others. A share of the refusals would be most of the work under overload, so probes are limited by
the time that they take. Pure; times in seconds of the caller's clock, which may jump.
"""

from collections import OrderedDict
from typing import Final

TIME_SHARE: Final = 1 / 64
"""Of the time, what probes of one model may take."""
MAX_PAUSE_S: Final = 10.0
"""Longest time without a probe, for models whose probes take longer than that share."""
MAX_LOAD_PAUSE_S: Final = 60.0
"""The same, of probes that load a model which is not worth what it delays and evicts."""
MAX_MODELS: Final = 4096
"""Above this number, the model that was probed longest ago is forgotten."""


class ProbeBudget:
    """The time of each model's next probe, by key.

    `first_pause_s`: from `begin`, or the first question, to the first probe.
    """

    def __init__(self, first_pause_s: float = 0.0) -> None:
        self._first_pause_s = first_pause_s
        self._pauses: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """Time of the last probe, and of the next one."""

    def begin(self, key: str, now_s: float) -> None:
        """Begin the first pause, once."""
        if key not in self._pauses:
            self._pause(key, now_s, self._first_pause_s)

    def is_due(self, key: str, now_s: float) -> bool:
        """Whether a probe may begin now."""
        self.begin(key, now_s)
        last_s, next_s = self._pauses[key]
        return not last_s <= now_s < next_s

    def spend(
        self, key: str, now_s: float, cost_s: float, max_pause_s: float = MAX_PAUSE_S
    ) -> None:
        """Count a probe that is expected to take `cost_s`."""
        self._pause(key, now_s, min(max_pause_s, cost_s / TIME_SHARE))

    def _pause(self, key: str, now_s: float, seconds: float) -> None:
        self._pauses[key] = now_s, now_s + seconds
        self._pauses.move_to_end(key)
        if len(self._pauses) > MAX_MODELS:
            self._pauses.popitem(last=False)
