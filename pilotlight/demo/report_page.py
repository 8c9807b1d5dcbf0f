"""The demo's report as a page in a folder: what was promised and shown, and pictures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jinja2 import Environment, PackageLoader

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pilotlight.demo.pictures import Page
    from pilotlight.demo.report import DemoReport


def write_report_page(report: DemoReport, pictures: Sequence[Page], folder: Path) -> Path:
    """Write `folder/index.html`, which shows the pictures beside it."""
    environment = Environment(
        loader=PackageLoader("pilotlight.demo"), autoescape=True, trim_blocks=True
    )
    template = environment.get_template("report.html")
    file = folder / "index.html"
    file.write_text(template.render(report=report, pictures=pictures), encoding="utf-8")
    return file
