"""The tables of the experiment, one function per figure of the paper."""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from registry.domain.application import Penalty, SelectionPolicy
from research.experiments.harness.experiment import Cell, Settings, Table
from research.experiments.harness.parallel_map import parallel_map
from research.experiments.sneakpeek.claims import (
    OptimumShares,
    OptimumTask,
    estimation_error,
    optimum_shares,
)
from research.experiments.sneakpeek.demo_data import DemoApplication
from research.experiments.sneakpeek.runs import Score, Task, run_task
from research.experiments.sneakpeek.workload import Workload
from variants.planning.search import FULL, PLAIN
from variants.planning.window import SelectionOptions

_REQUESTS_PER_APPLICATION: Final = 4
_DATA_AWARE: Final = SelectionOptions(is_data_aware=True)
_SHORT: Final = SelectionOptions(is_data_aware=True, short_circuit=True)
_SPLIT: Final = SelectionOptions(is_data_aware=True, splits_groups=True)
_OBLIVIOUS: Final = (SelectionPolicy.LO_EDF, SelectionPolicy.LO_PRIORITY, SelectionPolicy.GROUPED)
_MOST_ACCURATE: Final = "max-accuracy-edf"
_COMPARED: Final[tuple[str, ...]] = (
    *_OBLIVIOUS,
    SelectionPolicy.SNEAKPEEK,
    SelectionPolicy.REFINED,
)
_MAIN_FACTOR: Final = 3
_T95: Final = 2.093
"""Student's t for 20 seeds."""
_AGREEMENT: Final = 0.02


@dataclass(slots=True)
class Bench:
    """What every figure needs; collects what the figures find."""

    settings: Settings
    folder: Path
    load: Workload
    windows: int
    notes: list[str] = field(default_factory=list)
    by_deadline: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    """Utility of each policy over deadlines in ms, for the picture."""

    @property
    def main_windows(self) -> int:
        return self.windows * _MAIN_FACTOR

    def scores(
        self,
        cells: Sequence[tuple[Workload, str, SelectionOptions | None]],
        what: str,
        *,
        windows: int | None = None,
    ) -> list[list[Score]]:
        """Per cell, the score of each seed."""
        tasks = [
            Task(self.folder, load, policy, options, seed, windows or self.windows)
            for load, policy, options in cells
            for seed in self.settings.seeds
        ]
        found = parallel_map(run_task, tasks, self.settings, what=what)
        size = len(self.settings.seeds)
        return [found[at * size : (at + 1) * size] for at in range(len(cells))]

    def sweep(
        self,
        title: str,
        name: str,
        points: Sequence[tuple[Cell, Workload]],
        *,
        policies: Sequence[str] = _COMPARED,
        options: Callable[[str], SelectionOptions | None] = lambda _policy: None,
    ) -> tuple[Table, Table, list[list[float]]]:
        """Utility of each policy at each point, the planning time, and the utilities alone."""
        cells = [(load, policy, options(policy)) for _, load in points for policy in policies]
        scores = self.scores(cells, title)
        rows: list[tuple[Cell, ...]] = []
        times: list[tuple[Cell, ...]] = []
        utilities = []
        for at, (point, _) in enumerate(points):
            found = scores[at * len(policies) : (at + 1) * len(policies)]
            utilities.append([_mean(each, _utility) for each in found])
            rows.append((point, *(_interval(each, _utility) for each in found)))
            times.append((point, *(_mean(each, lambda s: s.planning_s) * 1e3 for each in found)))
        columns = (name, *(str(each) for each in policies))
        return (
            Table(f"{title}: mean utility", columns, tuple(rows)),
            Table(f"{title}: planning, ms per window", columns, tuple(times)),
            utilities,
        )


def main_table(bench: Bench) -> Table:
    """Figures 5 and 6."""
    policies = [
        _MOST_ACCURATE,
        *(each for each in SelectionPolicy if each != SelectionPolicy.EXACT),
    ]
    scores = bench.scores(
        [(bench.load, policy, None) for policy in policies],
        "figures 5-6",
        windows=bench.main_windows,
    )
    by_policy: dict[str, list[Score]] = dict(zip(policies, scores, strict=True))
    rows = [
        (
            str(policy),
            _interval(found, _utility),
            _mean(found, lambda score: score.expected_utility),
            _mean(found, lambda score: score.accuracy),
            _mean(found, lambda score: score.correct),
            _interval(found, lambda score: score.violation_s * 1e3, digits=1),
            _mean(found, lambda score: score.late * 100),
            _mean(found, lambda score: score.short_circuits * 100),
        )
        for policy, found in by_policy.items()
    ]
    _compare_to_lo_edf(bench, by_policy)
    return Table(
        "Figures 5 and 6: 12 requests, 150 ms (paper: sneakpeek twice the utility of lo-edf)",
        (
            "policy",
            "utility",
            "expected utility",
            "accuracy",
            "correct",
            "violation ms",
            "late %",
            "short circuits %",
        ),
        tuple(rows),
    )


