"""Put a claim to the test: `python scripts/check_claim.py claim=prenorm_warmup [plan=true]`, or a suite of them."""

from __future__ import annotations

import os
import sys

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # read when torch is imported

from modernllm.supervision import supervised


def hear() -> int:
    sys.path.append(os.getcwd())  # where modules of one's own are looked for too, as by `python -m`
    from modernllm.claims.command import check_claim
    from modernllm.scripting import main

    return main(check_claim)


if __name__ == "__main__":
    raise SystemExit(supervised(hear))
