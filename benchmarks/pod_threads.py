"""A pod that writes the CPU time of its threads into a file at each SIGUSR1, for `pod_cpu`.

`python -m benchmarks.pod_threads FILE ARG…` takes the arguments of `python -m runtime`.
"""

import json
import logging
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path


def main() -> None:
    file = Path(sys.argv.pop(1))
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})  # in all threads
    threading.Thread(target=_answer, args=[file], name="answer", daemon=True).start()
    from runtime.__main__ import main as run_pod

    status = run_pod()
    logging.shutdown()
    os._exit(status)


def _answer(file: Path) -> None:
    while True:
        signal.sigwait({signal.SIGUSR1})
        aside = file.with_suffix(".new")
        aside.write_text(json.dumps(_cpu_s()))
        aside.rename(file)


def _cpu_s() -> dict[str, float]:
    """Seconds by the kind of thread; `other`: threads of libraries, and those that have ended."""
    found: dict[str, float] = {"other": time.process_time()}
    for thread in threading.enumerate():
        kind = (thread.name or "other").rstrip("0123456789").rstrip("_-")
        with suppress(OSError):  # it has ended
            clock = time.pthread_getcpuclockid(thread.ident or 0)
            seconds = time.clock_gettime(clock)
            found[kind] = found.get(kind, 0.0) + seconds
            found["other"] -= seconds
    return found


if __name__ == "__main__":
    main()
