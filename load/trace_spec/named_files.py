"""Which files a trace's name reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from load.synthetic.generators import GENERATORS
from load.trace_spec.grammar import parse_name
from load.traces.formats.compressed import files

if TYPE_CHECKING:
    from load.trace_spec.grammar import Chain, SpecStage


def files_of(name: str) -> list[str]:
    """The paths of all sources that are files. Raises the TraceErrors of a name that is wrong."""
    return [path for chain in parse_name(name) for path in _files_of(chain)]


def _files_of(chain: Chain) -> list[str]:
    tables = [each.given["latencies"] for each in chain.transforms if "latencies" in each.given]
    if isinstance(chain.source, tuple):
        return tables + [path for part in chain.source for path in _files_of(part)]
    path = chain.source.given.get("value")
    if path is None or generator_of(chain.source) is not None:
        return tables
    return tables + files(path)


def generator_of(source: SpecStage) -> str | None:
    """The generator that a source names, with parameters or bare; None: it names none."""
    name = source.name or source.given.get("value", "")
    return name if name in GENERATORS else None
