"""The cluster that the rules are simulated on."""

from benchmarks.engine_turns import with_memory

CLUSTER = {
    "nodes": [{"name": "n", "pods": [{"slots": 4, "memory": 800}]}],
    "models": [
        {"name": "default/a", "size": 360},
        {"name": "default/b", "size": 50},
        {"name": "c"},
    ],
}


def test_models_take_what_the_largest_was_measured_to_take() -> None:
    found = with_memory(CLUSTER, None)
    assert [each["memory"] for each in found["models"]] == [360, 360, 360]
    assert found["nodes"] == CLUSTER["nodes"]


def test_a_budget_for_one_engine() -> None:
    ((pod,),) = [node["pods"] for node in with_memory(CLUSTER, 1)["nodes"]]
    assert pod == {"slots": 4, "memory": 360}
