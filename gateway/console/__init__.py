"""The web console: its templates and static files, and how they write times and sizes.

The files are read when the gateway starts, which keeps to them while it runs: those that an
upgrade puts there belong to other code.
"""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from fastapi import Request, Response
from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

from gateway.telemetry import explanations

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


class Pages:
    def __init__(
        self, gateway: str, folder: Path = Path(__file__).parent, *, is_open: bool = False
    ) -> None:
        """`folder`: has `templates` and `assets`; `is_open`: other machines need no credential."""
        self.assets = {
            each.name: (each.read_bytes(), _MEDIA_TYPES[each.suffix])
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
        environment.filters |= _FILTERS
        environment.globals |= {"gateway": gateway, "is_open": is_open, "model_url": model_url}
        self._templates = {
            name: environment.get_template(name) for name in environment.list_templates()
        }

    def render(self, request: Request, template: str, status: int = 200, **values: Any) -> Response:
        values |= {"viewer": viewer_of(request), "page": template}
        text = self._templates[f"{template}.html"].render(values)
        return HTMLResponse(text, status, headers=HEADERS)


def viewer_of(request: Request) -> str | None:
    """A namespace, or None for operators."""
    viewer: str | None = request.scope["pilotlight.viewer"]
    return viewer


def model_url(name: str) -> str:
    return f"{PREFIX}/models/{quote(name)}"


def duration(seconds: float | None) -> str:
    """Such as `21 ms`, `1.4 s`, `3 min`; `-` for None."""
    if seconds is None:
        return "-"
    if seconds >= 120:
        return f"{seconds / 60:.0f} min"
    return explanations.duration(seconds)


def size(count: float | None) -> str:
    """Such as `242 MB`; `-` for None."""
    if count is None:
        return "-"
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def number(value: float | None) -> str:
    """Such as `0.382` or `1,240`; `-` for None."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def clock(at_s: float) -> str:
    """Time of day, UTC."""
    return time.strftime("%H:%M:%S", time.gmtime(at_s))


_FILTERS: Final[Mapping[str, Callable[..., Any]]] = {
    "duration": duration,
    "size": size,
    "number": number,
    "clock": clock,
}
