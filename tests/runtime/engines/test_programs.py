"""Exported programs: equal to torch, and no code of an archive is ever run."""

import contextlib
import io
import pickle
import warnings
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from common.inference_protocol import InvalidRequest
from common.inference_protocol.tensors import Tensor, numeric_tensor
from runtime.engines.program import Program
from runtime.errors import ModelInvalid
from runtime.storage.listing import RemoteFile, asset_files
from runtime.tasks.processors import load_processor
from runtime.tasks.task import Batching
from runtime.tasks.tensor_task import TensorProgram
from runtime.weights.weight_source import DiskWeights
from tests.runtime import archives
from tests.runtime.archives import CONSTANTS, PROGRAM, SAMPLE_INPUTS, WEIGHTS, changed, edited
from tests.runtime.networks import load_network
from tests.tiny_models import make_model

ROWS = ({0: torch.export.Dim("rows", max=64)},)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The archive of `make-model tiny-program`."""
    return make_model("tiny-program", tmp_path_factory.mktemp("program")) / "model.pt2"


class Loaded:
    """A program with its weights."""

    def __init__(self, archive: Path) -> None:
        folder = archive.parent
        processor = load_processor(folder, None)
        assert isinstance(processor, TensorProgram)
        self.processor = processor
        self.network: Program = load_network(folder)

    def run(self, *inputs: Tensor) -> list[np.ndarray[Any, Any]]:
        outputs = self.processor.infer(self.network, self.processor.batching.validate(inputs))
        return [tensor.data for tensor in outputs]

    def joins(self) -> bool:
        with torch.inference_mode():
            self.processor.warm_up(self.network)
        return self.network.are_rows_independent


def tensor(name: str, values: Any, dtype: type = np.float32) -> Tensor:
    return numeric_tensor(name, np.asarray(values, dtype=dtype))


def features(rows: int) -> Tensor:
    values = np.random.default_rng(rows).standard_normal((rows, 4))
    return tensor("features", values)


class Everything(torch.nn.Module):
    """Tied, transposed and constant weights, blocks, sizes, views, lists, several outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(10, 4)
        self.layer = torch.nn.Linear(4, 10, bias=False)
        self.layer.weight = self.embedding.weight
        self.turned = torch.nn.Parameter(torch.randn(4, 3).t())
        self.convolution = torch.nn.Conv2d(1, 2, 3)
        turned = self.convolution.weight.data.to(memory_format=torch.channels_last)
        self.convolution.weight.data = turned
        self.scale: torch.Tensor
        self.register_buffer("scale", torch.arange(10.0), persistent=False)
        self.shift = torch.tensor([1.0, -1.0])

    def forward(self, ids: torch.Tensor, pictures: torch.Tensor) -> Any:
        with torch.no_grad():
            vectors = self.embedding(ids)
        first, second = torch.split(self.layer(vectors) * self.scale, 5, dim=-1)
        values, places = torch.max(first, dim=-1)
        filled = torch.empty_like(second)
        filled.copy_(second)
        channels = self.convolution(pictures).mean((2, 3)) + self.shift
        padding = torch.zeros(ids.shape[0] * 2, 2, dtype=torch.float64)
        turned = vectors @ self.turned.t()
        return {
            "best": (values, places),
            "channels": channels.to(torch.bfloat16),
            "rest": torch.nan_to_num(filled, float("inf")) + turned.sum(-1, keepdim=True),
            "double": padding,
        }


