"""What the ledger of inferences says: which requests were executed twice, and where."""

import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


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
    executions: Mapping[str, list[Execution]], pods_ended_s: Sequence[tuple[float, float]]
) -> list[str]:
    """Requests that gave outputs twice although no pod ended in between.

    A second execution is allowed only after the end of the first one's pod, or of its entry pod,
    which the outputs of an inference elsewhere went to: nobody is left then who could send them to
    the client. The ledger does not name entry pods, so that the end of any pod excuses it.
    `pods_ended_s`: between which times a pod ended.
    """
    twice = []
    for request, each in executions.items():
        whole = [execution for execution in each if execution.ended_s is not None]
        for first, second in itertools.pairwise(whole):
            if not any(
                first.began_s < gone_s and alive_s <= second.began_s
                for alive_s, gone_s in pods_ended_s
            ):
                twice.append(
                    f"{request}: pid {first.pid} ended {first.ended_s:.3f},"
                    f" pid {second.pid} began {second.began_s:.3f}"
                )
    return twice
