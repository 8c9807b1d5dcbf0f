"""`console`: the address of a gateway's console."""

from tests.pilotlight.conftest import Cli


def test_prints_the_address_of_a_gateway(cli: Cli) -> None:
    ran = cli("console", "--gateway", "localhost:8080")
    assert ran.out == "http://localhost:8080/console\n"


def test_with_a_key_it_says_how_to_sign_in(cli: Cli) -> None:
    ran = cli("console", "--gateway", "localhost:8080", "--key", "secret", "--json")
    assert ran.document == {"console": "http://localhost:8080/console"}
    assert "sign in there with the namespace" in ran.err
