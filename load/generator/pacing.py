"""The open loop: every request goes out at its time, whether others were answered or not.

A send that could not be made in time is made at once and shows in `sent_s`; latency counts from
the scheduled time, so that a generator that falls behind looks slow instead of hiding it.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from load.generator.answers import RequestResult
from load.generator.content import TEXT, Content
from load.generator.latencies import Latencies
from load.generator.record_parts import record_row
from load.generator.settings import LATE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from load.generator.arrivals import TraceArrival
    from load.generator.record_parts import RecordPart
    from load.generator.settings import RunSettings


class Sender(Protocol):
    """Puts one request: over HTTP, or over gRPC."""

    async def send(
        self, arrival: TraceArrival, content: Content, request_id: str, outcome: RequestResult
    ) -> None:
        """Fill in the outcome; raises nothing but cancellation."""


@dataclass(slots=True)
class SendCounts:
    """What has happened so far, for the progress bar."""

    due: int = 0
    done: int = 0
    in_flight: int = 0
    late: int = 0
    by_status: Counter[int] = field(default_factory=Counter)
    latencies: Latencies = field(default_factory=Latencies)


@dataclass(slots=True)
class Player:
    """Plays one worker's share of a trace."""

    settings: RunSettings
    sender: Sender
    records: RecordPart
    now_s: Callable[[], float]
    """Seconds since the run's start."""
    most_in_flight: int
    tally: SendCounts = field(default_factory=SendCounts)

    async def play(self, chunks: Iterator[list[TraceArrival]]) -> None:
        """Send everything at its time; returns when all is answered, failed or timed out."""
        contents = {
            name: Content.from_fields(each) for name, each in self.settings.payloads.items()
        }
        async with asyncio.TaskGroup() as group:
            upcoming = await asyncio.to_thread(next, chunks, None)
            while upcoming:
                async with asyncio.TaskGroup() as reading:
                    following = reading.create_task(asyncio.to_thread(next, chunks, None))
                    for arrival in upcoming:
                        await self._until(arrival.at_s)
                        self._begin(group, arrival, contents)
                upcoming = following.result()

    async def _until(self, at_s: float) -> None:
        while (early_s := at_s - self.now_s()) > 0:  # noqa: ASYNC110 - waits for a time
            await asyncio.sleep(math.ceil(early_s * 1000) / 1000)  # shorter, uvloop spins
        if self.tally.due % 64 == 0:
            await asyncio.sleep(0)  # when behind: answers must be read, too

    def _begin(
        self, group: asyncio.TaskGroup, arrival: TraceArrival, contents: dict[str, Content]
    ) -> None:
        self.tally.due += 1
        if self.tally.in_flight >= self.most_in_flight:
            error = (
                f"not sent: {self.most_in_flight} requests of this process were in flight; "
                "raise --max-in-flight or lower the load"
            )
            self._record(arrival, RequestResult(error=error))
            return
        self.tally.in_flight += 1
        name = f"{arrival.tenant}/{arrival.model}"
        content = contents.get(name) or contents.get(arrival.model) or TEXT
        group.create_task(self._send(arrival, content))

    async def _send(self, arrival: TraceArrival, content: Content) -> None:
        outcome = RequestResult()
        try:
            async with asyncio.timeout(self.settings.timeout_s):
                await self.sender.send(arrival, content, self._id(arrival), outcome)
        except TimeoutError:
            outcome.status = 0
            outcome.error = f"no whole answer within --timeout {self.settings.timeout_s:g} s"
        except asyncio.CancelledError:
            outcome.status, outcome.finished_s = 0, None
            outcome.error = "the run was interrupted before the answer came"
            raise
        finally:
            self.tally.in_flight -= 1
            self._record(arrival, outcome)

    def _record(self, arrival: TraceArrival, outcome: RequestResult) -> None:
        tally = self.tally
        tally.done += 1
        tally.by_status[outcome.status] += 1
        if outcome.sent_s is not None and outcome.sent_s - arrival.at_s > LATE_S:
            tally.late += 1
        if outcome.finished_s is not None and outcome.error is None:
            tally.latencies.observe(outcome.finished_s - arrival.at_s)
        self.records.add(
            record_row(arrival, outcome, request_id=self._id(arrival), policy=self.settings.policy)
        )

    def _id(self, arrival: TraceArrival) -> str:
        return f"{self.settings.seed}-{arrival.row}"
