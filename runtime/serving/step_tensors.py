"""Inputs and outputs of workflows' steps: references instead of data.

Tier 1: the tensor is kept here, and is used as it is. Tier 2: another pod keeps it, whose memory is
mapped if it runs on this node; else its raw bytes are fetched. Everything else, such as texts and
small outputs, is in the body.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from common.inference_protocol import InvalidRequest
from common.inference_protocol.bodies import (
    EncodedBody,
    V2Request,
    encode_response,
    find_references,
    select_outputs,
)
from common.inference_protocol.encodings import from_raw, raw_bytes, raw_size
from common.inference_protocol.tensors import (
    BF16,
    BYTES,
    MAX_IDENTITIES,
    REFERENCE_FLAG,
    Tensor,
    TensorReference,
    TensorSpec,
)
from registry.domain.estimates import (
    KEPT_OVER_BYTES,
    TRANSFERS,
    TransferTier,
    size_class,
    transfer_measure,
)
from runtime.errors import InputLost
from runtime.measurements import Measurements
from runtime.metrics import KEPT_TENSOR_READS
from runtime.serving.block_exchange import BlockClient
from runtime.serving.remote_inference import RemoteInference
from runtime.serving.repository import ModelCatalog
from runtime.serving.tensor_store import TensorStore
from runtime.wire import RequestHead


@dataclass(frozen=True, slots=True)
class StepRun:
    """The run of a step."""

    namespace: str
    identity: str


@dataclass(frozen=True, slots=True)
class StepTensors:
    address: str
    """`host:port` of this pod."""
    store: TensorStore
    remote: RemoteInference
    catalog: ModelCatalog
    blocks: BlockClient | None = None
    """Of the node's other pods; None: this pod shares no memory."""
    measurements: Measurements | None = None
    """Gets the times of transfers; None: nobody wants them."""

    async def find_inputs(self, head: RequestHead, body: bytes) -> Mapping[str, Tensor]:
        """The kept tensors that a V2 body refers to. Raises InputLost, InvalidRequest."""
        if head.run is None or REFERENCE_FLAG not in body:
            return {}
        by_address: dict[str, dict[str, TensorSpec]] = {}
        for reference, spec in find_references(body, head.v2_header_length):
            if spec.datatype == BYTES:
                raise InvalidRequest(f"{spec.path}: only numbers are kept, not {BYTES}")
            by_address.setdefault(reference.address, {})[reference.identity] = spec
        run = StepRun(head.model.namespace, head.run)
        found = await asyncio.gather(
            *(self._find_at(address, run, wanted) for address, wanted in by_address.items())
        )
        return {identity: tensor for tensors in found for identity, tensor in tensors.items()}

    async def _find_at(
        self, address: str, run: StepRun, wanted: Mapping[str, TensorSpec]
    ) -> dict[str, Tensor]:
        """Tensors that one pod keeps, by identity."""
        if address == self.address:
            return {
                identity: self._find_here(run, identity, spec) for identity, spec in wanted.items()
            }
        path = next(iter(wanted.values())).path
        if not await self.catalog.is_pod(address):
            raise InputLost(f"{path}: pod {address} is not registered (any more)")
        mapped = await self._map(address, run, wanted)
        missing = [identity for identity in wanted if identity not in mapped]
        return mapped | await self._fetch(address, run, {name: wanted[name] for name in missing})

    def _find_here(self, run: StepRun, identity: str, spec: TensorSpec) -> Tensor:
        tensor = self.store.find(run.namespace, run.identity, identity)
        if tensor is None:
            raise InputLost(f"{spec.path}: this pod does not keep the tensor (any more)")
        KEPT_TENSOR_READS.labels(tier=TransferTier.SAME_POD).inc()
        return tensor

    async def _map(
        self, address: str, run: StepRun, wanted: Mapping[str, TensorSpec]
    ) -> dict[str, Tensor]:
        """Those that are in memory that this pod can map."""
        if self.blocks is None:
            return {}
        started_s = time.monotonic()
        blocks = await self.blocks.fetch(address, run.namespace, run.identity, list(wanted))
        KEPT_TENSOR_READS.labels(tier=TransferTier.SHARED_MEMORY).inc(len(blocks))
        tensors = {
            identity: _tensor(address, wanted[identity], memoryview(block), is_stored=True)
            for identity, block in blocks.items()
        }
        self._measure(TransferTier.SHARED_MEMORY, tensors, started_s)
        return tensors

    async def _fetch(
        self, address: str, run: StepRun, wanted: Mapping[str, TensorSpec]
    ) -> dict[str, Tensor]:
        """The raw bytes of tensors. Raises InputLost."""
        found: dict[str, Tensor] = {}
        specs = list(wanted.items())
        for first in range(0, len(specs), MAX_IDENTITIES):
            some = specs[first : first + MAX_IDENTITIES]
            identities = ",".join(identity for identity, _ in some)
            path = f"/v2/tensors/{run.namespace}/{run.identity}/{identities}"
            sizes = [raw_size(spec) for _, spec in some]
            started_s = time.monotonic()
            parts = await self.remote.fetch_tensors(address, path, sizes)
            KEPT_TENSOR_READS.labels(tier=TransferTier.RAW_BYTES).inc(len(parts))
            tensors = {
                identity: _tensor(address, spec, part)
                for (identity, spec), part in zip(some, parts, strict=True)
            }
            self._measure(TransferTier.RAW_BYTES, tensors, started_s)
            found |= tensors
        return found

    def _measure(self, tier: TransferTier, tensors: Mapping[str, Tensor], started_s: float) -> None:
        """The time of one exchange with another pod, by the size of all that came with it."""
        if tensors and self.measurements is not None:
            size_bytes = sum(tensor.data.nbytes for tensor in tensors.values())
            seconds = time.monotonic() - started_s
            self.measurements.add(
                TRANSFERS, transfer_measure(tier, size_class(size_bytes)), seconds
            )

    def encode_outputs(
        self,
        head: RequestHead,
        request: V2Request,
        on_size: Callable[[int], object],
        outputs: Sequence[Tensor],
    ) -> EncodedBody:
        """The response to a step, whose large outputs are kept as long as there is room.

        `on_size` gets the size of the outputs in bytes, perhaps in another thread.
        """
        kept = {}
        size_bytes = 0
        for tensor, _ in select_outputs(outputs, request):
            size_bytes += _size_bytes(tensor)
            reference = self._keep(head, tensor)
            if reference is not None:
                kept[tensor.name] = reference
        on_size(size_bytes)
        return encode_response(
            outputs, model_name=head.response_model_name, request=request, kept=kept
        )

    def _keep(self, head: RequestHead, tensor: Tensor) -> TensorReference | None:
        if head.run is None or tensor.datatype == BYTES or tensor.host_bytes <= KEPT_OVER_BYTES:
            return None
        identity = self.store.keep(
            head.model.namespace, head.run, tensor, expires_s=head.deadline_s
        )
        if identity is None:
            return None
        return TensorReference(identity, self.address, raw_bytes(tensor))


def _size_bytes(tensor: Tensor) -> int:
    if tensor.datatype == BYTES:
        return sum(map(len, tensor.data.ravel()))
    return tensor.host_bytes


def _tensor(
    address: str, spec: TensorSpec, content: memoryview, *, is_stored: bool = False
) -> Tensor:
    """`is_stored`: in the form of numpy's array, which for BF16 is float32. Raises InputLost."""
    try:
        if is_stored and spec.datatype == BF16:
            return Tensor(spec.name, BF16, from_raw(content, replace(spec, datatype="FP32")).data)
        return from_raw(content, spec)
    except InvalidRequest as error:
        raise InputLost(f"pod {address} keeps another tensor: {error}") from error
