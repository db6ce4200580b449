"""Documents that share a row do not see each other, and a step learns from them what it learns from padded rows."""

import random

import numpy as np
import pytest
import torch
from transformers import AttentionInterface

from tests.planning.test_profiles_on_machines import FACTS, loaded_on, machine_of
from tests.tiny_models import NOT_PACKED, PACKED, PACKED_TOWERS, TOWERS, tiny_model, tiny_model_with_towers
from tui_trainer.data.batching.collate import collate, collate_packed
from tui_trainer.data.batching.pack import pack_batch
from tui_trainer.losses.micro_batch import micro_batch
from tui_trainer.models.towers import mask_by_positions
from tui_trainer.planning import plan as planning
from tui_trainer.planning.attention import ON_CPU
from tui_trainer.planning.training_setup import Precision
from tui_trainer.training import varlen
from tui_trainer.training.precision import MixedPrecision
from tui_trainer.training.probes import packing_difference
from tui_trainer.training.varlen import Kernel

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def documents():
    draw = np.random.default_rng(5)
    return [draw.integers(3, 380, size=length, dtype=np.int32) for length in (12, 7, 19, 4, 9, 15, 6)]


class _Components:
    """The parts of a run that the probe reads."""

    device, pad_id = CPU, 0

    def __init__(self, model, precision: Precision = "fp32") -> None:
        self.model = model
        self.mixed_precision = MixedPrecision(precision, CPU)


class _Rows(list):
    def row(self, index):
        return self[index]


def model_of(family):
    if family not in TOWERS:
        return tiny_model(family)
    model = tiny_model_with_towers(family)
    mask_by_positions(model)
    return model


def logits_alone(model, documents):
    """Return the logits [tokens, V] of the documents, each computed alone."""
    with torch.no_grad():
        parts = [model(input_ids=torch.from_numpy(d[None, :-1].astype(np.int64)), use_cache=False) for d in documents]
    return torch.cat([part.logits[0] for part in parts])


def logits_packed(model, documents, **more):
    batch = micro_batch(collate_packed([documents], 0))
    with torch.no_grad():
        return model(**batch.inputs, **more, use_cache=False).logits[0]


# Rotary positions, learnt positions, and a family that mixes documents.
COMMON = ("llama", "gpt2", "opt")


def assert_documents_stay_apart(family, documents):
    """Compare packed logits with those of each document alone; the control is a mask of ones, with which they mix."""
    model = model_of(family).eval()
    alone = logits_alone(model, documents)
    if family in PACKED or family in PACKED_TOWERS:
        torch.testing.assert_close(logits_packed(model, documents), alone, atol=1e-5, rtol=0)
    if family not in NOT_PACKED:
        mask = torch.ones(1, sum(len(document) - 1 for document in documents), dtype=torch.int64)
        mixed = logits_packed(model, documents, attention_mask=mask)
        assert (mixed - alone).abs().max() > 1e-2
    components = _Components(model_of(family))
    leak = packing_difference(components, _Rows(documents))
    assert (leak is not None) == (family in (*NOT_PACKED, "qwen3_5"))
    assert components.model.training


def test_packed_logits_equal_those_of_each_document_alone_and_the_probe_finds_leaks(documents, subtests):
    for family in COMMON:
        with subtests.test(family):
            assert_documents_stay_apart(family, documents)


@pytest.mark.full
def test_packed_logits_and_the_probe_of_other_families(documents, subtests):
    for family in (*PACKED, *TOWERS, *NOT_PACKED):
        if family not in COMMON:
            with subtests.test(family):
                assert_documents_stay_apart(family, documents)


def test_documents_mix_in_a_qwen_with_positions_of_text_only(documents):
    assert packing_difference(_Components(tiny_model_with_towers("qwen2_5_vl")), _Rows(documents))


def test_the_probe_decides_in_16_bits_as_well(documents):
    for family in ("llama", "opt"):
        leak = packing_difference(_Components(tiny_model(family), precision="bf16"), _Rows(documents))
        assert (leak is not None) == (family == "opt"), family


