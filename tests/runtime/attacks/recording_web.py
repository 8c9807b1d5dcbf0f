"""A web server that records who asked for what."""

import contextlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Web:
    """A server on a private address that records who asked for what."""

    def __init__(self, host: str, redirect: str = "") -> None:
        self.requests: list[tuple[str, dict[str, str]]] = []
        web = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                headers = {key.lower(): value for key, value in self.headers.items()}
                web.requests.append((self.path, headers))
                if redirect:
                    self.send_response(302)
                    self.send_header("location", redirect)
                else:
                    self.send_response(403)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Keep the tests' output quiet."""

        self.server = ThreadingHTTPServer((host, 0), Handler)
        self.port = int(self.server.server_address[1])
        self.url = f"http://{host}:{self.port}"


@contextlib.contextmanager
def web(host: str = "127.0.0.1", redirect: str = "") -> Iterator[Web]:
    made = Web(host, redirect)
    thread = threading.Thread(target=made.server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield made
    finally:
        made.server.shutdown()
        thread.join()
        made.server.server_close()
