"""Metrics are read in FastAPI's threads while the event loop counts."""

import re
import sys
import threading
from collections.abc import Iterator

import pytest
import yaml
from prometheus_client import generate_latest

from gateway.telemetry.metrics import GatewayMetrics
from tests.gateway.gateway_harness import metric
from tests.servers import REPOSITORY


@pytest.fixture
def frequent_thread_switches() -> Iterator[None]:
    """Threads that switch as often as possible."""
    usual_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual_s)


@pytest.mark.usefixtures("frequent_thread_switches")
def test_metrics_can_be_read_while_requests_are_counted() -> None:
    metrics = GatewayMetrics()

    def count() -> None:
        for number in range(4_000):
            metrics.outcomes.add((f"m{number}", "auto", "warm", "warm", 200))
            metrics.durations.labels(f"policy-{number}").observe(0.1)

    counting = threading.Thread(target=count)
    counting.start()
    try:
        while counting.is_alive():
            generate_latest(metrics.registry)
    finally:
        counting.join()


def test_models_beyond_the_bound_are_counted_as_other() -> None:
    metrics = GatewayMetrics(max_models=2)
    for model in ("a", "b", "c", "d", "a"):
        metrics.outcomes.add((model, "auto", "warm", "warm", 200))
        metrics.models.of(model).counts[0] += 1
    text = generate_latest(metrics.registry).decode()
    name = "pilotlight_gateway_requests_total"
    counts = [metric(text, name, model=model) for model in ("a", "b", "other", "c")]
    assert counts == [2, 1, 2, 0]
    assert metric(text, "pilotlight_gateway_model_request_seconds_count", model="other") == 2


def test_series_of_deleted_models_make_room() -> None:
    metrics = GatewayMetrics(max_models=3)
    declared: list[str] = []
    metrics.labels.is_declared = lambda label: label in declared[-2:]
    for number in range(500):
        declared.append(f"default/m{number}")
        metrics.outcomes.add((declared[-1], "auto", "warm", "warm", 200))
        metrics.models.of(declared[-1]).counts[0] += 1
    for labels in (metrics.outcomes.totals().keys(), metrics.models.series.keys()):
        assert len(labels) <= 4
        assert "default/m0" not in labels
        assert labels & {f"default/m{number}" for number in range(300, 500)}
    text = generate_latest(metrics.registry).decode()
    assert metric(text, "pilotlight_gateway_requests_total", model="default/m0") == 0


def test_models_that_are_declared_keep_their_labels() -> None:
    metrics = GatewayMetrics(max_models=2)
    for number in range(200):
        metrics.outcomes.add((f"default/m{number}", "auto", "warm", "warm", 200))
    assert set(metrics.outcomes.totals()) == {"default/m0", "default/m1", "other"}


MONITORING = REPOSITORY / "manifests" / "components" / "monitoring"


@pytest.mark.parametrize("file", ["dashboard.json", "rules.yaml"])
def test_the_dashboard_and_the_alerts_read_metrics_that_exist(file: str) -> None:
    """Those of the gateway; a panel or an alert of another name would stay empty for ever."""
    families = {each.name for each in GatewayMetrics().registry.collect()}
    found = re.findall(r"pilotlight_gateway_\w+", (MONITORING / file).read_text())
    names = {re.sub(r"_(total|bucket|sum|count)$", "", name) for name in found}
    assert names
    assert names <= families


def test_prometheus_on_one_machine_finds_gateway_and_pods() -> None:
    settings = yaml.safe_load((REPOSITORY / "manifests/prometheus/one-machine.yaml").read_text())
    gateway, pods = settings["scrape_configs"]
    assert gateway["static_configs"] == [{"targets": ["127.0.0.1:8080"]}]
    assert pods["http_sd_configs"][0]["url"] == "http://127.0.0.1:8080/pilotlight/v1/targets"
