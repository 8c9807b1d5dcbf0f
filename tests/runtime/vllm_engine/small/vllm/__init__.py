"""A small real engine in vLLM's place: a process with its routes, sleep included, but no network.

For faults that need no vLLM. `small` in a model's config.json says what goes wrong.
"""

__version__ = "0.0.small"


class ModelRegistry:
    @staticmethod
    def get_supported_archs() -> list[str]:
        return ["LlamaForCausalLM"]
