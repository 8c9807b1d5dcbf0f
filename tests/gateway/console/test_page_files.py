"""Templates and static files are those of the start."""

import shutil
from pathlib import Path

from starlette.requests import Request

import gateway.console
from gateway.console import Pages

SOURCE = Path(gateway.console.__file__).parent


def test_a_running_gateway_keeps_the_pages_it_started_with(tmp_path: Path) -> None:
    folder = tmp_path / "console"
    shutil.copytree(SOURCE, folder)
    pages = Pages("gateway-1", folder)
    shutil.rmtree(folder)
    request = Request({"type": "http", "headers": [], "pilotlight.viewer": None})
    rendered = pages.render(request, "api", description="what it is", groups={})
    assert b"what it is" in rendered.body
    assert b"gateway-1" in rendered.body  # of the base that it extends
    for name in ("console.css", "console.js", "uplot.min.js"):
        assert pages.assets[name][0] == (SOURCE / "assets" / name).read_bytes()
    assert "uplot.LICENSE" not in pages.assets
