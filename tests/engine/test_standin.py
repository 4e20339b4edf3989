# SPDX-License-Identifier: Apache-2.0
"""What makes a stand-in worth testing with: its greedy tokens depend on its KV cache.

Measured with transformers on CPU: the KV of a prompt's prefix is computed, damaged as a store could damage it, and the
prompt's tail and 16 greedy tokens are computed on top of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from harness import models, standin
from harness.prompts import make_prompts
from harness.records import PromptSpec

pytestmark = pytest.mark.engine

torch = pytest.importorskip("torch", reason="torch computes the measurement")
transformers = pytest.importorskip("transformers", reason="transformers holds the model")

PREFIX, TAIL, NEW_TOKENS = 192, 8, 16

#: Keys and values of one layer, each [prompts, head slots, tokens, head_dim].
LayerKV = tuple[Any, Any]
KV = list[LayerKV]


class Greedy(NamedTuple):
    """Greedy tokens [prompts, new tokens] and all logprobs of the first of them [prompts, vocabulary]."""

    tokens: Any
    logprobs: Any


class Subject:
    """A loaded stand-in, and prompts with the KV of their prefixes."""

    def __init__(self, alias: str, seeds: tuple[int, ...]) -> None:
        found = models.find_model(alias) if alias == "tiny" else _stand_in(alias)
        self.model = transformers.Qwen3ForCausalLM.from_pretrained(found.path, dtype=torch.bfloat16).eval()
        specs = [PromptSpec(count=3, prefix_tokens=PREFIX, tail_tokens=TAIL, seed=seed) for seed in seeds]
        self.prompts = torch.tensor([prompt for spec in specs for prompt in make_prompts(spec, found.vocab_size)])
        self.kv = self.prefill(PREFIX)
        self.correct = self.decode(self.kv, PREFIX)

    def prefill(self, tokens: int) -> KV:
        cache = transformers.DynamicCache()
        with torch.no_grad():
            self.model(input_ids=self.prompts[:, :tokens], past_key_values=cache, logits_to_keep=1)
        return [(layer.keys, layer.values) for layer in cache.layers]

    def decode(self, kv: KV, tokens: int, new: int = NEW_TOKENS) -> Greedy:
        """Greedy tokens after the prompts, of which ``kv`` holds the first ``tokens`` tokens."""
        cache = transformers.DynamicCache()
        for index, (keys, values) in enumerate(kv):
            cache.update(keys, values, index)
        steps, chosen = self.prompts[:, tokens:], []
        first = None
        for _ in range(new):
            with torch.no_grad():
                logits = self.model(input_ids=steps, past_key_values=cache, logits_to_keep=1).logits[:, -1].float()
            first = logits.log_softmax(-1) if first is None else first
            steps = logits.argmax(-1, keepdim=True)
            chosen.append(steps)
        return Greedy(torch.cat(chosen, dim=1), first)

    def damaged(self, damage: Callable[[KV], KV], new: int = NEW_TOKENS) -> Greedy:
        return self.decode(damage([(keys.clone(), values.clone()) for keys, values in self.kv]), PREFIX, new)

    def difference(self, other: Greedy) -> Any:
        """Largest logprob difference among each prompt's five best candidates, nat."""
        best = self.correct.logprobs.topk(5).indices
        return (self.correct.logprobs.gather(1, best) - other.logprobs.gather(1, best)).abs().amax(1)


def _stand_in(alias: str):
    """The stand-in even where a real model of that alias is at hand."""
    cache = models.cache_folder()
    return models._stand_in(alias, cache, True)


def other_prompt(kv: KV) -> KV:
    return [(keys.roll(1, 0), values.roll(1, 0)) for keys, values in kv]


def zeros(kv: KV) -> KV:
    return [(keys * 0, values * 0) for keys, values in kv]


def heads_rotated(kv: KV) -> KV:
    return [(keys.roll(1, 1), values.roll(1, 1)) for keys, values in kv]


def keys_and_values_swapped(kv: KV) -> KV:
    return [(values, keys) for keys, values in kv]


def layers_rotated(kv: KV) -> KV:
    return kv[1:] + kv[:1]


def one_layer_zero(kv: KV) -> KV:
    middle = len(kv) // 2
    return [(keys * 0, values * 0) if at == middle else (keys, values) for at, (keys, values) in enumerate(kv)]


