"""Forming batches: examples and invariants."""

import dataclasses
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.device.queue import BatchLimits, QueuedRows, form_batch

NOW_S = 100.0


def waiting(sequence: int, due_s: float = 200.0, **fields: object) -> QueuedRows:
    values: dict[str, object] = {"enqueued_at_s": NOW_S, "batch_key": "text", **fields}
    return QueuedRows(sequence, due_s, **values)  # type: ignore[arg-type]  # a table's row


def sequences(*given: QueuedRows, limits: BatchLimits = BatchLimits()) -> list[int]:  # noqa: B008 - frozen
    batch = form_batch(given, NOW_S, limits)
    assert batch is not None
    return [each.sequence for each in batch.members]


def test_empty_queue_has_no_batch() -> None:
    assert form_batch([], NOW_S, BatchLimits()) is None


def test_nearest_deadline_leads_and_others_follow_in_order() -> None:
    assert sequences(waiting(1, 300), waiting(2, 100), waiting(3, 200), waiting(4, 200)) == [
        2,
        3,
        4,
        1,
    ]


def test_limit_counts_items_not_requests() -> None:
    limits = BatchLimits(max_rows=4)
    assert sequences(waiting(1, rows=3), waiting(2, rows=2), waiting(3), limits=limits) == [1, 3]


def test_a_request_larger_than_the_limit_runs_alone() -> None:
    limits = BatchLimits(max_rows=4)
    assert sequences(waiting(1, rows=9), waiting(2), limits=limits) == [1]


def test_only_equal_batch_keys_form_a_batch() -> None:
    assert sequences(waiting(1), waiting(2, batch_key="image"), waiting(3)) == [1, 3]


def test_work_without_a_batch_key_runs_alone() -> None:
    assert sequences(waiting(1, batch_key=None), waiting(2, batch_key=None)) == [1]


def test_a_long_text_does_not_join_short_ones() -> None:
    given = (
        waiting(1, tokens_per_row=10),
        waiting(2, tokens_per_row=100),
        waiting(3, tokens_per_row=12),
    )
    assert sequences(*given, limits=BatchLimits(max_padding=0.4)) == [1, 3]


def test_long_texts_make_smaller_batches() -> None:
    given = [waiting(number, tokens_per_row=100) for number in range(4)]
    assert sequences(*given, limits=BatchLimits(max_tokens=250)) == [0, 1]


@pytest.mark.parametrize(
    ("deadline_s", "ready_s"),
    [
        pytest.param(None, NOW_S - 1 + 3, id="as-long-as-may-be"),
        pytest.param(NOW_S + 1.5, NOW_S + 1, id="not-past-a-deadline"),
        pytest.param(NOW_S + 0.2, NOW_S, id="at-once"),
    ],
)
def test_a_batch_waits_to_fill(deadline_s: float | None, ready_s: float) -> None:
    limits = BatchLimits(max_rows=3, max_wait_s=3.0, inference_s=0.5)
    one = waiting(1, enqueued_at_s=NOW_S - 1)
    two = waiting(2, deadline_s=deadline_s)
    batch = form_batch([one, two], NOW_S, limits)
    assert batch is not None
    assert batch.ready_s == pytest.approx(ready_s)


def test_full_batch_is_ready_at_once() -> None:
    batch = form_batch([waiting(1), waiting(2)], NOW_S, BatchLimits(max_rows=2, max_wait_s=3.0))
    assert batch is not None
    assert batch.ready_s == NOW_S


REQUESTS = st.lists(
    st.builds(
        QueuedRows,
        sequence=st.just(0),
        due_s=st.sampled_from([90.0, 101.0, 101.5, 200.0]),
        enqueued_at_s=st.floats(90, NOW_S),
        deadline_s=st.none() | st.floats(NOW_S, 200),
        rows=st.integers(1, 12),
        tokens_per_row=st.integers(1, 512),
        batch_key=st.sampled_from(["a", "b", None]),
    ),
    min_size=1,
    max_size=30,
).map(
    lambda given: [dataclasses.replace(each, sequence=number) for number, each in enumerate(given)]
)
LIMITS = st.builds(
    BatchLimits,
    max_rows=st.integers(1, 16),
    max_wait_s=st.sampled_from([0.0, 0.5, 20.0]),
    max_padding=st.floats(0, 1),
    max_tokens=st.sampled_from([100, 10_000]),
    inference_s=st.sampled_from([0.0, 0.3]),
)


@given(REQUESTS, LIMITS)
def test_every_batch_respects_its_limits(given: list[QueuedRows], limits: BatchLimits) -> None:
    batch = form_batch(given, NOW_S, limits)
    assert batch is not None
    members = batch.members
    assert members[0] == min(given, key=lambda each: (each.due_s, each.sequence))
    assert list(members) == sorted(members, key=lambda each: (each.due_s, each.sequence))
    assert set(members) <= set(given)
    if len(members) > 1:
        rows, width = (
            sum(each.rows for each in members),
            max(each.tokens_per_row for each in members),
        )
        tokens = sum(each.rows * each.tokens_per_row for each in members)
        assert {each.batch_key for each in members} == {members[0].batch_key} != {None}
        assert rows <= limits.max_rows
        assert rows * width - tokens <= limits.max_padding * rows * width
        assert rows * width <= limits.max_tokens
    oldest_s = min(each.enqueued_at_s for each in members)
    assert NOW_S <= batch.ready_s <= max(NOW_S, oldest_s + limits.max_wait_s)
    for each in members:
        if each.deadline_s is not None:
            assert batch.ready_s <= max(NOW_S, each.deadline_s - limits.inference_s)


@given(REQUESTS, LIMITS, st.randoms(use_true_random=False))
def test_the_order_of_the_list_does_not_matter(
    given: list[QueuedRows], limits: BatchLimits, rng: random.Random
) -> None:
    shuffled = rng.sample(given, len(given))
    assert form_batch(given, NOW_S, limits) == form_batch(shuffled, NOW_S, limits)


@given(REQUESTS, LIMITS)
def test_every_request_is_batched_exactly_once(
    given: list[QueuedRows], limits: BatchLimits
) -> None:
    left, taken = list(given), []
    while (batch := form_batch(left, NOW_S, limits)) is not None:
        taken += [each.sequence for each in batch.members]
        left = [each for each in left if each not in batch.members]
    assert sorted(taken) == [each.sequence for each in given]
