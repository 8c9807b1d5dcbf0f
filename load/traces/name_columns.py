"""Names as dictionary-encoded columns, with one growing dictionary for all batches of a trace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from load.traces.batches import DEFAULT_TENANT

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray


class NameColumn:
    """Names numbered in order of first appearance."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._codes: dict[str, int] = {}
        self._dictionary = pa.array([], pa.string())
        for name in names:
            self.code(name)

    def __len__(self) -> int:
        return len(self._codes)

    def names(self) -> list[str]:
        """All names, by number."""
        return list(self._codes)

    def code(self, name: str) -> int:
        """The number of `name`, assigned at its first use."""
        return self._codes.setdefault(name, len(self._codes))

    def codes(self, names: pa.Array) -> NDArray[np.int32]:
        """The numbers of a plain string column without nulls."""
        encoded = names.dictionary_encode()
        code_of = np.array([self.code(name) for name in encoded.dictionary.to_pylist()], np.int32)
        codes: NDArray[np.int32] = code_of[encoded.indices.to_numpy(zero_copy_only=False)]
        return codes

    def column(self, codes: NDArray[np.int32]) -> pa.DictionaryArray:
        """The names of `codes` as a column of `TRACE_SCHEMA`."""
        if len(self._dictionary) != len(self._codes):
            self._dictionary = pa.array(list(self._codes), pa.string())
        return pa.DictionaryArray.from_arrays(pa.array(codes, pa.int32()), self._dictionary)


class ModelIndex:
    """Pairs of tenant and model, numbered in order of first appearance."""

    def __init__(self, tenant: str = DEFAULT_TENANT) -> None:
        """`tenant` is that of all models of a source without tenants."""
        self._tenant = tenant
        self._pairs, self._tenants, self._models = NameColumn(), NameColumn(), NameColumn()
        self._tenant_of: list[int] = []
        self._model_of: list[int] = []

    def codes(self, models: pa.Array, tenants: pa.Array | None = None) -> NDArray[np.int32]:
        """The numbers of the pairs, row by row; names hold no slash."""
        owners = pa.scalar(self._tenant) if tenants is None else tenants
        codes = self._pairs.codes(pc.binary_join_element_wise(owners, models, "/"))
        if len(self._pairs) > len(self._tenant_of):
            for pair in self._pairs.names()[len(self._tenant_of) :]:
                tenant, _, model = pair.partition("/")
                self._tenant_of.append(self._tenants.code(tenant))
                self._model_of.append(self._models.code(model))
        return codes

    def columns(self, codes: NDArray[np.int32]) -> dict[str, Any]:
        """The columns `tenant` and `model` of `arrival_batch`."""
        return {
            "tenant": self._tenants.column(np.array(self._tenant_of, np.int32)[codes]),
            "model": self._models.column(np.array(self._model_of, np.int32)[codes]),
        }