def test_program_equals_torch(tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = Everything().eval()
    rows = torch.export.Dim("rows", max=64)
    ids, pictures = torch.randint(0, 10, (3, 6)), torch.randn(3, 1, 8, 8)
    archive = archives.export(
        network, tmp_path / "model.pt2", ids, pictures, dynamic=({0: rows}, {0: rows})
    )
    program = Loaded(archive)
    ids, pictures = torch.randint(0, 10, (5, 6)), torch.randn(5, 1, 8, 8)
    with torch.no_grad():
        expected = network(ids, pictures)
    outputs = program.run(tensor("ids", ids, np.int64), tensor("pictures", pictures))
    named = dict(zip([o["name"] for o in program.processor.output_types()], outputs, strict=True))
    assert sorted(named) == ["best.0", "best.1", "channels", "double", "rest"]
    for name, value in (
        ("best.0", expected["best"][0]),
        ("best.1", expected["best"][1]),
        ("channels", expected["channels"].float()),
        ("rest", expected["rest"]),
        ("double", expected["double"]),
    ):
        assert np.allclose(named[name], value.numpy(), atol=1e-6), name
    assert program.processor.input_types() == [
        {"name": "ids", "datatype": "INT64", "shape": [-1, 6]},
        {"name": "pictures", "datatype": "FP32", "shape": [-1, 1, 8, 8]},
    ]


def test_weights_with_several_names_are_mapped_once(tmp_path: Path) -> None:
    network = Everything().eval()
    archive = archives.export(
        network, tmp_path / "m.pt2", torch.zeros(2, 6, dtype=torch.int64), torch.randn(2, 1, 8, 8)
    )
    held = {parameter.untyped_storage().data_ptr(): parameter for parameter in network.parameters()}
    expected = sum(parameter.untyped_storage().nbytes() for parameter in held.values())
    constants = network.scale.nbytes + network.shift.nbytes
    source = DiskWeights([archive])
    source.close()
    assert sum(each.size_bytes for each in source.layout.tensors) == expected + constants


class Centred(torch.nn.Module):
    """Every row depends on the others; the shapes do not show it."""

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return features - features.mean(0)


def test_batches_requests_with_independent_rows(sound: Path) -> None:
    assert Loaded(sound).joins()


def test_does_not_batch_requests_with_dependent_rows(tmp_path: Path) -> None:
    archive = archives.export(Centred(), tmp_path / "m.pt2", torch.randn(3, 4), dynamic=ROWS)
    assert not Loaded(archive).joins()


def test_program_with_fixed_sizes_is_not_batched(tmp_path: Path) -> None:
    program = Loaded(archives.export(Centred(), tmp_path / "m.pt2", torch.randn(3, 4)))
    assert not program.joins()
    batching: Batching = program.processor.batching
    assert batching.max_rows == 1
    assert batching.batch_key([features(3)], program.network) is None
    assert program.run(features(3))[0].shape == (3, 4)


def test_a_batch_gives_each_request_its_own_rows(sound: Path) -> None:
    program = Loaded(sound)
    requests = [program.processor.batching.validate([features(rows)]) for rows in (1, 2, 3)]
    joined = program.processor.batching.join(requests)
    parts = program.processor.batching.split(
        program.processor.infer(program.network, joined), [1, 2, 3]
    )
    for request, part in zip(requests, parts, strict=True):
        for one, other in zip(program.run(*request), part, strict=True):
            assert np.allclose(one, other.data, atol=1e-6)


@pytest.mark.parametrize("least", [None, 1])
def test_a_request_may_have_no_rows_unless_the_export_says_otherwise(
    least: int | None, tmp_path: Path
) -> None:
    rows = torch.export.Dim("rows", min=least, max=64)
    archive = archives.export(
        torch.nn.Linear(4, 2), tmp_path / "m.pt2", torch.randn(3, 4), dynamic=({0: rows},)
    )
    program = Loaded(archive)
    if least:
        with pytest.raises(InvalidRequest, match=r"\[1 to 64, 4\], was \[0, 4\]"):
            program.run(tensor("input", np.ones((0, 4))))
        return
    assert program.joins()
    empty = tensor("input", np.ones((0, 4)))
    assert program.run(empty)[0].shape == (0, 2)
    batching = program.processor.batching
    assert batching.rows_of([empty]) == 1, "times and batches are counted per row"
    assert batching.batch_key([empty], program.network) is None


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        pytest.param(
            [tensor("wrong", np.ones((1, 4)))], r"\['features'\], got \['wrong'\]", id="name"
        ),
        pytest.param([features(1), tensor("b", [1])], "got", id="one too many"),
        pytest.param([], "got", id="none"),
        pytest.param(
            [tensor("features", np.ones((1, 4)), np.float64)], "must be FP32, was FP64", id="type"
        ),
        pytest.param([features(257)], r"\[1 to 256, 4\], was \[257, 4\]", id="too many rows"),
        pytest.param([tensor("features", np.ones((0, 4)))], r"was \[0, 4\]", id="no rows"),
        pytest.param([tensor("features", np.ones((1, 5)))], r"was \[1, 5\]", id="size"),
        pytest.param([tensor("features", np.ones(4))], r"was \[4\]", id="dimensions"),
        pytest.param([tensor("features", [[np.nan] * 4])], "held NaN", id="nan"),
    ],
)
def test_refuses_invalid_tensors(sound: Path, inputs: Sequence[Tensor], message: str) -> None:
    processor = load_processor(sound.parent, None)
    with pytest.raises(InvalidRequest, match=message):
        processor.batching.validate(inputs)


