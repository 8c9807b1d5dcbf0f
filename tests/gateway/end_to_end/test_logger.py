"""A model's `logger` through a real gateway: its events, and requests that wait for none."""

import json
import threading
from collections.abc import Iterator

import pytest

from common.settings_table import read_settings
from gateway.pool import logger_rules
from gateway.settings import GatewaySettings
from registry.domain.model import ModelName, ModelSpec, RequestLog
from tests import servers
from tests.gateway.gateway_harness import GatewayHarness
from tests.http_server import Handler, http_server


class Receiver:
    def __init__(self) -> None:
        self.url = ""
        self.events: dict[str, bytes] = {}
        self.answers = threading.Event()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    kept = Receiver()

    class Events(Handler):
        def do_POST(self) -> None:
            kept.events[f"{self.headers['ce-type'].rpartition('.')[2]} {self.path}"] = self.body()
            kept.answers.wait(60)
            self.answer(200)

    with http_server(Events) as address:
        kept.url = f"http://{address}/log"
        try:
            yield kept
        finally:
            kept.answers.set()


@pytest.mark.parametrize(
    ("flags", "allowed"),
    [
        pytest.param([], True, id="open gateway"),
        pytest.param(["--logger-prefixes", "team=http://dumper/"], True, id="granted"),
        pytest.param(["--logger-prefixes", "other=http://dumper/"], False, id="others granted"),
    ],
)
def test_prefixes_bound_the_urls(flags: list[str], *, allowed: bool) -> None:
    settings = read_settings(GatewaySettings, flags, {}, prog="gateway")
    assert logger_rules(settings, is_guarded=False)("team", "http://dumper/x") is allowed


@pytest.mark.parametrize(
    ("url", "allowed"),
    [
        ("http://dumper.team/x", True),
        ("http://dumper.team.svc", True),
        ("http://dumper.team.svc.cluster.local:8080/", True),
        ("http://dumper/x", False),
        ("http://dumper.other.svc/x", False),
        ("http://team/x", False),
        ("http://x.dumper.team.svc/x", False),
        ("http://dumper.team@10.0.0.1/x", False),
        ("http://169.254.169.254/team", False),
    ],
)
def test_a_guarded_gateway_sends_to_services_of_the_models_namespace(
    url: str, *, allowed: bool
) -> None:
    settings = read_settings(GatewaySettings, [], {}, prog="gateway")
    assert logger_rules(settings, is_guarded=True)("team", url) is allowed


def test_requests_and_responses_are_events_and_wait_for_none(
    harness: GatewayHarness, receiver: Receiver
) -> None:
    spec = ModelSpec(
        ModelName("default", "logged"), "file:///logged", logger=RequestLog(receiver.url)
    )
    harness.run(lambda registry: registry.put_models([spec]))
    harness.wait_synced()
    harness.start_pods("pod-a", warm=spec)
    content = json.dumps({"instances": [1]}).encode()
    answered = harness.predict(spec, content)  # while the receiver answers nothing
    assert answered.status_code == 200
    servers.wait_until(
        lambda: receiver.events == {"request /log": content, "response /log": answered.content},
        what="events",
    )
    receiver.answers.set()
    servers.wait_until(
        lambda: harness.metric("pilotlight_gateway_logger_events_total", outcome="sent") == 2,
        what="events counted",
    )
