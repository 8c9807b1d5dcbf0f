"""Requests as a server receives them: payloads, host headers, and how many at a time."""

import base64
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from load.generator.settings import RunSettings
from tests.load.generator.conftest import LoadRun, WriteTrace
from tests.load.generator.odd_server import odd_server

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg=="
)


def test_payloads_are_sent_unchanged(
    load_run: LoadRun, write_trace: WriteTrace, tmp_path: Path
) -> None:
    whole, drawn = tmp_path / "body.json", tmp_path / "cat.png"
    whole.write_bytes(b'{ "instances" : [[1, 2.50]] }')
    drawn.write_bytes(PNG)
    models = ["whole", "drawn", "made", "words"]
    trace = write_trace(models, count=4, gap_s=0.01)
    with odd_server() as server:
        payloads = (f"default/whole={whole}", f"drawn={drawn}", "made=image")
        load_run.records(trace, server.url, *(f"--payload={each}" for each in payloads))
    paths = (request.split()[1] for request in server.requests)
    sent = dict(zip(paths, server.bodies, strict=True))
    assert set(sent) == {f"/v1/models/{model}:predict" for model in models}
    assert sent["/v1/models/whole:predict"] == whole.read_bytes()
    picture, words = ({"image_bytes": {"b64": base64.b64encode(PNG).decode()}}, str)
    assert json.loads(sent["/v1/models/drawn:predict"]) == {"instances": [picture] * 2}
    made = json.loads(sent["/v1/models/made:predict"])["instances"]
    assert [set(each["image_bytes"]) for each in made] == [{"b64"}] * 2
    assert picture not in made
    texts = json.loads(sent["/v1/models/words:predict"])["instances"]
    assert [type(text) for text in texts] == [words] * 2


def test_the_host_header_reaches_the_server(load_run: LoadRun, write_trace: WriteTrace) -> None:
    trace = write_trace(["a", "b"], count=4, gap_s=0.01, tenant="team")
    with odd_server() as server:
        load_run.records(trace, server.url, "--host-header", "{model}.{tenant}.example.com")
    hosts = {"a.team.example.com", "b.team.example.com"}
    assert {host for method, host in server.hosts if method == "POST"} == hosts
    assert {host for method, host in server.hosts if method == "GET"} >= hosts


def test_a_model_without_a_valid_host_is_refused_before_anything_is_sent(
    load_run: LoadRun, write_trace: WriteTrace
) -> None:
    trace = write_trace(["a", "ü b"], count=4, gap_s=0.01)
    with odd_server() as server:
        ran = load_run(trace, server.url, "--host-header", "{model}.example.com")
        assert server.requests == []
    assert ran.status == 2
    [line] = ran.err.splitlines()
    assert f"'ü b.example.com' is not a host name; it results from arrival 2 of {trace}" in line


@pytest.mark.slow
@pytest.mark.parametrize(
    ("processes", "most"), [pytest.param(3, 2, id="fewer"), pytest.param(2, 3, id="remainder")]
)
def test_processes_share_the_bound_on_requests_in_flight(
    load_run: LoadRun, write_trace: WriteTrace, processes: int, most: int
) -> None:
    trace = write_trace(["hold"], count=8, gap_s=0.0)
    with odd_server() as server:
        ran = load_run(
            trace, server.url, f"--processes={processes}", f"--max-in-flight={most}", "--timeout=1s"
        )
        assert server.requests_for("hold") == most
    assert ran.status == 1, ran.err  # none was answered
    sent = [row["sent_s"] is not None for row in parquet.read_table(load_run.output).to_pylist()]
    assert (len(sent), sum(sent)) == (8, most)
    assert ("2 of --processes 3 are used" in ran.err) == (processes > most)


@given(most=st.integers(1, 10_000), processes=st.integers(1, 256))
def test_shares_of_the_bound_add_up_and_differ_by_one_at_most(most: int, processes: int) -> None:
    settings = RunSettings("t", "u", processes=min(processes, most), max_in_flight=most)
    shares = [settings.worker_max_in_flight(worker) for worker in range(settings.processes)]
    assert sum(shares) == most
    assert 1 <= min(shares) <= max(shares) <= min(shares) + 1
