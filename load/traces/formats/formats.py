"""The public formats, one entry each: the columns that tell them apart, and how they are read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from load.errors import UnknownFormat
from load.traces.batches import BATCH_ROWS, arrivals, replaced, times
from load.traces.expansion import expand, portions
from load.traces.file_parameters import (
    CountParameters,
    FileParameters,
    OneModelParameters,
    RequestParameters,
    TenantCountParameters,
    TenantParameters,
)
from load.traces.formats import counts, requests
from load.traces.name_columns import Functions
from load.traces.order import in_order

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import pyarrow as pa

    from load.traces.expansion import Cells
    from load.traces.formats.tables import TraceTable
    from load.traces.order import Located
    from load.traces.seeds import Seed


@dataclass(frozen=True, slots=True)
class Format:
    """One format; `recognises` looks at the names of a file's columns, `needs` says them."""

    name: str
    needs: str
    recognises: Callable[[frozenset[str]], bool]
    parameters: type[FileParameters]
    read: Callable[[Sequence[TraceTable], Any, Seed], Iterator[pa.RecordBatch]]
    rows: Callable[[Sequence[TraceTable], Any], Iterator[Located]] | None = None
    """The arrivals with their rows, in the file's order; None: a row is not an arrival."""


def _sorted(
    located: Iterable[Located], given: RequestParameters, *, window_s: float = 10.0
) -> Iterator[pa.RecordBatch]:
    return in_order(located, window_s=window_s if given.window is None else given.window)


