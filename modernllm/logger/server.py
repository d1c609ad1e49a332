"""The W&B server that the client is set up for, asked before the client is: that one waits for minutes."""

from __future__ import annotations

import importlib
from typing import Any

from modernllm.data.network import reachable

LOGIN = "not logged in to W&B at {server}: `wandb login` does that, or WANDB_API_KEY"


def server() -> str:
    """Its address: WANDB_BASE_URL, or what `wandb login` wrote down."""
    wandb: Any = importlib.import_module("wandb")
    return wandb.setup().settings.base_url


def answering() -> str:
    """The address of a server that answers; OSError if it does not."""
    address = server()
    if not reachable(address):
        raise OSError(f"no answer from W&B at {address}: is there a network? WANDB_BASE_URL names another server")
    return address
