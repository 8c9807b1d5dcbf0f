"""Bandwidth: all downloads together keep to the rate, and urgent ones go first."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from runtime.errors import LoadCancelled, StorageFailed
from runtime.storage.load_priority import LoadTicket
from runtime.storage.ranged_download import MAX_PRELOAD_READERS, PRELOAD_SHARE, Bandwidth
from tests.servers import wait_until

CHUNK = 10_000


class Clock:
    """Virtual time that passes only in sleeps."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def test_reads_keep_to_the_rate() -> None:
    clock = Clock()
    bandwidth = Bandwidth(1000, burst_s=0.05, clock=lambda: clock.now_s, sleep=clock.sleep)
    with bandwidth.use(LoadTicket()) as use:
        for _ in range(20):
            use.take(100)
    assert clock.now_s - 100 == pytest.approx(2.0, abs=0.06)


def test_short_pauses_are_made_up_for() -> None:
    clock = Clock()
    bandwidth = Bandwidth(1000, burst_s=0.05, clock=lambda: clock.now_s, sleep=clock.sleep)
    with bandwidth.use(LoadTicket()) as use:
        for _ in range(20):
            use.take(100)
            clock.sleep(0.03)  # a write to disk
    assert clock.now_s - 100 == pytest.approx(2.03, abs=0.06)


def test_without_a_rate_nothing_waits() -> None:
    with Bandwidth(None, sleep=lambda _: pytest.fail("must not wait")).use(LoadTicket()) as use:
        use.take(10**12)


class Race:
    """A preload and an urgent download; time passes only in waits for the rate."""

    def __init__(self, rate: float | None) -> None:
        self.clock = Clock()
        self.bandwidth = Bandwidth(rate, clock=lambda: self.clock.now_s, sleep=self.clock.sleep)
        self.preload, self.urgent = LoadTicket(is_urgent=False), LoadTicket()
        self.preloaded = 0
        self.ended: list[str] = []

    def run_preload(self, chunks: int) -> None:
        with self.bandwidth.use(self.preload) as use:
            for _ in range(chunks):
                use.take(CHUNK)
                self.preloaded += CHUNK
        self.ended.append("preload")


@pytest.mark.parametrize("rate", [None, 1e6])
def test_preload_gets_its_share_beside_an_urgent_download(rate: float | None) -> None:
    race = Race(rate)
    with ThreadPoolExecutor(1) as threads:
        with race.bandwidth.use(race.urgent) as use:
            loading = threads.submit(race.run_preload, 10)
            for chunk in range(1, 161):
                use.take(CHUNK)
                assert race.preloaded <= PRELOAD_SHARE * chunk * CHUNK
            wait_until(lambda: race.preloaded == 10 * CHUNK, what="the share is used up")
            race.ended.append("urgent")
        loading.result()
    assert race.preloaded == PRELOAD_SHARE * 160 * CHUNK


def test_urgent_download_overtakes_a_preload() -> None:
    race = Race(1e6)
    with ThreadPoolExecutor(1) as threads:
        with race.bandwidth.use(race.preload) as early:
            early.take(CHUNK)  # the only download
        with race.bandwidth.use(race.urgent) as use:
            loading = threads.submit(race.run_preload, 50)
            for _ in range(100):
                use.take(CHUNK)
            race.ended.append("urgent")
        loading.result()
    assert race.ended == ["urgent", "preload"]


def test_prioritised_preload_no_longer_waits() -> None:
    race = Race(None)
    with ThreadPoolExecutor(1) as threads, race.bandwidth.use(race.urgent):
        loading = threads.submit(race.run_preload, 1)
        wait_until(lambda: len(race.bandwidth._uses) == 2, what="the preload has begun")
        assert race.preloaded == 0  # no time passes, and the urgent one reads nothing
        race.preload.prioritise()
        loading.result(60)


def test_stalled_urgent_download_delays_no_preload() -> None:
    race = Race(None)
    with ThreadPoolExecutor(1) as threads, race.bandwidth.use(race.urgent):
        loading = threads.submit(race.run_preload, 1)
        wait_until(lambda: len(race.bandwidth._uses) == 2, what="the preload has begun")
        race.clock.now_s += 1.5
        loading.result(60)


@pytest.mark.parametrize("is_closed", [True, False])
def test_waiting_preload_ends_when_cancelled_or_closed(*, is_closed: bool) -> None:
    race = Race(None)
    with ThreadPoolExecutor(1) as threads, race.bandwidth.use(race.urgent):
        loading = threads.submit(race.run_preload, 1)
        wait_until(lambda: len(race.bandwidth._uses) == 2, what="the preload has begun")
        if is_closed:
            race.bandwidth.close()
        else:
            race.preload.cancel("of the test")
        with pytest.raises(StorageFailed if is_closed else LoadCancelled):
            loading.result(60)


def test_preloads_leave_connections_for_urgent_downloads() -> None:
    bandwidth = Bandwidth(None)
    inside, end = threading.Semaphore(0), threading.Event()

    def read(ticket: LoadTicket) -> None:
        with bandwidth.use(ticket) as use, use.connection_slot():
            inside.release()
            assert end.wait(240)

    def enters() -> bool:
        return inside.acquire(timeout=60)

    preloads = [LoadTicket(is_urgent=False) for _ in range(MAX_PRELOAD_READERS + 1)]
    with ThreadPoolExecutor(MAX_PRELOAD_READERS + 2) as threads:
        for ticket in preloads[:-1]:
            threads.submit(read, ticket)
        assert all(enters() for _ in preloads[:-1])
        last = threads.submit(read, preloads[-1])
        threads.submit(read, LoadTicket())
        assert enters()  # the urgent download
        assert not inside.acquire(blocking=False)
        preloads[-1].prioritise()
        assert enters()
        end.set()
        last.result(60)
