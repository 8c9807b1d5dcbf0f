"""What `predict` says of a request that is refused."""

from contextlib import AbstractContextManager

import pytest

from tests.http_server import Handler, http_server
from tests.pilotlight.conftest import Cli


def refusing(headers: dict[str, str]) -> AbstractContextManager[str]:
    """Address of a server that answers every request with 400."""

    class Refusing(Handler):
        def do_POST(self) -> None:
            self.body()
            body = b'{"error": "the model takes one tensor of shape [rows, 4]"}'
            self.answer(400, body, headers)

    return http_server(Refusing)


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