def one_head_of_one_layer_zero(kv: KV) -> KV:
    for tensor in kv[len(kv) // 2]:
        tensor[:, 0] = 0
    return kv


def one_block_zero(kv: KV) -> KV:
    for layer in kv:
        for tensor in layer:
            tensor[:, :, 48:64] = 0
    return kv


def last_block_is_the_first(kv: KV) -> KV:
    for layer in kv:
        for tensor in layer:
            tensor[:, :, 176:192] = tensor[:, :, 0:16].clone()
    return kv


def one_block_of_one_layer_zero(kv: KV) -> KV:
    for tensor in kv[len(kv) // 2]:
        tensor[:, :, 48:64] = 0
    return kv


#: Damage that leaves hardly anything of the prefix, or something of every layer, as it was.
LARGE = (
    other_prompt,
    zeros,
    heads_rotated,
    keys_and_values_swapped,
    layers_rotated,
    one_block_zero,
    last_block_is_the_first,
)
SMALL = (one_layer_zero, one_head_of_one_layer_zero, one_block_of_one_layer_zero)


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """The number of threads changes bits, and test processes share the cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def tiny() -> Subject:
    return Subject("tiny", seeds=(0, 1, 2, 3, 4))


@pytest.fixture(scope="module")
def full() -> Subject:
    return Subject("qwen3-0.6b", seeds=(0,))


def changed_prompts(correct: Greedy, other: Greedy) -> int:
    return int((correct.tokens != other.tokens).any(1).sum())


def test_the_same_kv_gives_the_same_bits(tiny):
    again = tiny.damaged(lambda kv: kv)
    assert torch.equal(again.tokens, tiny.correct.tokens)
    assert torch.equal(again.logprobs, tiny.correct.logprobs)


@pytest.mark.parametrize("damage", LARGE, ids=lambda damage: damage.__name__)
def test_large_damage_changes_the_tokens_of_every_prompt(tiny, damage):
    damaged = tiny.damaged(damage)
    assert changed_prompts(tiny.correct, damaged) == 15
    assert float(tiny.difference(damaged).min()) > 0.1


@pytest.mark.parametrize("damage", SMALL, ids=lambda damage: damage.__name__)
def test_small_damage_changes_the_logprobs_of_every_prompt_and_most_tokens(tiny, damage):
    damaged = tiny.damaged(damage)
    assert bool((damaged.logprobs != tiny.correct.logprobs).any(1).all())
    assert changed_prompts(tiny.correct, damaged) >= 10


def test_greedy_tokens_are_no_constant_sequence(tiny):
    assert min(len(set(row)) for row in tiny.correct.tokens.tolist()) >= 6
    assert len(set(tiny.correct.tokens.flatten().tolist())) >= 150


def test_rounding_is_far_below_corruption(tiny):
    """Prefix and tail computed in one go, as a cold pass does, against the tail on top of the prefix's KV."""
    cold = tiny.decode(tiny.prefill(PREFIX + TAIL - 1), PREFIX + TAIL - 1)
    corrupt = tiny.damaged(other_prompt)
    assert float(tiny.difference(cold).mean()) < 0.1
    assert float(tiny.difference(corrupt).mean()) > 20 * float(tiny.difference(cold).mean())


@pytest.mark.slow
def test_another_prompts_blocks_change_every_prompt_at_the_real_shape(full):
    damaged = full.damaged(other_prompt)
    assert changed_prompts(full.correct, damaged) == 3
    assert float(full.difference(damaged).min()) > 0.5
    assert min(len(set(row)) for row in full.correct.tokens.tolist()) >= 12
    cold = full.decode(full.prefill(PREFIX + TAIL - 1), PREFIX + TAIL - 1, new=1)
    assert float(full.difference(cold).mean()) < 0.3


@pytest.mark.slow
@pytest.mark.parametrize("damage", (*LARGE[1:], *SMALL), ids=lambda damage: damage.__name__)
def test_damage_changes_the_logprobs_of_every_prompt_at_the_real_shape(full, damage):
    damaged = full.damaged(damage, new=1)
    assert bool((damaged.logprobs != full.correct.logprobs).any(1).all())


@pytest.mark.parametrize("alias", sorted(standin.SHAPES))
def test_names_and_shapes_are_those_of_transformers(alias):
    shape = standin.SHAPES[alias]
    config = standin.config(shape)
    config.pop("torch_dtype")
    with torch.device("meta"):
        model = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**config))
    theirs = {name: tuple(tensor.shape) for name, tensor in model.named_parameters()}
    assert {tensor.name: tensor.shape for tensor in standin.tensors(shape)} == theirs


def test_the_config_is_read_as_qwen3_0_6b(tmp_path):
    standin.write(tmp_path, standin.SHAPES["tiny"])
    config = transformers.AutoConfig.from_pretrained(tmp_path)
    assert config.model_type == "qwen3"
    assert config.tie_word_embeddings is True
    theta = getattr(config, "rope_theta", None) or config.rope_parameters["rope_theta"]
    assert theta == 1_000_000


def test_loading_leaves_no_weight_out(tmp_path):
    standin.write(tmp_path, standin.SHAPES["tiny"])
    _, info = transformers.Qwen3ForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"]


def test_the_seed_changes_every_random_tensor(tmp_path):
    from safetensors.torch import load_file

    one, two = tmp_path / "one", tmp_path / "two"
    for directory, seed in ((one, 0), (two, 1)):
        directory.mkdir()
        standin.write(directory, standin.SHAPES["tiny"], seed=seed)
    first, second = load_file(one / "model.safetensors"), load_file(two / "model.safetensors")
    for tensor in standin.tensors(standin.SHAPES["tiny"]):
        assert torch.equal(first[tensor.name], second[tensor.name]) == (tensor.fill == "constant"), tensor.name
        if tensor.fill == "random":
            assert float(first[tensor.name].float().std()) == pytest.approx(tensor.scale, rel=0.05)
    signs = first["model.norm.weight"].sign()
    assert float(signs.sum()) == 0.0
