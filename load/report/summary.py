"""A run in numbers: counts, percentiles, deadline misses, goodput, fairness, late sends.

Live and simulated runs give the same document. Percentiles are exact for a run that is in memory,
and come from buckets for a run that is summarised while it runs.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Generic, TypeVar

import numpy as np

from load.generator.settings import LATE_S
from load.report.aggregates import (
    GOOD,
    MISSED,
    OK,
    Aggregates,
    ExactLatencies,
    Latencies,
    kinds_of,
    percentiles,
)
from load.report.pod_usage import loading_s
from load.report.run import Answers, Bools, Requests, Run, rate_rps

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


def good_shares(run: Run) -> dict[str, float]:
    """For each tenant the share of its requests with a response in time."""
    tenants = Aggregates()
    tenants.add(run.tenant, kinds_of(run))
    return tenants.good_shares()


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
