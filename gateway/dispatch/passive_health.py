"""What talking to pods has taught this gateway and the registry does not know: for a while only."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from registry.domain.pod_state import PodState

_SUSPECT_S: Final = 1.0
_NO_ROOM_S: Final = 0.1
_FULL_FIRST_S: Final = 0.02
_FULL_LONGEST_S: Final = 0.5


class PassiveHealth:
    """Marks pods in the copy and takes the marks back; `look_again` is called when it does."""

    def __init__(self, look_again: Callable[[], None]) -> None:
        self._look_again = look_again
        self._loop = asyncio.get_running_loop()

    def suspect(self, pod: PodState) -> None:
        """Send nothing there until it is heard of again, or a while has passed."""
        self._pass_by(pod, _SUSPECT_S)

    def has_no_room(self, pod: PodState) -> None:
        """Its device had no room for an inference: let those that fill it end."""
        self._pass_by(pod, _NO_ROOM_S)

    def _pass_by(self, pod: PodState, for_s: float) -> None:
        pod.is_suspect = True

        def forgive() -> None:
            pod.is_suspect = False
            self._look_again()

        self._loop.call_later(for_s, forgive)

    def is_full(self, pod: PodState, refusals: int) -> None:
        """The pod has no slot, whatever the copy says; longer where it refused before."""
        slots = pod.slots
        pod.slots_pending += slots

        def recount() -> None:
            pod.slots_pending -= slots
            self._look_again()

        self._loop.call_later(min(_FULL_FIRST_S * 2**refusals, _FULL_LONGEST_S), recount)
