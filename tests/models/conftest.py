"""Tiny models of every family, built once from a config with random weights, without a network."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

SMALL = {"vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
GATED = {**SMALL, "intermediate_size": 48, "num_key_value_heads": 2}
WIDE_HEADS = {**GATED, "head_dim": 16}
GPT2 = {"vocab_size": 96, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 24}
FALCON = {**SMALL, "bias": False}

# Name of a variant: model_type, fields. They differ in what moves the count: biases, norms, heads, tying, and how the
# modules are built. transformers counts them for us, so families that are built alike are left out.
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", GATED),
    "llama-tied": ("llama", {**GATED, "tie_word_embeddings": True}),
    "llama-biases": ("llama", {**GATED, "attention_bias": True, "mlp_bias": True}),
    "qwen3": ("qwen3", WIDE_HEADS),
    "gemma2": ("gemma2", WIDE_HEADS),
    "phi": ("phi", GATED),
    "phi3": ("phi3", {**GATED, "pad_token_id": 0, "eos_token_id": 1}),
    "gpt2": ("gpt2", GPT2),
    "gpt2-inner": ("gpt2", {**GPT2, "n_inner": 40, "tie_word_embeddings": False}),
    "opt": ("opt", {**SMALL, "ffn_dim": 48, "max_position_embeddings": 24}),
    "opt-projected": (
        "opt",
        {**SMALL, "ffn_dim": 48, "word_embed_proj_dim": 16, "do_layer_norm_before": False, "enable_bias": False},
    ),
    "gpt_neox": ("gpt_neox", {**SMALL, "intermediate_size": 48}),
    "bloom": ("bloom", {"vocab_size": 96, "hidden_size": 32, "n_layer": 2, "n_head": 4}),
    "falcon-new": ("falcon", {**FALCON, "new_decoder_architecture": True, "num_kv_heads": 2}),
}


@dataclass(frozen=True)
class Tiny:
    """A model, its config.json as transformers writes it, and a way to a folder with its weights."""

    model: Any
    config: dict[str, Any]

    def save(self, folder: Path, **how: Any) -> Path:
        self.model.save_pretrained(folder, **how)
        return folder


@cache
def tiny(variant: str) -> Tiny:
    """Shared by all tests of a session: nobody changes it."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    model_type, fields = VARIANTS[variant]
    special = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    config = AutoConfig.for_model(model_type, **{**special, **fields})
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    return Tiny(model, json.loads(config.to_json_string()) | {"architectures": [type(model).__name__]})


@pytest.fixture(scope="session")
def make_tiny() -> Callable[[str], Tiny]:
    return tiny


@pytest.fixture(scope="session")
def llama_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole model folder: config, weights, tokenizer. Tests that damage it copy it first."""
    folder = tiny("llama").save(tmp_path_factory.mktemp("models") / "llama")
    write_tokenizer(folder)
    return folder


def write_tokenizer(folder: Path, words: int = 60, *, adds_bos: bool = True, chat: bool = True) -> None:
    """tokenizer.json and tokenizer_config.json: words w0, w1, ... and three special tokens at the beginning."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    vocabulary = {"<pad>": 0, "<s>": 1, "</s>": 2, "<unk>": 3} | {f"w{n}": n + 4 for n in range(words)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["<pad>", "<s>", "</s>"])
    if adds_bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)]
        )
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    content = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": {"__type": "AddedToken", "content": "</s>"},
        "pad_token": "<pad>",
    }
    if chat:
        content["chat_template"] = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    (folder / "tokenizer_config.json").write_text(json.dumps(content))
