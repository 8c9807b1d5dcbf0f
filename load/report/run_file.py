"""Runs from files: Parquet, or the parts of a killed run."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from load.errors import ReportError
from load.generator.records import METADATA_KEY, parts_folder, read_parts, schema_of
from load.report.run import Answers, GroupedNames, Run, failures_of, floats, request_columns
from load.schema import ANSWER_SCHEMA, RECORD_SCHEMA
from registry.domain.pod import STAGES

_NAMES: Final = ("tenant", "model", "policy", "predict_pod", "start")
_TIMES: Final = ("scheduled_s", "sent_s", "first_byte_s", "finished_s", "deadline_s")
_ANSWERS: Final = ANSWER_SCHEMA.names[len(RECORD_SCHEMA) :]
_READ: Final = [
    *_NAMES, *_TIMES, "status", "error", "output_size",
    *(f"{stage}_ms" for stage in STAGES),
]  # fmt: skip


def read_run(path: Path, name: str) -> Run:
    """A run with the columns that a report needs. Raises ReportError."""
    try:
        table, metadata = _table(path)
    except OSError as error:
        raise ReportError(f"{path}: cannot be read: {error.strerror}") from error
    if not table.num_rows:
        raise ReportError(f"{path}: has no requests; leave it out")
    stages = {stage: floats(table.column(f"{stage}_ms")).astype(np.float32) for stage in STAGES}
    if wrong := _wrong_numbers(table):
        raise ReportError(f"{path}: {'; '.join(wrong)}")
    return Run(
        **request_columns(table),
        name=name,
        metadata=metadata,
        predict_pod=GroupedNames.of(table.column("predict_pod")),
        stages_ms=stages,
        first_byte_s=floats(table.column("first_byte_s")),
        output_tokens=floats(table.column("output_size")),
        failures=failures_of(table),
        answers=Answers.of(table) if _ANSWERS[-1] in table.column_names else None,
    )


def _table(path: Path) -> tuple[pa.Table, dict[str, Any]]:
    is_parts = path.name.endswith(".parts")
    if path.is_dir() and not is_parts:
        raise ReportError(f"{path}: is a folder; name the Parquet file in it")
    parts = path if is_parts else parts_folder(path)
    if path.is_file():
        return _parquet(path, parts)
    if parts.is_dir():
        try:
            schema = schema_of(parts)
            table = pa.Table.from_batches(read_parts(parts), schema).select(_read(schema.names))
        except (pa.ArrowException, ValueError) as error:
            raise ReportError(f"{parts}: not the parts of a run ({_first_line(error)})") from error
        return table, _json_file(parts / "run.json") | {"interrupted": True}
    raise ReportError(f"{path}: no such file")


def _parquet(path: Path, parts: Path) -> tuple[pa.Table, dict[str, Any]]:
    try:
        file = parquet.ParquetFile(path)
        schema = file.schema_arrow
        missing = [column for column in _READ if column not in schema.names]
        if missing:
            raise ReportError(
                f"{path}: columns missing: {', '.join(missing)}; a run has the columns that "
                "`pilotlight load run` and `pilotlight simulate` write"
            )
        table = file.read(columns=_read(schema.names))
    except (pa.ArrowException, OSError) as error:
        kept = f"; its records are in {parts}" if parts.is_dir() else ""
        raise ReportError(
            f"{path}: not a complete Parquet file ({_first_line(error)}){kept}"
        ) from error
    fields = [ANSWER_SCHEMA.field(column) for column in table.schema.names]
    try:
        table = table.cast(pa.schema([field.with_nullable(True) for field in fields]))
    except (pa.ArrowException, ValueError) as error:
        raise ReportError(f"{path}: {_first_line(error)}") from error
    needed = ("tenant", "model", "scheduled_s", "status")
    if empty := [column for column in needed if table.column(column).null_count]:
        raise ReportError(f"{path}: empty cells in {', '.join(empty)}, which are required")
    return table, _metadata(path, file.metadata.metadata)


def _read(names: Sequence[str]) -> list[str]:
    """The columns to read of those that a run has."""
    return [*_READ, *(_ANSWERS if all(each in names for each in _ANSWERS) else ())]


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)[:200]


def _wrong_numbers(table: pa.Table) -> list[str]:
    """A message for each column with an invalid time, naming the first such row."""
    found = []
    for column in (*_TIMES, *(f"{stage}_ms" for stage in STAGES)):
        values = floats(table.column(column))
        is_arrival = column == "scheduled_s"
        is_wrong = ~np.isfinite(values) | (values < 0) if is_arrival else np.isinf(values)
        if is_wrong.any():
            row = int(np.argmax(is_wrong))
            allowed = "finite and not negative" if is_arrival else "finite"
            found.append(f"{column} must be {allowed}, was {values[row]} in row {row}")
    return found


def _metadata(path: Path, metadata: dict[bytes, bytes] | None) -> dict[str, Any]:
    """The metadata of the summary file beside the run, overridden by the run's own metadata."""
    own = _json_object((metadata or {}).get(METADATA_KEY, b""))
    return _json_file(path.with_suffix(".json")) | own


def _json_file(path: Path) -> dict[str, Any]:
    try:
        return _json_object(path.read_bytes())
    except OSError:
        return {}


def _json_object(text: bytes) -> dict[str, Any]:
    """The text as a JSON object; empty if the text is not one."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
