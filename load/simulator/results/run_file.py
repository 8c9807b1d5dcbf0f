"""Writes a simulated run and its metadata to a Parquet file, renamed into place when complete."""

from __future__ import annotations

import fcntl
import json
import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from load.generator.record_parts import METADATA_KEY
from load.schema import RECORD_SCHEMA
from load.simulator.errors import CannotWrite

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


@contextmanager
def parquet_writer(
    path: Path, metadata: Callable[[], Mapping[str, Any]], schema: pa.Schema = RECORD_SCHEMA
) -> Iterator[Callable[[pa.RecordBatch], None]]:
    """Yields a function that writes a record batch; writes the run's metadata at the end.

    `metadata` is called at the end; reports read its result from the file's key `pilotlight.run`.
    The file's name ends in `.unfinished` until the file is complete.

    Raises:
        CannotWrite: the file cannot be written.
    """
    try:
        with _unfinished(path) as file:
            with pq.ParquetWriter(file, schema) as writer:
                yield writer.write_batch
                text = json.dumps({"kind": "simulated", **metadata()})
                writer.add_key_value_metadata({METADATA_KEY: text.encode()})
            file.flush()
            Path(file.name).replace(path)
    except OSError as error:
        raise CannotWrite(f"--out: cannot write {path}: {error}") from error


@contextmanager
def _unfinished(path: Path) -> Iterator[BinaryIO]:
    """An empty temporary file for `path`, locked against other processes; raises CannotWrite."""
    unfinished = path.with_name(path.name + ".unfinished")
    with unfinished.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_ours = unfinished.stat().st_ino == os.fstat(file.fileno()).st_ino
        except (BlockingIOError, FileNotFoundError):
            is_ours = False
        taken = CannotWrite(f"--out: another run writes {path}; name another folder")
        if not is_ours:
            raise taken
        try:
            if path.exists():
                raise taken
            file.truncate(0)
            yield file
        finally:
            unfinished.unlink(missing_ok=True)
