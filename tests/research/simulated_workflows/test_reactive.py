"""Copies grow with queues, after the delays of Ray Serve, and idle ones make room."""

from hypothesis import given, settings
from hypothesis import strategies as st

from research.simulated_workflows.reactive import (
    CopiesView,
    CopyChanges,
    ModelCopy,
    ReactiveParams,
    ReactiveState,
    reactive,
    shortest_queue,
)

SIZES = {"a": 4.0, "b": 4.0}
PARAMS = ReactiveParams()


def view(*copies: ModelCopy, memory: tuple[float, ...] = (8.0, 8.0), **waiting: int) -> CopiesView:
    return CopiesView(copies, memory, SIZES, waiting)


def after(
    seconds: list[float], each: CopiesView, params: ReactiveParams = PARAMS
) -> tuple[ReactiveState, CopyChanges]:
    """What is changed at the last of these times, while all stays as it is."""
    state, changes = ReactiveState(), CopyChanges()
    for now_s in seconds:
        state, changes = reactive(state, each, now_s, params)
    return state, changes


def test_a_long_queue_brings_a_copy_only_after_the_delay() -> None:
    busy = view(ModelCopy("a", 0, 3), ModelCopy("b", 0, 1))
    assert after([0.0, 29.0], busy)[1] == CopyChanges()
    assert after([0.0, 29.0, 30.0], busy)[1] == CopyChanges(added=(("a", 1),))


def test_a_queue_that_was_long_for_a_moment_brings_none() -> None:
    idle = view(ModelCopy("a", 0, 1), ModelCopy("b", 0, 0))
    state, _ = after([0.0], view(ModelCopy("a", 0, 9), ModelCopy("b", 0, 0)))
    state, _ = reactive(state, idle, 31.0, PARAMS)
    assert reactive(state, idle, 62.0, PARAMS)[1] == CopyChanges()


def test_a_model_without_a_copy_gets_one_at_once() -> None:
    assert after([0.0], view(ModelCopy("a", 0, 1), b=1))[1].added == (("b", 1),)


def test_an_idle_copy_makes_room_for_a_model_without_one() -> None:
    full = view(ModelCopy("a", 0, 2), ModelCopy("a", 1, 0), memory=(4.0, 4.0), b=1)
    assert after([0.0], full)[1] == CopyChanges((("b", 1),), (1,))


def test_busy_copies_make_no_room() -> None:
    full = view(ModelCopy("a", 0, 2), ModelCopy("a", 1, 1), memory=(4.0, 4.0), b=1)
    assert after([0.0], full)[1] == CopyChanges()


def test_copies_beyond_those_wanted_end_after_ten_minutes() -> None:
    idle = view(ModelCopy("a", 0, 0), ModelCopy("a", 1, 0), ModelCopy("b", 1, 0))
    assert after([0.0, 599.0], idle)[1] == CopyChanges()
    assert after([0.0, 600.0], idle)[1] == CopyChanges(removed=(0,))


def test_several_copies_of_a_model_may_share_a_device() -> None:
    busy = view(ModelCopy("a", 0, 9), ModelCopy("b", 0, 0), memory=(24.0,))
    assert after([0.0, 30.0], busy)[1].added == (("a", 0),) * 4


def test_one_per_device_leaves_no_two_copies_together() -> None:
    alone = ReactiveParams(is_one_per_device=True)
    mixed = view(ModelCopy("a", 0, 0), memory=(20.0,), b=1)
    assert after([0.0], mixed, alone)[1] == CopyChanges((("b", 0),), (0,))
    busy = view(ModelCopy("a", 0, 1), memory=(20.0,), b=1)
    assert after([0.0], busy, alone)[1] == CopyChanges()


def test_a_step_goes_to_the_shortest_queue_of_its_model() -> None:
    copies = [ModelCopy("a", 0, 2), ModelCopy("b", 0, 0), ModelCopy("a", 1, 1, is_loading=True)]
    assert shortest_queue(copies, "a") == 2
    assert shortest_queue(copies, "c") is None
    assert shortest_queue([ModelCopy("a", 0, 1, is_loading=True), ModelCopy("a", 1, 1)], "a") == 1


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(0, 2), st.integers(0, 12), st.booleans()),
        max_size=6,
    ),
    st.dictionaries(st.sampled_from("abc"), st.integers(0, 5)),
    st.booleans(),
)
def test_memory_holds_and_busy_copies_stay(
    copies: list[tuple[str, int, int, bool]], waiting: dict[str, int], is_alone: bool
) -> None:
    size, memory = {"a": 1.0, "b": 2.0, "c": 3.0}, [6.0, 4.0, 2.0]
    params = ReactiveParams(is_one_per_device=is_alone)
    kept: list[ModelCopy] = []
    used = [0.0] * 3
    for model, device, steps, is_loading in copies:
        is_first = not any(copy.device == device for copy in kept)
        if used[device] + size[model] <= memory[device] and (is_first or not is_alone):
            used[device] += size[model]
            kept.append(ModelCopy(model, device, steps, is_loading))
    state = ReactiveState()
    each = CopiesView(kept, memory, size, waiting)
    for now_s in (0.0, 31.0, 700.0):
        state, changes = reactive(state, each, now_s, params)
        assert all(kept[at].steps == 0 and not kept[at].is_loading for at in changes.removed)
        assert len(set(changes.removed)) == len(changes.removed)
        left = [
            (copy.model, copy.device) for at, copy in enumerate(kept) if at not in changes.removed
        ]
        for device in range(3):
            models = [model for model, at in [*left, *changes.added] if at == device]
            assert sum(size[model] for model in models) <= memory[device]
            assert len(models) <= 1 or not is_alone
