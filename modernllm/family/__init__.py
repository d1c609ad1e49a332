"""Families: made with `family(vocab_size, context_length, dim, n_layers, n_heads, ...)`, used as `(batch) -> logits`.

The decoder of our own parts is `modernllm.model.Decoder`; here are models of other hands, trained, evaluated and
compared like ours.
"""

from importlib import import_module
from types import ModuleType


def package(name: str, family: str) -> ModuleType:
    """The optional package that a family is made of, or ValueError saying how to get it."""
    try:
        return import_module(name)
    except ImportError as error:
        wheel = name.replace("_", "-")
        raise ValueError(f"family={family} needs the package {wheel}: pip install {wheel} ({error})") from None
