"""A run of `load run` beside simulated ones of the same arrivals: `simulate --like RUN`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, Self

import pyarrow as pa
from pyarrow import csv, parquet

from load.errors import ReportError
from load.report.run_file import read_run
from load.report.summary import summarise
from load.schema import TRACE_SCHEMA
from pilotlight.errors import InvalidInput, NotFound
from pilotlight.output import Output
from registry.domain.pod import STAGES, Stage

_MEASURED: Final = tuple(each for each in STAGES if each != Stage.NETWORK)
"""Stages that the simulator has by themselves: the network is part of its hops."""
_SHOWN: Final = ("p50", "p90", "p95", "p99")


def cluster_path(run: Path) -> Path:
    """The cluster file that `load run` writes beside its records."""
    return run.with_suffix(".cluster.yaml")


@dataclass(frozen=True, slots=True)
class LiveRun:
    run: Path
    cluster: Path
    policy: str
    """The one under which all requests were sent; `own` if there were several."""
    summary: Mapping[str, Any]

    @classmethod
    def read(cls, run: Path) -> Self:
        """Raises NotFound without the cluster file, and InvalidInput for an unreadable run."""
        path = run.expanduser()
        cluster = cluster_path(path)
        try:
            read = read_run(path, path.stem)
        except ReportError as error:
            raise InvalidInput([f"--like: {error}"]) from error
        if not cluster.exists():
            raise NotFound(
                f"--like {run}: there is no {cluster}, which `load run` writes beside the run of "
                "a platform in --home; write it with `simulate --cluster live` and copy it there"
            )
        policies = set(read.policy.counts())
        policy = policies.pop() if len(policies) == 1 else "own"
        return cls(path, cluster, policy, summarise(read))

    def write_arrivals(self, path: Path) -> str:
        """The run's arrivals as a trace file; returns its specification."""
        table = parquet.read_table(self.run).rename_columns({"scheduled_s": "at_s"})
        plain = table.select(_plain_schema().names).sort_by("at_s")
        csv.write_csv(plain.cast(_plain_schema()), path)
        return f"arrivals:{path}"

    def print_beside(self, rows: Sequence[Mapping[str, Any]], output: Output) -> None:
        """The live run, and how far each simulated one is from it."""
        live = self.summary["latency_s"]
        output.table(
            ("POLICY", *(name.upper() for name in _SHOWN)),
            [(self.policy, *(shown_ms(live[name]) for name in _SHOWN))],
            title=f"live: {self.run.name}",
        )
        output.table(
            ("POLICY", *(name.upper() for name in _SHOWN)),
            [
                (row["policy"], *(_off(row["latency_s"][name], live[name]) for name in _SHOWN))
                for row in rows
            ],
            title="simulated against live",
        )


def hop_s(run: Path) -> float | None:
    """Time of a request outside its stages, each way: of the warm ones that waited least."""
    columns = ["start", "status", "sent_s", "finished_s", *(f"{each}_ms" for each in _MEASURED)]
    rows = parquet.read_table(run, columns=columns).to_pylist()
    found = sorted(
        row["finished_s"] - row["sent_s"] - sum(row[f"{each}_ms"] or 0 for each in _MEASURED) / 1e3
        for row in rows
        if row["start"] == "warm" and row["status"] == HTTPStatus.OK
    )
    return max(0.0, found[len(found) // 4]) / 2 if found else None


def _plain_schema() -> pa.Schema:
    """TRACE_SCHEMA with texts as they are, which CSV files need; runs have no prompts' blocks."""
    return pa.schema(
        [
            pa.field(each.name, pa.string() if pa.types.is_dictionary(each.type) else each.type)
            for each in TRACE_SCHEMA
            if each.name != "blocks"
        ]
    )


def _off(simulated: float | None, live: float | None) -> str:
    return "-" if not simulated or not live else f"{simulated / live - 1:+.1%}"


def shown_ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:.1f} ms"
