"""Records of a run: an Arrow stream per worker while it runs, one Parquet file afterwards.

A stream is readable up to its last complete batch, even if its writer was killed. Before a run
its output is claimed: checked against what it would replace, and locked against other runs.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterable
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import orjson
import pyarrow as pa
from pyarrow import parquet

from common.pod_responses import parse_server_timing
from load.errors import GeneratorError, RunFailed
from load.schema import ANSWER_SCHEMA, RECORD_SCHEMA
from registry.domain.pod import STAGES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from load.generator.trace_arrivals import TraceArrival


MAX_KEPT_BYTES: Final = 4096
"""Bytes kept of the end of a response, for the text of an error."""
_MAX_ERROR_LENGTH: Final = 300
_PILOTLIGHT_HEADERS: Final = {
    b"x-pilotlight-pod": "entry_pod",
    b"x-pilotlight-predict-pod": "predict_pod",
    b"x-pilotlight-policy": "policy",
    b"x-pilotlight-reason": "reason",
    b"x-pilotlight-start": "start",
    b"x-pilotlight-variant": "variant",
}


@dataclass(slots=True)
class RequestResult:
    """The result of one request, filled in meanwhile. Times in seconds since the run's start.

    The fields from `policy` on are filled in only for Pilotlight's servers.
    """

    sent_s: float | None = None
    first_byte_s: float | None = None
    finished_s: float | None = None
    status: int = 0
    """0: no response."""
    generated_tokens: int | None = None
    """None: the server does not report them."""
    error: str | None = None
    policy: str | None = None
    reason: str | None = None
    entry_pod: str | None = None
    predict_pod: str | None = None
    start: str | None = None
    stages_ms: dict[str, float] = field(default_factory=dict)
    variant: str | None = None
    """The variant that served a request to an application."""
    expected_utility: float | None = None
    label: int | None = None
    """The right class; None: unknown."""
    prediction: int | None = None
    deadline_s: float | None = None
    """Deadline of the application, which counts if the trace has none."""
    utility: float | None = None
    """Achieved: 1 less the penalty of lateness for a right answer, else 0."""

    def read_headers(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        for name, value in headers:
            if name == b"server-timing":
                self.stages_ms = reported_stages_ms(value.decode("latin-1"))
            elif name in _PILOTLIGHT_HEADERS:
                setattr(self, _PILOTLIGHT_HEADERS[name], value.decode("latin-1").strip())
            elif name == b"x-pilotlight-expected-utility":
                with suppress(ValueError):
                    self.expected_utility = float(value)

    def fail(self, error: str) -> None:
        self.error = error[:_MAX_ERROR_LENGTH]


def reported_stages_ms(server_timing: str) -> dict[str, float]:
    """Milliseconds of each of Pilotlight's stages in a `server-timing` header."""
    reported = parse_server_timing(server_timing)
    return {name: reported[name] for name in STAGES if name in reported}


def http_error(status: int, body: bytes) -> str:
    """The error of a response with a status other than 2xx."""
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        document = body.decode("utf-8", "replace").strip()
    return f"HTTP {status}: {_message(document)}"


def stream_error(tail: bytes) -> str | None:
    """Why a stream of server-sent events is incomplete; None for a complete one."""
    events = [line[5:].strip() for line in tail.split(b"\n") if line.startswith(b"data:")]
    for event in events:
        try:
            document = orjson.loads(event)
        except orjson.JSONDecodeError:
            continue
        if isinstance(document, dict) and "error" in document:
            return _message(document)
    is_complete = bool(events) and events[-1] == b"[DONE]"
    return None if is_complete else "the stream ended without [DONE]"


def streamed_tokens(tail: bytes) -> int | None:
    """Generated tokens by the `usage` at the end of a stream; None: not reported."""
    for line in reversed(tail.split(b"\n")):
        if not line.startswith(b"data:"):
            continue
        with suppress(orjson.JSONDecodeError, AttributeError, KeyError, TypeError):
            return int(orjson.loads(line[5:])["usage"]["completion_tokens"])
    return None


def _message(document: Any) -> str:
    if isinstance(document, dict):
        inner = document.get("error", document.get("detail", document))
        return str(inner.get("message", inner)) if isinstance(inner, dict) else str(inner)
    return str(document)


METADATA_KEY: Final = b"pilotlight.run"
"""The key of the run's metadata, as JSON, in its Parquet file."""
_BATCH_ROWS: Final = 512
_GROUP_ROWS: Final = 1 << 16


def parts_folder(output: Path) -> Path:
    """The folder of a run's parts while its Parquet file does not exist."""
    return output.with_name(output.name + ".parts")


def record_row(
    arrival: TraceArrival, result: RequestResult, *, request_id: str, policy: str | None
) -> tuple[Any, ...]:
    """One row in the order of ANSWER_SCHEMA, which begins with RECORD_SCHEMA."""
    tokens, deadline_s = result.generated_tokens, arrival.deadline_s
    return (
        request_id, arrival.tenant, arrival.model, result.policy or policy,
        arrival.at_s, result.sent_s, result.first_byte_s, result.finished_s,
        result.status, result.reason, result.error,
        result.entry_pod, result.predict_pod, result.start,
        *(result.stages_ms.get(stage) for stage in STAGES),
        arrival.input_size, arrival.output_size if tokens is None else tokens,
        result.deadline_s if deadline_s is None else deadline_s,
        result.variant, result.label, result.prediction, result.expected_utility, result.utility,
    )  # fmt: skip


