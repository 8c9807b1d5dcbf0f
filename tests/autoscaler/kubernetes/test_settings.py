from __future__ import annotations

import pytest

from autoscaler.kubernetes.settings import ControllerSettings
from registry.settings_table import settings_from_fields


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
