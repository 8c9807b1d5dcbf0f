"""A fork server of pods that tell which of the project's files they run: of one pod at a time.

`python -m tests.architecture.recording_pods SOCKET`: at a byte from its client it begins, and
at the next it writes the files as a line of JSON.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

from runtime.settings import RuntimeSettings
from tests.servers import REPOSITORY


class Recorder:
    def __init__(self) -> None:
        self._visited: set[str] | None = None

    def profile(self, frame: FrameType, event: str, _: Any) -> None:
        if self._visited is not None and event == "call":
            self._visited.add(frame.f_code.co_filename)

    def serve(self, listener: socket.socket) -> None:
        connection, _ = listener.accept()
        while connection.recv(1):
            self._visited = set()
            connection.sendall(b"\n")
            connection.recv(1)
            visited, self._visited = self._visited, None
            ours = [Path(each) for each in visited if each.startswith(f"{REPOSITORY}/")]
            names = sorted(each.relative_to(REPOSITORY).as_posix() for each in ours)
            connection.sendall(json.dumps(names).encode() + b"\n")


def main(place: str) -> int:
    sys.argv = sys.argv[:1]  # kserve reads the command line when it is imported
    from runtime import forkserver
    from runtime.pod import lifecycle

    run_pod = lifecycle.run_pod

    def run_recorded(settings: RuntimeSettings) -> int:
        recorder, listener = Recorder(), socket.socket(socket.AF_UNIX)
        listener.bind(place)
        listener.listen()
        threading.Thread(target=recorder.serve, args=[listener], daemon=True).start()
        threading.setprofile(recorder.profile)
        sys.setprofile(recorder.profile)
        return run_pod(settings)

    lifecycle.run_pod = run_recorded
    return forkserver.main()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
