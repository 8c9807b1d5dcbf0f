"""Cluster files: every mistake is told with its field, what was seen and what is allowed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from load.simulator.cluster_file import cluster_of, read_cluster
from load.simulator.errors import InvalidCluster
from load.simulator.sweep import parse_sweep, variants

SAMPLE = Path(__file__).parents[3] / "manifests/simulator/eight-pods.yaml"
GOOD: dict[str, Any] = {"nodes": [{"name": "n", "pods": [{}]}], "models": [{"name": "m"}]}


def test_reads_the_sample() -> None:
    plan = read_cluster(SAMPLE)
    assert len(plan.nodes) == 8
    assert len(plan.models) == 12
    assert plan.nodes[0].pods[0].memory_bytes == 10**9
    assert plan.models[0].infer_s(8) == pytest.approx(0.335)


@pytest.mark.parametrize(
    ("where", "value", "says"),
    [
        pytest.param(("nodes", 0, "podz"), 1, r"nodes\[0\]\.podz: is not a known key", id="key"),
        pytest.param(("nodes", 0, "disk_rate"), "fast", "must be a rate such as", id="rate"),
        pytest.param(("nodes", 0, "count"), 0, "greater than or equal to 1, was '0'", id="count"),
        pytest.param(("models", 0, "size"), "17GB", "must fit the largest pod", id="too-large"),
        pytest.param(("models", 0, "at"), {"x": "device"}, r"pod \(n\), was 'x'", id="pod"),
        pytest.param(("models", 0, "infer"), {}, "at least one number of rows", id="no-times"),
        pytest.param(("models", 0, "infer"), {1: "-3s"}, "must be a duration", id="duration"),
        pytest.param(("models", 0, "infer_per_token"), {0: "1ms"}, "equal to 1", id="no-rows"),
        pytest.param(("models", 0, "infer_per_token"), {1: "0s"}, "greater than 0", id="no-time"),
        pytest.param(("models", 0, "infer_per_token"), "fast", "must be a duration", id="fast"),
        pytest.param(("models", 0, "generation"), "orca", "'static' or 'continuous'", id="kind"),
        pytest.param(("models", 0, "generation"), "continuous", "needs infer_per_token", id="idle"),
        pytest.param(("models", 0, "annotations"), {"policy": "best"}, "was 'best'", id="policy"),
        pytest.param(("eviction",), "fifo", "'lru' or 'greedy-dual', was 'fifo'", id="eviction"),
        pytest.param(("models",), [{"name": "m"}, {"name": "m"}], "is there twice", id="twice"),
        pytest.param(("nodes", 0, "pods"), [{"kill": "0s"}], "later than start", id="kill"),
    ],
)
def test_says_what_is_wrong(where: tuple[Any, ...], value: Any, says: str) -> None:
    document: dict[str, Any] = {
        "nodes": [{"name": "n", "pods": [{}]}], "models": [{"name": "m"}],
    }  # fmt: skip
    at: Any = document
    for part in where[:-1]:
        at = at[part]
    at[where[-1]] = value
    with pytest.raises(InvalidCluster, match=says) as caught:
        cluster_of(document, source="c.yaml")
    assert all(problem.startswith("c.yaml") for problem in caught.value.problems)


def test_requests_that_share_no_batch_share_no_iteration() -> None:
    model = {"name": "m", "generation": "continuous", "infer_per_token": "1ms", "batching": False}
    with pytest.raises(InvalidCluster, match="batching must be true"):
        cluster_of(GOOD | {"models": [model]}, source="c.yaml")


@pytest.mark.parametrize(
    ("written", "expected_s"),
    [
        pytest.param("20ms", [0.02, 0.02, 0.02], id="one for all"),
        pytest.param({1: "10ms", 3: "20ms"}, [0.01, 0.015, 0.04], id="by rows"),
    ],
)
def test_the_time_of_a_token_may_depend_on_the_rows(written: Any, expected_s: list[float]) -> None:
    models = [{"name": "m", "infer_per_token": written}]
    [model] = cluster_of(GOOD | {"models": models}, source="c.yaml").models
    assert [model.token_s(rows) for rows in (1, 2, 6)] == pytest.approx(expected_s)


@pytest.mark.parametrize(
    "text", ["[1", "- a", "", "nodes: 3", "nodes: !!bool x", "a: 1\n---\nb: 2"]
)
def test_files_that_are_no_cluster_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(text)
    with pytest.raises(InvalidCluster, match=str(path)):
        read_cluster(path)


def test_a_sweep_sets_one_key() -> None:
    found = variants(SAMPLE, parse_sweep("nodes.0.pods.0.slots=1,2"))
    assert [value for value, _ in found] == [1, 2]
    assert [document["nodes"][0]["pods"][0]["slots"] for _, document in found] == [1, 2]
    for text in ("nodes", "nodes.9.count=1", "=1", "nodes.0.count=!!bool x"):
        with pytest.raises(InvalidCluster, match="--sweep"):
            variants(SAMPLE, parse_sweep(text))
