"""The same function for many tasks, on as many cores as may be used. Results keep the order.

Each result is kept (`Settings.keep`) as soon as it is there, so that a run that ends before its
time loses only what was under way.
"""

from __future__ import annotations

from concurrent.futures import as_completed
from typing import TYPE_CHECKING, Final, TypeVar

from load.worker_processes import worker_processes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from concurrent.futures import Future

    from load.experiments.experiment import Settings

Task = TypeVar("Task")
Found = TypeVar("Found")
_TIMES_TOLD: Final = 20


def run_side_by_side(
    function: Callable[[Task], Found],
    tasks: Sequence[Task],
    settings: Settings,
    *,
    what: str,
) -> list[Found]:
    """`function` of each task; a module's function, since other processes may call it.

    The first failure, or Ctrl-C, ends what is under way, and what has not begun does not begin.
    """
    total = len(tasks)
    told = max(1, total // _TIMES_TOLD)

    def tell(done: int) -> None:
        if done % told == 0 or done == total:
            settings.progress(done, total, f"{what}: {done} of {total}")

    tell(0)
    if settings.processes == 1 or total <= 1:
        found = []
        for done, task in enumerate(tasks, start=1):
            found.append(function(task))
            settings.keep(what, task, found[-1])
            tell(done)
        return found
    with worker_processes(min(settings.processes, total)) as workers:
        futures = {workers.submit(function, task): task for task in tasks}
        kept: set[Future[Found]] = set()
        try:
            for done, future in enumerate(as_completed(futures), start=1):
                settings.keep(what, futures[future], future.result())
                kept.add(future)
                tell(done)
        except BaseException:
            _keep_the_rest(futures, kept, settings, what)
            raise
        return [future.result() for future in futures]


def _keep_the_rest(
    futures: Mapping[Future[Found], Task],
    kept: set[Future[Found]],
    settings: Settings,
    what: str,
) -> None:
    """What ended beside the one that failed, or while Ctrl-C came."""
    for future, task in futures.items():
        ended = future not in kept and future.done() and not future.cancelled()
        if ended and future.exception() is None:
            settings.keep(what, task, future.result())
