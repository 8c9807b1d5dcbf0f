"""Mean utility of applications on a live platform, and by the simulator for the same trace.

It starts a platform of one pod in a folder, trains the demo applications and their looks there
unless it has them, profiles their variants, and measures the time beside the stages by single
requests. It then plays a trace under each policy, and simulates the same requests with the measured
profiles. 5 % is the mark.
"""

import asyncio
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

import pyarrow.parquet as pq
import yaml

from benchmarks.machine import REPOSITORY
from pilotlight.commands.live_cluster import live_cluster_file
from pilotlight.commands.target import PlatformTarget
from pilotlight.state_dir import StateDir
from registry.domain.model import ModelName
from registry.domain.pod import STAGES

MARK: Final = 0.05
NAMES: Final = ("digits", "tumours", "wine")
POLICIES: Final = ("lo-edf", "grouped", "sneakpeek", "refined")
SEEDS: Final = (1, 2, 3)
_TRACE: Final = "poisson:rate=8,duration=20s"
"""Of each application."""
_SINGLE: Final = "poisson:rate=0.5,duration=20s"
"""Of each application: a request seldom meets another one."""
_PROFILED: Final = 60
_BATCHES: Final = ("--max-batch-size", 8, "--repeats", 3)
_TIMEOUT_S: Final = 900.0
_MANIFESTS: Final = REPOSITORY / "manifests" / "samples" / "applications"


@dataclass(frozen=True, slots=True)
class Compared:
    policy: str
    seed: int
    requests: int
    live: float
    simulated: float
    live_expected: float
    """What the plans expected, of the live platform."""

    @property
    def difference(self) -> float:
        """Of the live utility, as a share of the simulated one."""
        return self.live / self.simulated - 1.0


def measure(folder: Path, policies: Sequence[str]) -> list[Compared]:
    objects = folder / "objects"
    made = objects / "applications"
    module = "research.experiments.sneakpeek.make_applications"
    subprocess.run([sys.executable, "-m", module, str(made)], check=True)
    platform = _Platform(folder / "home", made)
    platform.run("up", "--pods", 1, "--port", 0, "--objects", objects, "--detach")
    try:
        platform.prepare()
        hop_s = platform.hop_s(folder)
        return [
            platform.compare(folder, policy, seed, hop_s) for policy in policies for seed in SEEDS
        ]
    finally:
        platform.run("down")


class _Platform:
    def __init__(self, home: Path, examples: Path) -> None:
        self._home = home
        self._examples = examples

    def run(self, *words: object) -> None:
        _run(*words, "--home", self._home)

    def prepare(self) -> None:
        self.run("apply", "-f", _MANIFESTS)
        for name in NAMES:
            look = self._examples / "sneakpeek" / name
            if not look.exists():
                train = self._examples / f"{name}-train.npz"
                self.run("sneakpeek", "train", name, "--examples", train, "--out", look)
            profile = self._examples / f"{name}-profile.npz"
            self.run("profile", name, "--examples", profile, "--limit", _PROFILED, *_BATCHES)

    def hop_s(self, folder: Path) -> float:
        """Half of what a request takes beside its stages: HTTP, gateway, look and plan."""
        rows = self._play(folder / "single.parquet", _SINGLE, "refined", 0)
        beside_s = [
            each["finished_s"]
            - each["sent_s"]
            - sum(each[f"{at}_ms"] or 0.0 for at in STAGES) / 1e3
            for each in rows
            if each["status"] == 200 and each["predict_pod"]
        ]
        return float(median(beside_s)) / 2

    def compare(self, folder: Path, policy: str, seed: int, hop_s: float) -> Compared:
        cluster = folder / "live.yaml"
        cluster.write_text(yaml.safe_dump(self._cluster(hop_s)))
        live = self._play(folder / f"live-{policy}-{seed}.parquet", _TRACE, policy, seed)
        out = folder / f"simulated-{policy}-{seed}"
        _run(
            "simulate",
            "--cluster",
            cluster,
            "--trace",
            _trace(_TRACE),
            "--policy",
            policy,
            "--seed",
            seed,
            "--out",
            out,
            "--overwrite",
        )
        [file] = out.glob("*.parquet")
        simulated = _rows(file)
        return Compared(
            policy,
            seed,
            len(live),
            _mean(live, "utility"),
            _mean(simulated, "utility"),
            _mean(live, "expected_utility"),
        )

    def _play(self, file: Path, trace: str, policy: str, seed: int) -> list[dict[str, Any]]:
        examples = [
            word
            for name in NAMES
            for word in ("--examples", f"{name}={self._examples / f'{name}-requests.npz'}")
        ]
        self.run(
            "load",
            "run",
            "--trace",
            _trace(trace),
            *examples,
            "--policy",
            policy,
            "--seed",
            seed,
            "-o",
            file,
            "--overwrite",
        )
        return _rows(file)

    def _cluster(self, hop_s: float) -> dict[str, Any]:
        """The platform as it is now, with its applications and the measured hop."""
        state = asyncio.run(PlatformTarget(StateDir.of(self._home)).cluster())
        found: dict[str, Any] = yaml.safe_load(live_cluster_file(state))
        documents = [
            each
            for file in sorted(_MANIFESTS.glob("*.yaml"))
            for each in yaml.safe_load_all(file.read_text())
            if each["kind"] == "InferenceApplication"
        ]
        found["network"] = {"gateway_hop": f"{round(hop_s * 1e6)}us"}
        found["applications"] = [
            {
                "name": name,
                "spec": each["spec"]
                | {"sneakPeek": {"uri": f"file://{self._examples / 'sneakpeek' / name}"}},
                "profile": {
                    model.name: [list(row) for row in accuracy.confusion]
                    for model, accuracy in state.accuracies.items()
                    if model.name.startswith(f"{name}-")
                },
                "examples": str(self._examples / f"{name}-requests.npz"),
            }
            for each in documents
            for name in [each["metadata"]["name"]]
            if ModelName("default", name) in state.applications
        ]
        return found


def _trace(each: str) -> str:
    return " + ".join(f"{each}|model={name}" for name in NAMES)


def _rows(file: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pq.read_table(file).to_pylist()
    return found


def _mean(rows: Sequence[dict[str, Any]], column: str) -> float:
    return sum(float(each[column] or 0.0) for each in rows) / len(rows)


def _run(*words: object) -> None:
    subprocess.run(
        [sys.executable, "-P", "-m", "pilotlight", *map(str, words)],
        check=True,
        cwd=REPOSITORY,
        timeout=_TIMEOUT_S,
        stdout=sys.stderr,
    )


def lines(found: Sequence[Compared]) -> Iterator[str]:
    """A table in Markdown, and how far each policy is off."""
    yield "| policy | seed | requests | live | simulated | difference % | expected, live |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for each in found:
        yield (
            f"| {each.policy} | {each.seed} | {each.requests} | {each.live:.3f} "
            f"| {each.simulated:.3f} | {100 * each.difference:+.1f} | {each.live_expected:.3f} |"
        )
    for policy in dict.fromkeys(each.policy for each in found):
        runs = [each for each in found if each.policy == policy]
        off = sum(each.live for each in runs) / sum(each.simulated for each in runs) - 1
        within = "yes" if abs(off) <= MARK else "no"
        yield f"\n{policy}: {100 * off:+.1f} % of all; within 5 %: {within}"
