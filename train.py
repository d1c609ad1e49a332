"""Train a small GPT out of components picked by name: `python train.py size=nano norm=layernorm`, or --help."""

import modernllm.startup  # noqa: F401 (before all others)

if __name__ == "__main__":
    from modernllm.cli import main

    raise SystemExit(main())
