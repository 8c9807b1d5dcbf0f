"""Becomes a container's process: `launch.py SPECIFICATION`, in a mount namespace of its own.

The specification is JSON: `mounts` (source, target, read_only), `read_only_root`, `directory`,
`environment`, `command`. The root is that of this machine. For a mount point that does not exist, a
tmpfs is mounted over the deepest existing folder, with the folder's contents bound into it again.
Uses only the standard library.
"""

import ctypes
import json
import os
import sys
from pathlib import Path
from typing import Any

AT_FDCWD = -100
AT_RECURSIVE = 0x8000
MOUNT_ATTR_RDONLY = 1
MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18

libc = ctypes.CDLL(None, use_errno=True)


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    """Call mount(2), which accepts paths in `/proc/self/fd`, unlike mount(8)."""
    arguments = (source.encode(), target.encode(), kind.encode(), flags, options.encode())
    if libc.mount(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"mount {source} at {target}: {os.strerror(number)}")


def make_read_only(path: str, *, is_recursive: bool) -> None:
    """Make `path` and the mounts in it read-only in this mount namespace."""
    attributes = (ctypes.c_uint64 * 4)(MOUNT_ATTR_RDONLY, 0, 0, 0)
    flags = AT_RECURSIVE if is_recursive else 0
    size = ctypes.c_size_t(ctypes.sizeof(attributes))
    if libc.mount_setattr(AT_FDCWD, path.encode(), flags, attributes, size) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"mount_setattr {path}: {os.strerror(number)}")


def opened(path: str | Path) -> str:
    """A path to what is at `path` now, valid after something is mounted over it."""
    return f"/proc/self/fd/{os.open(path, os.O_PATH)}"


def open_folder(folder: Path) -> None:
    """Make `folder` writable for new names, with its present contents."""
    below = opened(folder)
    entries = list(os.scandir(folder))
    mount("none", str(folder), "tmpfs", options="mode=755")
    for entry in entries:
        target = folder / entry.name
        if entry.is_symlink():
            target.symlink_to(os.readlink(f"{below}/{entry.name}"))
        elif os.path.isdir(f"{below}/{entry.name}"):
            target.mkdir()
            mount(f"{below}/{entry.name}", str(target), flags=MS_BIND | MS_REC)
        else:
            target.touch()
            mount(f"{below}/{entry.name}", str(target), flags=MS_BIND)


def make_mount_point(target: Path, *, is_folder: bool) -> list[Path]:
    """Create `target`; returns the folders that were made writable for it."""
    if target.exists():
        return []
    missing = [target]
    parent = target.parent
    while not parent.exists():
        missing.append(parent)
        parent = parent.parent
    parent = parent.resolve()
    open_folder(parent)
    for path in reversed(missing):
        if path == target and not is_folder:
            path.touch()
        else:
            path.mkdir()
    return [parent]


def prepare(specification: dict[str, Any]) -> None:
    """Mount everything that the container uses."""
    mount("none", "/", flags=MS_REC | MS_PRIVATE)
    sources = [opened(item["source"]) for item in specification["mounts"]]
    is_read_only = bool(specification["read_only_root"])
    if is_read_only:
        make_read_only("/", is_recursive=True)
    mount("none", "/dev/shm", "tmpfs", options="size=64m")
    folders: list[Path] = []
    for item, source in zip(specification["mounts"], sources, strict=True):
        target = item["target"]
        folders += make_mount_point(Path(target), is_folder=os.path.isdir(source))
        # Recursive, because a user namespace may not reveal what is under inner mounts.
        mount(source, target, flags=MS_BIND | MS_REC)
        if item["read_only"]:
            make_read_only(target, is_recursive=True)
        elif is_read_only:
            mount("none", target, flags=MS_REMOUNT | MS_BIND)
    if is_read_only:
        for folder in folders:
            make_read_only(str(folder), is_recursive=False)


def main() -> None:
    """Read the specification, mount, become the command."""
    specification = json.loads(Path(sys.argv[1]).read_text())
    prepare(specification)
    environment: dict[str, str] = specification["environment"]
    command: list[str] = specification["command"]
    os.chdir(specification["directory"])
    os.environ["PATH"] = environment["PATH"]
    os.execvpe(command[0], command, environment)


if __name__ == "__main__":
    main()
