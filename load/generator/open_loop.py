"""The open loop: every request is sent at its time, regardless of responses to others.

A request that could not be sent in time is sent at once and visible by `sent_s`. Latency counts
from the scheduled time: a generator that falls behind shows high latency instead of hiding it.
"""

import asyncio
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from load.generator.content import TEXT, Content
from load.generator.progress import SendCounts
from load.generator.record_parts import RecordPart, record_row
from load.generator.responses import RequestResult
from load.generator.settings import LATE_S, RunSettings
from load.generator.trace_arrivals import TraceArrival


class Sender(Protocol):
    """Sends requests over HTTP or gRPC."""

    async def send(
        self, arrival: TraceArrival, content: Content, request_id: str, result: RequestResult
    ) -> None:
        """Fill in the result; raises nothing but cancellation."""

    async def close(self) -> None: ...


@dataclass(slots=True)
class OpenLoop:
    """Sends one worker's share of a trace."""

    settings: RunSettings
    sender: Sender
    records: RecordPart
    now_s: Callable[[], float]
    """Seconds since the run's start."""
    max_in_flight: int
    counts: SendCounts = field(default_factory=SendCounts)

    async def run(self, chunks: Iterator[list[TraceArrival]]) -> None:
        """Send every request at its time; returns when all have a result."""
        async with asyncio.TaskGroup() as requests:
            upcoming = await asyncio.to_thread(next, chunks, None)
            while upcoming:
                async with asyncio.TaskGroup() as reading:
                    following = reading.create_task(asyncio.to_thread(next, chunks, None))
                    for arrival in upcoming:
                        await self._wait_until(arrival.at_s)
                        self._start(requests, arrival)
                upcoming = following.result()

    async def _wait_until(self, at_s: float) -> None:
        while (early_s := at_s - self.now_s()) > 0:  # noqa: ASYNC110 - waits for a time
            await asyncio.sleep(math.ceil(early_s * 1000) / 1000)  # shorter, uvloop spins
        if self.counts.due % 64 == 0:
            await asyncio.sleep(0)  # lets responses be read when the loop is behind

    def _start(self, requests: asyncio.TaskGroup, arrival: TraceArrival) -> None:
        self.counts.due += 1
        if self.counts.in_flight >= self.max_in_flight:
            error = (
                f"not sent: {self.max_in_flight} requests of this process were in flight; "
                "raise --max-in-flight or lower the load"
            )
            self._record(arrival, RequestResult(error=error))
            return
        self.counts.in_flight += 1
        payloads = self.settings.payloads
        content = payloads.get(f"{arrival.tenant}/{arrival.model}") or payloads.get(arrival.model)
        requests.create_task(self._send(arrival, content or TEXT))

    async def _send(self, arrival: TraceArrival, content: Content) -> None:
        result = RequestResult()
        try:
            async with asyncio.timeout(self.settings.timeout_s):
                await self.sender.send(arrival, content, self._request_id(arrival), result)
        except TimeoutError:
            result.status = 0
            result.error = f"no complete response within --timeout {self.settings.timeout_s:g} s"
        except asyncio.CancelledError:
            result.status, result.finished_s = 0, None
            result.error = "the run was interrupted before the response"
            raise
        finally:
            self.counts.in_flight -= 1
            self._record(arrival, result)

    def _record(self, arrival: TraceArrival, result: RequestResult) -> None:
        counts = self.counts
        counts.done += 1
        counts.by_status[result.status] += 1
        if result.sent_s is not None and result.sent_s - arrival.at_s > LATE_S:
            counts.late += 1
        if result.finished_s is not None and result.error is None:
            counts.latencies.observe(result.finished_s - arrival.at_s)
        request_id = self._request_id(arrival)
        row = record_row(arrival, result, request_id=request_id, policy=self.settings.policy)
        self.records.add(row)

    def _request_id(self, arrival: TraceArrival) -> str:
        return f"{self.settings.seed}-{arrival.row}"
