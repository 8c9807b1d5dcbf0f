"""The store of steps' outputs: budget, tenants, lifetimes."""

import numpy as np

from common.inference_protocol.tensors import numeric_tensor
from runtime.serving.tensor_store import TensorStore

NUMBERS = numeric_tensor("x", np.arange(1000, dtype=np.float32))


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def kept(store: TensorStore, run: str = "r", **options: float) -> str:
    identity = store.keep("team", run, NUMBERS, **options)
    assert identity is not None
    return identity


def test_a_tensor_is_found_without_a_copy() -> None:
    store = TensorStore(1 << 20)
    identity = kept(store)
    first, second = store.find("team", "r", identity), store.find("team", "r", identity)
    assert first is not None
    assert second is not None
    assert np.array_equal(first.data, NUMBERS.data)
    assert np.shares_memory(first.data, second.data)
    assert not first.data.flags.writeable


def test_a_part_of_a_batch_does_not_hold_the_batch() -> None:
    store, batch = TensorStore(1 << 20), np.ones((8, 100), np.float32)
    identity = store.keep("team", "r", numeric_tensor("x", batch[2:3]))
    batch[:] = 0
    assert identity is not None
    found = store.find("team", "r", identity)
    assert found is not None
    assert found.data.base is None
    assert found.data.sum() == 100
    assert store.used_bytes == 400


def test_only_the_run_and_namespace_that_kept_it_find_it() -> None:
    store = TensorStore(1 << 20)
    identity = kept(store)
    assert store.find("other", "r", identity) is None
    assert store.find("team", "r2", identity) is None
    assert store.find("team", "r", "0" * 32) is None


def test_nothing_is_kept_beyond_the_budget() -> None:
    store = TensorStore(6000)
    kept(store)
    assert store.keep("team", "r", NUMBERS) is None
    assert store.used_bytes == 4000
    assert store.drop("team", "r") == 1
    assert store.used_bytes == 0
    kept(store, "next")


def test_the_end_of_a_run_frees_its_tensors_alone() -> None:
    store = TensorStore(1 << 20)
    first, other = kept(store), kept(store, "other")
    assert store.drop("team", "r") == 1
    assert store.find("team", "r", first) is None
    assert store.find("team", "other", other) is not None
    assert store.drop("team", "r") == 0


def test_single_tensors_of_a_run_are_freed() -> None:
    store = TensorStore(1 << 20)
    first, second = kept(store), kept(store)
    assert store.drop("team", "other", [first]) == 0
    assert store.drop("team", "r", [first, "0" * 32, first]) == 1
    assert store.find("team", "r", first) is None
    assert store.find("team", "r", second) is not None
    assert store.used_bytes == 4000
    assert store.drop("team", "r", [second]) == 1
    assert store.used_bytes == 0


def test_a_tensor_ends_with_its_runs_deadline() -> None:
    clock = Clock()
    store = TensorStore(1 << 20, clock)
    early, late = kept(store, expires_s=110.0), kept(store, expires_s=200.0)
    clock.now_s = 110.0
    assert store.find("team", "r", early) is None
    store.drop_expired()
    assert store.used_bytes == 4000
    assert store.find("team", "r", late) is not None
    assert store.keep("team", "r", NUMBERS, expires_s=110.0) is None


def test_an_attempt_that_ends_after_its_run_keeps_nothing() -> None:
    store = TensorStore(1 << 20)
    kept(store)
    store.drop("team", "r")
    assert store.keep("team", "r", NUMBERS) is None
    assert store.keep("other", "r", NUMBERS) is not None
    assert store.used_bytes == NUMBERS.data.nbytes
