"""What the ledger of inferences says: which requests were executed twice, and where."""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_SEEN_LATE_S: Final = 0.5
"""Ends of processes are noticed this late at most."""


@dataclass(frozen=True, slots=True)
class Execution:
    """One inference. `ended_s` is None if it gave no outputs."""

    pid: int
    began_s: float
    ended_s: float | None


def read_ledger(path: Path) -> dict[str, list[Execution]]:
    """Executions by request, in the order of their begin."""
    open_by_place: dict[tuple[str, int], list[float]] = defaultdict(list)
    found: dict[str, list[Execution]] = defaultdict(list)
    for line in path.read_text().splitlines():
        event, time_s, pid, request = line.split()
        began = open_by_place[request, int(pid)]
        if event == "begin":
            began.append(float(time_s))
        else:
            found[request].append(Execution(int(pid), began.pop(), float(time_s)))
    for (request, number), rest in open_by_place.items():
        found[request] += [Execution(number, began_s, None) for began_s in rest]
    return {request: sorted(each, key=lambda e: e.began_s) for request, each in found.items()}


def executed_twice(
    executions: Mapping[str, list[Execution]], ended_s: Mapping[int, Sequence[float]]
) -> list[str]:
    """Requests that gave outputs twice while both processes lived.

    A second execution is allowed only after the end of the first one's process, which is then no
    longer there to answer. `ended_s`: when processes with this number were seen to be gone.
    """
    twice = []
    for request, each in executions.items():
        whole = [execution for execution in each if execution.ended_s is not None]
        for first, second in itertools.pairwise(whole):
            ends_s = [end_s for end_s in ended_s.get(first.pid, ()) if end_s > first.began_s]
            gone_s = min(ends_s, default=float("inf"))
            if first.pid == second.pid or gone_s > second.began_s + _SEEN_LATE_S:
                twice.append(
                    f"{request}: pid {first.pid} ended {first.ended_s:.3f},"
                    f" pid {second.pid} began {second.began_s:.3f}"
                )
    return twice
