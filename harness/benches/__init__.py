# SPDX-License-Identifier: Apache-2.0
"""What ``python -m harness bench`` measures: the embedded store, a whole run beside the naive way, and growth."""
