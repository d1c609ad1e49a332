"""What a Hugging Face model is made of, in our words: `python scripts/inspect_model.py path/to/config.json`."""

import modernllm.startup  # noqa: F401 (before all others)

from modernllm.scripting import main


def inspect_model(config: str, /, *, arch: str | None = None) -> None:
    """Read a config.json of Hugging Face, or a folder with one, and print which of our components the design uses,
    what differs from `arch` (llama, gpt2, ...), and the overrides that rebuild it at any size. Needs the package
    transformers.
    """
    from modernllm.interop.huggingface import read_config
    from modernllm.interop.inspection import inspect

    print(*inspect(read_config(config), arch), sep="\n")


if __name__ == "__main__":
    raise SystemExit(main(inspect_model))
