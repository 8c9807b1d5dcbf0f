"""What a user learns of requests that fail: why, by model, and that a run is worth nothing."""

from pathlib import Path

import pytest

from tests.load.generator.conftest import LoadRun, WriteTrace
from tests.load.generator.odd_server import odd_server

pytestmark = pytest.mark.slow


def test_the_first_error_of_each_model_and_status_is_printed(
    load_run: LoadRun, write_trace: WriteTrace
) -> None:
    trace = write_trace(["plain", "busy", "wrong", "busy"], count=8, gap_s=0.0)
    with odd_server() as server:
        ran = load_run(trace, server.url)
    assert ran.status == 0, ran.err
    rows = [line.split() for line in ran.out.splitlines()]
    assert ["busy", "503", "4", "no", "room"] in rows
    assert ["wrong", "400", "2", "<p>not", "JSON"] in rows


def test_a_run_without_one_response_fails_and_keeps_its_summary(
    load_run: LoadRun, write_trace: WriteTrace
) -> None:
    trace = write_trace(["busy"], count=3, gap_s=0.0)
    with odd_server() as server:
        ran = load_run(trace, server.url, "--json")
    assert ran.status == 1
    assert ran.document["error"] == "all 3 requests failed"
    assert ran.document["by_status"] == {"503": 3}
    [failure] = ran.document["failures"]
    assert (failure["model"], failure["first_error"]) == ("busy", "HTTP 503: no room")
    assert load_run.output.exists()


@pytest.mark.parametrize("model", ["locked", "half-locked"])
def test_a_target_that_wants_a_key_says_how_to_give_one(
    load_run: LoadRun, write_trace: WriteTrace, model: str
) -> None:
    trace = write_trace([model], count=2, gap_s=0.0)
    with odd_server() as server:
        ran = load_run(trace, server.url)
        assert bool(server.requests) == (model == "half-locked")
    assert ran.status == 1
    hint = (
        "-n, or tenant=NAMESPACE in the trace, names the models' namespace;"
        " give --key or set PILOTLIGHT_KEY"
    )
    assert ran.err.rstrip().endswith(hint)


def test_the_key_is_sent_with_every_request_and_not_recorded(
    load_run: LoadRun, write_trace: WriteTrace
) -> None:
    trace = write_trace(["plain"], count=2, gap_s=0.0)
    with odd_server() as server:
        load_run.records(trace, server.url, "--key", "secret-of-red")
        assert server.credentials == {"Bearer secret-of-red"}
    assert b"secret-of-red" not in load_run.output.read_bytes()


def test_a_model_whose_metadata_has_no_inputs_needs_a_payload(
    load_run: LoadRun, write_trace: WriteTrace, tmp_path: Path
) -> None:
    trace = write_trace(["bare", "plain"], count=2, gap_s=0.0)
    body = tmp_path / "body.json"
    body.write_text('{"instances": [[1]]}')
    with odd_server() as server:
        ran = load_run(trace, server.url)
        assert server.requests == []
        assert ran.status == 2
        assert "default/bare: its metadata lists no inputs" in ran.err
        assert "--payload bare=FILE" in ran.err
        load_run.records(trace, server.url, "--payload", f"bare={body}")
