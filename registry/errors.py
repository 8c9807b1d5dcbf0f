"""What can go wrong between a component and the registry."""

from __future__ import annotations


class RegistryError(Exception):
    """Root of the registry's errors."""


class RegistryUnavailable(RegistryError):
    """Redis did not answer; the caller goes on with its last copy."""


class RegistryRefused(RegistryUnavailable):
    """Redis answered, but with an error."""

    def __init__(self, answer: str) -> None:
        super().__init__(f"Redis refused the call: {answer}")
        self.code = answer.partition(" ")[0]
        """The first word of the answer, such as `NOSCRIPT` or `READONLY`."""


class LeaseLost(RegistryError):
    """The pod's lease is over or belongs to a newer process: register again with full state."""


class ClaimLost(RegistryError):
    """The load claim was fenced off: a newer claim exists, or the pod's lease is over."""


class InvalidModel(RegistryError):
    """A declaration has mistakes; `problems` holds all of them, one line each."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class InvalidYaml(RegistryError):
    """A text is no YAML, or means something else than it seems to; the message is one line."""
