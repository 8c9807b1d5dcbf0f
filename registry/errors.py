"""Errors of the registry, and of model declarations."""

import re


class RegistryError(Exception):
    """Root of the registry's errors."""


class RegistryUnavailable(RegistryError):
    """Redis did not reply; the caller continues with its last copy."""


_LOGIN = "the Redis URL names a user and a password: redis://USER@HOST?password_file=FILE"
_HINTS = {
    "NOAUTH": _LOGIN,
    "WRONGPASS": f"it knows no such user, or another password; {_LOGIN}",
    "NOPERM": "`python -m registry.redis.acl` prints the rights of each role",
}


class RegistryRefused(RegistryUnavailable):
    """Redis replied with an error."""

    def __init__(self, reply: str) -> None:
        found = re.match(r"(@user_script: \d+: )*-?(\w+)", reply)  # an error within the script
        self.code = found[2] if found else ""
        """The first word of the error, such as `NOSCRIPT` or `READONLY`."""
        parts = (f"Redis refused the call: {reply}", _HINTS.get(self.code))
        super().__init__("; ".join(filter(None, parts)))

    @property
    def cannot_save(self) -> bool:
        """Whether Redis takes no changes since it cannot write its files, as on a full disk."""
        return self.code == "MISCONF"


class LeaseLost(RegistryError):
    """The pod's lease has expired or a newer process holds it: register again with full state."""


class ClaimLost(RegistryError):
    """The claim of a load has expired or was replaced by a newer one."""


class UnknownTarget(RegistryError):
    """Nothing is known of what another scaler asks for; the message says what it may ask for."""


class NoFigures(RegistryError):
    """There are no figures for other scalers now: they leave the number of pods as it is."""


class PluginError(RegistryError):
    """A policy's plug-in is not installed here, cannot be imported, or is not what it must be."""


class InvalidModel(RegistryError):
    """A declaration is invalid; `problems` holds all mistakes, one line each."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class InvalidYaml(RegistryError):
    """A text is not valid YAML, or ambiguous; the message is one line."""
