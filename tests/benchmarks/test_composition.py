"""The comparison with Ray Serve: what it says without Ray, and who is ahead."""

from pathlib import Path

import pytest

from benchmarks import peers
from benchmarks.composition.compare import CHAINS, SKIPPED, Samples, main, report
from benchmarks.composition.systems import OURS, RAY_DEFAULT


def test_is_skipped_with_one_line_without_ray(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(peers, "ENVIRONMENT", tmp_path / "none")
    main()
    assert capsys.readouterr().out == f"{SKIPPED}\n"


def test_the_report_says_where_ray_is_ahead() -> None:
    def samples(step_s: float, chain_s: float) -> Samples:
        return Samples([0.001] * 3, [step_s] * 3, {count: [chain_s] * 3 for count in CHAINS}, 0.3)

    lines = report({OURS: samples(0.002, 0.009), RAY_DEFAULT: samples(0.004, 0.008)}).splitlines()
    assert f"| {OURS} | 1.0 / 1.0 | 2.0 / 2.0 | 1.0 / 1.0 | " in lines[2]
    assert f"- reached: a warm step ahead of {RAY_DEFAULT}, p50: 2.0 against 4.0 ms" in lines
    assert f"- MISSED: a chain of 6 ahead of {RAY_DEFAULT}, p99: 9.0 against 8.0 ms" in lines
