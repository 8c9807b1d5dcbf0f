"""As much of S3 as the compared ways use, over files and `sendfile`: a server that is no limit.

`python -m benchmarks.storage.server PORT FOLDER [FIRST_BYTE_S BYTES_PER_S]`: HEAD, GET with ranges
and `If-Match`, a listing of a bucket. Signatures are not looked at. One process, a thread per
connection. With the last two it answers as late as a store that is far, and gives each connection
no more than so much.
"""

import hashlib
import re
import sys
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import BinaryIO
from urllib.parse import parse_qs, unquote, urlsplit

FOLDER = Path(sys.argv[2] if len(sys.argv) > 2 else ".").resolve()
FIRST_BYTE_S, BYTES_PER_S = map(float, sys.argv[3:5]) if len(sys.argv) > 4 else (0.0, 0.0)
PACED_BYTES = 256 * 1024


class Handler(BaseHTTPRequestHandler):
    """Answers one connection."""

    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        """Describe an object."""
        self._answer()

    def do_GET(self) -> None:
        """List a bucket, or send an object or a range of it."""
        if "list-type" in parse_qs(urlsplit(self.path).query):
            self._list()
        else:
            self._answer()

    def _answer(self) -> None:
        time.sleep(FIRST_BYTE_S)
        path = FOLDER / unquote(urlsplit(self.path).path).lstrip("/")
        if not path.is_file() or not path.resolve().is_relative_to(FOLDER):
            self._head(HTTPStatus.NOT_FOUND, {"Content-Length": "0"})
            return
        size, etag = path.stat().st_size, etag_of(path)
        if self.headers.get("If-Match", etag) != etag:
            self._head(HTTPStatus.PRECONDITION_FAILED, {"Content-Length": "0"})
            return
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        start, end = (int(asked[1]), size) if asked else (0, size)
        if asked and asked[2]:
            end = min(int(asked[2]) + 1, size)
        headers = {"Content-Length": str(end - start), "ETag": etag, "Accept-Ranges": "bytes"}
        if asked:
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
        self._head(HTTPStatus.PARTIAL_CONTENT if asked else HTTPStatus.OK, headers)
        if self.command == "GET":
            with path.open("rb") as source:
                self._send(source, start, end)

    def _send(self, source: BinaryIO, start: int, end: int) -> None:
        step = PACED_BYTES if BYTES_PER_S else max(1, end - start)
        begun_s = time.monotonic()
        for at in range(start, end, step):
            count = min(step, end - at)
            self.connection.sendfile(source, at, count)
            if BYTES_PER_S:
                due_s = begun_s + (at + count - start) / BYTES_PER_S
                time.sleep(max(0.0, due_s - time.monotonic()))

    def _list(self) -> None:
        parts = urlsplit(self.path)
        bucket = FOLDER / parts.path.strip("/")
        prefix = parse_qs(parts.query).get("prefix", [""])[0]
        rows = "".join(
            f"<Contents><Key>{key}</Key><Size>{path.stat().st_size}</Size>"
            f"<ETag>{etag_of(path)}</ETag></Contents>"
            for path in sorted(bucket.rglob("*"))
            if path.is_file() and (key := path.relative_to(bucket).as_posix()).startswith(prefix)
        )
        body = (
            '<?xml version="1.0"?><ListBucketResult'
            ' xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
            f"<IsTruncated>false</IsTruncated>{rows}</ListBucketResult>"
        ).encode()
        self._head(HTTPStatus.OK, {"Content-Length": str(len(body))})
        self.wfile.write(body)

    def _head(self, status: HTTPStatus, headers: dict[str, str]) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.flush()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def etag_of(path: Path) -> str:
    """What changes when a file does."""
    status = path.stat()
    text = f"{path}{status.st_size}{status.st_mtime_ns}"
    return f'"{hashlib.sha256(text.encode()).hexdigest()[:32]}"'


class Server(ThreadingHTTPServer):
    """Takes many connections at once."""

    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, *_: object) -> None:
        """A client that leaves is no news."""


if __name__ == "__main__":
    Server(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
