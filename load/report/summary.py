"""A run in numbers: counts, percentiles, deadline misses, goodput, fairness, late sends.

Live and simulated runs give the same document. Percentiles are exact for a run that is in memory,
and come from buckets for a run that is summarised while it runs.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar

import numpy as np

from load.generator.settings import LATE_S
from load.report.run import Answers, Bools, Floats, GroupedNames, Ints, Requests, Run, rate_rps

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


def loading_s(run: Run) -> float:
    """Seconds in which requests waited for loads, each load once, over all models and pods.

    Blinowski et al. 2024, figure 5.6. A request waits after its time in the queue. The times of
    requests that wait for one load overlap. Loads that no request waited for are not included.
    """
    load_s = np.nan_to_num(run.stages_ms["load"].astype(np.float64)) / 1000
    rows = np.flatnonzero((run.predict_pod.codes >= 0) & run.is_cold & (load_s > 0))
    sent_s = np.where(np.isnan(run.sent_s), run.scheduled_s, run.sent_s)
    begins = sent_s + np.nan_to_num(run.stages_ms["queue"].astype(np.float64)) / 1000
    keys = run.predict_pod.codes.astype(np.int64) * len(run.model.names) + run.model.codes
    pairs = (rows[group] for group in groups(keys[rows]))
    return sum(_covered_s(begins[each], (begins + load_s)[each]) for each in pairs)


def _covered_s(begins: Floats, ends: Floats) -> float:
    """The time that at least one of these spans covers."""
    order = np.argsort(begins)
    covered_until = np.maximum.accumulate(ends[order])
    before = np.concatenate(([-np.inf], covered_until[:-1]))
    return float(np.maximum(covered_until - np.maximum(begins[order], before), 0.0).sum())


L = TypeVar("L", bound="Latencies")


class RunTotals(Generic[L]):
    """Totals of a run, to which requests are added batch by batch."""

    def __init__(self, new_latencies: Callable[[], L]) -> None:
        """`new_latencies` creates a store of latencies: exact, or with bounded memory."""
        self.latencies = new_latencies()
        """By model."""
        self.statuses: Counter[int] = Counter()
        self.starts: Counter[str] = Counter()
        self._with_deadline = self._late_sends = self._not_sent = 0
        self._models, self._policies = Aggregates(self.latencies), Aggregates(new_latencies())
        self._tenants = Aggregates()
        self._lateness = new_latencies()

    def add_requests(self, requests: Requests) -> None:
        for status, count in zip(*np.unique(requests.status, return_counts=True), strict=True):
            self.statuses[int(status)] += int(count)
        self.starts.update(requests.start.counts())
        self._with_deadline += int(requests.has_deadline.sum())
        lateness_s = requests.sent_s - requests.scheduled_s
        lateness_s = lateness_s[~np.isnan(lateness_s)]
        self._late_sends += int((lateness_s > LATE_S).sum())
        self._not_sent += int(np.isnan(requests.sent_s).sum())
        self._lateness.add(np.zeros(len(lateness_s), np.int64), lateness_s)
        kinds = kinds_of(requests)
        self._models.add(requests.model, kinds, requests.latency_s)
        self._policies.add(requests.policy, kinds, requests.latency_s)
        self._tenants.add(requests.tenant, kinds)

    @property
    def requests(self) -> int:
        return self.statuses.total()

    @property
    def cold_starts(self) -> int:
        """Requests that waited for a load."""
        return self.starts.total() - self.starts["warm"]

    def totals(
        self,
        *,
        offered_s: float,
        duration_s: float,
        loading_s: float,
        all_loading_s: float | None,
        wasted_memory_byte_s: float | None,
        loads: Mapping[str, int] | None = None,
    ) -> dict[str, Any]:
        """All totals as JSON. Times in seconds, rates per second, ratios from 0 to 1."""
        return {
            "requests": self.requests,
            "duration_s": duration_s,
            "offered_rps": rate_rps(self.requests, offered_s),
            "goodput_rps": self._models.count(GOOD) / duration_s,
            "ok": self._models.count(OK),
            "by_status": {str(status): count for status, count in sorted(self.statuses.items())},
            "by_start": dict(sorted(self.starts.items(), key=lambda each: (-each[1], each[0]))),
            "cold_starts": self.cold_starts,
            **({} if loads is None else {"loads": dict(sorted(loads.items()))}),
            "loading_s": loading_s,
            "all_loading_s": all_loading_s,
            "wasted_memory_byte_s": wasted_memory_byte_s,
            "with_deadline": self._with_deadline,
            "deadline_misses": self._models.count(MISSED),
            "late_sends": self._late_sends,
            "late_after_s": LATE_S,
            "not_sent": self._not_sent,
            "send_lateness_s": self._lateness.overall(),
            "fairness": jain(list(self._tenants.good_shares().values())),
            "latency_s": self.latencies.overall(),
            "by_model": self._models.documents(),
            "by_policy": self._policies.documents(),
        }


def _failures(run: Run) -> dict[str, Any]:
    """First errors of a live run; simulated ones have reasons, which are counted as statuses."""
    if not run.failures or run.metadata.get("kind") != "live":
        return {}
    return {"failures": [asdict(each) for each in run.failures]}


def summarise(run: Run) -> dict[str, Any]:
    """A run as a JSON document, with exact percentiles."""
    totals = RunTotals(ExactLatencies)
    totals.add_requests(run)
    answers, first_token_s = summarise_answers(run), run.first_token_s
    return {
        "run": run.name,
        "interrupted": run.was_interrupted,
        **_failures(run),
        **({} if answers is None else {"answers": answers}),
        **({} if first_token_s is None else {"first_token_s": percentiles(first_token_s)}),
        **_token_rates(run),
        **totals.totals(
            offered_s=run.offered_s,
            duration_s=run.duration_s,
            loading_s=loading_s(run),
            all_loading_s=run.all_loading_s,
            wasted_memory_byte_s=run.wasted_memory_byte_s,
        ),
    }


def _token_rates(run: Run) -> dict[str, Any]:
    """Tokens per second of the run, and the time of each token of its streams after the first."""
    if run.tokens_per_s is None:
        return {}
    return {"tokens_per_s": run.tokens_per_s, "time_per_token_s": percentiles(run.time_per_token_s)}


def jain(values: Sequence[float]) -> float | None:
    """Jain's fairness index: 1 if all shares are equal, 1/n if one of n has everything.

    None for fewer than two shares, or if all are 0.

    Jain, Chiu, Hawe 1984: (sum x)^2 / (n sum x^2).
    """
    shares = np.array(values)
    if len(shares) < 2 or not shares.any():
        return None
    return float(shares.sum() ** 2 / (len(shares) * (shares**2).sum()))


def summarise_answers(run: Run) -> dict[str, Any] | None:
    """As JSON; None for a run without examples."""
    answers = run.answers
    if answers is None or not answers.is_judged.any():
        return None
    models = run.model
    return {
        **_answer_summary(run, answers, answers.is_judged),
        "by_application": {
            name: _answer_summary(run, answers, answers.is_judged & (models.codes == code))
            for code, name in enumerate(models.names)
            if (answers.is_judged & (models.codes == code)).any()
        },
    }


def _answer_summary(run: Run, answers: Answers, chosen: Bools) -> dict[str, Any]:
    served = chosen & ~np.isnan(answers.prediction)
    count = int(chosen.sum())
    expected = answers.expected_utility[served & ~np.isnan(answers.expected_utility)]
    codes = answers.variant.codes[chosen]
    return {
        "requests": count,
        "utility": float(answers.utility[chosen].sum() / count),
        "expected_utility": float(expected.mean()) if len(expected) else None,
        "accuracy": float(answers.is_right[served].mean()) if served.any() else None,
        "missed": int(run.is_missed[chosen].sum()),
        "variants": {
            name: int((codes == code).sum())
            for code, name in enumerate(answers.variant.names)
            if (codes == code).any()
        },
    }
