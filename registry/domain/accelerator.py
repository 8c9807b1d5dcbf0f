"""Accelerators, and the share of one that a pod has.

A profile applies to one product; an estimate of a duration to one product and share.
"""

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Accelerator:
    """A GPU, a MIG instance of one, or the CPU of a pod's machine."""

    uuid: str = ""
    """Pods with one UUID share its memory; empty for a CPU, where each pod has its own."""
    product: str = ""
    """Name from the driver or the operating system; empty: not reported."""
    memory_bytes: int = 0
    """Memory of the whole accelerator; for a CPU, of the machine or container."""
    cores: int = 0
    """Multiprocessors of a GPU, cores of a CPU that the pod may use."""


@dataclass(frozen=True, slots=True)
class GpuReading:
    """What the driver says of a GPU; of all its processes together. None: it does not say."""

    busy_pct: float | None = None
    """Part of the last sample period in which a kernel ran."""
    used_bytes: int | None = None
    temperature_c: float | None = None
    xid: int = 0
    """The driver's code of the last error since the pod started; 0: none."""


class AcceleratorKind(NamedTuple):
    """Product and share: pods of one kind need the same time for the same work."""

    product: str = ""
    """Empty: not reported, by a pod of an older version."""
    share: float = 1.0
    """Part of a GPU's compute, in (0, 1], to four digits."""

    def __str__(self) -> str:
        """`product|share`, as in Redis; empty for the default kind."""
        return f"{self.product}|{self.share:g}" if self.product or self.share != 1 else ""

    @classmethod
    def parse(cls, text: str) -> "AcceleratorKind":
        """Read `product|share`; raises ValueError."""
        product, _, share = text.rpartition("|")
        return cls(product, float(share)) if text else cls()
