"""What a pod measures: KServe's histograms under their names, ours by Prometheus' rules."""

from pathlib import Path

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from tests import servers
from tests.runtime import rpc
from tests.runtime.conftest import Cluster
from tests.runtime.http import get, infer_texts, metric, post, predict
from tests.servers import free_port, wait_until

HISTOGRAMS = (
    "request_preprocess_seconds",
    "request_predict_seconds",
    "request_postprocess_seconds",
)
OUR_UNITS = ("_seconds", "_bytes", "_ratio", "_size")


def families(pod: servers.Pod) -> dict[str, Metric]:
    text = get(f"{pod.url}/metrics").text
    return {family.name: family for family in text_string_to_metric_families(text)}


@pytest.fixture
def pod(cluster: Cluster, models: Path) -> servers.Pod:
    cluster.declare("m", models / "tiny-bert")
    port = free_port()
    started = cluster.pod(grpc_port=port)
    predict(started.url, "m", "x")
    infer_texts(started.url, "m", "x")
    rpc.call(port, "ModelInfer", rpc.infer_texts("default~m", "x"))
    return started


def test_every_protocol_counts_in_kserves_histograms(pod: servers.Pod) -> None:
    seen = families(pod)
    for name in HISTOGRAMS:
        assert seen[name].type == "histogram"
        assert metric(pod.url, f"{name}_count", model_name="default~m") == 3
        assert {label for sample in seen[name].samples for label in sample.labels} == {
            "le",
            "model_name",
        }
    assert seen["request_explain_seconds"].type == "histogram"


def test_ours_stand_beside_them(pod: servers.Pod) -> None:
    post(f"{pod.url}/v2/repository/models/m/unload")
    assert metric(pod.url, "pilotlight_load_seconds_count", tier="remote") == 1
    assert metric(pod.url, "pilotlight_evictions_total", reason="unload") == 1
    wait_until(lambda: metric(pod.url, "pilotlight_tier_bytes", tier="disk") > 0)
    assert metric(pod.url, "pilotlight_pod_requests_total", stage="entry", status="200") == 3


def test_ours_follow_prometheus_rules(pod: servers.Pod) -> None:
    ours = [family for name, family in families(pod).items() if name.startswith("pilotlight_")]
    assert len(ours) >= 9
    for family in ours:
        assert family.documentation.endswith("."), family.name
        assert family.name == family.name.lower()
        assert not any(unit in family.name for unit in ("_ms", "milliseconds", "_mb", "percent"))
        if family.type == "counter":  # the parser takes _total off a counter's name, and only there
            assert all(sample.name.endswith(("_total", "_created")) for sample in family.samples), (
                family.name
            )
        else:
            assert not family.name.endswith("_total")
        if family.type == "histogram":
            assert family.name.endswith(OUR_UNITS), family.name
