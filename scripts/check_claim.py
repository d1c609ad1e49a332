"""Put a claim to the test: `python scripts/check_claim.py claim=prenorm_warmup [plan=true]`, or a suite of them."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # read when torch is imported

from modernllm.claims.command import check_claim
from modernllm.scripting import main

if __name__ == "__main__":
    raise SystemExit(main(check_claim))
