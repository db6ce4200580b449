"""Which kernel computes attention: 12 models on 5 cards, packed and padded, in fp32 and in 16 bits, with the source.

    uv run python -m tests.benchmarks.attention_table                  # for the torch that is installed
    uv run python -m tests.benchmarks.attention_table --torch 2.11.0   # for another one
    uv run python -m tests.benchmarks.attention_table --why            # with the reason of each

What is printed is what `tui-trainer plan` says (`planning/attention.py`). Nothing is measured: the cards are their
compute capabilities, the models their config.json with two layers, which decide nothing here.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from itertools import product
from typing import Any

from packaging import version

from tui_trainer.hardware.gpu_models import BF16_FROM, Version
from tui_trainer.models.config_json import OVERFLOWS_IN_FP16
from tui_trainer.models.heads import Head
from tui_trainer.models.shape import ModelShape, shape_of
from tui_trainer.planning.attention import Attention, AttentionMachine, AttentionRows, attention_of
from tui_trainer.planning.training_setup import Precision

CARDS: dict[str, Version] = {"V100": (7, 0), "T4": (7, 5), "RTX 3090": (8, 6), "RTX 4090": (8, 9), "H100": (9, 0)}
ROWS = {
    "packed": AttentionRows(packed=True, longest=2048, widths_vary=False),
    "padded": AttentionRows(packed=False, longest=2048, widths_vary=True),
    "full": AttentionRows(packed=False, longest=2048, widths_vary=False),
}


def _decoder(hidden: int, heads: int, key_heads: int, **more: Any) -> dict[str, Any]:
    sizes = {"hidden_size": hidden, "num_attention_heads": heads, "num_key_value_heads": key_heads}
    return {**sizes, "num_hidden_layers": 2, "intermediate_size": 2 * hidden, "vocab_size": 1000, "pad_token_id": 0,
            "bos_token_id": 1, "eos_token_id": 2, **more}  # fmt: skip


_LONGROPE = {"type": "longrope", "short_factor": [1.0] * 48, "long_factor": [1.0] * 48}
# Heads, windows, caps and biases as the config.json of each says them on the hub.
MODELS: dict[str, tuple[Head, dict[str, Any]]] = {
    "Llama-3.1-8B": ("causal_lm", {"model_type": "llama", **_decoder(4096, 32, 8)}),
    "Qwen3-1.7B": ("causal_lm", {"model_type": "qwen3", **_decoder(2048, 16, 8, head_dim=128)}),
    "Mistral-7B-v0.1": ("causal_lm", {"model_type": "mistral", **_decoder(4096, 32, 8, sliding_window=4096)}),
    "gemma-2b": ("causal_lm", {"model_type": "gemma", **_decoder(2048, 8, 1, head_dim=256)}),
    "gemma-2-2b": ("causal_lm", {"model_type": "gemma2", **_decoder(2304, 8, 4, head_dim=256)}),
    "gemma-3-1b": (
        "causal_lm", {"model_type": "gemma3_text", **_decoder(1152, 4, 1, head_dim=256, sliding_window=512)},
    ),
    "Phi-3.5-mini": (
        "causal_lm",
        {"model_type": "phi3", "rope_scaling": _LONGROPE, "original_max_position_embeddings": 4096,
         "max_position_embeddings": 131072, "sliding_window": 262144, **_decoder(3072, 32, 32)},
    ),
    "gpt2": ("causal_lm", {"model_type": "gpt2", "n_embd": 768, "n_head": 12, "n_layer": 2, "vocab_size": 1000}),
    "DeepSeek-V2-Lite": (
        "causal_lm",
        {"model_type": "deepseek_v2", "kv_lora_rank": 512, "q_lora_rank": None, "qk_nope_head_dim": 128,
         "qk_rope_head_dim": 64, "v_head_dim": 128, "first_k_dense_replace": 2, **_decoder(2048, 16, 16)},
    ),
    "gpt-oss-20b": (
        "causal_lm", {"model_type": "gpt_oss", "num_local_experts": 4, **_decoder(2880, 64, 8, head_dim=64)},
    ),
    "bert-base": (
        "sequence_classification",
        {"model_type": "bert", "hidden_size": 768, "num_attention_heads": 12, "num_hidden_layers": 2,
         "intermediate_size": 3072, "vocab_size": 1000, "max_position_embeddings": 2048},
    ),
    "t5-base": (
        "seq2seq_lm",
        {"model_type": "t5", "d_model": 768, "num_heads": 12, "d_kv": 64, "d_ff": 3072, "num_layers": 2,
         "vocab_size": 1000},
    ),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """What one run would get."""

    model: str
    card: str
    precision: Precision
    rows: str
    attention: Attention


def shape_of_model(name: str) -> ModelShape:
    head, config = MODELS[name]
    return shape_of(config, head=head, labels=2 if head == "sequence_classification" else 0)


def cells(torch_version: str) -> Iterator[Cell]:
    """One for each model, card, precision and kind of rows that a run can have."""
    for name in MODELS:
        shape = shape_of_model(name)
        for (card, capability), (kind, rows) in product(CARDS.items(), ROWS.items()):
            if rows.packed and shape.head != "causal_lm":
                continue
            half: Precision = "bf16" if capability >= BF16_FROM else "fp16"
            overflows = half == "fp16" and shape.model_type in OVERFLOWS_IN_FP16
            for precision in ("fp32",) if overflows else ("fp32", half):
                libraries = {"torch": torch_version}
                machine = AttentionMachine(
                    device="cuda", capability=capability, precision=precision, libraries=libraries
                )
                found = attention_of(shape, rows, machine, "auto")
                yield Cell(model=name, card=card, precision=precision, rows=kind, attention=found)


def torch_version(text: str) -> str:
    """Raises ValueError for what is no version."""
    return str(version.Version(text))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch", type=torch_version, default=metadata.version("torch"))
    parser.add_argument("--why", action="store_true")
    asked = parser.parse_args()
    print(f"torch {asked.torch}; * keys and values are repeated, ~ the host waits for the card in each pass")
    print(f"{'model':<17} {'card':<9} {'dtype':<5} {'rows':<7} {'kernel':<19} source")
    for one in cells(asked.torch):
        found = one.attention
        kernel = found.kernel + " *" * found.repeats_keys + " ~" * bool(found.hidden_wait)
        end = found.because if asked.why else found.source
        print(f"{one.model:<17} {one.card:<9} {one.precision:<5} {one.rows:<7} {kernel:<19} {end}")


if __name__ == "__main__":
    main()
