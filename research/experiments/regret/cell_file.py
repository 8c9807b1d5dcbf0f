"""All runs of the experiment regret with the parameters of their cells, as Parquet and CSV."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from research.experiments.harness.experiment import ExperimentError
from research.experiments.harness.rendering import listed
from research.experiments.regret.cells import RegretCell
from research.experiments.regret.runs import RegretResult

NAME: Final = "cells"
_RESULT_FIELDS: Final = tuple(each.name for each in dataclasses.fields(RegretResult))


def write(folder: Path, cells: Mapping[int, RegretCell], results: Sequence[RegretResult]) -> None:
    """A row per cell, policy and seed."""
    table = pa.Table.from_pylist(
        [{**_parameters(cells[each.cell]), **_fields(each)} for each in results]
    )
    pq.write_table(table, folder / f"{NAME}.parquet")
    pa_csv.write_csv(table, folder / f"{NAME}.csv")


def read(path: Path, seeds: Sequence[int]) -> list[RegretResult]:
    """The results of an earlier run for these seeds. Raises ExperimentError."""
    try:
        table = pq.read_table(path)
        rows = table.select(list(_RESULT_FIELDS)).to_pylist()
    except (OSError, KeyError, pa.ArrowException) as error:
        raise ExperimentError(
            f"--reuse must be the cells.parquet of an earlier run, with a row per seed, was "
            f"{path}: {error}"
        ) from error
    earlier = sorted({row["seed"] for row in rows})
    if not set(seeds) <= set(earlier):
        raise ExperimentError(
            f"--reuse: {path} has the seeds {listed(earlier)}, this run has {listed(seeds)}; "
            "repeat --seed, or leave --reuse out"
        )
    return [RegretResult(**row) for row in rows if row["seed"] in seeds]


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
