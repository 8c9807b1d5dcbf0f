"""Text to text by task: prefixes, parameters and languages, as in transformers' pipelines."""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from common.inference_protocol import InvalidRequest
from common.inference_protocol.bodies import decode_request, encode_request
from common.inference_protocol.tensors import Tensor, bytes_tensor, numeric_tensor
from registry.domain.model import Task
from runtime.errors import ModelInvalid
from runtime.tasks.processors import load_processor
from runtime.tasks.task import Processor
from tests.runtime.conftest import Cluster
from tests.runtime.http import predict
from tests.runtime.networks import load_network

FRENCH = {"text": "the quick fox", "source_lang": "en", "target_lang": "fr"}


def t5(models: Path, folder: Path, **config: Any) -> Path:
    """A copy of tiny-t5 with other fields in its configuration."""
    shutil.copytree(models / "tiny-t5", folder)
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **config}))
    return folder


def input_ids(processor: Processor, *instances: Any) -> list[list[int]]:
    ids: list[list[int]] = processor.preprocess(processor.read_instances(instances))[
        0
    ].data.tolist()
    return ids


class TestTasks:
    @pytest.mark.parametrize(
        ("instance", "text"),
        [
            pytest.param(FRENCH, "translate English to French: the quick fox", id="languages"),
            pytest.param(
                {"text": "the quick fox", "task": "summarization"},
                "summarize: the quick fox",
                id="task",
            ),
            pytest.param({"text": "the quick fox"}, "the quick fox", id="none"),
        ],
    )
    def test_text_has_the_prefix_of_its_task(self, models: Path, instance: Any, text: str) -> None:
        processor = load_processor(models / "tiny-t5", None)
        assert input_ids(processor, instance) == input_ids(processor, text)

    def test_default_task_is_that_of_the_pipeline(self, models: Path, tmp_path: Path) -> None:
        tasks = {"text2text-generation": {"prefix": "ask: "}, "summarization": {}}
        folder = t5(models, tmp_path / "m", prefix="say: ", task_specific_params=tasks)
        processor = load_processor(folder, None)
        plain = load_processor(models / "tiny-t5", None)
        assert input_ids(processor, "a fox") == input_ids(plain, "ask: a fox")
        summary = {"text": "a fox", "task": "summarization"}
        assert input_ids(processor, summary) == input_ids(plain, "say: a fox")

    def test_parameters_of_the_task_are_those_of_the_generation(
        self, models: Path, tmp_path: Path
    ) -> None:
        wide = {"num_beams": 3, "min_new_tokens": 2, "max_new_tokens": 2, "num_labels": 7}
        folder = t5(models, tmp_path / "m", task_specific_params={"wide": wide})
        processor, network = load_processor(folder, None), load_network(folder)
        inputs = processor.preprocess(processor.read_instances([{"text": "fox", "task": "wide"}]))
        found = processor.infer(network, processor.batching.validate(inputs))
        ids = torch.from_numpy(inputs[0].data)
        expected = network.generate(input_ids=ids, num_beams=3, min_new_tokens=2, max_new_tokens=2)
        assert found[0].data.tolist() == expected.tolist()
        assert expected.tolist() != network.generate(input_ids=ids).tolist()

    @pytest.mark.parametrize(
        "fields",
        [
            pytest.param({"prefix": 3}, id="prefix"),
            pytest.param({"task_specific_params": ["a"]}, id="a-list"),
            pytest.param({"task_specific_params": {"a": "b"}}, id="no-parameters"),
            pytest.param({"task_specific_params": {"a": {"prefix": []}}}, id="prefix-of-a-task"),
            pytest.param({"task_specific_params": {"a": {"num_beams": 0}}}, id="no-beams"),
            pytest.param({"task_specific_params": {"a": {"max_length": "9"}}}, id="a-string"),
            pytest.param({"task_specific_params": {"a": {"early_stopping": 1}}}, id="no-flag"),
        ],
    )
    def test_invalid_parameters_make_the_model_invalid(
        self, models: Path, tmp_path: Path, fields: dict[str, Any]
    ) -> None:
        with pytest.raises(ModelInvalid, match=r"config\.json"):
            load_processor(t5(models, tmp_path / "m", **fields), None)


