"""Free pods in order, against sorting all of them, while counts change."""

import random

from hypothesis import given
from hypothesis import strategies as st

from registry.domain.pod import PodInfo
from registry.domain.pod_index import FreePods
from registry.domain.pod_state import ChangeLog, PodState


@given(st.integers(0, 1 << 32))
def test_the_order_is_that_of_a_sort(seed: int) -> None:
    rng = random.Random(seed)
    changes = ChangeLog()
    pods = [PodState(PodInfo(f"pod-{n}", "127.0.0.1:1", "node", slots=3)) for n in range(12)]
    for pod in pods:
        pod.changes = changes
    kept = [(FreePods(pods[:count], changes), pods[:count]) for count in (0, 1, 2, 12)]
    for _ in range(20):
        for _ in range(rng.choice([0, 1, 3, 30, 1500])):
            pod = rng.choice(pods)
            pod.set_counts(rng.randrange(4), rng.randrange(4))
            pod.set_suspect(is_suspect=rng.random() < 0.1)
        for free, among in kept:
            expected = sorted(
                [pod for pod in among if pod.slots_busy < 3 and not pod.is_suspect],
                key=lambda pod: (pod.inferring, pod.slots_busy, pod.name),
            )
            assert free.first(9) == expected[:9]
            assert free.are_all() is (len(expected) == len(among))
