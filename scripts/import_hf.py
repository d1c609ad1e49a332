"""A Hugging Face folder as a run of ours: `python scripts/import_hf.py path/to/folder`."""

import modernllm.startup  # noqa: F401 (before all others)

from modernllm.scripting import main


def import_hf(folder: str, /, *overrides: str) -> None:
    """Make a run folder of a Hugging Face folder: our parts, its weights as the checkpoint of step 0. Overrides go
    into the run's configuration (out=... study=... data=...). A design that our parts are not is refused, and what is
    missing is named. Needs the package transformers.
    """
    from modernllm.interop.importing import import_folder

    print(import_folder(folder, overrides))


if __name__ == "__main__":
    raise SystemExit(main(import_hf))
