"""`simulate-workflows`."""

import gzip
from pathlib import Path

from research.simulated_workflows.simulation import POLICIES
from tests.pilotlight.conftest import Cli, cli

__all__ = ["cli"]


def test_workflows_take_known_applications_and_a_trace(cli: Cli, tmp_path: Path) -> None:
    wrong = cli(
        "simulate-workflows",
        "gill,chat",
        "--policy",
        "fastest",
        "--trace",
        str(tmp_path / "none.csv.gz"),
    )
    assert wrong.status == 2
    assert "APPLICATIONS must be one or more of gill" in wrong.err
    assert "was 'chat'" in wrong.err
    assert "--policy must be one or more of speculative" in wrong.err
    assert "--trace must name a file" in wrong.err


def test_workflows_are_simulated_by_the_live_policies(cli: Cli, tmp_path: Path) -> None:
    rows = [
        f"{227 * 120 + minute},m{model},{count}"
        for minute in range(2)
        for model, count in enumerate((5, 9, 2))
    ]
    trace = tmp_path / "minutes.csv.gz"
    with gzip.open(trace, "wt") as file:
        file.write("\n".join(["minute,model,count", *rows]))
    found = cli(
        "simulate-workflows", "gill", "--trace", str(trace), "--minutes", "1", "--json"
    ).document
    assert [each["policy"] for each in found] == list(POLICIES)
    assert len({each["requests"] for each in found}) == 1
    assert found[0]["predicted_share"] > 0 == found[1]["predicted_share"]
