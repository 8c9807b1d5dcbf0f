"""Rates, history and latency of the console, from the counters of the metrics."""

from gateway.console.traffic import Traffic
from gateway.telemetry.metrics import GatewayMetrics


def served(metrics: GatewayMetrics, model: str, *, tier: str = "warm", code: int = 200) -> None:
    metrics.outcomes.add((model, "auto", "warm", tier, code))
    metrics.models.of(model).counts[3] += 1


def test_counts_what_was_new_in_each_second() -> None:
    metrics = GatewayMetrics()
    traffic = Traffic(metrics, lambda _: (0, 0.0, 0.0, 0.0))
    served(metrics, "a/m", tier="disk")
    served(metrics, "b/m", code=503)
    traffic.sample(1.0)
    served(metrics, "a/m")
    traffic.sample(2.0)
    traffic.sample(3.0)
    assert traffic.history(None) == [(1.0, 2, 1, 1), (2.0, 1, 0, 0), (3.0, 0, 0, 0)]
    assert traffic.history("a") == [(1.0, 1, 1, 0), (2.0, 1, 0, 0), (3.0, 0, 0, 0)]
    assert traffic.history(None, "b/m", after_s=1.0) == [(2.0, 0, 0, 0), (3.0, 0, 0, 0)]
    assert traffic.rates() == {"a/m": 2 / 3, "b/m": 1 / 3}


def test_a_tenant_with_the_beginning_of_another_ones_name_sees_nothing_of_it() -> None:
    metrics = GatewayMetrics()
    served(metrics, "team-b/m")
    traffic = Traffic(metrics, lambda _: (0, 0.0, 0.0, 0.0))
    traffic.sample(1.0)
    assert traffic.history("team") == [(1.0, 0, 0, 0)]


def test_a_series_that_was_dropped_begins_again() -> None:
    metrics, labels = GatewayMetrics(), ("a/m", "a/m", "a/m")
    traffic = Traffic(metrics, lambda _: (0, 0.0, 0.0, 0.0))
    for label in labels:
        served(metrics, label)
    traffic.sample(1.0)
    for drop in metrics.labels.on_gone:
        drop({"a/m"})
    served(metrics, "a/m")
    traffic.sample(2.0)
    assert traffic.history("a") == [(1.0, 3, 0, 0), (2.0, 1, 0, 0)]


def test_copies_and_expected_rates_are_known_at_each_sample() -> None:
    metrics, level = GatewayMetrics(), [(0, 0.0, 0.0, 0.0)]
    traffic = Traffic(metrics, lambda _: level[0])
    traffic.sample(1.0)
    served(metrics, "a/m")
    for at_s, now in (
        (2.0, (1, 0.5, 0.4, 0.9)),
        (3.0, (1, 0.5, 0.4, 0.9)),
        (4.0, (1, 0.5, 0.4, 1.2)),
    ):
        level[0] = now
        traffic.sample(at_s)
    assert traffic.levels("a/m") == [
        (2.0, 1, 0.5, 0.4, 0.9),
        (3.0, 1, 0.5, 0.4, 0.9),
        (4.0, 1, 0.5, 0.4, 1.2),
    ]
    assert traffic.levels("a/m", after_s=3.0) == [(4.0, 1, 0.5, 0.4, 1.2)]
    assert traffic.levels("a/other") == []
