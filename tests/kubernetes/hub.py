"""A hub on an address of its own, where any repository is a copy of one model.

python -m tests.kubernetes.hub --folder FOLDER --host 10.77.0.1 --port 9001
"""

import argparse
from collections import defaultdict
from pathlib import Path
from signal import pause

from tests.hub import running_hub


class _Copies(defaultdict[str, dict[str, dict[str, bytes]]]):
    def __contains__(self, _: object) -> bool:
        return True


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    given = parser.parse_args()
    files = {each.name: each.read_bytes() for each in sorted(given.folder.iterdir())}
    with running_hub(_Copies(lambda: {"main": files}), address=(given.host, given.port)):
        pause()


if __name__ == "__main__":
    main()
