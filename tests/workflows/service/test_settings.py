"""Settings of a scheduler that contradict each other end it at its start."""

import subprocess
import sys

from common.settings_table import settings_from_fields
from tests import servers
from workflows.settings import SchedulerSettings, tls_problems


def test_a_gateway_url_without_tls_is_accepted() -> None:
    settings = settings_from_fields(SchedulerSettings, {"gateway_url": "http://gateway:8080"})
    assert tls_problems(settings) == []


def test_a_gateway_url_of_another_scheme_ends_the_scheduler() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "workflows", "--gateway-url", "https://gateway:8443"],
        cwd=servers.REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 2
    assert "--gateway-url must begin with http:// without --tls-dir" in ended.stderr
    assert "Traceback" not in ended.stderr