class RecordPart:
    """Writes one worker's rows as record batches."""

    def __init__(self, path: Path, *, has_answers: bool = False) -> None:
        self._schema = ANSWER_SCHEMA if has_answers else RECORD_SCHEMA
        self._file = pa.OSFile(str(path), "wb")
        self._writer = pa.ipc.new_stream(self._file, self._schema)
        self._rows: list[tuple[Any, ...]] = []

    def add(self, row: tuple[Any, ...]) -> None:
        self._rows.append(row)
        if len(self._rows) >= _BATCH_ROWS:
            self.flush()

    def flush(self) -> None:
        """Write the rows added since the last batch."""
        if not self._rows:
            return
        columns = list(zip(*self._rows, strict=True))[: len(self._schema)]
        arrays = [
            pa.array(column, type=field.type)
            for column, field in zip(columns, self._schema, strict=True)
        ]
        self._writer.write_batch(pa.record_batch(arrays, schema=self._schema))
        self._file.flush()
        self._rows = []

    def close(self) -> None:
        self.flush()
        self._writer.close()
        self._file.close()


def read_parts(parts: Path) -> Iterator[pa.RecordBatch]:
    """All complete batches, including those of workers that were killed while writing."""
    for path in sorted(parts.glob("*.arrows")):
        try:
            with pa.OSFile(str(path)) as file, pa.ipc.open_stream(file) as stream:
                yield from stream
        except (pa.ArrowInvalid, OSError):
            continue  # the stream ends early: its batches so far are valid


def write_metadata(parts: Path, metadata: Mapping[str, Any]) -> None:
    """Write the run's metadata beside its parts. Raises RunFailed."""
    path = parts / "run.json"
    try:
        path.write_text(json.dumps(dict(metadata)))
    except OSError as error:
        raise RunFailed(f"cannot write {path}: {error}; nothing was sent") from error


def merge_parts(parts: Path, output: Path, metadata: Mapping[str, Any]) -> None:
    """Write the Parquet file in bounded memory, then remove the parts.

    Raises RunFailed; the parts are then kept.
    """
    own = schema_of(parts)
    schema = own.with_metadata({METADATA_KEY: json.dumps(dict(metadata))})
    unfinished = output.with_name(output.name + ".unfinished")
    try:
        with parquet.ParquetWriter(unfinished, schema, compression="zstd") as writer:
            for group in _row_groups(read_parts(parts), own):
                writer.write_table(group.cast(schema))
        unfinished.replace(output)
    except OSError as error:
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)
        raise RunFailed(
            f"cannot write {output}: {error}; {parts} holds the requests up to then, "
            f"and `pilotlight report {output}` reads them"
        ) from error
    shutil.rmtree(parts)


def schema_of(parts: Path) -> pa.Schema:
    """ANSWER_SCHEMA if the parts have its columns, else RECORD_SCHEMA."""
    first = next(read_parts(parts), None)
    has_answers = first is not None and ANSWER_SCHEMA.names[-1] in first.schema.names
    return ANSWER_SCHEMA if has_answers else RECORD_SCHEMA


def _row_groups(batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.Table]:
    gathered: list[pa.RecordBatch] = []
    for batch in batches:
        gathered.append(batch)
        if sum(each.num_rows for each in gathered) >= _GROUP_ROWS:
            yield _table(gathered, schema)
            gathered = []
    if gathered:
        yield _table(gathered, schema)


def _table(batches: list[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    return pa.Table.from_batches(batches, schema).unify_dictionaries()


_LOCK: Final = "lock"
"""Lock file in the folder of the parts; the kernel releases the lock when the process ends."""


@contextmanager
def claimed_output(output: Path, *, overwrite: bool, inputs: Sequence[str] = ()) -> Iterator[Path]:
    """The empty folder for the parts, locked against other runs until the context ends.

    Raises GeneratorError for a file that must not be replaced: a folder or device, one of the
    `inputs` (paths), the output of a run in progress, any existing file without `overwrite`.
    """
    with ExitStack() as stack:
        try:
            require_replaceable(output, inputs, overwrite=overwrite)
            parts = parts_folder(output)
            existed = parts.exists()
            parts.mkdir(parents=True, exist_ok=True)
            lock = stack.enter_context((parts / _LOCK).open("a"))
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise GeneratorError(
                    f"--output: another run writes {output} now; name another, or end that run"
                ) from error
            if existed and not overwrite:
                raise _already_exists(f"{parts}, of an interrupted run")
            for old in parts.iterdir():
                if old.name != _LOCK:
                    old.unlink()
            output.unlink(missing_ok=True)
        except OSError as error:
            raise GeneratorError(f"--output: cannot write {output}: {error}") from error
        yield parts


def require_replaceable(
    output: Path, inputs: Sequence[str] = (), *, overwrite: bool, flag: str = "--output"
) -> None:
    """Raises GeneratorError if `output` must not be replaced; OSError."""
    if output.is_dir():
        raise GeneratorError(f"{flag}: {output} is a folder; name a file in it")
    if output.exists() and not output.is_file():
        raise GeneratorError(f"{flag}: {output} is a pipe or device; name a file")
    if output.exists() and any(os.path.samefile(output, each) for each in inputs):
        raise GeneratorError(f"{flag}: {output} is a file of the trace; name another")
    if output.exists() and not overwrite:
        raise _already_exists(str(output), flag)


def _already_exists(path: str, flag: str = "--output") -> GeneratorError:
    return GeneratorError(f"{flag}: there is {path} already; name another, or --overwrite")
