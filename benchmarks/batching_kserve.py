"""KServe's own ModelServer with a transformers model, as in its documentation.

`python -m benchmarks.batching_kserve PORT FOLDER TASK`. Like KServe's huggingface server it
tokenises and infers in the coroutine, one request at a time.
"""

import logging
import os
import sys
from typing import Any


def main(port: int, folder: str, task: str) -> None:
    sys.argv = sys.argv[:1]  # kserve reads the command line when it is imported
    import kserve
    import torch
    from transformers import AutoModel, AutoModelForSeq2SeqLM, AutoTokenizer

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))

    class Transformer(kserve.Model):  # type: ignore[misc]  # kserve has no types
        """Texts to vectors of length one, or to texts."""

        def __init__(self) -> None:
            super().__init__("m")
            self.tokenizer = AutoTokenizer.from_pretrained(folder)
            kind = AutoModel if task == "text-embedding" else AutoModelForSeq2SeqLM
            self.network = kind.from_pretrained(folder).eval()
            self.ready = True

        async def predict(
            self, payload: Any, headers: Any = None, response_headers: Any = None
        ) -> dict[str, Any]:
            encoded = self.tokenizer(
                payload["instances"],
                padding=True,
                truncation=True,
                max_length=512,
                return_tensors="pt",
            )
            with torch.inference_mode():
                if task == "text-embedding":
                    return {"predictions": self._vectors(encoded).tolist()}
                encoded.pop("token_type_ids", None)
                tokens = self.network.generate(**encoded)
            return {"predictions": self.tokenizer.batch_decode(tokens, skip_special_tokens=True)}

        def _vectors(self, encoded: Any) -> Any:
            hidden = self.network(**encoded).last_hidden_state
            mask = encoded["attention_mask"].unsqueeze(-1)
            pooled = (hidden * mask).sum(1) / mask.sum(1)
            return torch.nn.functional.normalize(pooled, dim=1)

    server = kserve.ModelServer(
        http_port=port,
        workers=1,
        enable_grpc=False,
        enable_docs_url=False,
        enable_latency_logging=False,
    )
    logging.disable(logging.WARNING)
    server.start([Transformer()])


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
