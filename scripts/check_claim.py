"""Put a claim to the test: `python scripts/check_claim.py claim=prenorm_warmup [plan=true]`, or a suite of them."""

from __future__ import annotations

import modernllm.startup  # noqa: F401 (before all others)

import os
import sys

from modernllm.supervision import supervised


def hear() -> int:
    sys.path.append(os.getcwd())  # where modules of one's own are looked for too, as by `python -m`
    from modernllm.claims.command import check_claim
    from modernllm.scripting import main

    return main(check_claim)


if __name__ == "__main__":
    raise SystemExit(supervised(hear))