class TestBadRequests:
    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            pytest.param(
                {"task": "dance"}, "task must be one of .*summar.*, was 'dance'", id="task"
            ),
            pytest.param(
                {"source_lang": "en", "target_lang": "xx"},
                "not translate from 'en' to 'xx'; it has translation_en_to_de, .*_to_fr",
                id="pair",
            ),
            pytest.param({"target_lang": "fr"}, "needs 'source_lang' too", id="one-language"),
            pytest.param({"source_lang": "en"}, "needs 'target_lang' too", id="the-other"),
            pytest.param(
                {**FRENCH, "task": "summarization"}, "'task', or 'source_lang' and", id="both"
            ),
            pytest.param({"source_lang": 3}, "'source_lang' must be a string, was 3", id="number"),
            pytest.param({"src_lang": "en"}, "unknown fields.*src_lang.*source_lang", id="name"),
            pytest.param({"text": None}, "must be a string or an object with a", id="no-text"),
        ],
    )
    def test_are_refused_with_what_is_allowed(
        self, models: Path, fields: dict[str, Any], message: str
    ) -> None:
        processor = load_processor(models / "tiny-t5", None)
        with pytest.raises(InvalidRequest, match=message):
            processor.preprocess(processor.read_instances([{"text": "a fox", **fields}]))

    def test_model_without_tasks_has_no_languages(self, models: Path, tmp_path: Path) -> None:
        processor = load_processor(t5(models, tmp_path / "m", task_specific_params=None), None)
        with pytest.raises(InvalidRequest, match="one fixed task, without languages"):
            input_ids(processor, FRENCH)

    @pytest.mark.parametrize(
        ("tensors", "message"),
        [
            pytest.param([bytes_tensor("src_lang", [b"en"])], "were also.*src_lang", id="name"),
            pytest.param([bytes_tensor("task", [b"a", b"b", b"c"])], "1 value or 2", id="count"),
            pytest.param([numeric_tensor("task", np.zeros(1))], "'task' must be BYTES", id="type"),
            pytest.param([bytes_tensor("task", [b"\xff"])], "'task' must hold UTF-8", id="utf-8"),
        ],
    )
    def test_tensors(self, models: Path, tensors: list[Tensor], message: str) -> None:
        processor = load_processor(models / "tiny-t5", None)
        with pytest.raises(InvalidRequest, match=message):
            processor.read_tensors([bytes_tensor("text", [b"a", b"b"]), *tensors])

    @pytest.mark.parametrize(
        ("data", "message"),
        [
            pytest.param([99], "must hold 0 to", id="unknown-task"),
            pytest.param([0, 0], "the same rows", id="rows"),
            pytest.param(0, "must have shape", id="scalar"),
        ],
    )
    def test_options_of_the_inference_stage(self, models: Path, data: Any, message: str) -> None:
        processor = load_processor(models / "tiny-t5", None)
        task, first = processor.preprocess(processor.read_instances([FRENCH]))[2:]
        wrong = numeric_tensor(task.name, np.array(data, np.int64))
        tokens = processor.preprocess(processor.read_instances(["a fox"]))
        with pytest.raises(InvalidRequest, match=message):
            processor.batching.validate([*tokens, wrong, first])

    def test_answer_400_through_a_pod(self, cluster: Cluster, models: Path) -> None:
        cluster.declare("m", models / "tiny-t5")
        pod = cluster.pod()
        url = pod.url
        response = predict(url, "m", {**FRENCH, "target_lang": "klingon"})
        assert response.status_code == 400
        assert "it has translation_en_to_de" in response.json()["error"]
        assert len(predict(url, "m", FRENCH, "a fox").json()["predictions"]) == 2


def mbart(folder: Path) -> Path:
    from transformers import MBartConfig, MBartForConditionalGeneration, MBartTokenizer
    from transformers.models.mbart.tokenization_mbart import FAIRSEQ_LANGUAGE_CODES

    special = [(token, 0.0) for token in ("<s>", "<pad>", "</s>", "<unk>")]
    words = [("▁", -2.0), *((letter, -3.0) for letter in "abcdefghijklmnopqrstuvwxyz")]
    languages = [(code, 0.0) for code in FAIRSEQ_LANGUAGE_CODES]
    tokenizer = MBartTokenizer(vocab=[*special, *words, *languages, ("<mask>", 0.0)])
    config = MBartConfig(vocab_size=len(tokenizer), **_SHAPE)
    return _saved(MBartForConditionalGeneration(config), tokenizer, folder)


