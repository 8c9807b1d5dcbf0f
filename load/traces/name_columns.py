"""Functions of a trace as numbers: a tenant and a name each, in order of first appearance."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from load.traces.batches import DEFAULT_TENANT, NameColumn

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SEPARATOR = "/"  # in no hash and no namespace


class Functions:
    """What is called; `tenant` stands for all where the source knows none."""

    def __init__(self, tenant: str = DEFAULT_TENANT) -> None:
        self._tenant = tenant
        self._pairs = NameColumn()
        self._tenants = NameColumn()
        self._models = NameColumn()
        self._tenant_of: list[int] = []
        self._model_of: list[int] = []

    def __len__(self) -> int:
        """How many there are."""
        return len(self._tenant_of)

    def numbered(self, models: pa.Array, tenants: pa.Array | None = None) -> NDArray[np.int32]:
        """The numbers of these functions, row by row."""
        if tenants is None:
            tenants = pa.array([self._tenant] * len(models), pa.string())
        codes = self._pairs.codes(pc.binary_join_element_wise(tenants, models, _SEPARATOR))
        if len(self._pairs) > len(self._tenant_of):
            self._learn(codes, tenants, models)
        return codes

    def of(self, batch: pa.RecordBatch) -> NDArray[np.int32]:
        """The numbers of what a batch of a trace calls."""
        tenants, models = (batch.column(name).dictionary_decode() for name in ("tenant", "model"))
        return self.numbered(models, tenants)

    def names(self) -> list[str]:
        """The full name of each, `tenant/name`."""
        return self._pairs.names()

    def _learn(self, codes: NDArray[np.int32], tenants: pa.Array, models: pa.Array) -> None:
        known = len(self._tenant_of)
        new, at = np.unique(codes, return_index=True)
        for index in at[new >= known]:
            self._tenant_of.append(self._tenants.code(tenants[int(index)].as_py()))
            self._model_of.append(self._models.code(models[int(index)].as_py()))

    def tenants(self, functions: NDArray[np.int32]) -> pa.DictionaryArray:
        """The tenant of each as a column."""
        return self._tenants.column(np.array(self._tenant_of, np.int32)[functions])

    def models(self, functions: NDArray[np.int32]) -> pa.DictionaryArray:
        """The name of each as a column."""
        return self._models.column(np.array(self._model_of, np.int32)[functions])
