"""How long a process's event loop was blocked, by CPU time, so that a busy machine does not count.

`python -m tests.hostile.loop_probe FOLDER MODULE ARGUMENTS…` runs a module's program with a thread
that sends its event loop a callback every few milliseconds. Two values go to `FOLDER/PID.probe`:
the most CPU time that the loop's thread took from sending a callback to running it, and the most
that any other thread took while the probe's own thread could not run for want of Python's lock.
"""

import asyncio
import mmap
import os
import runpy
import struct
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvloop

INTERVAL_S = 0.002
_VALUES = struct.Struct("dd")


@dataclass(frozen=True)
class Longest:
    """In seconds of CPU time."""

    loop_s: float
    """One thread was in the event loop, which called back nobody."""
    lock_s: float
    """A thread kept Python's lock, which stops the event loop, too."""

    @property
    def seconds(self) -> float:
        return max(self.loop_s, self.lock_s)


class LoopProbe:
    """The values of a probed process, read and reset by another one."""

    def __init__(self, folder: Path, pid: int) -> None:
        with (folder / f"{pid}.probe").open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), _VALUES.size)

    def read(self) -> Longest:
        return Longest(*_VALUES.unpack(self._memory))

    def reset(self) -> None:
        self._memory[:] = _VALUES.pack(0.0, 0.0)


def _watch(loop: asyncio.AbstractEventLoop, folder: Path) -> None:
    path = folder / f"{os.getpid()}.probe"
    unfinished = path.with_suffix(".new")
    unfinished.write_bytes(_VALUES.pack(0.0, 0.0))
    with unfinished.open("r+b") as file:
        memory = mmap.mmap(file.fileno(), _VALUES.size)
    unfinished.rename(path)
    ran = threading.Event()
    while not loop.is_closed():
        time.sleep(INTERVAL_S)
        before = _cpu_times()
        began_s = time.monotonic()
        try:
            loop.call_soon_threadsafe(ran.set)
        except RuntimeError:  # closed meanwhile
            return
        ran.wait()
        ran.clear()
        elapsed_s = time.monotonic() - began_s
        after = _cpu_times()
        taken = {ident: after[ident] - before.get(ident, 0.0) for ident in after}
        main = threading.main_thread().ident or 0
        own = threading.get_ident()
        loop_s = taken.get(main, 0.0)
        most_s = max((s for ident, s in taken.items() if ident not in (main, own)), default=0.0)
        # Without the lock a thread cannot keep the loop from its turn of some milliseconds.
        lock_s = most_s if most_s > 0.8 * elapsed_s else 0.0
        longest = Longest(*_VALUES.unpack(memory))
        memory[:] = _VALUES.pack(max(longest.loop_s, loop_s), max(longest.lock_s, lock_s))


def _cpu_times() -> dict[int, float]:
    """CPU seconds of every Python thread, by its identity."""
    times: dict[int, float] = {}
    for thread in threading.enumerate():
        if thread.ident is not None and thread.is_alive():
            try:
                times[thread.ident] = time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
            except OSError:  # it has just ended
                continue
    return times


def main() -> None:
    folder, module = Path(sys.argv[1]), sys.argv[2]
    sys.argv = [module, *sys.argv[3:]]
    new_event_loop = uvloop.new_event_loop

    def probed_event_loop() -> Any:
        loop = new_event_loop()
        threading.Thread(target=_watch, args=(loop, folder), daemon=True).start()
        return loop

    uvloop.new_event_loop = probed_event_loop
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
