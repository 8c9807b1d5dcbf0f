"""Pairs of live and simulated runs: played, kept in a file, simulated anew, and compared.

A file is JSON: `machine`; `platforms`, the facts of `LiveShape.measure` by the shape's name: its
`cluster_file`, single `requests` as outcomes with CPU seconds by role, `profiles` by model key as
pods measured them, `applications` as in a cluster file; and `runs` by the setting's name, each with

- `setting`: the fields of `Setting`;
- `arrivals`: lists of the time, the model's number and the seed of each;
- `live`: fields of `Played`, with `outcomes` in the order of arrivals: latency, start (warm or the
  tier), pods, reason, seconds by stage (`stages_s`), an error;
- `simulated`: `outcomes` likewise, and `loads`.

Times are in seconds.
"""

import asyncio
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import orjson

from benchmarks.fidelity.live import LiveShape
from benchmarks.fidelity.settings import SETTINGS, Arrival, Mix, Setting, Shape, platform_settings
from benchmarks.fidelity.simulated import simulated
from benchmarks.quantiles import quantile
from pilotlight.platform.machine import Machine
from pilotlight.platform.supervisor import log_to_file
from research.demo.session import live_session

TARGETS: Final = ((0.5, 0.1), (0.95, 0.15))
"""Quantiles, and the largest accepted error of each as a share of the live one."""
_CLEAR: Final = 1.1
"""Ratio of live medians from which two policies have different ranks."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A setting's runs, as in the file."""

    setting: Setting
    live: dict[str, Any]
    simulated: dict[str, Any]

    def quantile_s(self, side: str, share: float) -> float:
        """Of successful requests; NaN if there are none."""
        outcomes = getattr(self, side)["outcomes"]
        found = [each["latency_s"] for each in outcomes if not each["error"]]
        return quantile(found, share) if found else float("nan")

    def error(self, share: float) -> float:
        """Relative error of the simulated quantile."""
        return self.quantile_s("simulated", share) / self.quantile_s("live", share) - 1

    def cause(self, first: float, last: float) -> str:
        """The stage that differs most between the sides, over these shares by latency."""
        live, other = (
            _stages_s(side["outcomes"], first, last) for side in (self.live, self.simulated)
        )
        more_s = {stage: live.get(stage, 0.0) - other.get(stage, 0.0) for stage in live | other}
        stage = max(more_s, key=lambda each: abs(more_s[each]), default="")
        return f"{stage} {-1e3 * more_s[stage]:+.0f} ms" if stage else ""

    @property
    def is_met(self) -> bool:
        return all(abs(self.error(share)) <= most for share, most in TARGETS)


def _stages_s(outcomes: Sequence[dict[str, Any]], first: float, last: float) -> dict[str, float]:
    """Mean seconds by stage, and beside all stages, between two shares by latency."""
    ordered = sorted(outcomes, key=lambda each: float(each["latency_s"]))
    part = ordered[int(first * len(ordered)) : max(1, int(last * len(ordered)))]
    found: dict[str, float] = {}
    for each in part:
        stages_s = each["stages_s"]
        beside_s = each["latency_s"] - sum(stages_s.values())
        for stage, seconds in (stages_s | {"beside": beside_s}).items():
            found[stage] = found.get(stage, 0.0) + seconds / len(part)
    return found


def chosen(half: str, only: str) -> list[Setting]:
    """The settings of a half, or of both, whose names have one of the parts."""
    return [
        each
        for each in SETTINGS
        if half in ("", each.half) and any(part in each.name for part in only.split(","))
    ]


def play(
    document: dict[str, Any],
    settings: Sequence[Setting],
    requests: int | None,
    keep: Callable[[], None],
) -> None:
    """Play the settings live, and simulate them; adds to the file's `document`.

    `keep` is called after each platform.
    """
    document |= {"platforms": {}, "runs": {}}
    with tempfile.TemporaryDirectory(prefix="bench-fidelity-") as folder:
        for shape, group in groupby(settings, key=lambda each: each.shape):
            played = list(group)
            asyncio.run(_play_shape(shape, played, requests, Path(folder), document))
            again(document, ",".join(each.name for each in played))
            keep()


