"""What a pod and its processes of pickled estimators exchange.

A frame is the lengths of a JSON head and of a body, then both; tensors are V2's.
"""

from __future__ import annotations

import struct
from typing import Final

LENGTHS: Final = struct.Struct(">IQ")
MAX_HEAD_BYTES: Final = 64 * 1024
HEADER_LENGTH: Final = "header_length"
