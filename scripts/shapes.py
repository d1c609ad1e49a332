"""What goes into every module and what comes out: `python scripts/shapes.py model.dim=512 model.n_heads=8`."""

import modernllm.startup  # noqa: F401 (before all others)

from modernllm.quantities import Count
from modernllm.scripting import main


def shapes(*overrides: str, rows: Count = 1, tokens: Count = 10) -> None:
    """Build the model that `train.py` trains with these overrides, read `tokens` tokens in each of `rows` rows, and
    print the shapes that go into every module and come out of it, in letters: b1 t10 d512 is a batch of 1, 10 tokens,
    width 512.
    """
    from modernllm.report.shapes import describe

    print(*describe(overrides, rows, tokens), sep="\n")


if __name__ == "__main__":
    raise SystemExit(main(shapes))
