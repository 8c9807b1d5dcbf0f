"""`python -m benchmarks.guard`: fail if a hot path costs more than recorded. `--write`: record.

Beside other work nothing is judged: threads that wait for cores cost a pod half as much again.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Final

import orjson

from benchmarks.guard import comparison
from benchmarks.guard.comparison import Known, Measured, problem, problems_of
from benchmarks.guard.figures import Figure, figures
from benchmarks.machine import REPOSITORY
from benchmarks.proxy.processes import wait_quiet

FILE: Final = REPOSITORY / "benchmarks" / "guard.json"
_QUIET_S: Final = 60.0
"""How long to wait for what ran before to end."""
_MOST_BUSY: Final = 0.5
"""Cores."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.guard", description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"record the figures in {FILE.name}")
    parser.add_argument("--runs", type=int, default=3, help="runs of --write (3)")
    parser.add_argument(
        "--margin",
        type=float,
        default=comparison.MARGIN,
        help=f"share by which a figure may be worse, beyond its spread ({comparison.MARGIN})",
    )
    arguments = parser.parse_args()
    busy = wait_quiet(busy_below=_MOST_BUSY, timeout_s=_QUIET_S)
    print(f"{busy:.1f} cores are busy with other work")
    with figures() as found:
        if arguments.write:
            return _write(found, arguments.runs)
        return _compare(found, arguments.margin, is_judged=busy <= _MOST_BUSY)


def _compare(found: Sequence[Figure], margin: float, *, is_judged: bool) -> int:
    """A figure that fails is measured once more, and judged by all pairs."""
    known = {name: Known(**each) for name, each in orjson.loads(FILE.read_bytes()).items()}
    seen = {}
    for figure in found:
        measured = figure.measure()
        if problem(figure.name, measured, known, margin):
            measured = Measured(measured.ratios + figure.measure().ratios)
        seen[figure.name] = measured
    print(comparison.table(seen, known, margin))
    problems = problems_of(seen, known, margin)
    print("\n".join(problems) if is_judged else "not judged beside other work", file=sys.stderr)
    return 1 if problems and is_judged else 0


def _write(found: Sequence[Figure], runs: int) -> int:
    """All figures in turn, so that a figure's runs are apart in time."""
    seen: dict[str, list[float]] = {figure.name: [] for figure in found}
    for _ in range(runs):
        for figure in found:
            seen[figure.name].append(figure.measure().ratio)
    for name, ratios in seen.items():
        print(f"{name}: {', '.join(f'{each:.3f}' for each in ratios)}")
    content = {name: asdict(comparison.known_of(ratios)) for name, ratios in seen.items()}
    FILE.write_bytes(orjson.dumps(content, option=orjson.OPT_INDENT_2) + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
