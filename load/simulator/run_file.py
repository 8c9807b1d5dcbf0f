"""A simulated run as a Parquet file: whole in its place, with what is known of the run."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from load.generator.merging import METADATA_KEY
from load.schema import RECORD_SCHEMA
from load.simulator.errors import CannotWrite

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path


@contextmanager
def parquet_writer(
    path: Path, about: Callable[[], Mapping[str, Any]]
) -> Iterator[Callable[[pa.RecordBatch], None]]:
    """Write record batches as they come, and at the end what is known of the run by then.

    Where a report looks for it, `pilotlight.run` in the file's metadata, the run is simulated. The
    file is at `path` when all is written; until then its name ends in `.unfinished`.

    Raises:
        CannotWrite: the file cannot be written.
    """
    unfinished = path.with_name(path.name + ".unfinished")
    try:
        with pq.ParquetWriter(unfinished, RECORD_SCHEMA) as writer:
            yield writer.write_batch
            text = json.dumps({"kind": "simulated", **about()})
            writer.add_key_value_metadata({METADATA_KEY: text.encode()})
        unfinished.replace(path)
    except OSError as error:
        raise CannotWrite(f"--out: cannot write {path}: {error}") from error
    finally:
        unfinished.unlink(missing_ok=True)
