# SPDX-License-Identifier: Apache-2.0
"""The embedded DRAM store: a KV connector that treats every KV cache layout by its strides."""
