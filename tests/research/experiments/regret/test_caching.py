"""LRU, Belady's rule and Ray Serve's multiplexing on cases computed by hand."""

import itertools
import random

import pytest

from research.experiments.regret.caching import belady_loads, lru_loads, multiplexed
from research.experiments.regret.load_counts import MAX_P99_S, count_loads


def test_loads_of_a_textbook_reference_string() -> None:
    # Silberschatz, Galvin, Gagne, "Operating System Concepts", section 10.4: three frames.
    pages = list("70120304230321201701")
    assert belady_loads(pages, 3) == 9
    assert lru_loads(pages, 3) == 12


def test_belady_keeps_what_is_used_next() -> None:
    # c evicts b, which is used after a; then b evicts c, which is not used again.
    assert belady_loads(list("abcab"), 2) == 4
    assert lru_loads(list("abcab"), 2) == 5


def test_no_choice_of_victims_makes_fewer_loads_than_belady() -> None:
    rng = random.Random(3)
    for _ in range(20):
        requests = [rng.choice("abcd") for _ in range(9)]
        assert belady_loads(requests, 2) == _fewest(requests, frozenset(), 2)
        assert lru_loads(requests, 2) >= belady_loads(requests, 2)


def _fewest(requests: list[str], held: frozenset[str], places: int) -> int:
    for at, model in enumerate(requests):
        if model in held:
            continue
        rest = requests[at + 1 :]
        kept = itertools.combinations(held, min(len(held), places - 1))
        return 1 + min(_fewest(rest, frozenset({*each, model}), places) for each in kept)
    return 0


def test_multiplexing_loads_one_model_at_a_time_in_the_order_of_requests() -> None:
    requests = [(0.0, "a"), (0.0, "b"), (0.0, "a"), (0.1, "c")]
    loads, latencies_s = multiplexed(requests, replicas=1, places=2, load_s=1.0, infer_s=0.1)
    # a is there at 1 s and infers at once, b at 2 s; the second a waits for the lock behind b.
    assert loads == 3
    assert latencies_s == pytest.approx([1.1, 2.1, 2.2, 3.0])


def test_multiplexing_prefers_the_replica_that_has_the_model() -> None:
    requests = [(0.0, "a"), (0.0, "b"), (5.0, "a"), (5.0, "a"), (6.0, "b")]
    loads, latencies_s = multiplexed(requests, replicas=2, places=1, load_s=1.0, infer_s=0.1)
    assert loads == 2
    assert latencies_s == pytest.approx([1.1, 1.1, 0.1, 0.2, 0.1])


def test_a_replica_with_its_bound_of_requests_takes_no_more() -> None:
    requests = [(0.0, "a"), (0.0, "a"), (0.0, "a")]
    loads, latencies_s = multiplexed(
        requests, replicas=1, places=1, load_s=1.0, infer_s=0.5, max_ongoing=1
    )
    assert loads == 1
    assert latencies_s == pytest.approx([1.5, 2.0, 2.5])


def test_every_rule_serves_the_same_requests() -> None:
    found = count_loads(1.1, seed=1)
    assert found["Belady, one cache"].loads < found["LRU, one cache"].loads
    assert found["auto"].loads >= 8
    assert (found["auto"].p99_s or 0) >= 0.25
    assert found["auto, max-load-wait 300ms"].loads < 0.8 * found["auto"].loads
    assert (found["auto, max-load-wait 300ms"].p99_s or 0) <= MAX_P99_S
