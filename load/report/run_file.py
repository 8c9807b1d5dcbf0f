"""Runs from files (Parquet, or the parts of a killed run), and time bins and units for plots."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from load.errors import BadRuns, ReportError
from load.generator.records import METADATA_KEY, parts_folder, read_parts, schema_of
from load.report.run import (
    Answers,
    Bools,
    Floats,
    GroupedNames,
    Run,
    failures_of,
    floats,
    request_columns,
)
from load.schema import ANSWER_SCHEMA, RECORD_SCHEMA
from registry.domain.pod import STAGES

MAX_RUNS: Final = 8
_NAMES: Final = ("tenant", "model", "policy", "predict_pod", "start")
_TIMES: Final = ("scheduled_s", "sent_s", "first_byte_s", "finished_s", "deadline_s")
_ANSWERS: Final = ANSWER_SCHEMA.names[len(RECORD_SCHEMA) :]
_READ: Final = [
    *_NAMES, *_TIMES, "status", "error", "output_size",
    *(f"{stage}_ms" for stage in STAGES),
]  # fmt: skip


def read_runs(given: Sequence[str]) -> list[Run]:
    """The runs given as `FILE` or `NAME=FILE`. Raises BadRuns with all problems."""
    problems = []
    if not 1 <= len(given) <= MAX_RUNS:
        problems.append(f"a report compares 1 to {MAX_RUNS} runs, got {len(given)}")
    named = [_named(text) for text in given]
    for name in sorted({name for name, _ in named}):
        paths = [str(path) for each, path in named if each == name]
        if len(paths) > 1:
            problems.append(
                f"{len(paths)} runs have the name {name!r}: {', '.join(paths)}; "
                "give them different names with NAME=FILE"
            )
    runs = []
    for name, path in [] if problems else named:
        try:
            runs.append(read_run(path, name))
        except ReportError as error:
            problems.append(str(error))
    if problems:
        raise BadRuns(problems)
    return runs


def _named(text: str) -> tuple[str, Path]:
    name, equals, path = text.partition("=")
    if equals and name and not os.path.exists(text):  # Path.exists raises OSError for long names
        return name.encode(errors="replace").decode(), Path(path).expanduser()
    whole = Path(text).expanduser()
    return whole.name.removesuffix(".parts").removesuffix(".parquet") or whole.name, whole


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


_BINS_S: Final = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 300, 600, 1800, 3600, 6 * 3600, 86400)
_MAX_BINS: Final = 240
_MIN_MINUTES: Final = 5


def bin_length_s(duration_s: float, *, minutes: bool = False) -> float:
    """A round length that divides a duration into at most 240 bins, and at least 40 if it can.

    With `minutes` it is a minute for durations from 5 minutes, as in Blinowski et al. 2024.
    """
    if minutes and duration_s >= _MIN_MINUTES * 60 and duration_s / 60 <= _MAX_BINS:
        return 60.0
    wanted = duration_s / (_MAX_BINS / 4)
    return next((each for each in _BINS_S if each >= wanted), duration_s / _MAX_BINS)


def bin_counts(times_s: Floats, length_s: float, bins: int, where: Bools | None = None) -> Floats:
    """Number of times in each bin."""
    chosen = times_s if where is None else times_s[where]
    at = np.clip((chosen / length_s).astype(np.int64), 0, bins - 1)
    return np.asarray(np.bincount(at, minlength=bins), dtype=np.float64)


def bin_edges(length_s: float, bins: int, unit_s: float) -> Floats:
    """Edges of the bins, in units of an axis."""
    return np.asarray(np.arange(bins + 1) * length_s / unit_s, dtype=np.float64)


def bin_name(length_s: float) -> str:
    """`minute`, or `10 s`."""
    names = {1.0: "second", 60.0: "minute", 3600.0: "hour", 86400.0: "day"}
    return names.get(float(length_s), format_duration(length_s))


def axis_unit(duration_s: float) -> tuple[float, str]:
    """A unit for a time axis: its length in seconds and its name."""
    if duration_s < 300:
        return 1.0, "s"
    return (60.0, "min") if duration_s < 4 * 3600 else (3600.0, "h")


def format_duration(seconds: float) -> str:
    """Two or three digits: `12 ms`, `3.4 s`, `5.0 min`."""
    if seconds != seconds:
        return "-"
    if seconds < 1:
        return f"{1000 * seconds:.3g} ms"
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.3g} min" if seconds < 7200 else f"{seconds / 3600:.3g} h"
