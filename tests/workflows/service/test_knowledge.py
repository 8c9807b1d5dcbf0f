"""Counts of several schedulers add up, whoever stores first."""

from workflows.predict import WorkflowCounts, WorkflowKnowledge


def store(knowledge: WorkflowKnowledge, stored: dict[str, object]) -> dict[str, object]:
    taken = knowledge.take_unstored()
    counts = WorkflowCounts.of_json(stored, 0.0)
    counts.merge(taken, 0.0)
    document = counts.as_json(0.0)
    knowledge.adopt(counts, 0.0)
    return document


def likeliest(knowledge: WorkflowKnowledge) -> list[str]:
    return [each.model for each in knowledge.predict([], (), 0.0)]


def test_two_schedulers_add_to_the_same_counts() -> None:
    first, second = WorkflowKnowledge(), WorkflowKnowledge()
    for _ in range(2):
        first.observe([], "a", (), 0.0)
    for _ in range(3):
        second.observe([], "b", (), 0.0)
    stored = store(first, {})
    stored = store(second, stored)
    stored = store(first, stored)
    followers = WorkflowCounts.of_json(stored, 0.0).predictor.probabilities([], (), 0.0)
    assert followers["b"] / followers["a"] == 3 / 2
    assert likeliest(second)[0] == "b"
    assert likeliest(first)[0] == "b"  # has read what the other stored


def test_what_could_not_be_stored_is_stored_later() -> None:
    knowledge = WorkflowKnowledge()
    knowledge.observe([], "a", (), 0.0)
    taken = knowledge.take_unstored()
    assert not knowledge.is_changed
    knowledge.observe([], "a", (), 0.0)
    knowledge.put_back(taken, 0.0)
    assert knowledge.is_changed
    stored = store(knowledge, {})
    followers = WorkflowCounts.of_json(stored, 0.0).predictor
    assert followers._counts.after((), 0.0) == {"a": 2.0}


def test_stored_counts_decay_while_nobody_runs() -> None:
    knowledge = WorkflowKnowledge()
    knowledge.observe([], "a", (), 0.0)
    stored = store(knowledge, {})
    later = WorkflowCounts.of_json(stored, 6 * 3600.0)
    assert later.predictor._counts.after((), 6 * 3600.0) == {"a": 0.5}