def test_packed_and_padded_batches_hold_the_same_labels(documents):
    draw = random.Random(2)
    for _ in range(20):
        chosen = draw.sample(documents, draw.randint(1, len(documents)))
        padded = micro_batch(collate(chosen, 0))
        packed = micro_batch(collate_packed(pack_batch(chosen, draw.randint(18, 64)), 0))
        assert sorted(padded.labels.tolist()) == sorted(packed.labels.tolist())
        assert padded.sample_count == packed.sample_count == len(chosen)


def kernel_of_torch_2_13(
    query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, scale=None, window_size=(-1, -1), enable_gqa=False
):
    """Compute attention document by document, as the kernel of torch does. Shapes: [tokens, heads, size]."""
    assert window_size[1] == 0, "causal"
    assert max_q == int((cu_seq_q[1:] - cu_seq_q[:-1]).max())
    parts = []
    for start, end in zip(cu_seq_q[:-1].tolist(), cu_seq_q[1:].tolist(), strict=True):
        q, k, v = (x[start:end].transpose(0, 1)[None] for x in (query, key, value))
        parts.append(torch.nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=True, scale=scale, enable_gqa=enable_gqa)[0].transpose(0, 1))  # fmt: skip
    return torch.cat(parts)


def kernel_of_torch_2_10(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, is_causal=False):
    assert is_causal
    return kernel_of_torch_2_13(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, window_size=(-1, 0))


KERNELS = [
    Kernel("torch 2.13", kernel_of_torch_2_13),
    Kernel("torch 2.10", kernel_of_torch_2_10, repeats_keys=True),
]


def assert_attention_by_lengths_keeps_documents_apart(family, kernel, documents):
    model = model_of(family).eval()
    wanted = logits_alone(model, documents)
    AttentionInterface.register(varlen.ATTENTION_NAME, varlen.attention_by(kernel))
    model.set_attn_implementation(varlen.ATTENTION_NAME)
    batch = micro_batch(collate_packed([documents[:3], documents[3:]], 0), by_lengths=True)
    with torch.no_grad():
        logits = model(**batch.inputs, use_cache=False).logits.flatten(0, 1)[batch.label_positions]
        torch.testing.assert_close(logits, wanted, atol=1e-5, rtol=0)
        prompt = batch.inputs["input_ids"][:1, :8]
        written = logits_of_text(model, prompt)
        # The second prompt is the end of the first, padded at the left.
        ids = torch.cat([prompt, torch.cat([torch.zeros_like(prompt[:, :3]), prompt[:, 3:]], 1)])
        mask = torch.ones_like(ids)
        mask[1, :3] = 0
        with varlen.with_masks(model):
            two = logits_of_text(model, ids, attention_mask=mask)
        assert model.config._attn_implementation == varlen.ATTENTION_NAME
        varlen.switch_off(model)
        same, short = logits_of_text(model, prompt), logits_of_text(model, prompt[:, 3:])
    assert torch.equal(written, same), "text samples do not need lengths"
    # Prompts of several rows do not see padding.
    torch.testing.assert_close(two, torch.cat([same, short]), atol=1e-5, rtol=0)


def logits_of_text(model, ids, **more):
    how = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0, "output_logits": True}
    return torch.stack(model.generate(ids, return_dict_in_generate=True, **how, **more).logits, 1)


def test_attention_by_lengths_keeps_documents_apart(documents, subtests):
    """A stand-in for the kernel of the GPU checks that lengths, heads, scales and shapes arrive as it takes them."""
    for kernel in KERNELS:
        with subtests.test(kernel.name):
            assert_attention_by_lengths_keeps_documents_apart("llama", kernel, documents)


@pytest.mark.full
def test_attention_by_lengths_keeps_documents_apart_in_other_families(documents, subtests):
    # Gemma 3 attends within windows, which the stand-ins do not know.
    for family in [*PACKED[1:], *(family for family in PACKED_TOWERS if family != "gemma3")]:
        for kernel in KERNELS:
            with subtests.test(f"{family}, {kernel.name}"):
                assert_attention_by_lengths_keeps_documents_apart(family, kernel, documents)


@pytest.mark.full
def test_attention_by_lengths_is_not_planned_without_a_gpu():
    hardware = machine_of("cpu")
    loaded = loaded_on(hardware, "char-lm", ("data.packing=true", "model.scratch.attention_dropout=0"))
    assert planning.decide(loaded, hardware, FACTS).chosen.attention.kernel == ON_CPU
