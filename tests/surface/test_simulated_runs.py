"""Sixteen simulated runs, by a hash of their records: the decisions of gateway and autoscaler.

A change that is not meant to change decisions keeps every hash.
"""

import hashlib
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml

from load.generator.records import METADATA_KEY
from pilotlight.cli import create_app
from tests.surface.recorded import assert_recorded

MODELS: list[dict[str, Any]] = [
    {
        "name": "default/large", "count": 3, "size": "400MB", "infer": {1: "120ms", 8: "300ms"},
        "preprocess": "20ms", "postprocess": "10ms",
    },
    {
        "name": "team/small", "count": 9, "size": "150MB", "infer": {1: "20ms", 8: "60ms"},
        "annotations": {"deadline": "2s", "queue-depth": "4", "priority": "1"},
    },
    {
        "name": "team/pair", "size": "100MB", "infer": {1: "60ms", 4: "90ms"},
        "at": {"n-0": "device", "n-1": "device"},
    },
]  # fmt: skip
CLUSTER: dict[str, Any] = {
    "nodes": [
        {
            "name": "n", "count": 3, "object_storage_rate": "400MB/s", "disk_rate": "2GB/s",
            "host_memory": "1GB", "pods": [{"slots": 2, "memory": "900MB"}],
        },
        {"name": "late", "pods": [{"slots": 2, "memory": "900MB", "start": "8s"}]},
        {"name": "lost", "pods": [{"slots": 2, "memory": "900MB", "kill": "12s"}]},
    ],
    "models": MODELS,
}  # fmt: skip
SMALL = {**CLUSTER, "nodes": [{**CLUSTER["nodes"][0], "count": 2}]}
"""With memory for a third of the models."""
VARIANTS: dict[str, Any] = {
    "nodes": [{"name": "n", "count": 2, "pods": [{"slots": 4}]}],
    "models": [
        {
            "name": name,
            "infer": {1: time},
            "size": "50MB",
            "annotations": {"application": "app"},
            "at": {"n-0": "device"},
        }
        for name, time in (("fast", "10ms"), ("slow", "150ms"))
    ],
    "applications": [
        {
            "name": "app",
            "spec": {"classes": ["no", "yes"], "policy": "lo-edf", "window": {"length": "200ms"}},
            "profile": {"fast": [[6, 4], [4, 6]], "slow": [[9, 1], [1, 9]]},
        }
    ],
}
OWN = {
    **CLUSTER,
    "models": [
        {**MODELS[0], "annotations": {"policy": "colocation", "max-batch-wait": "5ms"}},
        {**MODELS[1], "annotations": {"policy": "remote-proxy", "min-copies": "1"}},
        MODELS[2],
    ],
}
MIXED = (
    "poisson:rate=10,duration=15s,names=large-0/large-1/large-2,zipf=0.5|tenant=default"
    " + poisson:rate=40,duration=15s,names=small-0/small-1/small-2/pair|tenant=team"
)
BURSTS = (
    "on-off:rate=6,on=10s,off=30s,duration=3m,names=large-0/large-1/large-2|tenant=default"
    " + diurnal:rate=2,duration=3m,period=90s,drift=40s,zipf=1,"
    "names=small-0/small-1/small-2/small-3/small-4/pair|tenant=team"
)
QUEUES = (
    "poisson:rate=35,duration=10s,names=large-0|tenant=default"
    " + poisson:rate=20,duration=10s,names=pair/small-0|tenant=team"
)
"""One model has more work than its pod does in time, while other pods are idle."""
ROUTING = (
    "auto,colocation,colocation-queueing,remote-proxy,random,round-robin,least-loaded,"
    "batch-round-robin"
)
COMMANDS: dict[str, tuple[dict[str, Any], str, str]] = {
    "routing": (CLUSTER, MIXED, f"--policy {ROUTING}"),
    "own": (OWN, MIXED, ""),
    "bursts": (SMALL, BURSTS, "--tick 1 --loading predictive,keep-alive,hybrid-histogram"),
    "queues": (CLUSTER, QUEUES, "--policy colocation-queueing --loading clockwork,round-robin"),
    "to-zero": (CLUSTER, BURSTS, "--loading keep-alive --loading-value 0.1"),
    "application": (
        VARIANTS,
        "poisson:rate=40,duration=15s,names=app|deadline=latency,latency=100ms",
        "",
    ),
}
"""Runs of `pilotlight simulate`: cluster, trace and flags."""


def _lines(folder: Path) -> Iterator[str]:
    for name, (cluster, trace, flags) in COMMANDS.items():
        file, records = folder / f"{name}.yaml", folder / name
        file.write_text(yaml.safe_dump(cluster))
        arguments = [
            "simulate",
            "--cluster",
            str(file),
            "--trace",
            trace,
            "--seed",
            "1",
            "--processes",
            "1",
            "--out",
            str(records),
            *flags.split(),
        ]
        create_app(arguments)(arguments, standalone_mode=False)
        for path in sorted(records.glob("*.parquet")):
            yield f"{name}/{path.stem} {_hash(path)}"


def _hash(path: Path) -> str:
    """Of the records by request, and of the autoscaler's actions."""
    table = pq.read_table(path)
    names = sorted(table.column_names)
    columns = (map(_text, table.column(name).to_pylist()) for name in names)
    rows = sorted("\t".join(row) for row in zip(*columns, strict=True))
    run = json.loads(pq.read_metadata(path).metadata[METADATA_KEY])
    lines = ["\t".join(names), *rows, json.dumps(run["actions"], sort_keys=True)]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _text(value: Any) -> str:
    """Of times to the microsecond: the last bits may be another processor's."""
    if isinstance(value, float) and math.isfinite(value):
        return f"{value:.6f}"
    return str(value)


@pytest.mark.slow
def test_records_of_simulated_runs_are_as_recorded(tmp_path: Path) -> None:
    assert_recorded("simulated_runs", _lines(tmp_path))