def _compare_to_lo_edf(bench: Bench, by_policy: dict[str, list[Score]]) -> None:
    base = by_policy[SelectionPolicy.LO_EDF]
    for policy in (SelectionPolicy.SNEAKPEEK, SelectionPolicy.REFINED):
        ratio = _mean(by_policy[policy], _utility) / _mean(base, lambda score: score.utility)
        late = _mean(by_policy[policy], lambda score: score.violation_s) / _mean(
            base, lambda score: score.violation_s
        )
        bench.notes.append(
            f"figures 5-6: {policy} has {ratio:.2f} times the utility of lo-edf and {late:.0%} of "
            "its mean violation (paper: 2 times, almost none)"
        )


def estimates(apps: Sequence[DemoApplication]) -> Table:
    """Figures 7 and 10."""
    rows: list[tuple[Cell, ...]] = []
    for app in apps:
        errors = [estimation_error(app, k) for k in (None, 1, 5)]
        errors += [
            estimation_error(app, 5, [share * requests for share in mix])
            for mix in (app.mix, app.test_mix)
            for requests in (1, _REQUESTS_PER_APPLICATION)  # a weak prior, and a strong one
        ]
        rows.append((app.name, *errors))
    return Table(
        "Figures 7 and 10: mean error of the estimated accuracy, with k = 5 unless stated; priors "
        "from the requests' class mix (10a) and the test set's (10b)",
        (
            "application",
            "profiled",
            "k = 1",
            "uninformative",
            "weak, requests",
            "strong, requests",
            "weak, test set",
            "strong, test set",
        ),
        tuple(rows),
    )


def mechanisms(bench: Bench) -> Table:
    """Figure 8."""
    policies = [_MOST_ACCURATE, *_OBLIVIOUS, SelectionPolicy.REFINED]
    cells = []
    for policy in policies:
        is_grouped = policy in (SelectionPolicy.GROUPED, SelectionPolicy.REFINED)
        options = (PLAIN, _SPLIT, FULL) if is_grouped else (PLAIN, _DATA_AWARE, _SHORT)
        cells += [(bench.load, policy, each) for each in options]
    scores = bench.scores(cells, "figure 8", windows=bench.main_windows)
    rows = [
        (str(policy), *(_interval(each, _utility) for each in scores[3 * at : 3 * at + 3]))
        for at, policy in enumerate(policies)
    ]
    return Table(
        "Figure 8: utility of each policy plain, data-aware (grouped: and split), and with short "
        "circuit",
        ("policy", "plain", "data-aware", "with short circuit"),
        tuple(rows),
    )


def look_accuracy(bench: Bench) -> list[Table]:
    """Figure 9: the accuracy from which a look helps."""
    shares = [at / 100 for at in range(10, 100, 10)]
    loads = [replace(bench.load, look_accuracy=share) for share in shares]
    cells = [
        cell
        for load in loads
        for cell in (
            (load, SelectionPolicy.GROUPED, PLAIN),
            (load, SelectionPolicy.GROUPED, _SPLIT),
            (load, SelectionPolicy.SNEAKPEEK, None),
        )
    ]
    scores = bench.scores(cells, "figure 9")
    rows: list[tuple[Cell, ...]] = []
    helps = None
    for at, share in enumerate(shares):
        found = scores[3 * at : 3 * at + 3]
        plain, aware = (_mean(each, _utility) for each in found[:2])
        helps = (helps or share) if aware > plain else None
        rows.append((share * 100, *(_interval(each, _utility) for each in found)))
    shown = "never" if helps is None else f"from {helps:.0%} on"
    bench.notes.append(f"figure 9: looking alone helps {shown} (paper: 30 %)")
    columns = ("accuracy of the look, %", "grouped", "data-aware, split", "sneakpeek")
    return [Table("Figure 9: utility by the accuracy of the look", columns, tuple(rows))]


def deadlines(bench: Bench) -> list[Table]:
    """Figures 11a and 11b."""
    points = [50, 100, 150, 200, 300, 400, 500, 700]
    means, _, values = bench.sweep(
        "Figure 11a",
        "deadline ms",
        [(ms, replace(bench.load, deadline_s=ms / 1e3)) for ms in points],
    )
    for at, policy in enumerate(_COMPARED):
        curve = [(float(ms), row[at]) for ms, row in zip(points, values, strict=True)]
        bench.by_deadline[str(policy)] = curve
    agree = None
    for ms, row in zip(points, values, strict=True):
        oblivious = row[: len(_OBLIVIOUS)]
        is_close = max(oblivious) - min(oblivious) <= _AGREEMENT * max(oblivious)
        agree = (agree or ms) if is_close else None
    shown = "at no deadline" if agree is None else f"from {agree} ms on"
    bench.notes.append(
        f"figure 11a: data-oblivious policies agree within 2 % {shown} (paper: 300 ms)"
    )
    sigmas, _, _ = bench.sweep(
        "Figure 11b",
        "sigma of deadlines, ms",
        [(ms, replace(bench.load, deadline_sigma_s=ms / 1e3)) for ms in (0, 15, 30, 60, 90)],
    )
    return [means, sigmas]


