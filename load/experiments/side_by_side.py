"""The same function for many tasks, on as many cores as may be used. Results keep the order."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from typing import TYPE_CHECKING, Final, TypeVar

from load.experiments.parentage import end_with_parent

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

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
    """`function` of each task; a module's function, since other processes may call it."""
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
            tell(done)
        return found
    with ProcessPoolExecutor(
        min(settings.processes, total), mp_context=get_context("spawn"), initializer=end_with_parent
    ) as pool:
        futures = [pool.submit(function, task) for task in tasks]
        try:
            for done, future in enumerate(as_completed(futures), start=1):
                future.result()
                tell(done)
        except BaseException:  # the first failure, or Ctrl-C: what has not begun does not begin
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        return [future.result() for future in futures]