def test_inputs_may_be_named_by_position(sound: Path) -> None:
    processor = load_processor(sound.parent, None)
    given = tensor("INPUT__0", np.ones((1, 4)))
    assert processor.batching.validate([given])[0].name == "features"


class Pair(torch.nn.Module):
    def forward(self, ids: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.embedding(ids, torch.eye(3)) + values


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = torch.export.Dim("rows", max=64)
    return archives.export(
        Pair(),
        tmp_path_factory.mktemp("pair") / "m.pt2",
        torch.zeros(2, dtype=torch.int64),
        torch.zeros(2, 3),
        dynamic=({0: rows}, {0: rows}),
    )


def test_sizes_must_agree_between_inputs(pair: Path) -> None:
    ids, values = tensor("ids", [0, 1], np.int64), tensor("values", np.ones((3, 3)))
    with pytest.raises(InvalidRequest, match="its 3 must be 2"):
        load_processor(pair.parent, None).batching.validate([ids, values])


def test_tensors_refused_by_the_program_are_invalid_input(pair: Path) -> None:
    ids, values = tensor("ids", [7], np.int64), tensor("values", np.ones((1, 3)))
    with pytest.raises(InvalidRequest, match="refused these tensors: index out of range"):
        Loaded(pair).run(ids, values)


def test_v1_instances_become_tensors(sound: Path, pair: Path) -> None:
    single, double = load_processor(sound.parent, None), load_processor(pair.parent, None)
    (given,) = single.read_instances([[1, 2, 3, 4], [5, 6, 7, 8]])
    assert (given.name, given.datatype, given.shape) == ("features", "FP32", (2, 4))
    ids, values = double.read_instances([{"ids": 2, "values": [1, 2, 3]}])
    assert (ids.datatype, ids.shape, values.shape) == ("INT64", (1,), (1, 3))


@pytest.mark.parametrize(
    ("instances", "message"),
    [
        pytest.param([], "1 to 1024", id="none"),
        pytest.param([[1, 2], [1]], "different lengths", id="ragged"),
        pytest.param([["a"]], "values of datatype FP32", id="text"),
        pytest.param([{"x": 1}], r"must be an object with \['features'\]", id="name"),
        pytest.param([1, [2]], "mixes|values of datatype", id="mixed"),
    ],
)
def test_refuses_invalid_instances(sound: Path, instances: list[Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        load_processor(sound.parent, None).read_instances(instances)


class WritesWhenLoaded(torch.nn.Module):
    """A part of a model whose state is restored by code, which can open any file."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path
        self.register_buffer("weight", torch.ones(1))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return values * self.weight

    @torch.jit.export
    def __getstate__(self) -> tuple[torch.Tensor, str, bool]:
        return self.weight, self.path, self.training

    @torch.jit.export
    def __setstate__(self, state: tuple[torch.Tensor, str, bool]) -> None:
        self.path, self.training = state[1], state[2]
        written = torch.from_file(self.path, True, 4, dtype=torch.uint8)
        self.weight = state[0] + written.fill_(65).sum()


class Outer(torch.nn.Module):
    def __init__(self, path: str) -> None:
        super().__init__()
        self.part = WritesWhenLoaded(path)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        part: torch.Tensor = self.part(values)
        return part


def test_refuses_torchscript_since_loading_it_runs_its_code(tmp_path: Path) -> None:
    touched, script = tmp_path / "touched", tmp_path / "m" / "model.pt"
    script.parent.mkdir()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.script(Outer(str(touched))).save(script)  # type: ignore[no-untyped-call]  # torch
        torch.jit.load(script)  # type: ignore[no-untyped-call]  # as it ships
    assert touched.read_bytes() == b"AAAA"  # written by torch.jit.load alone
    touched.unlink()
    renamed = script.with_name("model.pt2")
    with zipfile.ZipFile(script) as source, zipfile.ZipFile(renamed, "w") as target:
        for entry in source.infolist():
            target.writestr(entry.filename, source.read(entry))
    with pytest.raises(ModelInvalid, match="TorchScript and pickled models are not served"):
        asset_files([RemoteFile(script.name, script.stat().st_size)], "s3://models/m")
    with pytest.raises(ModelInvalid, match="is a TorchScript archive"):
        Loaded(renamed)
    assert not touched.exists()


def pickled(value: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def test_torch_itself_runs_a_pickle_in_an_archive(sound: Path, tmp_path: Path) -> None:
    """The reason for the tests below; this fails once torch stops doing so."""
    content = pickled(archives.TouchFile(tmp_path / "touched"))
    archive = changed(
        sound, tmp_path / "m.pt2", lambda records: records.update({SAMPLE_INPUTS: content})
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with contextlib.suppress(Exception):  # the unpickled value is not a tuple of inputs
            torch.export.load(archive)
    assert (tmp_path / "touched").exists()


def test_never_reads_pickled_sample_inputs(sound: Path, tmp_path: Path) -> None:
    content = pickled(archives.TouchFile(tmp_path / "touched"))
    archive = changed(
        sound, tmp_path / "m" / "m.pt2", lambda records: records.update({SAMPLE_INPUTS: content})
    )
    assert Loaded(archive).run(features(2))[0].shape == (2, 3)
    assert not (tmp_path / "touched").exists()


def test_never_evaluates_sizes(sound: Path, tmp_path: Path) -> None:
    code = f"__import__('os').mkdir({str(tmp_path / 'touched')!r})"

    def edit(document: Any) -> None:
        values = document["graph_module"]["graph"]["tensor_values"]
        values["features"]["sizes"][0]["as_expr"]["expr_str"] = code

    archive = changed(sound, tmp_path / "m" / "m.pt2", edited(PROGRAM, edit))
    assert Loaded(archive).run(features(2))[0].shape == (2, 3)
    assert not (tmp_path / "touched").exists()


def with_pickled_weight(path: Path) -> Callable[[dict[str, bytes]], None]:
    def edit(document: Any) -> None:
        next(iter(document["config"].values()))["use_pickle"] = True

    def change(records: dict[str, bytes]) -> None:
        edited(WEIGHTS, edit)(records)
        records["data/weights/weight_0"] = pickled(archives.TouchFile(path))

    return change


def with_object(prefix: str, path: Path) -> Callable[[dict[str, bytes]], None]:
    def edit(document: Any) -> None:
        document["config"]["o"] = {
            "path_name": f"{prefix}0",
            "is_param": False,
            "use_pickle": True,
            "tensor_meta": None,
        }

    def change(records: dict[str, bytes]) -> None:
        edited(CONSTANTS, edit)(records)
        records[f"data/constants/{prefix}0"] = pickle.dumps(archives.TouchFile(path))

    return change


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(with_pickled_weight, id="weight"),
        pytest.param(lambda path: with_object("custom_obj_", path), id="custom object"),
        pytest.param(lambda path: with_object("opaque_obj_", path), id="opaque object"),
    ],
)
def test_refuses_archives_that_need_unpickling(
    sound: Path, tmp_path: Path, make: Callable[[Path], Callable[[dict[str, bytes]], None]]
) -> None:
    archive = changed(sound, tmp_path / "m" / "m.pt2", make(tmp_path / "touched"))
    with pytest.raises(ModelInvalid, match=r"pickled .* nothing is unpickled"):
        Loaded(archive)
    assert not (tmp_path / "touched").exists()


@pytest.mark.parametrize(
    "target",
    [
        "torch.os.mkdir",
        "torch.load",
        "torch.ops.aten.from_file.default",
        "torch.ops.aten.empty_strided.default",
        "torch.ops.aten._sparse_coo_tensor_unsafe.default",
        "torch.ops.aten.add.out",
        "torch.ops.aten.add.__class__",
        "torch.ops.profiler._record_function_enter_new.default",
        "torch.ops.higher_order.cond",
        "_operator.pow",
        "math.__loader__",
        "#namespace:op",
    ],
)
def test_allows_only_operators_on_tensors(sound: Path, tmp_path: Path, target: str) -> None:
    def edit(document: Any) -> None:
        archives.nodes_of(document)[0]["target"] = target

    archive = changed(sound, tmp_path / "m" / "m.pt2", edited(PROGRAM, edit))
    with pytest.raises(ModelInvalid, match="is not supported"):
        Loaded(archive)


@pytest.mark.parametrize("target", ["math.floor", "torch.sym_max", "torch.ops.aten.add.Tensor"])
def test_names_of_an_archive_never_become_code(sound: Path, tmp_path: Path, target: str) -> None:
    """Graphs are compiled from text: an inserted name could hold any code."""
    code = f"a=__import__('os').mkdir({str(tmp_path / 'touched')!r}), b"

    def edit(document: Any) -> None:
        first = archives.nodes_of(document)[0]
        given = {"arg": {"as_tensor": {"name": "features"}}, "kind": 1}
        injected = {"name": code, "arg": {"as_int": 1}, "kind": 2}
        node = {"target": target, "inputs": [given, injected], "outputs": [], "name": code}
        node["outputs"] = [{"as_tensor": {"name": code}}]
        document["graph_module"]["graph"]["nodes"].insert(0, {**first, **node})

    archive = changed(sound, tmp_path / "m" / "m.pt2", edited(PROGRAM, edit))
    with contextlib.suppress(InvalidRequest, ModelInvalid):
        Loaded(archive).run(features(2))
    assert not (tmp_path / "touched").exists()


class Leaks(torch.nn.Module):
    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return torch.empty(1000, 1000)[: features.shape[0]]


def test_never_exposes_uninitialised_memory(tmp_path: Path) -> None:
    archive = archives.export(Leaks(), tmp_path / "m.pt2", torch.randn(3, 4), dynamic=ROWS)
    program = Loaded(archive)
    torch.full((1000, 1000), 7.0)  # memory that the allocator would reuse next
    assert not program.run(features(3))[0].any()


class Counts(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.count: torch.Tensor
        self.register_buffer("count", torch.zeros(1, 4))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        self.count.view(4).add_(1)
        return features + self.count


def test_refuses_programs_that_write_to_their_weights(tmp_path: Path) -> None:
    archive = archives.export(Counts(), tmp_path / "m.pt2", torch.randn(3, 4))
    with pytest.raises(ModelInvalid, match="writes to its own weights"):
        Loaded(archive)


def _drop_weight(records: dict[str, bytes]) -> None:
    del records["data/weights/weight_0"]


def _shorten_weight(records: dict[str, bytes]) -> None:
    records["data/weights/weight_0"] = records["data/weights/weight_0"][:-4]


def _compile(records: dict[str, bytes]) -> None:
    records["data/aotinductor/model/wrapper.so"] = b"code"


def _be_torchscript(records: dict[str, bytes]) -> None:
    records["code/__torch__.py"] = b"code"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param(_drop_weight, "has no data/weights/weight_0", id="a weight is missing"),
        pytest.param(_shorten_weight, "needs .* bytes", id="a weight is cut"),
        pytest.param(_compile, "compiled code", id="compiled"),
        pytest.param(_be_torchscript, "TorchScript is not served", id="torchscript"),
        pytest.param(lambda records: records.pop(PROGRAM), "has 0", id="no program"),
        pytest.param(
            lambda records: records.update({PROGRAM: b"{"}), "not valid JSON", id="not json"
        ),
        pytest.param(
            lambda records: records.update({PROGRAM: b"[]"}), "must be an object", id="no object"
        ),
        pytest.param(
            edited(PROGRAM, lambda d: d["schema_version"].update(major=9)),
            "schema version",
            id="new",
        ),
        pytest.param(
            edited(PROGRAM, lambda d: d["graph_module"].pop("signature")), "signature", id="cut"
        ),
        pytest.param(
            edited(PROGRAM, lambda d: archives.nodes_of(d).clear()),
            "graph cannot be read",
            id="node",
        ),
    ],
)
def test_refuses_incomplete_archives(
    sound: Path, tmp_path: Path, change: Callable[[dict[str, bytes]], None], message: str
) -> None:
    archive = changed(sound, tmp_path / "m" / "m.pt2", change)
    with pytest.raises(ModelInvalid, match=message):
        Loaded(archive)


def test_refuses_compressed_archives(sound: Path, tmp_path: Path) -> None:
    archive = changed(sound, tmp_path / "m" / "m.pt2", lambda records: None, compress=True)
    with pytest.raises(ModelInvalid, match="compressed"):
        Loaded(archive)


@pytest.mark.parametrize("keep", [0, 10, 3000, -30])
def test_refuses_truncated_archives(sound: Path, tmp_path: Path, keep: int) -> None:
    archive = tmp_path / "m.pt2"
    archive.write_bytes(sound.read_bytes()[:keep])
    with pytest.raises(ModelInvalid, match=r"not a complete archive|has 0"):
        Loaded(archive)
