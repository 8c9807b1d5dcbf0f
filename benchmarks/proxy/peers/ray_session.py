"""Ray Serve on loopback until SIGTERM; runs in the peers' environment."""

import contextlib
import signal
import threading
from collections.abc import Iterator

import ray  # type: ignore[import-not-found]  # lives in the peers' environment
from ray import serve


@contextlib.contextmanager
def serving(port: int, folder: str) -> Iterator[None]:
    """The block runs the applications; after it this waits for SIGTERM. `folder`: Ray's files."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    ray.init(
        num_cpus=4,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=100 << 20,
        _temp_dir=folder,
    )
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    yield
    stop.wait()
    serve.shutdown()
    ray.shutdown()
