"""`pilotlight forecast backtest`: table, JSON, invalid flags."""

from pathlib import Path

import pytest

from tests.pilotlight.conftest import Cli


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Three days of a model with a request every half hour."""
    rows = [f"{minute},m,1" for minute in range(0, 3 * 1440, 30)]
    path = tmp_path / "trace.csv"
    path.write_text("\n".join(["minute,model,count", *rows]))
    return path


def test_prints_one_json_document(cli: Cli, trace: Path) -> None:
    ran = cli(
        "forecast",
        "backtest",
        "--trace",
        str(trace),
        "--method",
        "typed",
        "--method",
        "naive",
        "--every",
        "97",
        "--json",
    )
    assert ran.status == 0
    document = ran.document
    assert document["trace"] == "trace.csv"
    assert document["origins"] == 18
    overall = {
        (each["method"], each["window_s"]): each
        for each in document["results"]
        if each["type"] == "all"
    }
    assert overall["typed", 60.0]["forecasts"] == 18
    assert overall["typed", 60.0]["brier"] < overall["naive", 60.0]["brier"]


def test_prints_a_table_and_finds_the_trace_in_the_data_folder(
    cli: Cli, trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PILOTLIGHT_DATA", str(trace.parent))
    ran = cli("forecast", "backtest", "--trace", trace.name, "--method", "typed", "--every", "200")
    assert ran.status == 0
    assert ran.out.splitlines()[0].split()[:3] == ["TYPE", "WINDOW", "METHOD"]
    assert "periodic" in ran.out


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--trace", "nowhere.csv"], "PILOTLIGHT_DATA is not set"),
        (["--method", "magic"], "--method must be one of typed"),
        (["--quantile", "1.5"], "probabilities must be"),
        (["--window", "60", "--window", "1"], "windows_s must be increasing"),
        (
            ["--from-day", "2", "--to-day", "1"],
            "first_minute must be positive and before last_minute",
        ),
        (["--from-day", "2.96"], "give an earlier --from-day"),
    ],
)
def test_reports_invalid_flags(cli: Cli, trace: Path, flags: list[str], expected: str) -> None:
    given = flags if "--trace" in flags else ["--trace", str(trace), *flags]
    ran = cli("forecast", "backtest", *given)
    assert ran.status == 2
    assert expected in ran.err
