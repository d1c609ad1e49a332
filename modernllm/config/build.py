"""From a checked configuration to the objects that it names."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from modernllm.config.errors import ConfigError
from modernllm.config.values import shown

if TYPE_CHECKING:
    from torch import nn


def resolve(cfg: DictConfig | Mapping[str, Any]) -> dict[str, Any]:
    """Plain dicts and lists, every interpolation replaced: what is saved, hashed and built from."""
    container = cfg if isinstance(cfg, DictConfig) else OmegaConf.create(dict(cfg))
    found = OmegaConf.to_container(container, resolve=True, throw_on_missing=True)
    assert isinstance(found, dict)
    return {str(key): value for key, value in found.items()}


def build(node: DictConfig | Mapping[str, Any], key: str, **supplied: Any) -> Any:
    """The object of one section; `supplied` is what the program adds to a `_partial_` one.

    A constructor's ValueError arrives as a `ConfigError` with its own words.
    """
    made = _instantiate(node, key)
    return _call(made, key, supplied) if isinstance(made, functools.partial) else made


def build_model(
    node: DictConfig | Mapping[str, Any], key: str = "model", **supplied: Any
) -> tuple[nn.Module, list[str]]:
    """The model, and its dead switches: components that nothing in it uses (norm where there is no norm)."""
    made = _instantiate(node, key)
    if not isinstance(made, functools.partial):
        raise ConfigError(f"{key}._partial_: should be true, the program supplies the rest")
    components = {
        name: Component(f"{key}.{name}", value)
        for name, value in made.keywords.items()
        if isinstance(value, functools.partial)
    }
    model = _call(functools.partial(made.func, **(made.keywords | components)), key, supplied)
    return model, [name for name, component in components.items() if not component.used]


class Component:
    """A factory that knows whether it was used, and refuses what program and configuration both set."""

    def __init__(self, key: str, make: functools.partial[Any]):
        self.key, self.make, self.used = key, make, False
        self._names = list(inspect.signature(make.func).parameters)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.used = True
        for name in (*self._names[: len(args)], *kwargs):
            if name in self.make.keywords:
                value = self.make.keywords[name]
                raise ConfigError(f"{self.key}.{name}={shown(value)}: is set by the model, leave it out")
        return self.make(*args, **kwargs)


_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def _instantiate(node: DictConfig | Mapping[str, Any], key: str) -> Any:
    try:
        return instantiate(node if isinstance(node, DictConfig) else dict(node), _convert_="all")
    except InstantiationException as error:
        if isinstance(error.__cause__, ValueError):
            raise ConfigError(str(error.__cause__)) from None
        raise ConfigError(f"{key}: {error}") from error


def _call(made: functools.partial[Any], key: str, supplied: dict[str, Any]) -> Any:
    parameters = inspect.signature(made.func).parameters.values()
    needed = [p.name for p in parameters if p.default is p.empty and p.kind in _NAMED]
    missing = [name for name in needed if name not in made.keywords and name not in supplied]
    if missing:
        raise ConfigError.of([f"{key}.{name}: is not set; {key}.{name}=... sets it" for name in missing])
    for name, value in supplied.items():
        if (given := made.keywords.get(name)) is not None and given != value:
            raise ConfigError(f"{key}.{name}={shown(given)}: is {shown(value)} here, leave it out")
    try:
        return made(**supplied)
    except ValueError as error:
        raise ConfigError(str(error)) from None
