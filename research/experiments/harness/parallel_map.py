"""Maps a function over tasks in parallel processes; results keep the order of the tasks.

Each result is kept (`Settings.keep`) as soon as it is available: a run that is interrupted loses
only unfinished tasks.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import Future, as_completed
from typing import Final, TypeVar

from load.worker_processes import worker_processes
from research.experiments.harness.experiment import Settings

Task = TypeVar("Task")
TaskResult = TypeVar("TaskResult")
Key = TypeVar("Key", bound="Hashable")
_PROGRESS_REPORTS: Final = 20


def parallel_map(
    function: Callable[[Task], TaskResult], tasks: Sequence[Task], settings: Settings, *, what: str
) -> list[TaskResult]:
    """The results of all tasks; `function` must be at module level, so that workers can import it.

    The first failure, or Ctrl-C, ends running tasks, and no further task starts.
    """
    total = len(tasks)
    every = max(1, total // _PROGRESS_REPORTS)

    def report(done: int) -> None:
        if done % every == 0 or done == total:
            settings.progress(done, total, f"{what}: {done} of {total}")

    report(0)
    if settings.processes == 1 or total <= 1:
        results = []
        for done, task in enumerate(tasks, start=1):
            results.append(function(task))
            settings.keep(what, task, results[-1])
            report(done)
        return results
    with worker_processes(min(settings.processes, total)) as workers:
        futures = {workers.submit(function, task): task for task in tasks}
        kept: set[Future[TaskResult]] = set()
        try:
            for done, future in enumerate(as_completed(futures), start=1):
                settings.keep(what, futures[future], future.result())
                kept.add(future)
                report(done)
        except BaseException:
            # Tasks may have succeeded beside the failed one, or before Ctrl-C: keep their results.
            for future, task in futures.items():
                ended = future not in kept and future.done() and not future.cancelled()
                if ended and future.exception() is None:
                    settings.keep(what, task, future.result())
            raise
        return [future.result() for future in futures]


def group_results(
    tasks: Iterable[Task], results: Iterable[TaskResult], key: Callable[[Task], Key]
) -> dict[Key, list[TaskResult]]:
    """Group results by a key of their tasks; each group is in the order of the tasks."""
    grouped: dict[Key, list[TaskResult]] = {}
    for task, result in zip(tasks, results, strict=True):
        grouped.setdefault(key(task), []).append(result)
    return grouped
