"""Loaders that Pilotlight does not depend on: Run:ai's model streamer and fastsafetensors.

They come from the peers' environment (`benchmarks.peers`); torch is this environment's.
"""

from importlib import import_module
from pathlib import Path
from typing import Any, Final

from benchmarks.peers import has_peer
from benchmarks.tiers.contestants import Contestant, Start, network_of
from benchmarks.tiers.models import BUCKET, WEIGHTS

RUNAI: Final = "Run:ai model streamer"
FASTSAFETENSORS: Final = "fastsafetensors"
_MODULES: Final = {RUNAI: "runai_model_streamer", FASTSAFETENSORS: "fastsafetensors"}


def missing_loaders() -> list[str]:
    """A line for each peer that is not installed."""
    return [
        f"{name}: not installed (make bench-peers)"
        for name, module in _MODULES.items()
        if not has_peer(module)
    ]


def loaders(folder: Path) -> list[Contestant]:
    """What is installed, from a file; Run:ai's also from S3, its configuration at hand."""
    found = []
    path = folder / WEIGHTS
    if has_peer(_MODULES[FASTSAFETENSORS]):
        found.append(_fastsafetensors(folder))
    if has_peer(_MODULES[RUNAI]):
        address = f"s3://{BUCKET}/{folder.name}/{WEIGHTS}"
        found += [
            Contestant(f"{RUNAI}, assigned", lambda: _streamed(folder, str(path))),
            Contestant(
                f"{RUNAI}, assigned", lambda: _streamed(folder, address), starts=(Start.S3,)
            ),
        ]
    return found


def _streamed(folder: Path, address: str) -> Any:
    streamers = import_module(_MODULES[RUNAI])  # not at the top: it may be absent
    with streamers.SafetensorsStreamer() as streamer:
        streamer.stream_file(address)
        return network_of(folder, dict(streamer.get_tensors()))


def _fastsafetensors(folder: Path) -> Contestant:
    in_use: list[Any] = []

    def load() -> Any:
        package = import_module(_MODULES[FASTSAFETENSORS])
        loader = package.SafeTensorsFileLoader(package.SingleGroup(), "cpu", nogds=True)
        loader.add_filenames({0: [str(folder / WEIGHTS)]})
        buffers = loader.copy_files_to_device()
        in_use.extend([buffers, loader])
        return network_of(folder, {name: buffers.get_tensor(name) for name in loader.get_keys()})

    def end() -> None:
        for each in in_use:
            each.close()
        in_use.clear()

    return Contestant(f"{FASTSAFETENSORS} (no GDS), assigned", load, end=end)
