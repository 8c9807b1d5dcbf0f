"""The threads of loads: order of completion with the only thread held by a condition."""

from __future__ import annotations

import threading
from concurrent.futures import wait

import pytest

from runtime.errors import LoadCancelled
from runtime.loading.load_threads import LoadThreads
from runtime.storage.load_ticket import LoadTicket
from tests.servers import wait_until

PRELOAD, URGENT = False, True


class Line:
    """One thread, busy until `gate` is set; what waits behind it writes its name when it runs."""

    def __init__(self, *, max_preload_threads: int = 1) -> None:
        self.threads = LoadThreads(1, max_preload_threads=max_preload_threads)
        self.gate = threading.Event()
        self.order: list[str] = []
        self.first = self.threads.submit(self.gate.wait, 240)


def test_urgent_work_overtakes_preloads_that_were_handed_in_before() -> None:
    line = Line()
    early, late = LoadTicket(is_urgent=False), LoadTicket()
    jobs = [
        line.threads.executor_for(early).submit(line.order.append, "preload"),
        line.threads.executor_for(late).submit(line.order.append, "urgent"),
    ]
    line.gate.set()
    wait(jobs)
    assert line.order == ["urgent", "preload"]
    line.threads.shutdown()


def test_preload_that_becomes_urgent_overtakes_with_what_waits_already() -> None:
    line = Line()
    tickets = {name: LoadTicket(is_urgent=False) for name in ("a", "b", "c")}
    jobs = [
        line.threads.executor_for(ticket).submit(line.order.append, name)
        for name, ticket in tickets.items()
    ]
    tickets["c"].prioritise()
    line.gate.set()
    wait(jobs)
    assert line.order == ["c", "a", "b"]
    line.threads.shutdown()


def test_preloads_never_take_all_threads() -> None:
    threads, gate = LoadThreads(2, max_preload_threads=1), threading.Event()
    began: list[str] = []

    def hold(name: str) -> None:
        began.append(name)
        assert gate.wait(240)

    tickets = [LoadTicket(is_urgent=False) for _ in range(2)]
    preloads = [
        threads.executor_for(ticket).submit(hold, f"preload-{n}")
        for n, ticket in enumerate(tickets)
    ]
    assert threads.submit(lambda: "ran").result(60) == "ran"
    wait_until(lambda: began == ["preload-0"], what="the first one begun")
    tickets[1].prioritise()  # it may have the thread that is left to urgent work
    assert threads.submit(lambda: "ran").running() is False
    gate.set()
    wait(preloads)
    assert began == ["preload-0", "preload-1"]
    threads.shutdown()


def test_work_of_a_cancelled_load_is_not_run() -> None:
    line = Line()
    ticket = LoadTicket(is_urgent=False)
    job = line.threads.executor_for(ticket).submit(line.order.append, "never")
    ticket.cancel("of the test")
    with pytest.raises(LoadCancelled, match="cancelled: of the test"):
        job.result(60)  # at once: the thread is still busy
    assert not line.first.done()
    line.gate.set()
    line.threads.shutdown()
    assert line.order == []


def test_error_reaches_who_waits_and_the_thread_goes_on() -> None:
    threads = LoadThreads(1)
    with pytest.raises(ZeroDivisionError):
        threads.submit(divmod, 1, 0).result(60)
    assert threads.submit(divmod, 7, 2).result(60) == (3, 1)
    threads.shutdown()