async def _play_shape(
    shape: Shape,
    settings: Sequence[Setting],
    requests: int | None,
    folder: Path,
    document: dict[str, Any],
) -> None:
    of_platform = platform_settings(shape, folder)
    log_to_file(of_platform)
    machine = Machine.measure(folder / "machine.json")
    async with live_session(of_platform) as session:
        live = LiveShape(session, shape, machine)
        document["platforms"][shape.name] = await live.measure()
        for setting in settings:
            print(f"live: {setting.name}", file=sys.stderr, flush=True)
            arrivals = setting.arrivals(requests)
            played = await live.play(setting, arrivals)
            document["runs"][setting.name] = {
                "setting": asdict(setting),
                "arrivals": [(each.at_s, each.model, each.seed) for each in arrivals],
                "live": asdict(played),
            }


def again(document: dict[str, Any], only: str = "") -> None:
    """Simulate a file's live runs; replaces its simulated ones."""
    for name, run in document["runs"].items():
        if any(part in name for part in only.split(",")):
            setting = _setting_of(run["setting"])
            facts = document["platforms"][setting.shape.name]
            arrivals = [Arrival(*each) for each in run["arrivals"]]
            outcomes, loads = simulated(facts, setting, arrivals, run["live"]["known_s"])
            run["simulated"] = {"outcomes": [asdict(each) for each in outcomes], "loads": loads}


def _setting_of(document: dict[str, Any]) -> Setting:
    shape = document["shape"] | {"tokens": tuple(document["shape"]["tokens"])}
    return Setting(**document | {"shape": Shape(**shape), "mix": Mix(document["mix"])})


def pairs(document: dict[str, Any]) -> list[Pair]:
    """Those of a file that were simulated."""
    return [
        Pair(_setting_of(run["setting"]), run["live"], run["simulated"])
        for run in document["runs"].values()
        if "simulated" in run
    ]


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = orjson.loads(path.read_bytes())
    return found


def summary(found: Sequence[Pair]) -> Iterator[str]:
    """A Markdown table, and a line of ranks per mix."""
    yield (
        "| setting | requests | live p50, p95 ms | simulated p50, p95 ms | error p50, p95 "
        "| loads live, simulated | failed live, simulated | busy cores: ours, client, rivals "
        "| met | simulated too long: faster half, slowest tenth |"
    )
    yield "|" + "---|" * 10
    for pair in found:
        live, other = (
            ", ".join(f"{1e3 * pair.quantile_s(side, share):.0f}" for share, _ in TARGETS)
            for side in ("live", "simulated")
        )
        errors = ", ".join(f"{pair.error(share):+.0%}" for share, _ in TARGETS)
        failed = ", ".join(
            str(sum(bool(each["error"]) for each in side["outcomes"]))
            for side in (pair.live, pair.simulated)
        )
        cores = {role: each / pair.live["took_s"] for role, each in pair.live["cpu_s"].items()}
        ours = sum(each for role, each in cores.items() if role not in ("machine", "rivals"))
        yield (
            f"| {pair.setting.name} | {len(pair.live['outcomes'])} | {live} | {other} | {errors} "
            f"| {pair.live['loads']}, {pair.simulated['loads']} | {failed} "
            f"| {ours:.2f}, {cores['client']:.2f}, {cores.get('rivals', 0.0):.2f} "
            f"| {'yes' if pair.is_met else 'no'} | {pair.cause(0.0, 0.5)}, {pair.cause(0.9, 1.0)} |"
        )
    yield f"\n{sum(pair.is_met for pair in found)} of {len(found)} pairs met."
    for (half, mix), group in groupby(
        found, key=lambda pair: (pair.setting.half, pair.setting.mix)
    ):
        right, wrong = ranks(list(group))
        yield f"Ranks, {half}, {mix}: {right} right, {wrong} wrong."
    yield "Left out: workflows, as the simulator has no scheduler of their steps."


def ranks(found: Sequence[Pair]) -> tuple[int, int]:
    """How many pairs of policies that differ clearly live the simulation ranks alike, or not."""
    right = wrong = 0
    for fast in found:
        for slow in found:
            live, other = (fast.quantile_s("live", 0.5), slow.quantile_s("live", 0.5))
            if fast.setting.shape == slow.setting.shape and other > _CLEAR * live:
                is_right = slow.quantile_s("simulated", 0.5) > fast.quantile_s("simulated", 0.5)
                right, wrong = right + is_right, wrong + (not is_right)
    return right, wrong
