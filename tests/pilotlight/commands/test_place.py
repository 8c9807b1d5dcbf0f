"""`pilotlight place`: plans, explanations, shortfalls and bad input."""

import json
from pathlib import Path

import pytest

from autoscaler.placement.planners.catalogue import planner_names
from pilotlight.placement_files import profiles_document
from registry.domain.model import ModelName, ModelSpec
from registry.domain.pod import PairFactor, Profile, ProfilePoint
from tests.pilotlight.conftest import Cli
from tests.servers import REPOSITORY

_PROFILES = (
    REPOSITORY / "tests" / "autoscaler" / "placement" / "planners" / "synthetic_profiles.csv"
)
_SAMPLES = REPOSITORY / "manifests" / "samples" / "placement"


@pytest.fixture
def rates(tmp_path: Path) -> Path:
    path = tmp_path / "rates.csv"
    path.write_text("model,rps,slo_ms\nlarge,400,150\nmedium,400,150\nsmall,400,150\n")
    return path


def test_prints_plans_and_why_each_model_is_there(cli: Cli, rates: Path) -> None:
    ran = cli(
        "place",
        "--profiles",
        str(_PROFILES),
        "--rates",
        str(rates),
        "--gpus",
        "v100:3",
        "--planner",
        "usher,wsm-milp",
        "--explain",
    )
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
        "place",
        "--profiles",
        str(_PROFILES),
        "--rates",
        str(rates),
        "--gpus",
        "v100:3",
        "--planner",
        "ao-milp",
        "--require-all",
        "--json",
    )
    assert ran.status == 1
    assert "large short by 275.00 req/s" in ran.document["error"]
    assert "6 GPUs are needed" in ran.document["error"]
    assert len(ran.document["placements"]) == 1


def test_all_mistakes_are_reported_together(cli: Cli, tmp_path: Path) -> None:
    rates = tmp_path / "rates.csv"
    rates.write_text("model,rps,slo_ms\nlarge,nan,150\nsmall,-1,150\nnobody,1,150\n")
    ran = cli(
        "place",
        "--profiles",
        str(_PROFILES),
        "--rates",
        str(rates),
        "--gpus",
        "v100:2",
        "--planner",
        "magic,usher",
    )
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
        "place",
        "--profiles",
        str(profiles),
        "--rates",
        str(rates),
        "--gpus",
        "v100:0",
        "--planner",
        "magic",
    )
    assert ran.status == 2
    for part in (
        "--planner must be one of",
        "--gpus must be",
        "rps must be a number of 0 or more, was nan",
        "slo must be a positive time",
        "largest batch must be 1 or more",
        "contradicts latency",
    ):
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
    missing = cli("place", "--profiles", "nowhere.json", "--rates", "none", "--gpus", "v100:1")
    assert missing.err.count("error: nowhere.json") == 1
    assert "none cannot be read" in missing.err


def test_every_plan_is_measured_by_the_same_two_functions(cli: Cli, rates: Path) -> None:
    ran = cli(
        "place",
        "--profiles",
        str(_PROFILES),
        "--rates",
        str(rates),
        "--gpus",
        "v100:3",
        "--json",
        "--planner",
        "usher,wsm-milp,predicted-goodput",
    )
    plans = {each["planner"]: each for each in ran.document["placements"]}
    assert plans["usher"]["profiled_rps"] == plans["usher"]["goodput_rps"]
    ours = plans["predicted-goodput"]
    assert ours["in_time_rps"] == pytest.approx(ours["goodput_rps"])
    assert all(0 < each["in_time_rps"] <= each["profiled_rps"] + 1e-6 for each in plans.values())
    assert max(plans.values(), key=lambda each: each["in_time_rps"]) is ours


def test_the_measures_are_compared_in_one_table(cli: Cli, rates: Path) -> None:
    ran = cli(
        "place",
        "--profiles",
        str(_PROFILES),
        "--rates",
        str(rates),
        "--gpus",
        "v100:3",
        "--planner",
        "usher,predicted-goodput",
    )
    lines = ran.out.splitlines()
    [title] = [at for at, line in enumerate(lines) if line.startswith("PLANNER")]
    assert lines[title].split("   ")[1:] != []
    assert "PROFILED GOODPUT" in lines[title]
    assert "PREDICTED IN TIME" in lines[title]
    assert [line.split()[:2] for line in lines[title + 1 :]] == [
        ["usher", "1200.00"],
        ["predicted-goodput", "1200.00"],
    ]


