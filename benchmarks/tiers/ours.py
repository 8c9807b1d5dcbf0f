"""The runtime's own parts as contestants: from disk and host; `again` has an earlier skeleton."""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.tiers.contestants import DISK, Contestant, Start
from benchmarks.tiers.models import WEIGHTS
from runtime.device.memory import CpuMemory, DeviceMemory
from runtime.engines.engine import ModelFolder, Skeleton, Skeletons
from runtime.engines.networks.network import NetworkEngine
from runtime.storage.listing import RemoteFile
from runtime.tiers.host_image import image_bytes
from runtime.tiers.host_tier import HostTier, PutOutcome, enter_host_tier
from runtime.weights.converted_weights import converted
from runtime.weights.weight_source import DiskWeights, WeightSource

_KEY = "benchmark/t5@1"


@contextmanager
def our_ways(folder: Path, skipped: list[str]) -> Iterator[list[Contestant]]:
    """From disk, and from host where that tier has room; adds to `skipped` where it has none."""
    path = folder / WEIGHTS
    with host_image(folder) as opened:
        ways = [
            _way("Pilotlight", folder, lambda: DiskWeights([path]), DISK, is_kept=False),
            _way("Pilotlight, again", folder, lambda: DiskWeights([path]), DISK, is_kept=True),
        ]
        if opened is None:
            skipped.append(f"{folder.name}: tier host has no room in {_memory_folder()}")
        else:
            host = (Start.HOST,)
            ways += [
                _way("Pilotlight", folder, opened, host, is_kept=False),
                _way("Pilotlight, again", folder, opened, host, is_kept=True),
            ]
        yield ways


@contextmanager
def host_image(folder: Path) -> Iterator[Callable[[], WeightSource] | None]:
    """Opens the model's image in tier `host`; None where that has no room for it."""
    path = folder / WEIGHTS
    files = (RemoteFile(WEIGHTS, path.stat().st_size, "1"),)
    name = f"pilotlight-benchmark-{os.getpid()}-{folder.name}"
    source = DiskWeights([path])
    try:
        tier = enter_host_tier(_memory_folder() / name, image_bytes(source.layout))
    finally:
        source.close()
    try:
        yield (lambda: _image(tier, files)) if _put(tier, files, path) else None
    finally:
        tier.close()


def _way(
    name: str,
    folder: Path,
    opened: Callable[[], WeightSource],
    starts: tuple[Start, ...],
    *,
    is_kept: bool,
) -> Contestant:
    skeletons = Skeletons()
    in_use: list[Skeleton] = []

    def load() -> Any:
        in_use.append(filled_skeleton(folder, opened(), skeletons))
        return in_use[-1].network

    def end() -> None:
        skeleton = in_use.pop()
        if is_kept:
            skeletons.put_back(skeleton)
        else:
            skeleton.detach()

    return Contestant(name, load, starts, end, is_ours=True)


def filled_skeleton(
    folder: Path, source: WeightSource, skeletons: Skeletons, memory: DeviceMemory | None = None
) -> Skeleton:
    """What a pod does once the bytes are here, on the CPU by default; closes the source."""
    memory = memory or CpuMemory()
    tensors = source.layout.tensors
    engine, model = NetworkEngine(), ModelFolder(folder, None, tensors)
    key = engine.skeleton_key(model)
    build = partial(engine.build_skeleton, model, key=key, device=memory.device, threads=1)
    skeleton = skeletons.take(key, build)
    try:
        weights = memory.put(converted(source, skeleton.conversions))
    finally:
        source.close()
    skeleton.attach(weights.tensors)
    return skeleton


def _memory_folder() -> Path:
    return Path("/dev/shm") if Path("/dev/shm").is_dir() else Path(tempfile.gettempdir())


def _put(tier: HostTier, files: tuple[RemoteFile, ...], path: Path) -> bool:
    source = DiskWeights([path])
    try:
        return tier.put(_KEY, files, source) in {PutOutcome.DONE, PutOutcome.THERE}
    finally:
        source.close()


def _image(tier: HostTier, files: tuple[RemoteFile, ...]) -> WeightSource:
    image = tier.open(_KEY, files)
    if image is None:
        raise RuntimeError("the host tier lost the benchmark's image")
    return image
