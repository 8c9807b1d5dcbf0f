"""Pictures of the console's pages, by a Chromium of this machine, without a window."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

BROWSERS: Final = ("chromium", "chromium-browser", "google-chrome", "chrome")
_TIMEOUT_S: Final = 30.0
_DRAWING_MS: Final = 3000
"""From the page's load to its picture: events and charts come meanwhile."""


@dataclass(frozen=True, slots=True)
class Page:
    """A page to take a picture of."""

    name: str
    path: str
    title: str
    height: int = 900


def find_browser() -> str | None:
    """The first installed one."""
    return next((found for each in BROWSERS if (found := shutil.which(each))), None)


async def take_pictures(
    gateway_url: str, pages: Sequence[Page], folder: Path, browser: str
) -> list[Page]:
    """Write `folder/NAME.png` for each page; those that were taken."""
    taken = []
    for page in pages:
        file = folder / f"{page.name}.png"
        if await _take(browser, f"{gateway_url}{page.path}", file, height=page.height):
            taken.append(page)
    return taken


async def _take(browser: str, url: str, file: Path, *, height: int) -> bool:
    with tempfile.TemporaryDirectory(prefix="pilotlight-browser-") as profile:
        process = await asyncio.create_subprocess_exec(
            browser, "--headless=new", "--disable-gpu", "--hide-scrollbars",
            *(["--no-sandbox"] if os.geteuid() == 0 else []),  # it refuses root otherwise
            f"--user-data-dir={profile}", f"--window-size=1280,{height}",
            f"--timeout={_DRAWING_MS}", f"--screenshot={file}", url,
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                await process.wait()
        except TimeoutError:
            return False
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, 9)  # its helpers too
                await process.wait()
    return process.returncode == 0 and file.exists()  # noqa: ASYNC240 - once
