"""Serves a proxy of this folder: `python -m benchmarks.proxy.peers.serve MODULE PORT UPSTREAM`."""

import importlib
import sys

import uvicorn

if __name__ == "__main__":
    name, port, upstream = sys.argv[1:]
    app = importlib.import_module(f"benchmarks.proxy.peers.{name}").create_app(upstream)
    uvicorn.run(app, port=int(port), log_level="error", access_log=False, backlog=4096)
