"""Fetches one model into a cache folder in a process of its own: CACHE URI [MOST_FILE_BYTES]."""

import resource
import sys
from pathlib import Path

from registry.domain.model import ModelName, ModelSpec
from runtime.errors import LoadFailed
from runtime.storage.ranged_download import Bandwidth
from runtime.storage.storages import Storages
from runtime.tiers.disk_cache import DiskCache


def main() -> int:
    folder, uri = Path(sys.argv[1]), sys.argv[2]
    if len(sys.argv) > 3:
        limit = int(sys.argv[3])
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    cache = DiskCache(folder, Storages(), Bandwidth(None))
    spec = ModelSpec(ModelName("default", "m"), uri)
    try:
        cache.fetch_assets(spec)
        cache.fetch_weights(spec)
    except LoadFailed as error:
        sys.stdout.write(f"{type(error).__name__}: {error}\n")
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
