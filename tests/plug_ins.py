"""Distributions with plug-ins, installed for a test on the path of its process."""

import importlib
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from gateway.routing import routing_policies
from registry import policy_names


@contextmanager
def path_of_plug_ins(folder: Path) -> Iterator[None]:
    """What is installed in the folder counts until the end; nothing of it is remembered."""
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    _forget()
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        _forget()
        for path in folder.glob("*.py"):
            sys.modules.pop(path.stem, None)


def install(
    folder: Path, name: str, group: str, entries: Mapping[str, str], module: str = ""
) -> None:
    """Write a distribution of one module as an installer would."""
    info = folder / f"{name}-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
    lines = [f"{key} = {value}" for key, value in entries.items()]
    (info / "entry_points.txt").write_text("\n".join([f"[{group}]", *lines]))
    (folder / f"{name}.py").write_text(module)


def _forget() -> None:
    for cached in (
        policy_names._entry_points,
        policy_names._plugins,
        policy_names._load,
        routing_policies._plugin,
    ):
        cached.cache_clear()
