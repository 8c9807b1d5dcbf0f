"""A web server that records who asked for what."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.http_server import Handler, http_server


@dataclass
class Web:
    """A server on a private address."""

    url: str
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])


@contextlib.contextmanager
def web(host: str = "127.0.0.1", redirect: str = "") -> Iterator[Web]:
    class Recording(Handler):
        def do_GET(self) -> None:
            headers = {key.lower(): value for key, value in self.headers.items()}
            made.requests.append((self.path, headers))
            if redirect:
                self.answer(302, headers={"location": redirect})
            else:
                self.answer(403)

    with http_server(Recording, host=host) as address:
        made = Web(f"http://{address}")
        yield made
