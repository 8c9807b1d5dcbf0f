"""The order in which readers transfer the parts of several loads."""

import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor

import pytest

from runtime.device.staged_memory import ReaderPool
from runtime.errors import LoadCancelled
from runtime.storage.load_priority import LoadTicket
from runtime.weights.weight_source import SlabPart, slab_parts
from tests.servers import wait_until


class Loads:
    """Loads of parts of one byte, through readers that wait while the gate is closed."""

    def __init__(self, readers: int) -> None:
        self.pool = ReaderPool(readers)
        self.gate = threading.Event()
        self.order: list[str] = []
        self.entered: list[str] = []
        self.callers = ThreadPoolExecutor(8)
        self.offering: dict[str, LoadTicket] = {}
        """Loads whose sources have further parts."""

    def has_queued(self) -> bool:
        """Whether each load has queued a part, unless it has no further one."""
        waiting = {id(each.ticket) for each in list(self.pool._transfers) if each.waiting}
        offering = [each for each in list(self.offering.values()) if not each.is_cancelled]
        return self.pool._is_closed or all(id(ticket) in waiting for ticket in offering)

    def start(self, name: str, parts: int, ticket: LoadTicket) -> Future[None]:
        """Begin a load; returns once its first parts wait, or are under way."""
        queued = threading.Event()

        def offer() -> Iterator[SlabPart]:
            self.offering[name] = ticket
            for number, part in enumerate(slab_parts(parts, 1)):
                if number == min(2, parts - 1):
                    queued.set()
                if number == parts - 1:
                    del self.offering[name]
                yield part

        def copy(part: SlabPart) -> None:
            self.entered.append(name)
            assert self.gate.wait(60)
            wait_until(self.has_queued, timeout_s=60, what="queued parts, as in a real copy")
            self.order.append(name)

        loading = self.callers.submit(self.pool.run, offer(), copy, ticket)
        assert queued.wait(60)
        return loading


@pytest.fixture
def one_reader() -> Iterator[Loads]:
    loads = Loads(1)
    yield loads
    loads.gate.set()
    loads.pool.close()


@pytest.fixture
def two_readers() -> Iterator[Loads]:
    loads = Loads(2)
    yield loads
    loads.gate.set()
    loads.pool.close()


def test_small_urgent_load_overtakes_a_large_preload(one_reader: Loads) -> None:
    large = one_reader.start("preload", 60, LoadTicket(is_urgent=False))
    wait_until(lambda: one_reader.entered == ["preload"], what="the preload runs")
    small = one_reader.start("urgent", 2, LoadTicket())
    one_reader.gate.set()
    small.result(60)
    assert one_reader.order.count("preload") < 10
    large.result(60)
    assert one_reader.order.count("preload") == 60


def test_preload_that_becomes_urgent_goes_first(one_reader: Loads) -> None:
    tickets = [LoadTicket(is_urgent=False) for _ in range(2)]
    first = one_reader.start("first", 60, tickets[0])
    wait_until(lambda: one_reader.entered == ["first"], what="the first runs")
    second = one_reader.start("second", 40, tickets[1])
    tickets[1].prioritise()
    one_reader.gate.set()
    second.result(60)
    assert one_reader.order.count("first") < 10
    first.result(60)


def test_small_load_does_not_end_after_an_equally_urgent_large_one(one_reader: Loads) -> None:
    large = one_reader.start("large", 60, LoadTicket())
    wait_until(lambda: one_reader.entered == ["large"], what="the large one runs")
    small = one_reader.start("small", 5, LoadTicket())
    one_reader.gate.set()
    small.result(60)
    assert one_reader.order.count("large") < 20
    large.result(60)


def test_preloads_leave_one_reader_for_urgent_loads(two_readers: Loads) -> None:
    preload = two_readers.start("preload", 100, LoadTicket(is_urgent=False))
    wait_until(lambda: two_readers.entered == ["preload"], what="the preload runs")
    urgent = two_readers.start("urgent", 1, LoadTicket())
    wait_until(lambda: "urgent" in two_readers.entered, what="beside the preload")
    assert two_readers.entered == ["preload", "urgent"]
    two_readers.gate.set()
    urgent.result(60)
    preload.result(60)


def test_cancelled_load_copies_no_further_part(one_reader: Loads) -> None:
    ticket = LoadTicket()
    loading = one_reader.start("cancelled", 60, ticket)
    wait_until(lambda: one_reader.entered == ["cancelled"], what="it runs")
    ticket.cancel("nobody waits for it")
    assert not loading.done()  # a part is under way, and its slab in use
    one_reader.gate.set()
    with pytest.raises(LoadCancelled, match="nobody waits"):
        loading.result(60)
    assert one_reader.order == ["cancelled"]


def test_failed_part_ends_its_load_alone(one_reader: Loads) -> None:
    one_reader.gate.set()

    def fail(part: SlabPart) -> None:
        raise OSError(f"byte {part.offset} cannot be read")

    with pytest.raises(OSError, match="byte 0"):
        one_reader.pool.run(slab_parts(60, 1), fail)
    one_reader.start("other", 3, LoadTicket()).result(60)
    assert one_reader.order == ["other"] * 3


def test_error_of_the_source_ends_the_load(one_reader: Loads) -> None:
    def parts() -> Iterator[SlabPart]:
        yield SlabPart(0, 1)
        raise LoadCancelled("the download ended")

    with pytest.raises(LoadCancelled, match="download"):
        one_reader.pool.run(parts(), lambda part: None)


def test_a_load_queues_few_parts(one_reader: Loads) -> None:
    """What it has not queued is not read ahead, and leaves as soon as the load is cancelled."""
    offered: list[int] = []

    def parts() -> Iterator[SlabPart]:
        for part in slab_parts(60, 1):
            offered.append(part.offset)
            yield part

    def copy(part: SlabPart) -> None:
        assert one_reader.gate.wait(60)

    loading = one_reader.callers.submit(one_reader.pool.run, parts(), copy)
    wait_until(lambda: len(offered) == 4, what="one under way, two queued, one waits")
    one_reader.gate.set()
    loading.result(60)
    assert len(offered) == 60


def test_closed_pool_ends_its_loads() -> None:
    loads = Loads(1)
    loading = loads.start("load", 100, LoadTicket())
    wait_until(lambda: loads.entered == ["load"], what="it runs")
    closing = loads.callers.submit(loads.pool.close)
    wait_until(lambda: loads.pool._is_closed, what="the pool closes")
    loads.gate.set()
    closing.result(60)
    with pytest.raises(CancelledError):
        loading.result(60)
    assert loads.order == ["load"]
