"""The records of a run's processes, made one Parquet file in flat memory."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyarrow import parquet

from load.generator.errors import RecordsNotWritten
from load.schema import RECORD_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

METADATA_KEY: Final = b"pilotlight.run"
"""Where a run's Parquet file keeps what is known of the run, as JSON."""
_ROWS_PER_GROUP: Final = 1 << 16


def write_about(parts: Path, about: Mapping[str, Any]) -> None:
    """Keep what is known of the run beside its parts. Raises RecordsNotWritten."""
    path = parts / "run.json"
    try:
        path.write_text(json.dumps(dict(about)))
    except OSError as error:
        raise RecordsNotWritten(f"cannot write {path}: {error}; nothing was sent") from error


def merge_parts(parts: Path, output: Path, about: Mapping[str, Any]) -> None:
    """Write the Parquet file, then remove the parts. Raises RecordsNotWritten; the parts stay."""
    schema = RECORD_SCHEMA.with_metadata({METADATA_KEY: json.dumps(dict(about))})
    unfinished = output.with_name(output.name + ".unfinished")
    try:
        with parquet.ParquetWriter(unfinished, schema, compression="zstd") as writer:
            for group in _groups(read_parts(parts)):
                writer.write_table(group.cast(schema))
        unfinished.replace(output)
    except OSError as error:
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)
        raise RecordsNotWritten(
            f"cannot write {output}: {error}; {parts} holds the requests up to then, "
            f"and `pilotlight report {output}` reads them"
        ) from error
    shutil.rmtree(parts)


def read_parts(parts: Path) -> Iterator[pa.RecordBatch]:
    """All batches that were written whole, also of processes that were killed while writing."""
    for path in sorted(parts.glob("*.arrows")):
        try:
            with pa.OSFile(str(path)) as file, pa.ipc.open_stream(file) as stream:
                yield from stream
        except (pa.ArrowInvalid, OSError):
            continue  # it breaks off here: what came before is good


def _groups(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    gathered: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        gathered.append(batch)
        rows += batch.num_rows
        if rows >= _ROWS_PER_GROUP:
            yield _table(gathered)
            gathered, rows = [], 0
    if gathered:
        yield _table(gathered)


def _table(batches: list[pa.RecordBatch]) -> pa.Table:
    return pa.Table.from_batches(batches, RECORD_SCHEMA).unify_dictionaries()
