"""Counts and latencies of requests, grouped by the name of their model, policy or tenant."""

from collections.abc import Iterator
from typing import Any, Final, Protocol, TypeAlias

import numpy as np

from load.report.run import Floats, GroupedNames, Ints, Requests

PERCENTILES: Final = (50, 90, 95, 99)
PERCENTILE_NAMES: Final = tuple(f"p{each}" for each in PERCENTILES)
Percentiles: TypeAlias = dict[str, float | None]
"""`p50` to `p99` and `max`, in seconds; None if there are no values."""

OK: Final = 1
GOOD: Final = 2
COLD: Final = 4
MISSED: Final = 8
_KINDS: Final = np.arange(16)
"""All combinations of these four flags; every request has one combination."""


def kinds_of(requests: Requests) -> Ints:
    """For each request the sum of its flags."""
    kinds = OK * requests.is_ok + GOOD * requests.is_good
    kinds += COLD * requests.is_cold + MISSED * requests.is_missed
    return kinds.astype(np.int64)


class Latencies(Protocol):
    """Latencies of requests, grouped by the code of a name."""

    def add(self, codes: Ints, seconds: Floats) -> None:
        """Add latencies; `codes` are numbered from 0."""

    def overall(self) -> Percentiles:
        """Percentiles of all requests."""

    def by_code(self) -> Iterator[tuple[int, Percentiles]]:
        """Percentiles of each code with latencies."""


class ExactLatencies:
    """Keeps every latency."""

    def __init__(self) -> None:
        self._codes = [np.zeros(0, np.int64)]
        self._seconds = [np.zeros(0)]

    def add(self, codes: Ints, seconds: Floats) -> None:
        self._codes.append(codes)
        self._seconds.append(seconds)

    def overall(self) -> Percentiles:
        return percentiles(np.concatenate(self._seconds))

    def by_code(self) -> Iterator[tuple[int, Percentiles]]:
        codes, seconds = np.concatenate(self._codes), np.concatenate(self._seconds)
        for rows in groups(codes):
            yield int(codes[rows[0]]), percentiles(seconds[rows])


class Aggregates:
    """Counts by name, and latencies of the requests that have a complete 2xx response."""

    def __init__(self, latencies: Latencies | None = None) -> None:
        """Without `latencies` only counts are kept."""
        self._latencies = latencies
        self._codes: dict[str, int] = {}
        self._counts = np.zeros((0, len(_KINDS)), np.int64)

    def add(self, names: GroupedNames, kinds: Ints, latency_s: Floats | None = None) -> None:
        """Count requests by their sums of flags (`kinds_of`); skips requests without a name."""
        own = np.array(
            [self._codes.setdefault(name, len(self._codes)) for name in names.names], np.int64
        )
        if more := len(self._codes) - len(self._counts):
            self._counts = np.pad(self._counts, ((0, more), (0, 0)))
        named = names.codes >= 0
        codes, kinds = own[names.codes[named]], kinds[named]
        found = np.bincount(codes * len(_KINDS) + kinds, minlength=self._counts.size)
        self._counts += found.reshape(self._counts.shape)
        if self._latencies is not None and latency_s is not None:
            is_ok = kinds & OK != 0
            self._latencies.add(codes[is_ok], latency_s[named][is_ok])

    def count(self, kind: int) -> int:
        """Number of requests with a flag, over all names."""
        return int(self._by_name(kind).sum())

    def _by_name(self, kind: int) -> Ints:
        found: Ints = self._counts[:, _KINDS & kind != 0].sum(axis=1)
        return found

    def _ranked(self) -> list[tuple[str, int, int]]:
        """Name, code and requests, most requests first, ties by name."""
        requests = self._counts.sum(axis=1).tolist()
        found = [(name, code, requests[code]) for name, code in self._codes.items()]
        return sorted((each for each in found if each[2]), key=lambda each: (-each[2], each[0]))

    def good_shares(self) -> dict[str, float]:
        """Share of requests with a response in time, by name."""
        good = self._by_name(GOOD).tolist()
        return {name: good[code] / requests for name, code, requests in self._ranked()}

    def documents(self) -> dict[str, Any]:
        """JSON objects by name, most requests first."""
        latencies = {} if self._latencies is None else dict(self._latencies.by_code())
        none = percentiles(np.zeros(0))
        ok, cold, missed = (self._by_name(kind).tolist() for kind in (OK, COLD, MISSED))
        return {
            name: {
                "requests": requests,
                "ok": ok[code],
                "cold_starts": cold[code],
                "deadline_misses": missed[code],
                "latency_s": latencies.get(code, none),
            }
            for name, code, requests in self._ranked()
        }


def percentiles(values: Floats) -> Percentiles:
    """Exact percentiles of all values except NaN, with linear interpolation."""
    known = values[~np.isnan(values)]
    if not len(known):
        return dict.fromkeys([*PERCENTILE_NAMES, "max"])
    found = np.percentile(known, [*PERCENTILES, 100])
    return dict(zip([*PERCENTILE_NAMES, "max"], found.tolist(), strict=True))


def groups(keys: Ints) -> Iterator[Ints]:
    """The row indices of each key, in ascending order of keys."""
    rows = np.argsort(keys, kind="stable")
    edges = np.flatnonzero(np.diff(keys[rows])) + 1
    return (each for each in np.split(rows, edges) if len(each))
