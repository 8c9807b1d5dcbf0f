"""Draft an answer, find the question's domain meanwhile, and let the domain's writer go on."""

from pilotlight.workflow import model, workflow

embed, domain, writer = model("embed"), model("domain"), model("writer")
DOMAINS = ("cooking", "science", "travel")


@workflow(deadline="120s")
async def expert(question: str) -> dict[str, str]:
    draft = writer(f"Question: {question} Answer:")
    label = (await domain(features=embed(question)["embedding"]))["label"]
    name = DOMAINS[label]
    answer = model(f"writer-{name}")(draft["text"])
    return {"domain": name, "answer": (await answer)["text"]}