def applications(bench: Bench) -> list[Table]:
    """Figures 12a and 12b."""
    load = replace(bench.load, requests=24, deadline_s=0.2)
    utility, planning, _ = bench.sweep(
        "Figure 12: 24 requests, 200 ms",
        "applications",
        [
            (count, replace(load, copies=-(-count // 3), applications=count))
            for count in (1, 3, 5, 6, 9, 12)
        ],
    )
    return [utility, planning]


def arrivals(bench: Bench) -> list[Table]:
    """Figures 13a and 13b."""
    load = replace(bench.load, deadline_s=0.2)
    utility, planning, _ = bench.sweep(
        "Figure 13: 200 ms",
        "requests per window",
        [(count, replace(load, requests=count)) for count in (6, 12, 18, 24, 36)],
    )
    return [utility, planning]


def penalties(bench: Bench) -> Table:
    """Figure 14."""
    points = [
        (f"{kind}, {ms}", replace(bench.load, penalty=kind, deadline_s=ms / 1e3))
        for kind in (Penalty.STEP, Penalty.SIGMOID)
        for ms in (50, 100, 150, 200, 300)
    ]
    return bench.sweep("Figure 14", "penalty, deadline ms", points)[0]


def variation(bench: Bench) -> Table:
    """Figure 15: without short circuit."""
    points = [
        (f"{share:.0%}", replace(bench.load, variation=share))
        for share in (0.0, 0.05, 0.1, 0.2, 0.3)
    ]

    def options(policy: str) -> SelectionOptions:
        return _SPLIT if policy in (SelectionPolicy.SNEAKPEEK, SelectionPolicy.REFINED) else PLAIN

    return bench.sweep("Figure 15", "variation", points, options=options)[0]


def workers(bench: Bench) -> list[Table]:
    """Figures 16a and 16b, and two workers of which one has half the speed."""
    two = [
        (ms, replace(bench.load, deadline_s=ms / 1e3, slowness=(1.0, 1.0)))
        for ms in (50, 100, 150, 200, 300)
    ]
    more = [(str(count), replace(bench.load, slowness=(1.0,) * count)) for count in (1, 2, 3, 4)]
    more.append(("1, and 1 of half the speed", replace(bench.load, slowness=(1.0, 2.0))))
    return [
        bench.sweep("Figure 16a: two workers", "deadline ms", two)[0],
        bench.sweep("Figure 16b", "workers", more)[0],
    ]


def optima(bench: Bench) -> Table:
    """Sections 5.2 and 5.3.2: how optimal plans are ordered, for 6 requests."""
    factors = (0.25, 1.0, 4.0)
    tasks = [
        OptimumTask(
            bench.folder, replace(bench.load, requests=6, swap_scale=each), seed, bench.windows
        )
        for each in factors
        for seed in bench.settings.seeds
    ]
    found = parallel_map(optimum_shares, tasks, bench.settings, what="optimal plans")
    size, rows = len(bench.settings.seeds), []
    for at, factor in enumerate(factors):
        together, by_class, total = _sums(found[at * size : (at + 1) * size])
        rest = total - together
        rows.append((factor, together / total * 100, by_class / rest * 100 if rest else None))
    return Table(
        "Sections 5.2, 5.3.2: optimal plans of 6 requests (paper: 60-70 % together, almost all of "
        "the rest by class)",
        ("factor of swap times", "each application together, %", "of the rest, by class, %"),
        tuple(rows),
    )


def _sums(shares: Sequence[OptimumShares]) -> tuple[int, int, int]:
    return (
        sum(each.together for each in shares),
        sum(each.by_class for each in shares),
        sum(each.windows for each in shares),
    )


def _utility(score: Score) -> float:
    return score.utility


def _mean(scores: Sequence[Score], value: Callable[[Score], float]) -> float:
    return statistics.fmean(value(each) for each in scores)


def _interval(scores: Sequence[Score], value: Callable[[Score], float], digits: int = 3) -> str:
    return interval([value(each) for each in scores], digits)


def interval(values: Sequence[float], digits: int = 3) -> str:
    """The mean over seeds, and half the width of its 95 % interval."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return f"{mean:.{digits}f}"
    half = _T95 * statistics.stdev(values) / math.sqrt(len(values))
    return f"{mean:.{digits}f} +- {half:.{digits}f}"
