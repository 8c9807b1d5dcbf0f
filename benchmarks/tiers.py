"""Cold start of T5 from disk and from host to a usable network, against the usual ways to load.

All contestants read the same files in one process, repeats interleaved. Some leave bytes to be read
when they are first used, so the first inference (one token) is timed after each load, too.
"""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
import transformers
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForSeq2SeqLM, T5ForConditionalGeneration

from benchmarks.quantiles import spread
from runtime.device_memory import CpuMemory
from runtime.host_tier import HostTier, PutOutcome, enter_host_tier
from runtime.make_model import make_model
from runtime.network import build_skeleton, signature_of
from runtime.skeletons import Skeleton, Skeletons
from runtime.storage import RemoteFile
from runtime.weight_source import DiskWeights

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from runtime.weight_source import WeightSource

MODELS: Final = ("t5-small", "t5-base", "t5-large")
WEIGHTS: Final = "model.safetensors"
_ROOM: Final = 4
"""A model is measured where so many times its size of memory are available."""
_BUFFER_BYTES: Final = 8 << 20


@dataclass(frozen=True, slots=True)
class Loading:
    """One load."""

    model: str
    size_bytes: int
    contestant: str
    cache: str
    """`warm` or `cold`: whether the file's pages were in memory."""
    load_s: float
    first_inference_s: float


@dataclass(frozen=True, slots=True)
class Contestant:
    """A way to a usable network."""

    name: str
    load: Callable[[], Any]
    """The network, or None where there is none to run."""
    end: Callable[[], None] = lambda: None
    reads_disk: bool = True


def measure(*, repeats: int, models: Sequence[str]) -> tuple[list[Loading], list[str]]:
    """All loads, and a line for each thing that was left out."""
    transformers.logging.disable_progress_bar()
    results: list[Loading] = []
    skipped: list[str] = []
    for model in models:
        folder = _folder_of(model)
        size = (folder / WEIGHTS).stat().st_size
        if _available_bytes() < _ROOM * size:
            skipped.append(f"{model}: {_ROOM} times {size / 1e9:.1f} GB of memory are not free")
            continue
        with _contestants(folder) as contestants:
            results += _measure_model(model, size, contestants, repeats, skipped)
    return results, skipped


def _measure_model(
    model: str, size: int, contestants: Sequence[Contestant], repeats: int, skipped: list[str]
) -> list[Loading]:
    results = []
    path = _folder_of(model) / WEIGHTS
    for contestant in contestants:
        _time(contestant)  # what the process does only once
    for cache in ("warm", "cold"):
        for _ in range(repeats):
            for contestant in contestants:
                if cache == "cold" and not contestant.reads_disk:
                    continue
                if not _prepare(path, cache):
                    skipped.append(f"{model}, {contestant.name}: pages could not be dropped")
                    continue
                load_s, first_s = _time(contestant)
                results.append(Loading(model, size, contestant.name, cache, load_s, first_s))
    return results


def _time(contestant: Contestant) -> tuple[float, float]:
    gc.collect()
    began_s = time.perf_counter()
    network = contestant.load()
    loaded_s = time.perf_counter()
    if network is not None:
        with torch.inference_mode():
            network.generate(
                input_ids=torch.tensor([[5, 6, 7, 1]]), min_new_tokens=1, max_new_tokens=1
            )
    ended_s = time.perf_counter()
    contestant.end()
    return loaded_s - began_s, ended_s - loaded_s


@contextmanager
def _contestants(folder: Path) -> Iterator[list[Contestant]]:
    path = folder / WEIGHTS
    files = (RemoteFile(WEIGHTS, path.stat().st_size, "1"),)
    place = Path("/dev/shm") if Path("/dev/shm").is_dir() else Path(tempfile.gettempdir())
    tier = enter_host_tier(place / f"pilotlight-benchmark-{os.getpid()}", 2 * files[0].size_bytes)
    try:
        ours = [
            _ours("Pilotlight from disk", folder, lambda: DiskWeights([path]), is_kept=False),
            _ours("Pilotlight from disk, again", folder, lambda: DiskWeights([path]), is_kept=True),
        ]
        if _put(tier, files, path):
            ours += [
                _ours("Pilotlight from host", folder, lambda: _image(tier, files), is_kept=False),
                _ours(
                    "Pilotlight from host, again", folder, lambda: _image(tier, files), is_kept=True
                ),
            ]
        yield [
            Contestant("reading the file, one thread", lambda: _read(path)),
            Contestant(
                "transformers from_pretrained",
                lambda: AutoModelForSeq2SeqLM.from_pretrained(folder),
            ),
            Contestant("safetensors load_file, assigned", lambda: _by_hand(folder)),
            *ours,
        ]
    finally:
        tier.close()


