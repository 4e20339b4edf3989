# SPDX-License-Identifier: Apache-2.0
"""Makes `pytest scenarios` collect scenario files; see harness/pytest_plugin.py."""

pytest_plugins = ["harness.pytest_plugin", "pytester"]
