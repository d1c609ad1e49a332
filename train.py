"""Train a small GPT out of components picked by name: `python train.py size=nano norm=layernorm`, or --help."""

import os

# two processes whose threads spin at barriers on the same cores are sixty times slower; read when torch is imported
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

if __name__ == "__main__":
    try:
        from modernllm.cli import main

        raise SystemExit(main())
    except KeyboardInterrupt:  # while torch is imported, say; a run that trains ends by itself
        raise SystemExit(130) from None
