"""Where two models first differ: `python scripts/diff_layers.py <A> <B>`."""

import modernllm.startup  # noqa: F401 (before all others)

from typing import Literal

from modernllm.quantities import Count, Natural, Positive
from modernllm.scripting import Misuse, main


def diff_layers(
    *models: str,
    rows: Count = 2,
    tokens: Count = 16,
    seed: Natural = 0,
    tolerance: Positive = 1e-5,
    weights: Literal["own", "first"] = "own",
) -> int:
    """Feed the same random batch to two models in eval mode and print, layer by layer, how far apart they are, where
    they first differ, and what the usual suspects say: epsilon, dropout and training mode, initial values, dtype,
    rotary layout, tied weights. A model is a run folder, a Hugging Face folder, or overrides in quotes
    ("arch=llama size=nano"). weights=first gives the second the weights of the first. Exit code 0: equal, 3: not.
    """
    from modernllm.interop.layer_diff import compare, load_side

    if len(models) != 2:
        raise Misuse(f"two models are compared, not {len(models)}; overrides stand together in quotes")
    first, second = (load_side(model, seed) for model in models)
    if weights == "first":
        second = second.given(first)
    lines, equal = compare(first, second, rows, tokens, seed, tolerance)
    print(*lines, sep="\n")
    return 0 if equal else 3


if __name__ == "__main__":
    raise SystemExit(main(diff_layers))
