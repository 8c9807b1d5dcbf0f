"""Cluster files: every mistake is reported with its field, the value and what is allowed."""

from pathlib import Path
from typing import Any

import pytest

from load.errors import InvalidCluster
from load.simulator.cluster.cluster_file import cluster_of, read_document
from load.simulator.cluster.plan import PodPlan
from registry.domain.pod import default_slots

SAMPLE = Path(__file__).parents[4] / "manifests/simulator/eight-pods.yaml"
GOOD: dict[str, Any] = {"nodes": [{"name": "n", "pods": [{}]}], "models": [{"name": "m"}]}


def test_reads_the_sample() -> None:
    plan = cluster_of(read_document(SAMPLE), source="sample")
    assert len(plan.nodes) == 8
    assert len(plan.models) == 12
    assert plan.nodes[0].pods[0].memory_bytes == 10**9
    assert plan.models[0].infer_s(8) == pytest.approx(0.335)


def test_a_pod_without_slots_has_those_of_an_unmeasured_live_one() -> None:
    assert cluster_of(GOOD, source="test").nodes[0].pods[0].slots == default_slots()
    assert PodPlan("p").slots == default_slots()


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
        pytest.param(("models",), [{"name": "m"}, {"name": "m"}], "occurs twice", id="twice"),
        pytest.param(("nodes", 0, "pods"), [{"kill": "0s"}], "later than start", id="kill"),
        pytest.param(
            ("nodes",),
            [{"name": "n", "pods": [{}]}, {"name": "n", "pods": [{}, {}]}],
            "nodes: machine names must be unique, 'n' occurs twice",
            id="machine",
        ),
    ],
)
def test_reports_each_mistake_with_its_field(where: tuple[Any, ...], value: Any, says: str) -> None:
    document: dict[str, Any] = {"nodes": [{"name": "n", "pods": [{}]}], "models": [{"name": "m"}]}
    at: Any = document
    for part in where[:-1]:
        at = at[part]
    at[where[-1]] = value
    with pytest.raises(InvalidCluster, match=says) as caught:
        cluster_of(document, source="c.yaml")
    assert all(problem.startswith("c.yaml") for problem in caught.value.problems)


def problems_of(node: dict[str, Any], *models: dict[str, Any]) -> list[str]:
    """Problems of models of 100 bytes, `m-0` and so on, on a machine `n` with two pods."""
    document = {
        "nodes": [{"name": "n", "pods": [{"memory": "250"}, {"memory": "150"}]} | node],
        "models": [{"name": f"m-{n}", "size": "100"} | model for n, model in enumerate(models)],
    }
    try:
        cluster_of(document, source="c.yaml")
    except InvalidCluster as error:
        return list(error.problems)
    return []


@pytest.mark.parametrize(
    ("node", "models", "fields", "place", "limit", "was"),
    [
        pytest.param(
            {},
            [{"at": {"n-1": "device"}}, {"at": {"n-1": "device"}}],
            "models[0].at, models[1].at",
            "device of pod n-1",
            "memory of 150",
            "2 models of 200",
            id="device",
        ),
        pytest.param(
            {},
            [{"count": 3, "at": {"n-0": "device"}}],
            "models[0].at",
            "device of pod n-0",
            "memory of 250",
            "3 models of 300",
            id="one group",
        ),
        pytest.param(
            {},
            [{"memory": "140", "at": {"n-1": "device"}}, {"at": {"n-0": "host"}}],
            "models[1].at",
            "host of machine n",
            "host_memory of 0",
            "1 model of 100",
            id="no host memory",
        ),
        pytest.param(
            {"host_memory": "150"},
            [{"at": {"n-0": "host"}}, {"at": {"n-1": "host"}}],
            "models[0].at, models[1].at",
            "host of machine n",
            "host_memory of 150",
            "2 models of 200",
            id="host",
        ),
        pytest.param(
            {"disk": "150"},
            [{"at": {"n-0": "disk"}}, {"at": {"n-1": "disk"}}],
            "models[0].at, models[1].at",
            "disk of machine n",
            "disk of 150",
            "2 models of 200",
            id="disk",
        ),
    ],
)
def test_reports_tiers_with_too_many_models(
    node: dict[str, Any],
    models: list[dict[str, Any]],
    fields: str,
    place: str,
    limit: str,
    was: str,
) -> None:
    key = limit.partition(" ")[0]
    assert problems_of(node, *models) == [
        f"c.yaml: {fields}: models at {place} must fit its {limit} bytes, was {was} bytes in "
        f"total; place fewer there, or raise {key}"
    ]


