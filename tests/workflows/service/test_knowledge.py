"""Counts of several schedulers add up, whoever stores first."""

from typing import Any

from workflows.predict import ObservedCall, WorkflowKnowledge


def store(knowledge: WorkflowKnowledge, stored: dict[str, Any]) -> dict[str, Any]:
    found = knowledge.with_stored(stored, 0.0)
    document = found.as_json(0.0)
    knowledge.adopt(found, len(knowledge.unstored))
    return document


def first_call(model: str) -> ObservedCall:
    return ObservedCall([], model, (), 0.0)


def begins_with(knowledge: WorkflowKnowledge) -> dict[str, float]:
    return knowledge.predictor.probabilities([], (), 0.0)


def test_two_schedulers_add_to_the_same_counts() -> None:
    first, second = WorkflowKnowledge(), WorkflowKnowledge()
    for _ in range(2):
        first.observe(first_call("a"))
    for _ in range(3):
        second.observe(first_call("b"))
    stored = store(second, store(first, {}))
    followers = begins_with(WorkflowKnowledge().with_stored(store(first, stored), 0.0))
    assert followers["b"] / followers["a"] == 3 / 2
    assert second.predict([], (), 0.0)[0].model == "b"
    assert begins_with(first) == followers  # has read what the other stored


def test_what_came_while_counts_were_stored_is_stored_later() -> None:
    knowledge = WorkflowKnowledge()
    knowledge.observe(first_call("a"))
    found = knowledge.with_stored({}, 0.0)
    knowledge.observe(first_call("b"))
    knowledge.adopt(found, 1)
    assert [call.model for call in knowledge.unstored] == ["b"]
    followers = begins_with(knowledge.with_stored(found.as_json(0.0), 0.0))
    assert followers["a"] == followers["b"]


def test_stored_counts_decay_while_nobody_runs() -> None:
    knowledge = WorkflowKnowledge()
    knowledge.observe(first_call("a"))
    later = knowledge.with_stored(store(knowledge, {}), 6 * 3600.0)
    assert later.predictor._counts.after((), 6 * 3600.0) == {"a": 0.5}
