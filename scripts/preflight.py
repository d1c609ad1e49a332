"""May these arms be compared? `python scripts/preflight.py 'placement=pre' 'placement=post' base='size=nano'`"""

import modernllm.startup  # noqa: F401 (before all others)

import os
import sys

from modernllm.scripting import main
from modernllm.supervision import supervised

PASSED, REFUSED, FAILED, MISUSED = 0, 1, 10, 11


def preflight(
    *arms: str,
    base: str = "",
    unlike: list[str] = [],  # noqa: B006 (shown by --help)
    to: str = "",
    full: bool = False,
    config_dir: str = "",
) -> int:
    """Before any training, hold every arm (its overrides in one word) against the first: what must differ does, what
    must be equal is, no arm sees the future, every gradient arrives. `base` are overrides of all arms, `unlike` keys
    that may differ although no arm sets them, `to` a file for the certificate. Shown is what was refused; full=true
    shows every check. `config_dir` has components of your own. Exit code: 0 passed, 1 refused, 10 and above an error.
    """
    import json
    import shlex
    from pathlib import Path

    from modernllm.claims.preflight import preflight as certify
    from modernllm.claims.preflight.command import Arms

    words = {(arm or "default"): shlex.split(arm) for arm in arms}
    if len(words) < len(arms):
        raise ValueError("two arms are written alike: each has its own overrides")
    arms_of = Arms((config_dir,) if config_dir else ())
    certificate = certify(arms_of.all(words, shlex.split(base)), unlike)
    print(*(certificate.lines() if full else certificate.summary()), sep="\n")
    if to:
        Path(to).write_text(json.dumps(certificate.to_json(), indent=2) + "\n", encoding="utf-8")
    return PASSED if certificate.passed else REFUSED


def run() -> int:
    sys.path.append(os.getcwd())  # where modules of one's own are looked for too, as by `python -m`
    return main(preflight, failed=FAILED, misused=MISUSED)


if __name__ == "__main__":
    raise SystemExit(supervised(run, FAILED))
