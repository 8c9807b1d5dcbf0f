"""The demo's report in a folder: its page, and pictures by a real browser where there is one."""

import asyncio
from functools import partial
from http.server import SimpleHTTPRequestHandler
from pathlib import Path

import pytest

from pilotlight.demo.liu_runs import SHORT, Expectation
from pilotlight.demo.report import DemoReport, Page, find_browser, take_pictures, write_report_page
from tests.http_server import http_server

PAGE = Page("overview", "/page.html", "The overview")


def report(*pictures: Page) -> DemoReport:
    shown = Expectation("a <b> promise", is_met=False, seen="nothing")
    return DemoReport(1.0, 100.0, SHORT, [], [], [], [shown], pictures)


def test_the_page_shows_promises_and_pictures(tmp_path: Path) -> None:
    text = write_report_page(report(PAGE), [PAGE], tmp_path).read_text()
    assert "<td>a &lt;b&gt; promise</td><td>NO</td>" in text
    assert '<img src="overview.png"' in text
    assert "No Chromium" not in text
    assert "No Chromium was found" in write_report_page(report(), [], tmp_path).read_text()


@pytest.mark.slow
@pytest.mark.skipif(find_browser() is None, reason="needs Chromium")
def test_pictures_are_taken_of_pages_that_answer(tmp_path: Path) -> None:
    browser = find_browser()
    assert browser is not None
    (tmp_path / "page.html").write_text("<h1>here</h1>")
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with http_server(handler) as address:
        taken = asyncio.run(take_pictures(f"http://{address}", [PAGE], tmp_path, browser))
    assert taken == [PAGE]
    assert (tmp_path / "overview.png").read_bytes().startswith(b"\x89PNG")


def test_a_browser_that_fails_leaves_no_picture(tmp_path: Path) -> None:
    url = "http://127.0.0.1:1"
    assert asyncio.run(take_pictures(url, [PAGE], tmp_path, "/bin/false")) == []
