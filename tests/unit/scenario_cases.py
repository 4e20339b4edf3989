# SPDX-License-Identifier: Apache-2.0
"""Bad scenario files, each GOOD with one thing changed, and what is said of them."""

#: (text replaced in GOOD or "" to append, replacement, line, sentence or its beginning)
CASES = {
    "layout no": (
        "LHBNC]", "no]", 6,
        "axes.layout[1]: must be text, got `no`, which YAML 1.1 reads as false; quote it"),
    "layout twice": (
        "LHBNC]", "LBHNC]", 6,
        "axes.layout[1]: `LBHNC` is given twice."),
    "scalar axis": (
        "[off, on]", "on", 8,
        "axes.batch_invariant: must be a list, got `on`, which YAML 1.1 reads as true; for one value write "
        "`[on]`."),
    "quoted boolean": (
        "[off, on]", "['off']", 8,
        "axes.batch_invariant[0]: must be true or false without quotes, got the text `off`."),
    "number for boolean": (
        "[off, on]", "[0]", 8,
        "axes.batch_invariant[0]: must be true or false without quotes"),
    "same boolean twice": (
        "[off, on]", "[on, yes]", 8,
        "axes.batch_invariant[1]: `true` is given twice."),
    "unknown axis": (
        "", "  sed: [1]\n", 9,
        "axes.sed: unknown axis; did you mean `seed`? Valid axes: layout, backend, batch_invariant, connector, "
        "restore, differs, prompt_set, seed, transfer, load, fault."),
    "negative seed": (
        "", "  seed: [-1]\n", 9,
        "axes.seed[0]: must be a whole number of at least 0, got the number -1."),
    "unknown fault": (
        "", "  fault: [none]\n", 9,
        "axes.fault[0]: `none` is no fault; valid choices: null, single_span,"),
    "unknown transfer": (
        "", "  transfer: [range]\n", 9,
        "axes.transfer[0]: `range` is no transfer; did you mean `ranges`? Valid choices: bulk, ranges."),
    "platform": (
        "[cpu]", "[cpu, rocmm]", 2,
        "platforms[1] cannot be the text `rocmm`; did you mean `rocm`? Valid choices: cpu, rocm, cuda."),
    "no platforms": (
        "[cpu]", "[]", 2,
        "platforms must not be empty."),
    "platform twice": (
        "[cpu]", "[cpu, cpu]", 2,
        "platforms[1]: `cpu` is given twice."),
    "name number": (
        "name: good", "name: 5", 1,
        "name must be text, got the number 5; quote it."),
    "name colons": (
        "name: good", "name: a::b", 1,
        "name must be letters, digits"),
    "reference": (
        "", "reference: recomputed\n", 9,
        "reference cannot be the text `recomputed`; did you mean `recompute`? Valid choices: auto, recompute, "
        "local_hit."),
    "no value": (
        "", "prompts:\n", 9,
        "prompts must be a mapping of keys to values, got nothing."),
    "unknown prompt key": (
        "", "prompts: {tail: 8}\n", 9,
        "unknown key `tail` in prompts; did you mean `tail_tokens`?"),
    "no time": (
        "", "deadlines: {load: 0}\n", 9,
        "deadlines.load must be more than 0, got 0."),
    "time in words": (
        "", "deadlines: {load: soon}\n", 9,
        "deadlines.load must be a number, got the text `soon`."),
    "unknown deadline": (
        "", "deadlines: {prefil: 3}\n", 9,
        "unknown key `prefil` in deadlines; did you mean `prefill`? Valid keys: import, load, "
        "prefill, restore, reset."),
    "fraction": (
        "", "decode: {max_tokens: 1.5}\n", 9,
        "decode.max_tokens must be a whole number, got the number 1.5."),
    "boolean for number": (
        "", "decode: {max_tokens: yes}\n", 9,
        "decode.max_tokens must be a whole number, got `yes`, which YAML 1.1 reads as true."),
    "submit": (
        "", "decode: {submit: alon}\n", 9,
        "decode.submit cannot be the text `alon`; did you mean `alone`? Valid choices: together, alone."),
    "too many logprobs": (
        "", "decode: {logprobs: 21}\n", 9,
        "decode.logprobs: vLLM gives at most 20, got 21"),
    "too short model length": (
        "", "engine: {max_model_len: 215}\n", 9,
        "engine.max_model_len: 215 tokens are too few for a prompt of 192 + 8 and 16 new tokens."),
    "engine model": (
        "", "engine: {model: x}\n", 9,
        "engine.model: cannot be set here: `model` at the top"),
    "engine connector": (
        "", "engine: {kv_transfer_config: {}}\n", 9,
        "engine.kv_transfer_config: cannot be set here"),
    "engine backend": (
        "", "engine: {attention_backend: X}\n", 9,
        "engine.attention_backend: cannot be set here: the axis `backend` makes it."),
    "engine backend, hidden": (
        "", "engine: {attention_config: {backend: X}}\n", 9,
        "engine.attention_config.backend: cannot be set here"),
    "engine worker": (
        "", "engine: {worker_extension_cls: a.B}\n", 9,
        "engine.worker_extension_cls: cannot be set here"),
    "engine statistics": (
        "", "engine: {disable_log_stats: true}\n", 9,
        "engine.disable_log_stats: cannot be set here"),
    "block size": (
        "", "engine: {block_size: '16'}\n", 9,
        "engine.block_size: must be a whole number of at least 1, got the text `16`."),
    "engine date": (
        "", "engine: {revision: 2026-11-30}\n", 9,
        "engine.revision: `2026-11-30` reads as date in YAML 1.1"),
    "engine infinity": (
        "", "engine: {x: .inf}\n", 9,
        "engine.x: `.inf` reads as float"),
    "engine tag": (
        "", "engine: {x: !mine 3}\n", 9,
        "engine.x: `3` cannot be read"),
    "engine key": (
        "", "engine: {on: 1}\n", 9,
        "engine.on: the key reads as bool in YAML 1.1; quote it."),
    "env number": (
        "", "env: {A: 1}\n", 9,
        "env.A: must be text, got the number 1; quote it: \"1\"."),
    "env boolean": (
        "", "env: {A: off}\n", 9,
        "env.A: must be text, got `off`, which YAML 1.1 reads as false; quote it: \"off\"."),
    "env nothing": (
        "", "env: {A: }\n", 9,
        "env.A: must be text, got nothing."),
    "env layout": (
        "", "env: {VLLM_KV_CACHE_LAYOUT: LBHNC}\n", 9,
        "env.VLLM_KV_CACHE_LAYOUT: cannot be set here: the axis `layout` makes it."),
    "env of an alias": (
        "", "env: {VLLM_ROCM_USE_AITER: '1'}\n", 9,
        "env.VLLM_ROCM_USE_AITER: cannot be set here: it is part of a backend's alias"),
    "subject nothing": (
        "{connector: embedded}", "", 4,
        "subject must be a connector's alias or a mapping, got nothing."),
    "subject alias": (
        "{connector: embedded}", "embeded", 4,
        "subject: `embeded` is no known connector; did you mean `embedded`? Valid aliases: embedded, "
        "embedded_file, umbp,"),
    "subject without connector": (
        "{connector: embedded}", "{fault: single_span}", 4,
        "subject: missing key `connector`"),
    "subject key": (
        "embedded}", "embedded, faultt: x}", 4,
        "subject.faultt: unknown key; did you mean `fault`? Valid keys: connector, capacity_mib, transfer, load, "
        "level, fault."),
    "subject fault": (
        "embedded}", "embedded, fault: double_span}", 4,
        "subject.fault: cannot be the text `double_span`; did you mean `single_span`?"),
    "subject capacity": (
        "embedded}", "embedded, capacity_mib: 0}", 4,
        "subject.capacity_mib: must be a whole number of at least 1, got the number 0."),
    "subject connector type": (
        "connector: embedded", "connector: 5", 4,
        "subject.connector: must be an alias or a mapping, got the number 5."),
    "whole config": (
        "{connector: embedded}", "{kv_transfer_config: {kv_role: kv_both}}", 4,
        "subject.kv_transfer_config: needs `kv_connector`"),
    "whole config and alias": (
        "{connector: embedded}", "{kv_transfer_config: {kv_connector: X}, fault: y}", 4,
        "subject.fault: cannot stand beside `kv_transfer_config`"),
    "when unknown axis": (
        "", "overrides: [{when: {seed: 1}, engine: {a: 1}}]\n", 9,
        "overrides[0].when.seed: the scenario has no axis `seed`, so it matched no cell; valid axes: layout, "
        "backend, batch_invariant."),
    "when value": (
        "", "expect: [{when: {layout: BHLNC}, outcome: fail}]\n", 9,
        "expect[0].when.layout: the text `BHLNC` is no value of the axis `layout`, so it matched no cell; did you"
        " mean `LBHNC`?"),
    "when value in list": (
        "", "expect: [{when: {layout: [LBHNC, BHLNC]}, outcome: fail}]\n", 9,
        "expect[0].when.layout[1]: the text `BHLNC` is no value"),
    "when number for boolean": (
        "", "expect: [{when: {batch_invariant: 1}, outcome: fail}]\n", 9,
        "expect[0].when.batch_invariant: the number 1 is no value of the axis"),
    "when empty list": (
        "", "expect: [{when: {layout: []}, outcome: fail}]\n", 9,
        "expect[0].when.layout: the list is empty, so it matched no cell."),
    "when missing": (
        "", "expect: [{outcome: fail}]\n", 9,
        "missing key `when` in expect[0]; `when: {}` means every cell."),
    "override without change": (
        "", "overrides: [{when: {}}]\n", 9,
        "overrides[0]: changes nothing; give `engine` or"),
    "override env": (
        "", "overrides: [{when: {}, env: {A: 1}}]\n", 9,
        "overrides[0].env.A: must be text"),
    "override key": (
        "", "overrides: [{when: {}, env: {A: b}, engin: {}}]\n", 9,
        "unknown key `engin` in overrides[0]; did you mean `engine`? Valid keys: when, engine, env."),
    "outcome missing": (
        "", "expect: [{when: {}}]\n", 9,
        "missing key `outcome` in expect[0]."),
    "outcome expected": (
        "", "expect: [{when: {}, outcome: expected}]\n", 9,
        "expect[0].outcome cannot be the text `expected`; did you mean `rejected`? Valid choices: pass, "
        "unavailable, rejected, unstable, vacuous, crashed, fail."),
    "finding": (
        "", "expect: [{when: {}, outcome: fail, finding: kv_digest}]\n", 9,
        "expect[0].finding cannot be the text `kv_digest`; did you mean `kv_digests`?"),
    "match number": (
        "", "expect: [{when: {}, outcome: fail, match: 8192}]\n", 9,
        "expect[0].match must be text, got the number 8192; quote it."),
    "match empty": (
        "", "expect: [{when: {}, outcome: fail, match: ''}]\n", 9,
        "expect[0].match must not be empty."),
    "pass with text": (
        "", "expect: [{when: {}, outcome: pass, match: x}]\n", 9,
        "expect[0]: a pass has no findings"),
}
