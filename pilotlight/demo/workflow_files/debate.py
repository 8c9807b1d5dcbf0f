"""Agents answer in rounds, each knowing the others' answers, until all answers have one label."""

from pilotlight.workflow import model, workflow

embed, domain, writer = model("embed"), model("domain"), model("writer")
MAX_ROUNDS = 3


@workflow(deadline="120s")
async def debate(question: str, agents: int = 3) -> dict[str, object]:
    said = [f"Agent {number}: {question}" for number in range(agents)]
    labels: list[int] = []
    for round_number in range(1, MAX_ROUNDS + 1):
        steps = [writer(text) for text in said]
        judged = [domain(features=embed(step["text"])["embedding"]) for step in steps]
        labels = [(await each)["label"] for each in judged]
        if len(set(labels)) == 1:
            return {"rounds": round_number, "label": labels[0]}
        texts = [(await step)["text"] for step in steps]
        said = [f"Agent {number}: {' '.join(texts)}" for number in range(agents)]
    return {"rounds": MAX_ROUNDS, "label": max(set(labels), key=labels.count)}
