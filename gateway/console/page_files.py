"""Templates and static files of the console, read when the gateway starts.

A running gateway keeps to them: files that an upgrade replaces belong to other code.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from fastapi import Request, Response
from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

from gateway.console.text import FILTERS

PREFIX: Final = "/console"
_MEDIA_TYPES: Final = {".css": "text/css", ".js": "text/javascript"}
HEADERS: Final = {
    "cache-control": "no-store",
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src 'self' data:; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


class Asset(NamedTuple):
    content: bytes
    media_type: str


class Pages:
    """Renders templates."""

    def __init__(self, gateway: str, folder: Path = Path(__file__).parent) -> None:
        """`folder`: has `templates` and `assets`."""
        self._assets = {
            each.name: Asset(each.read_bytes(), _MEDIA_TYPES[each.suffix])
            for each in folder.joinpath("assets").iterdir()
            if each.suffix in _MEDIA_TYPES
        }
        environment = Environment(
            loader=FileSystemLoader(folder / "templates"),
            auto_reload=False,
            autoescape=select_autoescape(default=True, default_for_string=True),
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        environment.filters |= FILTERS
        environment.globals |= {"gateway": gateway, "model_url": model_url}
        self._templates = {
            name: environment.get_template(name) for name in environment.list_templates()
        }

    def asset(self, name: str) -> Asset | None:
        return self._assets.get(name)

    def render(self, request: Request, template: str, status: int = 200, **values: Any) -> Response:
        values |= {"viewer": viewer_of(request), "page": template}
        text = self._templates[f"{template}.html"].render(values)
        return HTMLResponse(text, status, headers=HEADERS)


def viewer_of(request: Request) -> str | None:
    """A namespace, or None for operators."""
    viewer: str | None = request.scope["pilotlight.viewer"]
    return viewer


def model_url(name: str) -> str:
    """The page of the model `namespace/name`."""
    return f"{PREFIX}/models/{quote(name)}"
