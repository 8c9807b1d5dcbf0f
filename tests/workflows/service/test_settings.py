"""Settings of a scheduler that contradict each other end it at its start."""

import subprocess
import sys

import pytest

from common.settings_table import settings_from_fields
from tests import servers
from workflows.plan.problem import PodGroup
from workflows.settings import SchedulerSettings, parse_pod_group, tls_problems


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


def test_a_group_of_pods_is_a_number_of_several() -> None:
    assert parse_pod_group("3/4") == PodGroup(3, 4)


@pytest.mark.parametrize("text", ["", "1", "4/4", "-1/4", "0/0", "a/b", "1/2/3", "1 of 2"])
def test_what_is_no_group_of_pods_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"such as 0/4, was"):
        parse_pod_group(text)
