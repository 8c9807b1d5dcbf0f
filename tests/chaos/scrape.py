"""Values of metrics; one that is missing is an error, since a check of zero would always hold."""

from tests.gateway.gateway_harness import metric


class MetricMissing(Exception):
    """No series of that name is exposed."""


def present_metric(text: str, name: str) -> float:
    """The sum of a metric's series in Prometheus' text format. Raises MetricMissing."""
    if not any(line.startswith((f"{name} ", f"{name}{{")) for line in text.splitlines()):
        raise MetricMissing(f"{name} is not among the metrics")
    return metric(text, name)
