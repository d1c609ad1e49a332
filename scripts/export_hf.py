"""A run as a Hugging Face folder: `python scripts/export_hf.py runs/default/<run>`."""

import modernllm.startup  # noqa: F401 (before all others)

from modernllm.scripting import main


def export_hf(run: str, /, *, to: str | None = None) -> None:
    """Write config, weights (safetensors) and tokenizer of a run so that AutoModelForCausalLM and AutoTokenizer of
    Hugging Face load them, into the folder `to` (hf in the run's own unless given). The logits are compared before
    anything is written; a run whose parts no class of theirs has is refused, and the parts are named. Needs the package
    transformers.
    """
    from pathlib import Path

    from modernllm.interop.exporting import export

    print(*export(run, to or Path(run, "hf")), sep="\n")


if __name__ == "__main__":
    raise SystemExit(main(export_hf))
