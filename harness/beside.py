# SPDX-License-Identifier: Apache-2.0
"""A leg beside another one of the same cell, in a thread, until the other one makes it pointless.

What a cell's two legs see does not depend on whether they run one after the other, so where a machine has room for
both, the oracle does not wait for the subject. A subject that is refused needs no oracle: it is called off then, and
leaves as little behind as any other leg that is killed.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

from harness.errors import CalledOff


@contextlib.contextmanager
def beside(run: Callable[[], object], called_off: threading.Event) -> Iterator[None]:
    """Do ``run`` in a thread while the block is busy; wait for it afterwards.

    Args:
        run: ends early, with ``CalledOff``, once ``called_off`` is set. What else it raises is printed, not raised:
            whoever needs the leg's observation runs it again and meets the error there.
        called_off: set here too when the block or the wait raises, as at Ctrl-C.
    """

    def work() -> None:
        with contextlib.suppress(CalledOff):
            run()

    thread = threading.Thread(target=work, name="beside")
    thread.start()
    try:
        yield
        thread.join()
    except BaseException:
        # Also Ctrl-C while the block's part is done and only the thread is waited for.
        called_off.set()
        thread.join()
        raise
