"""A transformer and explainer with KServe's package: `python -m tests.kubernetes.transformer`.

Its arguments are those that KServe gives one. It sends "hello" in place of any text.
"""

from typing import Any

from kserve import Model, ModelServer, model_server


class Greeting(Model):  # type: ignore[misc]  # kserve has no types
    def preprocess(self, payload: Any, headers: Any = None) -> Any:
        return {"instances": ["hello" for _ in payload["instances"]]}

    def postprocess(self, result: Any, headers: Any = None, response_headers: Any = None) -> Any:
        return {**result, "transformed": True}

    async def explain(self, payload: Any, headers: Any = None) -> Any:
        answer = await self.predict(payload, headers)
        return {"explanations": [len(each) for each in answer["predictions"]]}


if __name__ == "__main__":
    arguments, _ = model_server.parser.parse_known_args()
    greeting = Greeting(arguments.model_name)
    greeting.ready = True
    ModelServer().start([greeting])
