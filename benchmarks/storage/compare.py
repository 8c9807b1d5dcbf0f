"""Every way fetches every object, in turn, again and again; what it brought is compared with it."""

from __future__ import annotations

import filecmp
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import httpx

from benchmarks.machine import REPOSITORY
from benchmarks.quantiles import spread
from benchmarks.storage.ways import BUCKET, KEY, WAYS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SIZES: Final = {"250 MB": 250_000_000, "900 MB": 900_000_000}
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
        for what, size in list(SIZES.items())[: 1 if is_quick else None]:
            source = folder / "s3" / BUCKET / KEY
            _write_object(source, size)
            with _server(folder / "s3") as url:
                for _ in range(repeats):
                    samples += [_fetch(way, what, source, folder, url) for way in WAYS]
    return samples


def _write_object(path: Path, size: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    (path.parent / "config.json").write_text("{}")
    rng = random.Random(size)
    with path.open("wb") as sink:
        for at in range(0, size, _PIECE):
            sink.write(rng.randbytes(min(_PIECE, size - at)))


@contextmanager
def _server(folder: Path) -> Iterator[str]:
    port = 20_000 + os.getpid() % 20_000
    command = [sys.executable, "-m", "benchmarks.storage.server", str(port), str(folder)]
    process = subprocess.Popen(command, cwd=REPOSITORY)
    url = f"http://127.0.0.1:{port}"
    try:
        give_up_s = time.monotonic() + 20
        while not _answers(url):
            if process.poll() is not None or time.monotonic() > give_up_s:
                raise RuntimeError("the server did not start")
            time.sleep(0.05)
        yield url
    finally:
        process.terminate()
        process.wait()


def _answers(url: str) -> bool:
    try:
        return httpx.head(url, trust_env=False).status_code == httpx.codes.NOT_FOUND
    except httpx.TransportError:
        return False


def _fetch(way: str, what: str, source: Path, folder: Path, url: str) -> Sample:
    target = folder / "target"
    target.mkdir()
    environment = {name: text for name, text in os.environ.items() if not name.startswith("AWS_")}
    environment |= {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": "bench",
        "AWS_SECRET_ACCESS_KEY": "bench",
        "AWS_DEFAULT_REGION": "us-east-1",
        "no_proxy": "127.0.0.1",
    }
    try:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.storage.ways", way, str(target)],
            cwd=REPOSITORY,
            env=environment,
            check=True,
            stdout=subprocess.PIPE,
        )
        size = source.stat().st_size
        (brought,) = (
            path for path in target.rglob("*") if path.is_file() and path.stat().st_size == size
        )
        if not filecmp.cmp(source, brought, shallow=False):
            raise RuntimeError(f"{way} brought other bytes than {source} has")
    finally:
        shutil.rmtree(target)
    measured = json.loads(done.stdout)
    return Sample(way, what, size, measured["seconds"], measured["cpu_s"], measured["peak_bytes"])


def summary(samples: Sequence[Sample]) -> str:
    """A Markdown table of medians, with the spread over repeats."""
    lines = [
        "| object | way | seconds | lowest to highest | GB/s | CPU s | peak memory MB |",
        "|---|---|---|---|---|---|---|",
    ]
    for what in dict.fromkeys(sample.object for sample in samples):
        for way in WAYS:
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
