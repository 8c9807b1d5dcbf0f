"""The CPU as accelerators: groups of as many cores as an inference has threads."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def core_groups(threads: int) -> dict[str, tuple[int, ...]]:
    """Cores by name of the accelerator, `cpu-0` first; at least one, with what cores there are.

    Profiles are measured with the same number of threads. Cores that fill no group are left over.
    """
    cores = sorted(os.sched_getaffinity(0))
    size = min(threads, len(cores))
    return {
        f"cpu-{number}": tuple(cores[number * size : (number + 1) * size])
        for number in range(len(cores) // size)
    }


def cores_of_share(
    cores: Sequence[int], share_pct: float | None, taken: Sequence[int] = ()
) -> Sequence[int]:
    """As many of the cores as the share is, rounded up: a process has whole cores.

    Those that fewest others have `taken`, so that shares of at most the whole do not overlap.
    """
    if share_pct is None:
        return cores
    count = max(1, min(len(cores), int(-(-len(cores) * share_pct // 100))))
    return sorted(sorted(cores, key=lambda core: (taken.count(core), core))[:count])
