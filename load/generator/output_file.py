"""The output file of a run: what it may replace, and a lock against other runs."""

from __future__ import annotations

import fcntl
import os
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Final

from load.generator.errors import OutputNotReplaceable
from load.generator.record_parts import parts_folder

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path
    from typing import TextIO

_LOCK: Final = "lock"
"""In the folder of the parts; the kernel releases it when the run ends in any way."""


@contextmanager
def claimed_output(output: Path, *, overwrite: bool, inputs: Sequence[str] = ()) -> Iterator[Path]:
    """The empty folder for the parts, locked against other runs until the context ends.

    Raises OutputNotReplaceable for a file that must not be replaced: a folder or device, one of the
    `inputs` (paths), the output of a run in progress, any existing file without `overwrite`.
    """
    with ExitStack() as stack:
        try:
            require_replaceable(output, inputs, overwrite=overwrite)
            parts = parts_folder(output)
            existed = parts.exists()
            parts.mkdir(parents=True, exist_ok=True)
            _lock(stack.enter_context((parts / _LOCK).open("a")), output)
            if existed and not overwrite:
                raise _exists(f"{parts}, of an interrupted run")
            for old in parts.iterdir():
                if old.name != _LOCK:
                    old.unlink()
            output.unlink(missing_ok=True)
        except OSError as error:
            raise OutputNotReplaceable(f"--output: cannot write {output}: {error}") from error
        yield parts


def require_replaceable(
    output: Path, inputs: Sequence[str] = (), *, overwrite: bool, flag: str = "--output"
) -> None:
    """Raises OutputNotReplaceable if `output` must not be replaced; OSError."""
    if output.is_dir():
        raise OutputNotReplaceable(f"{flag}: {output} is a folder; name a file in it")
    if output.exists() and not output.is_file():
        raise OutputNotReplaceable(f"{flag}: {output} is a pipe or device; name a file")
    if output.exists() and any(os.path.samefile(output, each) for each in inputs):
        raise OutputNotReplaceable(f"{flag}: {output} is a file of the trace; name another")
    if output.exists() and not overwrite:
        raise _exists(str(output), flag)


def _exists(path: str, flag: str = "--output") -> OutputNotReplaceable:
    return OutputNotReplaceable(f"{flag}: there is {path} already; name another, or --overwrite")


def _lock(file: TextIO, output: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise OutputNotReplaceable(
            f"--output: another run writes {output} now; name another, or end that run"
        ) from error
