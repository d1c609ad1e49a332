"""One thread, no shared random state, an own cache; `--shapes` checks shapes, `--slow` adds slow tests."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

# no clock and no draw decides whether a property holds; `--hypothesis-profile=default` draws others
settings.register_profile("gate", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("gate")

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shapes", action="store_true", help="check the jaxtyping annotations of modernllm in every call")
    parser.addoption("--slow", action="store_true", help="run the tests marked slow too")


def pytest_configure(config: pytest.Config) -> None:
    # a shell that starts its jobs in the background has them ignore Ctrl-C, and what they start as well
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.getoption("--shapes"):
        from jaxtyping import install_import_hook

        install_import_hook("modernllm", "beartype.beartype")
        # omegaconf's DictConfig derives from typing.MutableMapping
        config.addinivalue_line("filterwarnings", "ignore::beartype.roar.BeartypeDecorHintPep585DeprecationWarning")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--slow"):
        for item in items:
            if item.get_closest_marker("slow"):
                item.add_marker(pytest.mark.skip(reason="slow: run with --slow"))


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Token files of the tests stay out of the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MODERNLLM_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session", autouse=True)
def no_terminal_of_the_user() -> Iterator[None]:
    """What is printed has neither its width nor its colours."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TERM", "xterm")
        for name in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
            patch.delenv(name, raising=False)
        yield


@pytest.fixture(autouse=True)
def alone() -> None:
    """No test depends on what another drew, or on the threads that a trainer left behind."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
