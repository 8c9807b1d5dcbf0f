"""A hub of models on this machine, with as much of the Hugging Face Hub's API as downloads use."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from urllib.parse import unquote

from tests.http_server import Handler, http_server

_PATH = re.compile(
    r"/(?P<repo>[^/]+/[^/]+)/(?P<what>revision|tree|resolve)/(?P<rev>[^/]+)/?(?P<file>.*)"
)


@dataclass
class Hub:
    """Files by repository and revision; all revisions of a repository have their own files."""

    files: Mapping[str, Mapping[str, Mapping[str, bytes]]]
    token: str = ""
    """What requests must carry; empty: nothing."""
    url: str = ""
    requests: list[str] = field(default_factory=list)

    def sha(self, repo: str, revision: str) -> str:
        return hashlib.sha1(f"{repo}@{revision}".encode()).hexdigest()

    def revision(self, repo: str, name: str) -> str | None:
        """The revision's name, which may be given as its commit."""
        known = self.files[repo]
        return next((each for each in known if name in (each, self.sha(repo, each))), None)


class _Handler(Handler):
    def __init__(self, hub: Hub, *arguments: object) -> None:
        self.hub = hub
        super().__init__(*arguments)  # type: ignore[arg-type]  # the server's own

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        hub, path = self.hub, unquote(self.path.partition("?")[0])
        hub.requests.append(f"{self.command} {path}")
        if hub.token and self.headers.get("authorization") != f"Bearer {hub.token}":
            self.answer(401, b"{}", {"x-error-code": "GatedRepo", "x-error-message": "no token"})
            return
        match = _PATH.fullmatch(path.removeprefix("/api/models"))
        repo = match["repo"] if match else path.removeprefix("/api/models/")
        if repo not in hub.files:
            self.answer(404, b"{}", {"x-error-code": "RepoNotFound"})
            return
        revision = hub.revision(repo, match["rev"] if match else "main")
        if revision is None:
            self.answer(404, b"{}", {"x-error-code": "RevisionNotFound"})
            return
        files, sha = hub.files[repo][revision], hub.sha(repo, revision)
        if match is None or match["what"] == "revision":
            siblings = [{"rfilename": name} for name in files]
            self._json({"_id": "1", "id": repo, "modelId": repo, "sha": sha, "siblings": siblings})
        elif match["what"] == "tree":
            self._json(
                [
                    {"type": "file", "path": name, "size": len(content), "oid": _oid(content)}
                    for name, content in files.items()
                ]
            )
        elif match["file"] in files:
            content = files[match["file"]]
            headers = {"etag": f'"{_oid(content)}"', "x-repo-commit": sha, "accept-ranges": "bytes"}
            self.answer(200, content, headers)
        else:
            self.answer(404, b"", {"x-error-code": "EntryNotFound"})

    def _json(self, document: object) -> None:
        self.answer(200, json.dumps(document).encode(), {"content-type": "application/json"})


def _oid(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()


@contextmanager
def running_hub(
    files: Mapping[str, Mapping[str, Mapping[str, bytes]]],
    *,
    token: str = "",
    address: tuple[str, int] = ("127.0.0.1", 0),
) -> Iterator[Hub]:
    """A hub with the files of {repository: {revision: {path: content}}}."""
    hub = Hub(files, token)
    with http_server(partial(_Handler, hub), host=address[0], port=address[1]) as served:
        hub.url = f"http://{served}"
        yield hub
