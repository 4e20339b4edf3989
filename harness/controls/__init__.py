# SPDX-License-Identifier: Apache-2.0
"""Controls: every planted fault with the outcome and the finding that it must lead to.

``table`` says what must be caught and as what, ``build`` makes cells and legs of it, ``run`` runs and judges them,
``show`` prints. One that is not caught, or caught for another reason, is a hole in the harness.
"""

from harness.controls.build import Planted, plant
from harness.controls.run import Result, run_controls
from harness.controls.table import CONTROLS, Control

__all__ = ["CONTROLS", "Control", "Planted", "Result", "plant", "run_controls"]
