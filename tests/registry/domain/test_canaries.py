from registry.domain.canaries import Canary, find_canaries
from registry.domain.model import ModelName, ModelPolicy, ModelRecord, ModelSpec


def record(
    name: str, canary_of: str | None = None, percent: int = 0, namespace: str = "a"
) -> ModelRecord:
    policy = ModelPolicy(canary_of=canary_of, canary_percent=percent)
    return ModelRecord(ModelSpec(ModelName(namespace, name), "s3://bucket/m", policy=policy))


def test_a_canary_belongs_to_a_model_of_its_namespace() -> None:
    found = find_canaries([record("m"), record("next", "m", 20), record("next", "m", 30, "b")])
    assert found == {
        ModelName("a", "m"): (Canary(ModelName("a", "next"), 20),),
        ModelName("b", "m"): (Canary(ModelName("b", "next"), 30),),
    }


def test_shares_above_100_percent_are_cut_in_order_of_names() -> None:
    declared = [record("c", "m", 50), record("a", "m", 70), record("b", "m", 50)]
    found = find_canaries(declared)[ModelName("a", "m")]
    assert [(each.model.name, each.percent) for each in found] == [("a", 70), ("b", 30)]


def test_a_canary_of_zero_percent_is_ignored() -> None:
    assert find_canaries([record("m"), record("next", "m", 0)]) == {}
