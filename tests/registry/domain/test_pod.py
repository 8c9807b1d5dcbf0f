import pytest

from registry.domain.pod import (
    MAX_SLOTS,
    Accelerator,
    PodInfo,
    Profile,
    ProfilePoint,
    default_slots,
    host_port,
    slots_at_start,
)


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("10.0.0.7", "10.0.0.7:8080"),
        ("pod-1.pods", "pod-1.pods:8080"),
        ("fd00::7", "[fd00::7]:8080"),
        ("[fd00::7]", "[fd00::7]:8080"),
    ],
)
def test_ipv6_addresses_are_bracketed(host: str, address: str) -> None:
    assert host_port(host, 8080) == address


def profile(best_rows: int) -> Profile:
    """One whose throughput grows up to this number of rows."""
    points = [ProfilePoint(1, 0.1), ProfilePoint(best_rows, 0.2), ProfilePoint(256, 51.2)]
    return Profile("default~m@1", "CPU", tuple(points))


def test_a_cpu_without_profiles_has_eight_slots_and_a_gpu_more() -> None:
    assert default_slots() == default_slots("cpu") == 8
    assert default_slots("cuda:0") > 8


def test_a_registration_without_slots_has_the_default() -> None:
    assert PodInfo("a", "a:1", "n").slots == default_slots()


@pytest.mark.parametrize(
    ("rows", "slots"),
    [
        pytest.param((2,), 8, id="never fewer than unmeasured"),
        pytest.param((8,), 16, id="one batch runs, the next one is prepared"),
        pytest.param((4, 32, 16), 64, id="the largest of all models"),
        pytest.param((200,), MAX_SLOTS, id="bounded"),
    ],
)
def test_profiles_leave_place_for_two_of_the_best_batches(
    rows: tuple[int, ...], slots: int
) -> None:
    assert default_slots("cpu", [profile(each) for each in rows], cores=64) == slots


@pytest.mark.parametrize(("cores", "slots"), [(0, 8), (1, 8), (2, 16), (4, 32), (64, 128)])
def test_one_small_model_does_not_give_a_cpu_more_slots_than_its_cores_can_work_on(
    cores: int, slots: int
) -> None:
    cpu = Accelerator(product="CPU", cores=cores)
    assert slots_at_start(cpu, [profile(64)]) == slots


def test_only_profiles_of_the_accelerator_count() -> None:
    assert slots_at_start(Accelerator(product="another", cores=8), [profile(64)]) == 8
    assert slots_at_start(Accelerator("GPU-1", "CPU"), [profile(64)]) == 128
