"""The requests in flight: admission to the pod's slots, draining, and cancellation of all."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from runtime.errors import (
    AlreadyBegun,
    DeadlinePassed,
    InvalidRequest,
    PodDraining,
    PodEnded,
    SlotsFull,
)
from runtime.metrics import SLOTS_USED

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from runtime.wire.request_head import RequestHead

MAX_BEGUN = 10_000


class InFlightRequests:
    """All requests of a pod. An entry request takes a slot; an inference stage alone takes none."""

    def __init__(self, pod_name: str, *, slots: int, allow_simulated_work: bool = False) -> None:
        self.is_draining = False
        self._pod_name = pod_name
        self._slots = slots
        self._allow_simulated_work = allow_simulated_work
        self._slots_used = 0
        self._begun: OrderedDict[str, None] = OrderedDict()
        """The latest entry requests that were admitted: attempts, or ids of those without."""
        self._timeouts: set[asyncio.Timeout] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    def check_admission(self, head: RequestHead) -> None:
        """Refuse a request before its body is read.

        Raises InvalidRequest, PodDraining, DeadlinePassed, SlotsFull.
        """
        if head.simulated_work and not self._allow_simulated_work:
            raise InvalidRequest(
                "header x-pilotlight-simulate is accepted only by pods that run with"
                " --allow-simulated-work"
            )
        if self.is_draining:
            raise PodDraining(f"pod {self._pod_name} is draining")
        if head.deadline_s is not None and time.monotonic() >= head.deadline_s:
            raise DeadlinePassed("the deadline had passed when the request arrived")
        if not head.is_infer_stage and self._slots_used >= self._slots:
            raise SlotsFull(f"all {self._slots} slots of the pod are taken")

    @asynccontextmanager
    async def admit(self, head: RequestHead) -> AsyncIterator[None]:
        """Count a request, and its slot, until the block ends.

        Raises as `check_admission` does, AlreadyBegun, and PodEnded if `cancel_all` ends the block.
        """
        self.check_admission(head)
        slots = 0 if head.is_infer_stage else 1
        if slots:
            self._record_begun(head)
        timeout = asyncio.timeout(None)
        self._timeouts.add(timeout)
        self._idle.clear()
        self._take_slots(slots)
        try:
            async with timeout:
                yield
        except TimeoutError as error:
            if timeout.expired():
                raise PodEnded(f"pod {self._pod_name} ended before the request") from error
            raise
        finally:
            self._timeouts.discard(timeout)
            self._take_slots(-slots)
            if not self._timeouts:
                self._idle.set()

    def _record_begun(self, head: RequestHead) -> None:
        name = head.attempt or head.reservation or head.id
        if head.is_resent and name in self._begun:
            raise AlreadyBegun(
                f"the connection of request {head.id} was lost after pod {self._pod_name} had begun"
                " it; it is not executed twice"
            )
        self._begun[name] = None
        if len(self._begun) > MAX_BEGUN:
            self._begun.popitem(last=False)

    def _take_slots(self, slots: int) -> None:
        self._slots_used += slots
        SLOTS_USED.set(self._slots_used)

    def cancel_all(self) -> None:
        now_s = asyncio.get_running_loop().time()
        for timeout in self._timeouts:
            timeout.reschedule(now_s)

    async def wait_idle(self) -> None:
        await self._idle.wait()
