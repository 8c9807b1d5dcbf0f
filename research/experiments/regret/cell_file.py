"""All runs of the experiment regret with the parameters of their cells, as Parquet and CSV."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from research.experiments.harness.experiment import ExperimentError
from research.experiments.regret.cells import RegretCell
from research.experiments.regret.runs import RegretResult

NAME: Final = "cells"
_SEEDS: Final = "seeds"
_RESULT_FIELDS: Final = tuple(each.name for each in dataclasses.fields(RegretResult))


def write(
    folder: Path,
    cells: Mapping[int, RegretCell],
    results: Sequence[RegretResult],
    seeds: Sequence[int],
) -> Path:
    """A row per cell and policy; returns the Parquet file."""
    rows = [{**_parameters(cells[each.cell]), **_fields(each)} for each in results]
    table = pa.Table.from_pylist(rows)
    path = folder / f"{NAME}.parquet"
    pq.write_table(table.replace_schema_metadata({_SEEDS: _listed(seeds)}), path)
    pa_csv.write_csv(table, folder / f"{NAME}.csv")
    return path


def read(path: Path, seeds: Sequence[int]) -> list[RegretResult]:
    """The results of an earlier run with the same seeds. Raises ExperimentError."""
    try:
        table = pq.read_table(path)
        rows = table.select(list(_RESULT_FIELDS)).to_pylist()
    except (OSError, KeyError, pa.ArrowException) as error:
        raise ExperimentError(
            f"--reuse must be the cells.parquet of an earlier run, was {path}: {error}"
        ) from error
    earlier = (table.schema.metadata or {}).get(_SEEDS.encode(), b"").decode()
    if earlier != _listed(seeds):
        raise ExperimentError(
            f"--reuse: {path} has the seeds {earlier}, this run has {_listed(seeds)}; "
            "repeat --seed, or leave --reuse out"
        )
    return [RegretResult(**row) for row in rows]


def _parameters(cell: RegretCell) -> dict[str, Any]:
    """Lists of equal values as one value, other lists as text."""
    found = {
        **_fields(cell),
        "half": str(cell.half),
        "trace": cell.trace,
        "load_s": cell.load_s,
        "pods": len(cell.slots),
        "models": len(cell.sizes),
    }
    del found["number"]
    for name in ("slots", "speeds", "pod_memory", "sizes"):
        found[name] = " ".join(f"{each:.3g}" for each in dict.fromkeys(found[name]))
    return found


def _fields(value: RegretCell | RegretResult) -> dict[str, Any]:
    return {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}


def _listed(seeds: Sequence[int]) -> str:
    return ",".join(map(str, seeds))
