# SPDX-License-Identifier: Apache-2.0
"""What vLLM itself says of a leg's configuration, on any machine that has vLLM's Python files.

``python -m harness.capability`` reads a question as JSON on stdin and writes the answer as JSON; ``harness.coverage``
asks. A process of its own, because importing vLLM settles switches that belong to the legs.

The answers are vLLM's own: the target platform's selector (vllm/platforms/{rocm,cuda}.py: get_attn_backend_cls), the
backend classes' declarations and ``resolve_kv_cache_layout``. Where this machine's platform is another one, that
platform's module is imported beside it, with empty modules where it wants compiled extensions, and the device is
assumed.
"""
