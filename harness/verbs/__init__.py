# SPDX-License-Identifier: Apache-2.0
"""The verbs of ``python -m harness``, a module each, in the order of a working day.

A verb's module has ``add(verbs)``, which adds its parser and sets ``verb`` to the function that carries it out; that
takes the parsed options and gives the exit code. What is dear to import is imported in that function.
"""

from harness.verbs import (
    ab,
    accept,
    bench,
    check,
    compare,
    controls,
    doctor,
    history,
    matrix,
    merge,
    nightly,
    plan,
    report,
    repro,
)

#: As ``--help`` lists them.
VERBS = (matrix, plan, report, repro, check, compare, history, accept, merge, nightly, controls, ab, doctor, bench)
