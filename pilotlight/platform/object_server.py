"""A read-only S3 server over a folder: each folder in the root is a bucket, each file an object.

Sample models lie there as plain files, so nothing is uploaded at start and nothing is held in
memory: bodies go from the page cache to the socket by `sendfile`. On loopback and without
signatures: for one machine only. Run as `python -m pilotlight.platform.object_server`.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import socketserver
import sys
import threading
from dataclasses import dataclass
from email.utils import formatdate
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path, PurePosixPath
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

_RANGE = re.compile(r"bytes=(\d*)-(\d*)")
_NAMESPACE = 'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'
_PAGE = 1000


@dataclass(frozen=True, slots=True)
class Span:
    """The bytes `first` up to and with `last` of an object."""

    first: int
    last: int


def parse_range(header: str, size: int) -> Span | None:
    """The span that one `Range` header asks for; None where it cannot be satisfied."""
    found = _RANGE.fullmatch(header.strip())
    if found is None or found[1] == found[2] == "":
        return None
    if found[1] == "":
        first, last = max(0, size - int(found[2])), size - 1
    else:
        first = int(found[1])
        last = min(int(found[2]) if found[2] else size - 1, size - 1)
    return Span(first, last) if first <= last else None


def list_keys(bucket: Path, prefix: str) -> list[str]:
    """All keys of a bucket under a prefix, in order; hidden files are no objects."""
    keys = []
    for folder, folders, files in os.walk(bucket, followlinks=True):
        folders[:] = [name for name in folders if not name.startswith(".")]
        base = PurePosixPath(Path(folder).relative_to(bucket).as_posix())
        keys += [str(base / name) for name in files if not name.startswith(".")]
    return sorted(key for key in keys if key.startswith(prefix))


class ObjectServer(ThreadingHTTPServer):
    """Serves one root folder; a thread per connection."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], root: Path) -> None:
        super().__init__(address, _Handler)
        self.root = root

    def server_bind(self) -> None:
        """Bind without http.server's look-up of the host's name, which may wait for a resolver."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]


class _Handler(BaseHTTPRequestHandler):
    """One connection; understands the S3 calls that read."""

    protocol_version = "HTTP/1.1"
    server: ObjectServer
    disable_nagle_algorithm = True
    timeout = 120

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        bucket, _, key = unquote(parts.path).lstrip("/").partition("/")
        if not bucket:
            self._list_buckets()
        elif self._path(bucket, "") is None:
            self._fail(HTTPStatus.NOT_FOUND, "NoSuchBucket", f"there is no bucket {bucket!r}")
        elif key:
            self._object(bucket, key)
        else:
            self._list_objects(bucket, parse_qs(parts.query, keep_blank_values=True))

    do_HEAD = do_GET

    def _refuse(self) -> None:
        self.close_connection = True
        text = f"this store is read-only: copy files into {self.server.root} instead"
        self._fail(HTTPStatus.METHOD_NOT_ALLOWED, "MethodNotAllowed", text)

    do_PUT = do_POST = do_DELETE = _refuse

    def _path(self, bucket: str, key: str) -> Path | None:
        parts = [bucket, *key.split("/")] if key else [bucket]
        if any(part.startswith(".") or part == "" or "\0" in part for part in parts):
            return None
        path = self.server.root.joinpath(*parts)
        return path if (path.is_file() if key else path.is_dir()) else None

    def _object(self, bucket: str, key: str) -> None:
        path = self._path(bucket, key)
        if path is None:
            self._fail(HTTPStatus.NOT_FOUND, "NoSuchKey", f"there is no object {key!r}")
            return
        with path.open("rb") as file:
            facts = os.fstat(file.fileno())
            etag = f'"{facts.st_mtime_ns:x}-{facts.st_size:x}"'
            if self.headers.get("If-Match", etag) not in {etag, "*"}:
                self._fail(HTTPStatus.PRECONDITION_FAILED, "PreconditionFailed", "it has changed")
                return
            wanted = self.headers.get("Range")
            span = parse_range(wanted, facts.st_size) if wanted else Span(0, facts.st_size - 1)
            if span is None:
                self._fail(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, "InvalidRange", str(wanted))
                return
            self.send_response(HTTPStatus.PARTIAL_CONTENT if wanted else HTTPStatus.OK)
            self.send_header("Content-Type", "binary/octet-stream")
            self.send_header("Accept-Ranges", "bytes")
            self.send_header("ETag", etag)
            self.send_header("Last-Modified", formatdate(facts.st_mtime, usegmt=True))
            if wanted:
                self.send_header("Content-Range", f"bytes {span.first}-{span.last}/{facts.st_size}")
            count = span.last - span.first + 1
            self.send_header("Content-Length", str(count))
            self.end_headers()
            if self.command != "HEAD" and count:
                self.wfile.flush()
                self.connection.sendfile(file, span.first, count)

    def _list_objects(self, bucket: str, query: dict[str, list[str]]) -> None:
        def asked(name: str, default: str = "") -> str:
            return query.get(name, [default])[0]

        if "location" in query:
            self._xml(f"<LocationConstraint {_NAMESPACE}>us-east-1</LocationConstraint>")
            return
        prefix, delimiter = asked("prefix"), asked("delimiter")
        after = asked("continuation-token") or asked("start-after") or asked("marker")
        page = min(int(asked("max-keys") or _PAGE), _PAGE) if asked("max-keys").isdigit() else _PAGE
        bucket_path = self.server.root / bucket
        rows: list[str] = []
        groups: list[str] = []
        last, cut = "", False
        for key in list_keys(bucket_path, prefix):
            rest = key[len(prefix) :]
            group = prefix + rest.split(delimiter)[0] + delimiter if (
                delimiter and delimiter in rest) else ""  # fmt: skip
            entry = group or key
            if entry <= after or (group and group in groups):
                continue
            if len(rows) + len(groups) >= page:
                cut = True
                break
            last = entry
            if group:
                groups.append(group)
            else:
                rows.append(_contents(bucket_path / key, key))
        more = f"<NextContinuationToken>{escape(last)}</NextContinuationToken>" if cut else ""
        self._xml(
            f"<ListBucketResult {_NAMESPACE}><Name>{escape(bucket)}</Name>"
            f"<Prefix>{escape(prefix)}</Prefix><MaxKeys>{page}</MaxKeys>"
            f"<KeyCount>{len(rows) + len(groups)}</KeyCount>"
            f"<IsTruncated>{'true' if cut else 'false'}</IsTruncated>{more}{''.join(rows)}"
            + "".join(f"<CommonPrefixes><Prefix>{escape(group)}</Prefix></CommonPrefixes>"
                      for group in groups)
            + "</ListBucketResult>"
        )  # fmt: skip

    def _list_buckets(self) -> None:
        names = sorted(
            path.name
            for path in self.server.root.iterdir()
            if path.is_dir() and not path.name.startswith(".")
        )
        rows = "".join(
            f"<Bucket><Name>{escape(name)}</Name>"
            "<CreationDate>2025-01-01T00:00:00.000Z</CreationDate></Bucket>"
            for name in names
        )
        self._xml(
            f"<ListAllMyBucketsResult {_NAMESPACE}><Buckets>{rows}</Buckets>"
            "</ListAllMyBucketsResult>"
        )

    def _fail(self, status: HTTPStatus, code: str, message: str) -> None:
        text = escape(message)
        self._xml(f"<Error><Code>{code}</Code><Message>{text}</Message></Error>", status)

    def _xml(self, text: str, status: HTTPStatus = HTTPStatus.OK) -> None:
        body = f'<?xml version="1.0" encoding="UTF-8"?>\n{text}'.encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Keep quiet: one line a request would fill the log."""


def _contents(path: Path, key: str) -> str:
    facts = path.stat()
    etag = escape(f'"{facts.st_mtime_ns:x}-{facts.st_size:x}"')
    return (
        f"<Contents><Key>{escape(key)}</Key><Size>{facts.st_size}</Size><ETag>{etag}</ETag>"
        "<LastModified>2025-01-01T00:00:00.000Z</LastModified>"
        "<StorageClass>STANDARD</StorageClass></Contents>"
    )


def main() -> int:
    """Serve until SIGTERM."""
    parser = argparse.ArgumentParser(prog="python -m pilotlight.platform.object_server")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--root", type=Path, required=True)
    arguments = parser.parse_args()
    server = ObjectServer((arguments.host, arguments.port), arguments.root)
    signal.signal(
        signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown, daemon=True).start()
    )
    with server:
        server.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
