# SPDX-License-Identifier: Apache-2.0
"""The child that ``harness.coverage`` asks: a question as JSON on stdin, the answer as JSON on stdout."""

from __future__ import annotations

import json
import os
import sys

from harness.capability.answers import answer


def main() -> int:
    """Answer one question; vLLM's log lines go to stderr."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    json.dump(answer(json.load(sys.stdin)), out)
    out.close()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