@pytest.mark.parametrize(
    ("node", "models", "problem"),
    [
        pytest.param(
            {"disk": "99"},
            [{}],
            "models[0].size: must fit the disk of every machine that may load it, was 100 "
            "bytes; raise disk of n (99 bytes)",
            id="larger than a disk",
        ),
        pytest.param(
            {"pods": [{"start": "2s"}]},
            [{"at": {"n": "device"}}],
            "models[0].at: device needs a pod that runs from the start, n has start: 2 s; "
            "use host or disk, or remove its start",
            id="too early",
        ),
    ],
)
def test_reports_models_that_do_not_fit_their_place(
    node: dict[str, Any], models: list[dict[str, Any]], problem: str
) -> None:
    assert problems_of(node, *models) == [f"c.yaml: {problem}"]


@pytest.mark.parametrize(
    ("node", "models"),
    [
        pytest.param({}, [{"at": {"n-0": "device"}}, {"at": {"n-0": "device"}}], id="device"),
        pytest.param(
            {"host_memory": "100"},
            [{"at": {"n-0": "host", "n-1": "host"}}],
            id="one copy in host memory",
        ),
        pytest.param(
            {"disk": "100"}, [{"at": {"n-0": "disk", "n-1": "disk"}}], id="one copy on disk"
        ),
        pytest.param(
            {"disk": "100"},
            [{"at": {"n-0": "device"}}, {"at": {"n-1": "disk"}}],
            id="devices hold more than the disk",
        ),
        pytest.param({"disk": "200"}, [{"count": 2, "at": {"n-0": "disk"}}], id="to the byte"),
        pytest.param({"pods": [{"start": "2s"}]}, [{"at": {"n": "disk"}}], id="disk of the absent"),
    ],
)
def test_accepts_models_that_just_fit(node: dict[str, Any], models: list[dict[str, Any]]) -> None:
    assert problems_of(node, *models) == []


def test_machine_without_a_pod_for_a_model_needs_no_disk_for_it() -> None:
    small = {"name": "small", "disk": "50", "pods": [{"memory": "50"}]}
    large = {"name": "large", "pods": [{}]}
    models = [{"name": "m", "size": "100"}]
    cluster_of({"nodes": [small, large], "models": models}, source="c.yaml")
    nodes = [small | {"pods": [{"memory": "100"}]}, large]
    with pytest.raises(InvalidCluster, match=r"was 100 bytes; raise disk of small \(50 bytes\)$"):
        cluster_of({"nodes": nodes, "models": models}, source="c.yaml")


def test_reports_all_misfits_together() -> None:
    found = problems_of(
        {"disk": "150", "pods": [{"memory": "250"}]},
        {"size": "200"},
        {"memory": "300"},
        {"at": {"n": "host"}},
        {"at": {"x": "device"}},
    )
    assert [problem.split(":")[1].strip() for problem in found] == [
        "models[1].memory",
        "models[0].size",
        "models[3].at",
        "models[2].at",
    ]


def test_continuous_generation_needs_batching() -> None:
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
def test_token_time_by_rows(written: Any, expected_s: list[float]) -> None:
    models = [{"name": "m", "infer_per_token": written}]
    [model] = cluster_of(GOOD | {"models": models}, source="c.yaml").models
    assert [model.token_s(rows) for rows in (1, 2, 6)] == pytest.approx(expected_s)


@pytest.mark.parametrize(
    "text", ["[1", "- a", "", "nodes: 3", "nodes: !!bool x", "a: 1\n---\nb: 2"]
)
def test_refuses_files_that_are_no_cluster(tmp_path: Path, text: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(text)
    with pytest.raises(InvalidCluster, match=str(path)):
        cluster_of(read_document(path), source=str(path))