def nllb(folder: Path) -> Path:
    """The network of M2M100 with the tokenizer of NLLB; M2M100's own needs sentencepiece."""
    from transformers import M2M100Config, M2M100ForConditionalGeneration, NllbTokenizer

    tokens = ("<s>", "<pad>", "</s>", "<unk>", "▁", *"abcdefghijklmnopqrstuvwxyz")
    tokenizer = NllbTokenizer(
        vocab={token: number for number, token in enumerate(tokens)}, merges=[]
    )
    config = M2M100Config(vocab_size=len(tokenizer), **_SHAPE)
    return _saved(M2M100ForConditionalGeneration(config), tokenizer, folder)


_SHAPE: dict[str, Any] = {
    "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32,
    "max_position_embeddings": 64,
}  # fmt: skip


def _saved(network: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path) -> Path:
    network.generation_config.max_new_tokens = 6
    network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module", params=["mbart", "nllb"])
def multilingual(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[str]]:
    """A folder, and three of the model's languages, the first of them its default."""
    folder = tmp_path_factory.mktemp("multilingual") / "model"
    with torch.random.fork_rng():
        torch.manual_seed(1)
        if request.param == "mbart":
            return mbart(folder), ["en_XX", "fr_XX", "de_DE"]
        return nllb(folder), ["eng_Latn", "fra_Latn", "deu_Latn"]


class TestLanguages:
    def test_output_is_that_of_the_pipeline(self, multilingual: tuple[Path, list[str]]) -> None:
        from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

        folder, (english, french, german) = multilingual
        tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        reference = AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
        processor, network = load_processor(folder, None), load_network(folder)
        for source, target in ((english, french), (german, english), (french, german)):
            inputs = tokenizer._build_translation_inputs(
                ["a fox"], return_tensors="pt", src_lang=source, tgt_lang=target
            )
            expected = reference.generate(**inputs)
            item = {"text": "a fox", "source_lang": source, "target_lang": target}
            tensors = processor.preprocess(processor.read_instances([item]))
            assert tensors[0].data.tolist() == inputs["input_ids"].tolist()
            assert processor.infer(network, tensors)[0].data.tolist() == expected.tolist()

    def test_rows_of_a_request_keep_their_own_languages(
        self, multilingual: tuple[Path, list[str]]
    ) -> None:
        folder, (english, french, german) = multilingual
        processor, network = load_processor(folder, None), load_network(folder)
        items = processor.read_instances(
            [
                {"text": "a fox", "source_lang": english, "target_lang": french},
                {"text": "a dog runs", "source_lang": german, "target_lang": english},
                "a cat",
                {"text": "a hen", "source_lang": english, "target_lang": french},
            ]
        )
        sent = encode_request(processor.batching.validate(processor.preprocess(items)))
        length = dict(sent.headers)["inference-header-content-length"]
        received = processor.batching.validate(decode_request(sent.content, length).inputs)
        together = processor.predictions(processor.postprocess(processor.infer(network, received)))
        alone = [
            processor.predictions(
                processor.postprocess(processor.infer(network, processor.preprocess([item])))
            )[0]
            for item in items
        ]
        assert together == alone

    def test_requests_of_other_languages_are_other_batches(
        self, multilingual: tuple[Path, list[str]]
    ) -> None:
        folder, (english, french, german) = multilingual
        processor, network = load_processor(folder, None), load_network(folder)

        def key(target: str) -> object:
            item = {"text": "a fox", "source_lang": english, "target_lang": target}
            inputs = processor.preprocess(processor.read_instances([item]))
            return processor.batching.batch_key(inputs, network)

        assert key(french) == key(french)
        assert key(french) != key(german)

    def test_threads_do_not_mix_languages(self, multilingual: tuple[Path, list[str]]) -> None:
        folder, languages = multilingual
        processor = load_processor(folder, None)
        items = processor.read_instances(
            [
                {"text": "a fox", "source_lang": each, "target_lang": languages[0]}
                for each in languages
            ]
            + ["a fox"]
        )
        expected = [processor.preprocess([item])[0].data.tolist() for item in items]
        with ThreadPoolExecutor(4) as threads:
            found = list(threads.map(lambda item: processor.preprocess([item]), [*items] * 100))
        assert [each[0].data.tolist() for each in found] == expected * 100

    def test_unknown_language_is_refused_with_those_that_exist(
        self, multilingual: tuple[Path, list[str]]
    ) -> None:
        folder, (english, french, _) = multilingual
        processor = load_processor(folder, Task.TEXT_TO_TEXT)
        for item in (
            {"text": "a", "source_lang": english, "target_lang": "fr"},
            {"text": "a", "source_lang": "<s>", "target_lang": french},
        ):
            with pytest.raises(InvalidRequest, match=f"its languages are .*{french}"):
                processor.preprocess(processor.read_instances([item]))
