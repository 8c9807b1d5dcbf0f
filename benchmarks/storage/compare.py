"""Every way fetches every object, in turn, again and again; what it brought is compared with it."""

import filecmp
import json
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks.machine import REPOSITORY
from benchmarks.marks import Mark
from benchmarks.peers import has_peer
from benchmarks.quantiles import rotated, spread
from benchmarks.storage.serving import Distance, environment_of, serving
from benchmarks.storage.ways import BUCKET, CRT, CRT_MODULE, KEY, OURS, WAYS


@dataclass(frozen=True, slots=True)
class Object:
    """What is fetched, and from how far."""

    name: str
    size_bytes: int
    distance: Distance
    most_repeats: int = 100


OBJECTS: Final = (
    Object("250 MB", 250_000_000, Distance()),
    Object("900 MB", 900_000_000, Distance(), most_repeats=3),
    # What AWS tells to plan with for S3; simulated.
    Object("250 MB, 60 ms away, 85 MB/s a connection", 250_000_000, Distance(0.06, 85e6)),
)
_PIECE: Final = 4_000_000
_WANTED_BYTES: Final = 2_000_000_000


@dataclass(frozen=True, slots=True)
class Sample:
    """One object fetched once."""

    way: str
    object: str
    size_bytes: int
    seconds: float
    cpu_s: float
    peak_bytes: int

    @property
    def gb_per_s(self) -> float:
        """What arrived in a second."""
        return self.size_bytes / self.seconds / 1e9


def compare(*, repeats: int, is_quick: bool) -> list[Sample]:
    """All samples; needs 2 GB of disk at a time."""
    samples = []
    with tempfile.TemporaryDirectory(prefix="pilotlight-bench-") as name:
        folder = Path(name)
        if shutil.disk_usage(folder).free < _WANTED_BYTES:
            raise SystemExit(f"{folder} needs {_WANTED_BYTES} bytes free")
        for each in OBJECTS[: 1 if is_quick else None]:
            source = folder / "s3" / BUCKET / KEY
            _write_object(source, each.size_bytes)
            with serving(folder / "s3", each.distance) as url:
                for number in range(min(repeats, each.most_repeats)):
                    ways = rotated(_able_ways(), number)
                    samples += [_fetch(way, each.name, source, folder, url) for way in ways]
    return samples


def _write_object(path: Path, size: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    (path.parent / "config.json").write_text("{}")
    rng = random.Random(size)
    with path.open("wb") as sink:
        for at in range(0, size, _PIECE):
            sink.write(rng.randbytes(min(_PIECE, size - at)))


def _fetch(way: str, what: str, source: Path, folder: Path, url: str) -> Sample:
    size = source.stat().st_size
    target = folder / "target"
    target.mkdir()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.storage.ways", way, str(target), str(size)],
            cwd=REPOSITORY,
            env=environment_of(url),
            check=True,
            stdout=subprocess.PIPE,
        )
        (brought,) = (
            path for path in target.rglob("*") if path.is_file() and path.stat().st_size == size
        )
        if not filecmp.cmp(source, brought, shallow=False):
            raise RuntimeError(f"{way} brought other bytes than {source} has")
    finally:
        shutil.rmtree(target)
    measured = json.loads(done.stdout)
    return Sample(way, what, size, measured["seconds"], measured["cpu_s"], measured["peak_bytes"])


def skipped() -> str:
    """What is left out and why, or nothing."""
    return "" if has_peer(CRT_MODULE) else f"{CRT}: awscrt is not installed (make bench-peers)"


def _able_ways() -> list[str]:
    return [way for way in WAYS if way != CRT or has_peer(CRT_MODULE)]


def marks(samples: Sequence[Sample]) -> Iterator[Mark]:
    """Ahead of every other way, object by object."""
    for what in dict.fromkeys(each.object for each in samples):
        took: dict[str, list[float]] = {}
        for each in samples:
            if each.object == what:
                took.setdefault(each.way, []).append(each.seconds)
        ours = median(took.pop(OURS))
        for way, seconds in took.items():
            other = median(seconds)
            seen = f"{ours:.2f} s against {other:.2f} s, {other / ours:.2f} times"
            yield Mark(f"{what} to disk ahead of {way}", seen, ours < other)


def summary(samples: Sequence[Sample]) -> str:
    """A Markdown table of medians, with the spread over repeats."""
    lines = [
        "| object | way | seconds | lowest to highest | GB/s | CPU s | peak memory MB |",
        "|---|---|---|---|---|---|---|",
    ]
    for what in dict.fromkeys(sample.object for sample in samples):
        for way in [way for way in WAYS if any(each.way == way for each in samples)]:
            of_way = [each for each in samples if (each.object, each.way) == (what, way)]
            took = spread([each.seconds for each in of_way])
            rate = spread([each.gb_per_s for each in of_way]).median
            cpu = spread([each.cpu_s for each in of_way]).median
            peak = spread([each.peak_bytes / 1e6 for each in of_way]).median
            lines.append(
                f"| {what} | {way} | {took.median:.2f} | {took.lowest:.2f} to {took.highest:.2f} |"
                f" {rate:.2f} | {cpu:.2f} | {peak:.0f} |"
            )
    return "\n".join(lines)
