"""Checks of the settings of a model server, for pods and for `pilotlight up`."""

from __future__ import annotations

import shlex
from urllib.parse import urlsplit


def server_problems(*, url: str, command: str, repository: str, metrics: str) -> list[str]:
    """Mistakes in the settings, each a line that names the flag."""
    if not url and not command:
        return [
            f"--engine-{name} needs --engine-url or --engine-command"
            for name, value in (("repository", repository), ("metrics", metrics))
            if value
        ]
    if url and command:
        return ["--engine-url and --engine-command exclude each other"]
    problems = [
        f"--engine-{name} must be a URL such as http://127.0.0.1:8000, was {value!r}"
        for name, value in (("url", url), ("metrics", metrics))
        if value and not (name == "metrics" and command) and not _is_url(value)
    ]
    if url and not repository:
        problems.append(
            "--engine-url needs --engine-repository: the folder from which the server reads models"
        )
    return problems + (_command_problems(command) if command else [])


def _is_url(text: str) -> bool:
    """Whether the text is a URL of a server over plain HTTP."""
    try:
        parts = urlsplit(text)
        return parts.scheme == "http" and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _command_problems(command: str) -> list[str]:
    try:
        words = shlex.split(command)
    except ValueError as error:
        return [f"--engine-command cannot be read as a command: {error}"]
    text = " ".join(words)
    return [
        f"--engine-command must hold {name}, which the pod replaces, was {command!r}"
        for name in ("{port}", "{repository}")
        if name not in text
    ]
