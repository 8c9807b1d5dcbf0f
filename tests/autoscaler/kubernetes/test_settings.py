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
