"""Random scheduling problems, and every schedule of one by enumeration."""

from collections.abc import Iterator, Sequence
from itertools import permutations, product
from math import inf

from hypothesis import strategies as st

from workflows.plan.problem import SchedulingProblem, Step

TIMES = st.integers(0, 6).map(float)


@st.composite
def problems(draw: st.DrawFn, max_steps: int = 4, max_devices: int = 3) -> SchedulingProblem:
    """Acyclic runs of few models on few devices, all times whole seconds."""
    count = draw(st.integers(1, max_steps))
    steps = [
        Step(
            draw(st.sampled_from("abc")),
            tuple(sorted(draw(st.sets(st.integers(0, index - 1), max_size=2)))) if index else (),
        )
        for index in range(count)
    ]
    devices = draw(
        st.permutations([f"gpu-{index}" for index in range(draw(st.integers(1, max_devices)))])
    )

    def table(times: st.SearchStrategy[float]) -> list[list[float]]:
        return [[draw(times) for _ in devices] for _ in steps]

    moved = table(TIMES)
    loads = {
        model: [draw(st.sampled_from([0.0, 0.0, 2.0, 5.0])) for _ in devices] for model in "abc"
    }
    return SchedulingProblem(
        steps=steps,
        devices=devices,
        free_s=table(TIMES),
        load_s=[loads[step.model] for step in steps],
        compute_s=table(st.integers(1, 5).map(float)),
        transfer_s=lambda source, step, origin, device: moved[source][origin] + device,
    )


def earliest_finish_s(problem: SchedulingProblem) -> float:
    """The earliest end of the last step, over all placements and every order inputs allow."""
    devices = range(len(problem.devices))
    return min(
        _finish_s(problem, order, placement)
        for order in _orders(problem)
        for placement in product(devices, repeat=len(problem.steps))
    )


def _orders(problem: SchedulingProblem) -> Iterator[Sequence[int]]:
    for order in permutations(range(len(problem.steps))):
        position = {step: index for index, step in enumerate(order)}
        if all(
            position[source] < position[step]
            for step in order
            for source in problem.steps[step].inputs
        ):
            yield order


def _finish_s(problem: SchedulingProblem, order: Sequence[int], placement: Sequence[int]) -> float:
    ends: dict[int, float] = {}
    device_ends = dict.fromkeys(placement, 0.0)
    loaded: set[tuple[int, str]] = set()
    for step in order:
        device, model = placement[step], problem.steps[step].model
        free_s = max(problem.free_s[step][device], device_ends[device])
        load_s = 0.0 if (device, model) in loaded else problem.load_s[step][device]
        inputs_s = [
            ends[source]
            + (
                0.0
                if placement[source] == device
                else problem.transfer_s(source, step, placement[source], device)
            )
            for source in problem.steps[step].inputs
        ]
        ends[step] = max([free_s, load_s, *inputs_s]) + problem.compute_s[step][device]
        device_ends[device] = ends[step]
        loaded.add((device, model))
    return max(ends.values(), default=-inf)
