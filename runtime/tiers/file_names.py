"""Models' keys as names of files and folders, and back."""

from __future__ import annotations

import re

NAME = re.compile(r"^[^~/]+~[^~/]+@[^~/]+$")


def name_of(key: str) -> str:
    """The name that a model's folder has, and its files begin with."""
    return key.replace("/", "~")


def key_of(name: str) -> str | None:
    """The key of the model that a folder has this name for; None: it is nobody's, or not ours.

    A volume's root may hold `lost+found`, and people put files where they like.
    """
    return name.replace("~", "/") if NAME.match(name) else None
