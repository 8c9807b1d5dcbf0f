"""One worker's records on disk as they come: an Arrow stream, readable up to where it ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from load.schema import RECORD_SCHEMA
from load.stages import STAGES

if TYPE_CHECKING:
    from pathlib import Path

    from load.generator.answers import RequestResult
    from load.generator.arrivals import TraceArrival

ROWS_AT_A_TIME: Final = 512


def parts_folder(output: Path) -> Path:
    """Where the parts of a run lie until they are its Parquet file."""
    return output.with_name(output.name + ".parts")


def record_row(
    arrival: TraceArrival, outcome: RequestResult, *, request_id: str, policy: str | None
) -> tuple[Any, ...]:
    """One row in the order of RECORD_SCHEMA."""
    return (
        request_id, arrival.tenant, arrival.model, outcome.policy or policy, arrival.at_s,
        outcome.sent_s, outcome.first_byte_s, outcome.finished_s, outcome.status, outcome.reason,
        outcome.error, outcome.entry_pod, outcome.predict_pod, outcome.start,
        *(outcome.stages_ms.get(stage) for stage in STAGES),
        arrival.input_size, arrival.output_size, arrival.deadline_s,
    )  # fmt: skip


class RecordPart:
    """Gathers rows and appends them as record batches."""

    def __init__(self, path: Path) -> None:
        self._file = pa.OSFile(str(path), "wb")
        self._writer = pa.ipc.new_stream(self._file, RECORD_SCHEMA)
        self._rows: list[tuple[Any, ...]] = []

    def add(self, row: tuple[Any, ...]) -> None:
        """Keep a row; many together are written."""
        self._rows.append(row)
        if len(self._rows) >= ROWS_AT_A_TIME:
            self.flush()

    def flush(self) -> None:
        """Write what is kept."""
        if not self._rows:
            return
        columns = zip(*self._rows, strict=True)
        arrays = [
            pa.array(column, type=field.type)
            for column, field in zip(columns, RECORD_SCHEMA, strict=True)
        ]
        self._writer.write_batch(pa.record_batch(arrays, schema=RECORD_SCHEMA))
        self._file.flush()
        self._rows = []

    def close(self) -> None:
        """Write the rest and the stream's end."""
        self.flush()
        self._writer.close()
        self._file.close()