def _export(folder: Path, model: str, **changed: object) -> str:
    """A file as `profile --export` writes it."""
    spec = ModelSpec(ModelName.parse(model), "s3://bucket/m")
    points = (ProfilePoint(1, 0.01, 1 << 20), ProfilePoint(8, 0.04, 8 << 20))
    profile = Profile(spec.key, "CPU X", points, pairs=(PairFactor("default/other", 1.5),))
    document = profiles_document(
        spec, [profile], weights_bytes=600 << 20, memory_bytes={"CPU X": 1 << 30}
    )
    file = folder / f"{spec.name.name}.json"
    file.write_text(json.dumps(document | changed))
    return str(file)


def test_reads_exported_profiles_with_their_memory(cli: Cli, tmp_path: Path) -> None:
    files = [_export(tmp_path, each) for each in ("default/embed", "default/other")]
    rates = tmp_path / "rates.csv"
    rates.write_text("model,rps,slo_ms\nembed,50,500\ndefault/other,50,500\n")
    given = [part for file in files for part in ("--profiles", file)]
    ran = cli("place", *given, "--rates", str(rates), "--gpus", "CPU X:2", "--json")
    assert ran.status == 0, ran.err
    [plan] = ran.document["placements"]
    placed = {each["model"]: each["accelerator"] for each in plan["replicas"]}
    assert set(placed) == {"embed", "other"}
    assert len(set(placed.values())) == 2  # 600 MB of weights twice do not fit into 1 GiB
    assert plan["profiled_rps"] == 100


def test_an_export_that_is_wrong_names_each_mistake(cli: Cli, tmp_path: Path) -> None:
    file = _export(tmp_path, "default/embed", weights_bytes=-1, generation=7, profiles=[{}])
    rates = tmp_path / "rates.csv"
    rates.write_text("model,rps,slo_ms\nembed,50,500\n")
    ran = cli("place", "--profiles", file, "--rates", str(rates), "--gpus", "CPU X:1")
    assert ran.status == 2
    assert "weights_bytes must be bytes, 0 or more, was -1" in ran.err
    assert "profiles[0].accelerator must be a text" in ran.err


def test_a_plan_that_answers_late_is_remarked_on(cli: Cli) -> None:
    samples = ("--profiles", str(_SAMPLES / "profiles.csv"), "--rates", str(_SAMPLES / "rates.csv"))
    ran = cli("place", *samples, "--gpus", "cpu:2", "--planner", "usher,predicted-goodput")
    remarks = [line for line in ran.out.splitlines() if "are predicted in time" in line]
    assert len(remarks) == 1
    assert remarks[0].startswith("usher: all rates fit by its own measure, but only 6.55 of 15.50")
    assert "43.1 %" in ran.out
    assert " 0.00" not in ran.out  # nothing above capacity is a dash


def test_a_model_without_a_profile_is_not_told_of_the_profiles_of_others(
    cli: Cli, tmp_path: Path
) -> None:
    rates = tmp_path / "rates.csv"
    rates.write_text("model,rps,slo_ms\nlarge,1,150\nnobody,1,150\n")
    given = ("place", "--profiles", str(_PROFILES), "--rates", str(rates), "--gpus", "v100:1")
    assert "profiles are of other models only" in cli(*given).err


@pytest.mark.parametrize("planner", planner_names())
def test_the_samples_can_be_planned(cli: Cli, planner: str) -> None:
    if planner == "igniter":
        pytest.skip("the samples have no coefficients of iGniter")
    ran = cli(
        "place",
        "--profiles",
        str(_SAMPLES / "profiles.csv"),
        "--rates",
        str(_SAMPLES / "rates.csv"),
        "--gpus",
        "cpu:2",
        "--planner",
        planner,
        "--json",
    )
    assert ran.status == 0, ran.err
    [plan] = ran.document["placements"]
    assert plan["replicas"]


def test_a_csv_may_leave_out_throughput_and_compute(cli: Cli, tmp_path: Path) -> None:
    profiles, rates = tmp_path / "profiles.csv", tmp_path / "rates.csv"
    profiles.write_text("model,batch_size,latency_s,memory_pct\nembed,1,0.01,10\nembed,4,0.02,12\n")
    rates.write_text("model,rps,slo_ms\nembed,150,500\n")
    ran = cli(
        "place", "--profiles", str(profiles), "--rates", str(rates), "--gpus", "x:1", "--json"
    )
    [plan] = ran.document["placements"]
    assert (plan["profiled_rps"], plan["replicas"][0]["batch_size"]) == (150, 4)
    profiles.write_text("model,batch_size\nembed,1\n")
    ran = cli("place", "--profiles", str(profiles), "--rates", str(rates), "--gpus", "x:1")
    assert "must have the columns latency_s, memory_pct" in ran.err
    assert "achieved_occupancy_pct" in ran.err
