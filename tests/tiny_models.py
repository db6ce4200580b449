"""Tiny models of well-known families, with a tokenizer trained on real text, saved as folders that anybody loads."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from tui_trainer.data.byte_bpe import BOS, EOS, PAD, train_tokenizer

VOCABULARY = 384
_GATED = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128,
}  # fmt: skip
_OPT = {
    "hidden_size": 32, "ffn_dim": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "word_embed_proj_dim": 32,
    "max_position_embeddings": 128, "dropout": 0.0,
}  # fmt: skip
_GPT2 = {
    "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128,
    "attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0,
}  # fmt: skip
SHAPES: dict[str, dict[str, Any]] = {
    "llama": {**_GATED, "tie_word_embeddings": True},
    "gpt2": _GPT2,
    "qwen2": _GATED,
    "gemma": {**_GATED, "head_dim": 8},
    "phi": _GATED,
    "mistral": _GATED,
    "qwen3": {**_GATED, "head_dim": 8},
    "phi3": _GATED,
    "opt": _OPT,
    "bloom": {"hidden_size": 32, "n_layer": 2, "n_head": 4},
    "mamba": {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 4},
}
TRAINED = ("llama", "gpt2", "qwen2", "gemma", "phi")
PACKED = (*TRAINED, "mistral", "qwen3", "phi3")
NOT_PACKED = ("opt", "bloom", "mamba")


def tiny_model(family: str, **changes: Any) -> PreTrainedModel:
    """Random weights, the same ones each time."""
    special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "vocab_size": VOCABULARY}
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **special, **SHAPES[family] | changes))
    # Larger than transformers begins with: wrong attention then shows in the logits.
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.mul_(5.0)
    return model


def texts(count: int = 200) -> list[str]:
    """Short sentences about numbers: real enough for a tokenizer, regular enough to be learnt."""
    draw = random.Random(4)
    animals = ("sheep", "goat", "cow", "horse", "hen")
    pairs = [(draw.randrange(40), draw.randrange(40)) for _ in range(count)]
    return [
        f"{a} plus {b} is {a + b}, said the {animals[a % 5]}." + f" The {animals[b % 5]} agreed." * (b % 3)
        for a, b in pairs
    ]


def save_tiny_model(folder: Path, family: str, **changes: Any) -> Path:
    """A folder as the hub has it: config.json, model.safetensors, tokenizer.json."""
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=train_tokenizer(texts(), VOCABULARY),
        pad_token=PAD,
        bos_token=BOS,
        eos_token=EOS,
        unk_token=EOS,
    )
    model = tiny_model(family, **changes)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
