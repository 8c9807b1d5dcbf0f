"""The Arrow schemas of traces and runs, shared by all parts of this package.

A **trace** is an iterable of record batches of `TRACE_SCHEMA`, sorted by `at_s` across batches, so
that a trace of any length is processed in flat memory. A **run** is record batches of
`RECORD_SCHEMA`, a row per request. Live and simulated runs have the same columns and can be
compared field by field.
"""

from collections.abc import Iterable
from typing import Final, TypeAlias

import pyarrow as pa

from registry.domain.pod import STAGES

_NAME: Final = pa.dictionary(pa.int32(), pa.string())

TRACE_SCHEMA: Final = pa.schema(
    [
        pa.field("at_s", pa.float64(), nullable=False),  # since the trace's start
        pa.field("tenant", _NAME, nullable=False),
        pa.field("model", _NAME, nullable=False),  # name within the tenant's namespace
        pa.field("input_size", pa.int64(), nullable=False),  # items, or tokens of a prompt
        pa.field("output_size", pa.int64(), nullable=False),  # tokens to generate, else 0
        pa.field("deadline_s", pa.float64()),  # from arrival; null: none
        pa.field("blocks", pa.list_(pa.int64())),  # of a prompt, by `BLOCK_TOKENS`; null: unknown
    ]
)
"""One arrival per row."""
BLOCK_TOKENS: Final = 512
"""Of a prompt: prompts with the same block are the same up to its end (Qin et al. 2025, FAST)."""

RECORD_SCHEMA: Final = pa.schema(
    [
        pa.field("request_id", pa.string(), nullable=False),
        pa.field("tenant", _NAME, nullable=False),
        pa.field("model", _NAME, nullable=False),
        pa.field("policy", _NAME),
        pa.field("scheduled_s", pa.float64(), nullable=False),  # in the trace
        pa.field("sent_s", pa.float64()),  # later than scheduled: sent late
        pa.field("first_byte_s", pa.float64()),
        pa.field("finished_s", pa.float64()),
        pa.field("status", pa.int16(), nullable=False),  # HTTP; 0: no response
        pa.field("reason", _NAME),  # x-pilotlight-reason
        pa.field("error", pa.string()),
        pa.field("entry_pod", _NAME),
        pa.field("predict_pod", _NAME),
        pa.field("start", _NAME),  # warm, host, disk, remote
        *(pa.field(f"{stage}_ms", pa.float64()) for stage in STAGES),
        pa.field("input_size", pa.int64(), nullable=False),
        pa.field("output_size", pa.int64(), nullable=False),  # tokens generated, if reported
        pa.field("deadline_s", pa.float64()),
    ]
)
"""One request per row; times in seconds since the run's start."""

ANSWER_SCHEMA: Final = pa.schema(
    [
        *RECORD_SCHEMA,
        pa.field("variant", _NAME),  # that served the request to an application
        pa.field("label", pa.int32()),  # the right answer
        pa.field("prediction", pa.int32()),
        pa.field("expected_utility", pa.float64()),
        pa.field("utility", pa.float64()),  # achieved
    ]
)
"""Rows of a run with labelled examples."""

Trace: TypeAlias = Iterable[pa.RecordBatch]
"""Batches of `TRACE_SCHEMA`, sorted by `at_s` across batches."""
