"""A server of the Hugging Face Hub's protocol with one model, of which any repository is a copy.

python -m tests.kubernetes.hub --folder FOLDER --host 10.77.0.1 --port 9001
"""

from __future__ import annotations

import argparse
import hashlib
import json
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

COMMIT = "0" * 40


def handler(folder: Path) -> type[BaseHTTPRequestHandler]:
    """Serves `/api/models/ORG/NAME/…`, and `/ORG/NAME/resolve/REVISION/FILE`."""

    class Hub(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self._respond(has_body=False)

        def do_GET(self) -> None:
            self._respond(has_body=True)

        def _respond(self, *, has_body: bool) -> None:
            path = urlsplit(self.path).path
            _, _, name = path.partition("/resolve/")
            if path.startswith("/api/models/"):
                body = json.dumps(_listed(path, folder)).encode()
            elif (file := folder / name.rpartition("/")[2]).is_file():
                body = file.read_bytes()
            else:
                self.send_error(HTTPStatus.NOT_FOUND)
                return
            self.send_response(HTTPStatus.OK)
            self.send_header("content-type", "application/json" if not name else "binary/octet")
            self.send_header("content-length", str(len(body)))
            self.send_header("etag", f'"{hashlib.sha256(body).hexdigest()}"')
            self.send_header("x-repo-commit", COMMIT)
            self.end_headers()
            if has_body:
                self.wfile.write(body)

    return Hub


def _listed(path: str, folder: Path) -> object:
    """The files of a repository: of its `tree`, or of its newest revision."""
    files = sorted(folder.iterdir())
    if "/tree/" in path:
        return [
            {"type": "file", "path": each.name, "size": each.stat().st_size, "oid": COMMIT}
            for each in files
        ]
    siblings = [{"rfilename": each.name} for each in files]
    return {"id": "/".join(path.split("/")[3:5]), "sha": COMMIT, "siblings": siblings}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    given = parser.parse_args()
    ThreadingHTTPServer((given.host, given.port), handler(given.folder)).serve_forever()


if __name__ == "__main__":
    main()
