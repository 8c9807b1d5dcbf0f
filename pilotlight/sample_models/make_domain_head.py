"""Trains a classifier of sentences by domain on their embeddings, and exports it.

    python -m pilotlight.sample_models.make_domain_head EMBEDDING_MODEL DIR

Writes `DIR/model.pt2`: `features` [rows, dimensions] to `scores` [rows, 3] and `label` [rows], for
the domains 0 cooking, 1 science, 2 travel. The sentences below are its training set.
"""

import sys
from pathlib import Path
from typing import Final

import torch
from torch import nn
from transformers import AutoModel, AutoTokenizer

from pilotlight.sample_models.make_program import export

SENTENCES: Final = {
    "cooking": (
        "How long do I boil an egg?", "Which spices go into a curry?", "Knead the dough well.",
        "Roast the vegetables with olive oil.", "What can replace butter in a cake?",
        "The soup needs more salt.", "Bake the bread at high heat.", "How do I fry onions?",
        "A recipe for tomato sauce.", "Marinate the chicken overnight.",
    ),
    "science": (
        "Why is the sky blue?", "How do black holes form?", "What is the speed of light?",
        "Explain how vaccines work.", "Electrons orbit the nucleus.", "What causes earthquakes?",
        "How does photosynthesis work?", "The theory of evolution by natural selection.",
        "What is a prime number?", "Measure the temperature of the gas.",
    ),
    "travel": (
        "Which visa do I need for Japan?", "Cheap flights to Lisbon in May.",
        "What should I see in Rome?", "Book a hotel near the beach.",
        "How do I get to the airport?",
        "The train to Vienna leaves at noon.", "A weekend trip to the mountains.",
        "Is it safe to travel there alone?", "Rent a car on the island.",
        "The best time to visit Iceland.",
    ),
}  # fmt: skip
_STEPS: Final = 300


class DomainHead(nn.Module):
    """Linear classifier: scores of all classes and the best class of each row."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, len(SENTENCES))

    def forward(self, features: torch.Tensor) -> dict[str, torch.Tensor]:
        """`scores` [rows, classes] and `label` [rows]."""
        scores = self.linear(features).softmax(dim=-1)
        return {"scores": scores, "label": scores.argmax(dim=-1)}


def embeddings(folder: Path, texts: list[str]) -> torch.Tensor:
    """[texts, dimensions], as `runtime.tasks.embedding` computes them."""
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    network = AutoModel.from_pretrained(folder, local_files_only=True).eval()
    inputs = tokenizer(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        hidden = network(**inputs).last_hidden_state
    mask = inputs["attention_mask"].unsqueeze(-1).to(hidden.dtype)
    pooled = (hidden * mask).sum(1) / mask.sum(1)
    return nn.functional.normalize(pooled, dim=1)


def main() -> None:
    source, target = Path(sys.argv[1]), Path(sys.argv[2])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    texts = [text for each in SENTENCES.values() for text in each]
    labels = torch.tensor([at for at, each in enumerate(SENTENCES.values()) for _ in each])
    features = embeddings(source, texts)
    head = DomainHead(features.shape[1])
    optimiser = torch.optim.Adam(head.parameters(), lr=0.05, weight_decay=1e-4)
    for _ in range(_STEPS):
        loss = nn.functional.cross_entropy(head.linear(features), labels)
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch's
        optimiser.step()
    target.mkdir(parents=True, exist_ok=True)
    export(head.eval(), target / "model.pt2", features.shape[1])


if __name__ == "__main__":
    main()
