"""The process of the controller."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from common.settings_table import settings_from_fields
from controller.settings import ControllerSettings

WARN_AFTER_A_START_WITHOUT_A_CLUSTER = """
import logging
from controller.main import main
try:
    main([])
except Exception:
    pass
logger = logging.getLogger("controller.controller")
logger.warning("failed; retrying", extra={"what": "model team/m"})
logging.getLogger("httpx").info("not shown")
"""


def test_fields_of_a_warning_are_in_the_log(tmp_path: Path) -> None:
    environment = {**os.environ, "KUBECONFIG": str(tmp_path / "none")}
    ended = subprocess.run(
        [sys.executable, "-c", WARN_AFTER_A_START_WITHOUT_A_CLUSTER],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    line = ended.stderr.splitlines()[-1]
    assert line.endswith("controller.controller: failed; retrying what=model team/m")


def test_accepts_a_url_template() -> None:
    settings = settings_from_fields(ControllerSettings, {"url": "https://{name}.{namespace}.test"})
    assert settings.url.format(namespace="team", name="m") == "https://m.team.test"


@pytest.mark.parametrize("url", ["http://x/{tenant}", "http://x/{", "http://x/{}"])
def test_rejects_other_placeholders(url: str) -> None:
    with pytest.raises(ValueError, match="no placeholders but"):
        settings_from_fields(ControllerSettings, {"url": url})


def test_watched_namespaces_have_those_of_pools_too() -> None:
    assert settings_from_fields(ControllerSettings, {}).watched_namespaces == ()
    named = {"namespace": "models", "watch_namespaces": "team-b, team-a"}
    settings = settings_from_fields(ControllerSettings, named)
    assert settings.watched_namespaces == ("models", "team-a", "team-b")
    settings = settings_from_fields(ControllerSettings, {**named, "pool_namespaces": "pools"})
    assert settings.watched_namespaces == ("pools", "team-a", "team-b")
