"""The steps of a load as the benchmark measures them."""

from pathlib import Path

from benchmarks.load_steps import measure, summary
from pilotlight.sample_models.make_model import make_model


def test_every_step_is_measured_once_per_repeat(tmp_path: Path) -> None:
    steps = measure(make_model("tiny-t5", tmp_path / "m"), repeats=2)
    assert [each.name for each in steps if each.is_ours] == [
        "files opened", "weights mapped", "network without weights", "weights attached",
        "tokenizer",
    ]  # fmt: skip
    assert all(len(each.seconds) == 2 and min(each.seconds) >= 0 for each in steps)
    lines = summary(steps).splitlines()
    assert len(lines) == 2 + len(steps) + 2
    assert sum("Liu 2025, table 3.1" in line for line in lines) == 1
