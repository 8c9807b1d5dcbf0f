import pytest

from registry.domain.cluster import ClusterState
from registry.domain.pod import Accelerator, AcceleratorKind, PodInfo
from registry.domain.pod_state import PodState


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        pytest.param(AcceleratorKind(), "", id="not-reported"),
        pytest.param(AcceleratorKind("NVIDIA H200"), "NVIDIA H200|1", id="whole"),
        pytest.param(AcceleratorKind("NVIDIA H200", 0.25), "NVIDIA H200|0.25", id="quarter"),
        pytest.param(AcceleratorKind("H200|x", 0.1429), "H200|x|0.1429", id="slice"),
    ],
)
def test_a_kind_as_text(kind: AcceleratorKind, text: str) -> None:
    assert str(kind) == text
    assert AcceleratorKind.parse(text) == kind


def test_a_share_is_rounded_as_its_text_is() -> None:
    kind = PodInfo("a", "a:1", "n", share=1 / 7).kind
    assert AcceleratorKind.parse(str(kind)) == kind


def test_pods_of_one_product_and_share_are_of_one_kind() -> None:
    pods = [
        PodInfo(name, "a:1", "n", accelerator=Accelerator(f"GPU-{name}", "NVIDIA H200"), share=0.5)
        for name in "ab"
    ]
    assert pods[0].kind == pods[1].kind == AcceleratorKind("NVIDIA H200", 0.5)


def pool(*budgets: int, uuid: str = "GPU-1", memory_bytes: int = 100) -> ClusterState:
    """Pods `0`, `1`, … with these budgets on accelerators of one UUID."""
    state = ClusterState()
    for at, budget in enumerate(budgets):
        accelerator = Accelerator(uuid, "NVIDIA H200", memory_bytes)
        info = PodInfo(str(at), "a:1", "n", memory_bytes=budget, accelerator=accelerator)
        state.pods[str(at)] = PodState(info)
    return state


def free(state: ClusterState) -> list[int]:
    return [pod.free_bytes for pod in state.pods.values()]


@pytest.mark.parametrize(
    ("budgets", "expected"),
    [
        pytest.param((60,), [60], id="one-pod"),
        pytest.param((50, 50), [50, 50], id="within-the-memory"),
        pytest.param((100, 100), [50, 50], id="memory-counts-once"),
        pytest.param((90, 30), [75, 25], id="in-proportion"),
    ],
)
def test_pods_of_one_uuid_share_its_memory(budgets: tuple[int, ...], expected: list[int]) -> None:
    assert free(pool(*budgets)) == expected


def test_what_one_pod_uses_the_others_cannot() -> None:
    state = pool(100, 100)
    state.pods["0"].set_used_bytes({"device": 60})
    assert free(state) == [11, 28]
    state.pods["1"].set_used_bytes({"device": 50})  # more than there is
    assert free(state) == [0, 0]
    del state.pods["1"]
    assert free(state) == [40]


def test_cpu_pods_keep_their_own_memory() -> None:
    assert free(pool(100, 100, uuid="")) == [100, 100]
