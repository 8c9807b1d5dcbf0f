"""What a pod keeps of its measurements between heartbeats."""

from registry.domain.pod import Samples
from runtime.measurements import MAX_PER_HEARTBEAT, Measurements


def test_a_heartbeat_carries_the_latest_samples_of_each_measure_once() -> None:
    measurements = Measurements()
    for second in range(1000):
        measurements.add("m@1", "infer", float(second))
    measurements.add("m@1", "network", 0.5)
    latest = tuple(float(second) for second in range(1000 - MAX_PER_HEARTBEAT, 1000))
    assert set(measurements.take()) == {
        Samples("m@1", "infer", latest),
        Samples("m@1", "network", (0.5,)),
    }
    assert measurements.take() == ()


def test_samples_of_later_heartbeats_are_their_own() -> None:
    measurements = Measurements()
    measurements.add("m@1", "infer", 1.0)
    [first] = measurements.take()
    measurements.add("m@1", "infer", 2.0)
    [second] = measurements.take()
    assert (first.values_s, second.values_s) == ((1.0,), (2.0,))


def test_samples_that_could_not_be_sent_are_kept_unless_newer_ones_have_come() -> None:
    measurements = Measurements()
    for key in ("m@1", "n@1"):
        measurements.add(key, "infer", 1.0)
    unsent = measurements.take()
    measurements.add("m@1", "infer", 2.0)
    measurements.restore(unsent)
    assert set(measurements.take()) == {
        Samples("m@1", "infer", (2.0,)),
        Samples("n@1", "infer", (1.0,)),
    }


def test_inferences_are_measured_by_size_once_sizes_differ() -> None:
    measurements = Measurements()
    measurements.add_inference("m@1", 0.1, 200)
    measurements.add_inference("m@1", 0.2, None)
    assert set(measurements.take()) == {Samples("m@1", "infer", (0.1, 0.2))}
    measurements.add_inference("m@1", 6.0, 50_000)
    measurements.add_inference("m@1", 0.3, 200)
    assert set(measurements.take()) == {
        Samples("m@1", "infer", (6.0, 0.3)),
        Samples("m@1", "infer:3", (6.0,)),
        Samples("m@1", "infer:0", (0.3,)),
    }