def _from_first(trace: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Times since the first arrival, for formats that tell the time of day."""
    start_s: float | None = None
    for batch in trace:
        at_s = times(batch)
        start_s = float(at_s[0]) if start_s is None else start_s
        yield replaced(batch, "at_s", at_s - start_s)


def _expanded(
    cells: Iterable[Cells],
    functions: Functions,
    given: CountParameters,
    seed: Seed,
) -> Iterator[pa.RecordBatch]:
    rng = seed.rng()
    for some in cells:
        for portion in portions(some, BATCH_ROWS):
            drawn = expand(portion, bin_s=counts.MINUTE_S, cv=given.cv, rng=rng)
            yield arrivals(
                drawn.at_s,
                model=functions.models(drawn.function),
                tenant=functions.tenants(drawn.function),
            )


def _azure_llm_rows(tables: Sequence[TraceTable], given: OneModelParameters) -> Iterator[Located]:
    return requests.azure_llm(tables, model=given.model, tenant=given.tenant)


def _azure_llm(
    tables: Sequence[TraceTable], given: OneModelParameters, _: Seed
) -> Iterator[pa.RecordBatch]:
    return _from_first(_sorted(_azure_llm_rows(tables, given), given))


def _azure_functions_2021_rows(
    tables: Sequence[TraceTable], _: RequestParameters
) -> Iterator[Located]:
    return requests.azure_functions_2021(tables)


def _azure_functions_2021(
    tables: Sequence[TraceTable], given: RequestParameters, _: Seed
) -> Iterator[pa.RecordBatch]:
    # Sorted by end or by start, as one finds it: calls may be as far apart as the longest one.
    return _sorted(requests.azure_functions_2021(tables), given, window_s=3600.0)


def _mooncake_rows(tables: Sequence[TraceTable], given: OneModelParameters) -> Iterator[Located]:
    return requests.mooncake(tables, model=given.model, tenant=given.tenant)


def _mooncake(
    tables: Sequence[TraceTable], given: OneModelParameters, _: Seed
) -> Iterator[pa.RecordBatch]:
    return _sorted(_mooncake_rows(tables, given), given)


def _gentd26_rows(tables: Sequence[TraceTable], given: TenantParameters) -> Iterator[Located]:
    return requests.gentd26_requests(tables, tenant=given.tenant)


def _gentd26_requests(
    tables: Sequence[TraceTable], given: TenantParameters, _: Seed
) -> Iterator[pa.RecordBatch]:
    return _from_first(_sorted(_gentd26_rows(tables, given), given))


def _own_rows(tables: Sequence[TraceTable], given: TenantParameters) -> Iterator[Located]:
    return requests.own_columns(tables, tenant=given.tenant)


def _own(
    tables: Sequence[TraceTable], given: TenantParameters, _: Seed
) -> Iterator[pa.RecordBatch]:
    return _sorted(_own_rows(tables, given), given)


def _azure_functions_2019(
    tables: Sequence[TraceTable], given: CountParameters, seed: Seed
) -> Iterator[pa.RecordBatch]:
    functions = Functions()
    return _expanded(counts.azure_2019(tables, functions), functions, given, seed)


def _gentd26_per_minute(
    tables: Sequence[TraceTable], given: TenantCountParameters, seed: Seed
) -> Iterator[pa.RecordBatch]:
    functions = Functions(given.tenant)
    return _expanded(counts.gentd26_per_minute(tables, functions), functions, given, seed)


def _huawei(
    tables: Sequence[TraceTable], given: TenantCountParameters, seed: Seed
) -> Iterator[pa.RecordBatch]:
    functions = Functions(given.tenant)
    return _expanded(counts.huawei(tables, functions), functions, given, seed)


def _has(*names: str) -> Callable[[frozenset[str]], bool]:
    return lambda columns: columns.issuperset(names)


def _is_azure_2019(columns: frozenset[str]) -> bool:
    return _has("HashOwner", "HashFunction", "1")(columns)


def _is_mooncake(columns: frozenset[str]) -> bool:
    return _has("input_length", "output_length")(columns) and (
        "timestamp" in columns or "timestamp_ms" in columns
    )


def _is_huawei(columns: frozenset[str]) -> bool:
    timed = "minute" in columns or _has("day", "time")(columns)
    long = _has("minute", "model", "count")(columns)
    return timed and not long and bool(counts.huawei_functions(sorted(columns)))


_ALL: Final = (
    Format("arrivals", "at_s, model", _has("at_s", "model"), TenantParameters, _own, _own_rows),
    Format(
        "azure-llm",
        "TIMESTAMP, ContextTokens, GeneratedTokens",
        _has("TIMESTAMP", "ContextTokens", "GeneratedTokens"),
        OneModelParameters,
        _azure_llm,
        _azure_llm_rows,
    ),
    Format(
        "azure-functions-2019",
        "HashOwner, HashFunction, and 1 to 1440",
        _is_azure_2019,
        CountParameters,
        _azure_functions_2019,
    ),
    Format(
        "azure-functions-2021",
        "app, func, end_timestamp, duration",
        _has("app", "func", "end_timestamp", "duration"),
        RequestParameters,
        _azure_functions_2021,
        _azure_functions_2021_rows,
    ),
    Format(
        "mooncake",
        "timestamp or timestamp_ms, input_length, output_length",
        _is_mooncake,
        OneModelParameters,
        _mooncake,
        _mooncake_rows,
    ),
    Format(
        "gentd26-requests",
        "gmt_create, num_images_per_prompt, checkpoint_model_version_id",
        _has("gmt_create", "num_images_per_prompt", "checkpoint_model_version_id"),
        TenantParameters,
        _gentd26_requests,
        _gentd26_rows,
    ),
    Format(
        "gentd26-per-minute",
        "minute, model, count",
        _has("minute", "model", "count"),
        TenantCountParameters,
        _gentd26_per_minute,
    ),
    Format(
        "huawei",
        "minute (or day, time), and a column of counts per function",
        _is_huawei,
        TenantCountParameters,
        _huawei,
    ),
)

FORMATS: Final = {each.name: each for each in _ALL}
"""By the name that is used in a trace's name."""


def recognised(table: TraceTable) -> Format:
    """The format whose columns the file has. Raises UnknownFormat."""
    found = [each for each in _ALL if each.recognises(frozenset(table.columns))]
    if len(found) == 1:
        return found[0]
    if found:
        names = " and ".join(each.name for each in found)
        raise UnknownFormat(f"{table.path} fits {names}; name one, as in {found[0].name}:PATH")
    known = "; ".join(f"{each.name} has {each.needs}" for each in _ALL)
    raise UnknownFormat(
        f"{table.path} has the columns {_shown(table)}, of no known format: {known}"
    )


def require(table: TraceTable, wanted: Format) -> None:
    """Refuse a file that lacks the format's columns. Raises UnknownFormat."""
    if wanted.recognises(frozenset(table.columns)):
        return
    others = [each.name for each in _ALL if each.recognises(frozenset(table.columns))]
    hint = f"; it looks like {others[0]}" if others else ""
    problem = f"{wanted.name} needs the columns {wanted.needs}; {table.path} has {_shown(table)}"
    raise UnknownFormat(problem + hint)


def _shown(table: TraceTable) -> str:
    names = [repr(name[:40]) for name in table.columns]
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return ", ".join(names[:8]) + more
