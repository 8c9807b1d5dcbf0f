import time

from registry.domain.canaries import Canary, find_canaries, traffic_of
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


def test_thousands_of_canaries_of_unknown_models_take_no_time_each_for_the_others() -> None:
    records = [record(f"canary-{number}", f"unknown-{number}", 5) for number in range(2000)]
    models = {each.spec.name: each for each in records}
    found = find_canaries(records)
    began_s = time.process_time()
    traffic = [traffic_of(each.spec, models, found) for each in records]
    assert time.process_time() - began_s < 1.0  # searches for near names would take minutes
    assert {each.problem.endswith("does not exist") for each in traffic} == {True}
