# SPDX-License-Identifier: Apache-2.0
"""kvparity: does KV that came back from a store equal, bit for bit, what the engine would have computed?"""

__version__ = "0.1.0"
