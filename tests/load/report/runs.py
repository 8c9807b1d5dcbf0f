"""Runs for tests: random by a seed, or given column by column."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from load.generator.records import METADATA_KEY
from load.report.run import Run
from load.report.run_file import read_run
from load.schema import ANSWER_SCHEMA, RECORD_SCHEMA
from registry.domain.pod import STAGES


def steady_run(folder: Path, rows: int = 4, *, name: str = "run", **columns: Any) -> Run:
    """A run of one model on one pod, warm and without delays, with the given columns changed."""
    path = folder / f"{name}.parquet"
    steady = {
        "model": ["a"] * rows,
        "predict_pod": ["p"] * rows,
        "start": ["warm"] * rows,
        "status": [200] * rows,
        "error": [None] * rows,
        "tenant": ["t"] * rows,
        **{f"{stage}_ms": [0.0] * rows for stage in STAGES},
    }
    write_run(path, rows, **{**steady, **columns})
    return read_run(path, name)


def write_run(
    path: Path,
    rows: int,
    *,
    seed: int = 0,
    cold_rate: float = 0.02,
    rate_rps: float = 50.0,
    policy: str | None = "auto",
    models: int = 12,
    pods: int = 6,
    tenants: int = 4,
    deadline_s: float | list[float | None] | None = 1.0,
    is_plain: bool = False,
    metadata: dict[str, Any] | None = None,
    **columns: Any,
) -> Path:
    """Write a run; `is_plain` omits all that a plain KServe predictor does not report."""
    random = np.random.default_rng(seed)
    scheduled = np.cumsum(random.exponential(1 / rate_rps, rows))
    model = np.minimum(random.zipf(1.4, rows) - 1, models - 1)
    tier = random.choice(3, rows, p=[0.3, 0.3, 0.4])
    is_cold = random.random(rows) < cold_rate
    load = np.where(is_cold, np.array([80.0, 400.0, 2000.0])[tier], 0.0)
    stages = {
        "queue": random.exponential(6, rows),
        "load": load,
        "preprocess": random.gamma(2, 0.6, rows),
        "infer": random.gamma(3, 9, rows),
        "postprocess": random.gamma(2, 0.2, rows),
        "network": random.gamma(2, 0.5, rows),
    }
    sent = scheduled + random.exponential(0.0004, rows)
    status = np.where(random.random(rows) < 0.01, 503, 200)
    start = np.where(is_cold, np.array(["host", "disk", "remote"])[tier], "warm")
    pod = (model + random.integers(0, 2, rows)) % pods
    none = [None] * rows
    values: dict[str, Any] = {
        "request_id": [f"0-{row}" for row in range(rows)],
        "tenant": [f"team-{each % tenants}" for each in model],
        "model": [f"model-{each}" for each in model],
        "policy": none if is_plain else [policy] * rows,
        "scheduled_s": scheduled,
        "sent_s": sent,
        "first_byte_s": sent + sum(stages.values()) / 1000,
        "finished_s": sent + sum(stages.values()) / 1000 + 0.001,
        "status": status,
        "reason": none if is_plain else ["warm"] * rows,
        "error": ["HTTP 503: no" if each == 503 else None for each in status],
        "entry_pod": none if is_plain else [f"pod-{each}" for each in pod],
        "predict_pod": none if is_plain else [f"pod-{each}" for each in pod],
        "start": none if is_plain else start.tolist(),
        **{f"{name}_ms": none if is_plain else each for name, each in stages.items()},
        "input_size": [1] * rows,
        "output_size": [0] * rows,
        "deadline_s": deadline_s if isinstance(deadline_s, list) else [deadline_s] * rows,
    } | columns
    has_answers = "label" in columns
    schema = (ANSWER_SCHEMA if has_answers else RECORD_SCHEMA).with_metadata(
        {METADATA_KEY: json.dumps({"kind": "live", **(metadata or {})})}
    )
    arrays = [pa.array(values[field.name], type=field.type) for field in schema]
    parquet.write_table(pa.Table.from_arrays(arrays, schema=schema), path)
    return path
