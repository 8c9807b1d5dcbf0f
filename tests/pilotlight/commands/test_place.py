"""`pilotlight place`: plans, explanations, shortfalls and bad input."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.servers import REPOSITORY

if TYPE_CHECKING:
    from pathlib import Path

    from tests.pilotlight.conftest import Cli

_PROFILES = (
    REPOSITORY / "tests" / "autoscaler" / "placement" / "planners" / "synthetic_profiles.csv"
)


@pytest.fixture
def rates(tmp_path: Path) -> Path:
    path = tmp_path / "rates.csv"
    path.write_text("model,rps,slo_ms\nlarge,400,150\nmedium,400,150\nsmall,400,150\n")
    return path


def test_prints_plans_and_why_each_model_is_there(cli: Cli, rates: Path) -> None:
    ran = cli(
        "place", "--profiles", str(_PROFILES), "--rates", str(rates), "--gpus", "v100:3",
        "--planner", "usher,wsm-milp", "--explain",
    )  # fmt: skip
    assert ran.status == 0
    assert "large: not served: needs 4 replicas at its largest batch, of 3 GPUs" in ran.out
    assert "v100-2: shared by medium and small" in ran.out
    assert "compute (wsm)" in ran.out


def test_json_holds_every_plan(cli: Cli, rates: Path) -> None:
    given = ("place", "--profiles", str(_PROFILES), "--rates", str(rates), "--json", "--explain")
    ran = cli(*given, "--gpus", "v100:3", "--planner", "usher,ao-milp", "--no-shares")
    usher, milp = ran.document["placements"]
    assert (usher["planner"], usher["goodput_rps"]) == ("usher", 800)
    assert milp["goodput_rps"] == pytest.approx(925)
    assert milp["gap_ratio"] == pytest.approx(0, abs=1e-6)
    assert {each["share_pct"] for each in usher["replicas"]} == {None}
    excess = sum(each["excess_rps"] for each in milp["replicas"])
    assert excess == pytest.approx(
        sum(each["shortfall_rps"] for each in milp["models"] if each["goodput_rps"])
    )
    assert excess > 0
    assert milp["explanation"]
    fewest = cli(*given, "--gpus", "v100", "--planner", "wsm-milp").document["placements"][0]
    assert all(not each["reason"] for each in fewest["models"])


def test_a_shortfall_fails_where_all_must_be_served(cli: Cli, rates: Path) -> None:
    ran = cli(
        "place", "--profiles", str(_PROFILES), "--rates", str(rates), "--gpus", "v100:3",
        "--planner", "ao-milp", "--require-all", "--json",
    )  # fmt: skip
    assert ran.status == 1
    assert "large short by 275.00 req/s" in ran.document["error"]
    assert "6 GPUs are needed" in ran.document["error"]
    assert len(ran.document["placements"]) == 1


def test_all_mistakes_are_reported_together(cli: Cli, tmp_path: Path) -> None:
    rates = tmp_path / "rates.csv"
    rates.write_text("model,rps,slo_ms\nlarge,nan,150\nsmall,-1,150\nnobody,1,150\n")
    ran = cli(
        "place", "--profiles", str(_PROFILES), "--rates", str(rates), "--gpus", "v100:2",
        "--planner", "magic,usher",
    )  # fmt: skip
    assert ran.status == 2
    for part in ("was 'magic'", "rps must be a number", "was -1", "nobody: has no profile"):
        assert part in ran.err


def test_mistakes_of_flags_rates_and_profiles_are_reported_together(
    cli: Cli, tmp_path: Path
) -> None:
    rates, profiles = tmp_path / "rates.csv", tmp_path / "profiles.csv"
    rates.write_text("model,rps,slo_ms,max_batch_size\nlarge,nan,150,8\nsmall,5,-1,0\n")
    header, first, *rest = _PROFILES.read_text().splitlines()
    column = header.split(",").index("throughput_rps")
    cells = first.split(",")
    cells[column] = str(2 * float(cells[column]))
    profiles.write_text("\n".join([header, ",".join(cells), *rest]) + "\n")
    ran = cli(
        "place", "--profiles", str(profiles), "--rates", str(rates), "--gpus", "v100:0",
        "--planner", "magic",
    )  # fmt: skip
    assert ran.status == 2
    for part in (
        "--planner must be one of", "--gpus must be", "rps must be a number of 0 or more, was nan",
        "slo must be a positive time", "largest batch must be 1 or more", "contradicts latency",
    ):  # fmt: skip
        assert part in ran.err


def test_every_kind_of_gpu_needs_profiles(cli: Cli, rates: Path) -> None:
    given = ("place", "--profiles", str(_PROFILES), "--rates", str(rates))
    ran = cli(*given, "--gpus", "v100:1,h100:1")
    assert ran.status == 2
    assert "large: has no profile on h100; profiles are of v100" in ran.err


@pytest.mark.parametrize(
    ("gpus", "rates_text", "expected"),
    [
        ("v100:0", "model,rps,slo_ms\nlarge,1,150\n", "--gpus must be"),
        ("v100,h100", "model,rps,slo_ms\nlarge,1,150\n", "--gpus must be"),
        ("v100:2", "model,rps\nlarge,1\n", "must have the columns slo_ms"),
        ("v100:2", "model,rps,slo_ms\nlarge,many,150\n", "must hold numbers"),
    ],
)
def test_wrong_files_and_flags(
    cli: Cli, tmp_path: Path, gpus: str, rates_text: str, expected: str
) -> None:
    rates = tmp_path / "rates.csv"
    rates.write_text(rates_text)
    ran = cli("place", "--profiles", str(_PROFILES), "--rates", str(rates), "--gpus", gpus)
    assert ran.status == 2
    assert expected in ran.err
    missing = cli("place", "--profiles", "nowhere.csv", "--rates", str(rates), "--gpus", "v100:1")
    assert "nowhere.csv cannot be read" in missing.err
