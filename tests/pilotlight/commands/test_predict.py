"""What `predict` says of a request that is refused."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from tests.pilotlight.conftest import Cli


@contextmanager
def refusing(headers: dict[str, str]) -> Iterator[str]:
    """Address of a server that answers every request with 400."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = b'{"error": "the model takes one tensor of shape [rows, 4]"}'
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(400)
            for name, value in {**headers, "content-length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


BY_POD = {"x-pilotlight-predict-pod": "pod-0"}


@pytest.mark.parametrize(
    ("headers", "given", "hints"),
    [
        pytest.param(BY_POD, ["5,3,1,0"], True, id="text that the model does not take"),
        pytest.param(BY_POD, ["--data", '{"instances": []}'], False, id="a body of the user's"),
        pytest.param({}, ["text"], False, id="refused by the gateway"),
    ],
)
def test_a_text_that_the_model_refuses_leads_to_data(
    cli: Cli, headers: dict[str, str], given: list[str], hints: bool
) -> None:
    with refusing(headers) as address:
        ran = cli("predict", "iris", *given, "--gateway", address)
    assert ran.status == 1
    assert "the model takes one tensor" in ran.err
    assert ("give numbers with --data" in ran.err) is hints
