"""Settings of a model server that do not go together are named, all at once."""

import pytest

from runtime.engines.server_process import server_environment, server_problems

URL = "http://127.0.0.1:8000"
COMMAND = "mlserver start {repository} --port {port}"


def _problems(
    *, url: str = "", command: str = "", repository: str = "", metrics: str = "", programs: str = ""
) -> list[str]:
    return server_problems(
        url=url, command=command, repository=repository, metrics=metrics, programs=programs
    )


def test_what_goes_together_has_no_problems() -> None:
    assert not _problems()
    assert not _problems(url=URL, repository="/models", metrics=f"{URL}/metrics")
    assert not _problems(command=COMMAND, metrics="http://127.0.0.1:{metrics_port}/metrics")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        pytest.param({"url": URL}, "needs --engine-repository", id="url-alone"),
        pytest.param({"url": URL, "command": COMMAND}, "exclude", id="both"),
        pytest.param({"repository": "/m"}, "needs --engine-url or", id="repository-alone"),
        pytest.param({"url": URL, "programs": "python3"}, "exclude", id="server-and-engines"),
        pytest.param({"metrics": URL}, "--engine-metrics needs", id="metrics-alone"),
        pytest.param({"url": "localhost:8000", "repository": "/m"}, "must be a URL", id="no-url"),
        pytest.param({"url": "http://a:x", "repository": "/m"}, "must be a URL", id="bad-port"),
        pytest.param({"command": "mlserver start ."}, "must hold {port}", id="no-port"),
        pytest.param({"command": "run {port} '"}, "cannot be read", id="open-quote"),
    ],
)
def test_what_does_not_is_named(settings: dict[str, str], words: str) -> None:
    assert any(words in problem for problem in _problems(**settings))


def test_the_server_does_not_get_the_pods_credentials() -> None:
    environment = {"PATH": "/bin", "AWS_SECRET_ACCESS_KEY": "s", "PILOTLIGHT_REDIS_URL": "r"}
    assert server_environment(environment) == {"PATH": "/bin"}