def _ours(
    name: str, folder: Path, opened: Callable[[], WeightSource], *, is_kept: bool
) -> Contestant:
    """The runtime's own parts; `again` has the skeleton of an earlier load."""
    skeletons, memory = Skeletons(), CpuMemory()
    in_use: list[Skeleton] = []

    def load() -> Any:
        source = opened()
        try:
            weights = memory.put(source)
        finally:
            source.close()
        tensors = source.layout.tensors
        signature = signature_of(folder, None, tensors)
        shapes = {tensor.name: tensor.shape for tensor in tensors}
        skeleton = skeletons.take(
            signature, lambda: build_skeleton(folder, None, shapes, signature=signature)
        )
        skeleton.put_in(weights.tensors)
        in_use.append(skeleton)
        return skeleton.network

    def end() -> None:
        skeleton = in_use.pop()
        if is_kept:
            skeletons.give_back(skeleton)
        else:
            skeleton.take_out()

    return Contestant(name, load, end, reads_disk="disk" in name)


def _by_hand(folder: Path) -> Any:
    with torch.device("meta"):
        network = T5ForConditionalGeneration(AutoConfig.from_pretrained(folder))
    network.load_state_dict(load_file(folder / WEIGHTS), strict=False, assign=True)
    network.tie_weights()
    return network.eval()


def _read(path: Path) -> None:
    buffer = bytearray(_BUFFER_BYTES)
    with path.open("rb", buffering=0) as source:
        while source.readinto(buffer):
            pass


def _put(tier: HostTier, files: tuple[RemoteFile, ...], path: Path) -> bool:
    source = DiskWeights([path])
    try:
        return tier.put("benchmark/t5@1", files, source) is PutOutcome.DONE
    finally:
        source.close()


def _image(tier: HostTier, files: tuple[RemoteFile, ...]) -> WeightSource:
    image = tier.open("benchmark/t5@1", files)
    if image is None:
        raise RuntimeError("the host tier lost the benchmark's image")
    return image


def _prepare(path: Path, cache: str) -> bool:
    """Bring the file's pages into memory or out of it; False where they stay."""
    if cache == "warm":
        _read(path)
        return True
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.preadv(descriptor, [bytearray(1)], path.stat().st_size // 2, os.RWF_NOWAIT)
    except BlockingIOError:
        return True  # the page in the middle would have to be read from disk
    finally:
        os.close(descriptor)
    return False


def _folder_of(model: str) -> Path:
    """The model, made once and kept for the next run."""
    folder = Path(tempfile.gettempdir()) / "pilotlight-benchmark-models" / model
    if not (folder / "config.json").exists():
        aside = folder.with_name(f"{model}-{os.getpid()}")
        make_model(model, aside)
        shutil.rmtree(folder, ignore_errors=True)
        aside.rename(folder)
    return folder


def _available_bytes() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


def summary(results: Sequence[Loading]) -> str:
    """A Markdown table: medians over the repeats, with their range."""
    lines = [
        "| model | page cache | contestant | usable after ms | lowest to highest |"
        " first inference ms | GB/s |",
        "|---|---|---|---|---|---|---|",
    ]
    groups: dict[tuple[str, str, str], list[Loading]] = {}
    for each in results:
        groups.setdefault((each.model, each.cache, each.contestant), []).append(each)
    for (model, cache, contestant), rows in groups.items():
        load = spread([row.load_s * 1000 for row in rows])
        first = spread([row.first_inference_s * 1000 for row in rows])
        lines.append(
            f"| {model} ({rows[0].size_bytes / 1e6:.0f} MB) | {cache} | {contestant} |"
            f" {load.median:.1f} | {load.lowest:.1f} to {load.highest:.1f} |"
            f" {first.median:.1f} | {rows[0].size_bytes / load.median / 1e6:.1f} |"
        )
    return "\n".join(lines)
