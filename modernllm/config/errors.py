"""The one error of a configuration that cannot be used."""

from __future__ import annotations


class ConfigError(ValueError):
    """Written for people: the key, its value, and the way out. Several problems stand one a line."""

    @classmethod
    def of(cls, problems: list[str]) -> ConfigError:
        return cls("\n".join(problems))
