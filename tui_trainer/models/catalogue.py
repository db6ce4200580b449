"""Shapes of well-known models, so that they can be planned before anything is downloaded. An unknown name is None.

Each row repeats what the model's own page on the hub says: the fields of its config.json that decide the shape, and the
count of its weights, which a test compares with the model as transformers builds it. A model whose count could not be
confirmed in this way has no row.
"""

from __future__ import annotations

from typing import Any

from tui_trainer.models.catalogue_entry import CatalogueEntry, page
from tui_trainer.models.catalogue_of_encoders import ENCODER_ENTRIES

__all__ = ["CatalogueEntry", "all_entries", "find_shape"]

_ARCHITECTURES = {
    "gemma": "GemmaForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
    "gpt2": "GPT2LMHeadModel",
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "phi": "PhiForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}


def find_shape(name: str) -> CatalogueEntry | None:
    """The row of a model by its name on the hub, upper and lower case alike.

    The organisation may be left out where only one has a model of that name: `distilgpt2`.
    """
    wanted = name.strip().lower()
    for entry in _ENTRIES:
        if entry.name.lower() == wanted:
            return entry
    alike = [entry for entry in _ENTRIES if entry.name.rpartition("/")[2].lower() == wanted]
    return alike[0] if len(alike) == 1 else None


def all_entries() -> tuple[CatalogueEntry, ...]:
    """Every row, family by family."""
    return _ENTRIES


def _gpt2(layers: int) -> dict[str, Any]:
    return {
        "model_type": "gpt2",
        "architectures": [_ARCHITECTURES["gpt2"]],
        "n_embd": 768,
        "n_layer": layers,
        "n_head": 12,
        "n_positions": 1024,
        "vocab_size": 50_257,
        "torch_dtype": "float32",
    }


def _decoder(
    model_type: str,
    hidden: int,
    layers: int,
    heads: tuple[int, int],
    mlp: int,
    vocabulary: int,
    positions: int,
    *,
    tied: bool = False,
    head_dim: int | None = None,
    dtype: str = "bfloat16",
) -> dict[str, Any]:
    """A config.json; `heads` are those of the queries and those of keys and values."""
    config = {
        "model_type": model_type,
        "architectures": [_ARCHITECTURES[model_type]],
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads[0],
        "num_key_value_heads": heads[1],
        "intermediate_size": mlp,
        "vocab_size": vocabulary,
        "max_position_embeddings": positions,
        "tie_word_embeddings": tied,
        "torch_dtype": dtype,
    }
    return config if head_dim is None else config | {"head_dim": head_dim}


def _row(
    name: str, config: dict[str, Any], parameters: int, weights_bytes: int | None, license: str, note: str = ""
) -> CatalogueEntry:
    return CatalogueEntry(
        name=name,
        config=config,
        parameters=parameters,
        weights_bytes=weights_bytes,
        gated=license in ("llama3.1", "llama3.2", "gemma"),
        license=license,
        source=page(name, weights_bytes) + (f"; {note}" if note else ""),
    )


_MASKS = "the file also holds the causal masks of its layers"
_HEAD_TWICE = "the file holds the shared weights of embedding and head twice"
_LLAMA_8B = _decoder("llama", 4096, 32, (32, 8), 14_336, 128_256, 131_072)
_LLAMA_1B = _decoder("llama", 2048, 16, (32, 8), 8192, 128_256, 131_072, tied=True, head_dim=64)
_LLAMA_3B = _decoder("llama", 3072, 28, (24, 8), 8192, 128_256, 131_072, tied=True, head_dim=128)

_DECODERS = (
    _row("distilbert/distilgpt2", _gpt2(6), 81_912_576, 352_816_128, "apache-2.0", _MASKS),
    _row("openai-community/gpt2", _gpt2(12), 124_439_808, 548_090_880, "mit", _MASKS),
    _row(
        "microsoft/phi-2",
        _decoder("phi", 2560, 32, (32, 32), 10_240, 51_200, 2048, dtype="float16"),
        2_779_683_840,
        5_559_367_680,
        "mit",
    ),
    _row(
        "TinyLlama/TinyLlama-1.1B-Chat-v1.0",
        _decoder("llama", 2048, 22, (32, 4), 5632, 32_000, 2048),
        1_100_048_384,
        2_200_096_768,
        "apache-2.0",
    ),
    _row("meta-llama/Llama-3.1-8B", _LLAMA_8B, 8_030_261_248, 16_060_522_496, "llama3.1"),
    _row("meta-llama/Llama-3.1-8B-Instruct", _LLAMA_8B, 8_030_261_248, 16_060_522_496, "llama3.1"),
    _row("meta-llama/Llama-3.2-1B", _LLAMA_1B, 1_235_814_400, 2_471_628_800, "llama3.2"),
    _row("meta-llama/Llama-3.2-1B-Instruct", _LLAMA_1B, 1_235_814_400, 2_471_628_800, "llama3.2"),
    _row("meta-llama/Llama-3.2-3B", _LLAMA_3B, 3_212_749_824, 6_425_499_648, "llama3.2"),
    _row("meta-llama/Llama-3.2-3B-Instruct", _LLAMA_3B, 3_212_749_824, 6_425_499_648, "llama3.2"),
    _row(
        "Qwen/Qwen2.5-0.5B",
        _decoder("qwen2", 896, 24, (14, 2), 4864, 151_936, 32_768, tied=True),
        494_032_768,
        988_065_536,
        "apache-2.0",
    ),
    _row(
        "Qwen/Qwen2.5-1.5B",
        _decoder("qwen2", 1536, 28, (12, 2), 8960, 151_936, 131_072, tied=True),
        1_543_714_304,
        3_087_428_608,
        "apache-2.0",
    ),
    _row(
        "Qwen/Qwen2.5-7B",
        _decoder("qwen2", 3584, 28, (28, 4), 18_944, 152_064, 131_072),
        7_615_616_512,
        15_231_233_024,
        "apache-2.0",
    ),
    _row(
        "Qwen/Qwen3-0.6B",
        _decoder("qwen3", 1024, 28, (16, 8), 3072, 151_936, 40_960, tied=True, head_dim=128),
        596_049_920,
        1_503_264_768,
        "apache-2.0",
        _HEAD_TWICE,
    ),
    _row(
        "Qwen/Qwen3-1.7B",
        _decoder("qwen3", 2048, 28, (16, 8), 6144, 151_936, 40_960, tied=True, head_dim=128),
        1_720_574_976,
        4_063_479_808,
        "apache-2.0",
        _HEAD_TWICE,
    ),
    _row(
        "Qwen/Qwen3-4B",
        _decoder("qwen3", 2560, 36, (32, 8), 9728, 151_936, 40_960, tied=True, head_dim=128),
        4_022_468_096,
        8_044_936_192,
        "apache-2.0",
    ),
    _row(
        "Qwen/Qwen3-8B",
        _decoder("qwen3", 4096, 36, (32, 8), 12_288, 151_936, 40_960, head_dim=128),
        8_190_735_360,
        16_381_470_720,
        "apache-2.0",
    ),
    _row(
        "mistralai/Mistral-7B-v0.1",
        _decoder("mistral", 4096, 32, (32, 8), 14_336, 32_000, 32_768),
        7_241_732_096,
        14_483_464_192,
        "apache-2.0",
    ),
    _row(
        "mistralai/Mistral-7B-v0.3",
        _decoder("mistral", 4096, 32, (32, 8), 14_336, 32_768, 32_768),
        7_248_023_552,
        14_496_047_104,
        "apache-2.0",
    ),
    _row(
        "google/gemma-2b",
        _decoder("gemma", 2048, 18, (8, 1), 16_384, 256_000, 8192, tied=True, head_dim=256),
        2_506_172_416,
        5_012_344_832,
        "gemma",
    ),
    _row(
        "google/gemma-2-2b",
        _decoder("gemma2", 2304, 26, (8, 4), 9216, 256_000, 8192, tied=True, head_dim=256, dtype="float32"),
        2_614_341_888,
        10_457_367_552,
        "gemma",
    ),
    _row(
        "google/gemma-7b",
        _decoder("gemma", 3072, 28, (16, 16), 24_576, 256_000, 8192, tied=True, head_dim=256),
        8_537_680_896,
        None,
        "gemma",
    ),
    _row(
        "google/gemma-2-9b",
        _decoder("gemma2", 3584, 42, (16, 8), 14_336, 256_000, 8192, tied=True, head_dim=256, dtype="float32"),
        9_241_705_984,
        None,
        "gemma",
    ),
    _row(
        "google/gemma-3-1b-pt",
        _decoder("gemma3_text", 1152, 26, (4, 1), 6912, 262_144, 32_768, tied=True, head_dim=256),
        999_885_952,
        None,
        "gemma",
    ),
    _row("microsoft/phi-4", _decoder("phi3", 5120, 40, (40, 10), 17_920, 100_352, 16_384), 14_659_507_200, None, "mit"),
    _row(
        "microsoft/Phi-4-mini-instruct",
        _decoder("phi3", 3072, 32, (24, 8), 8192, 200_064, 131_072, tied=True),
        3_836_021_760,
        None,
        "mit",
    ),
    _row(
        "microsoft/Phi-3-mini-4k-instruct",
        _decoder("phi3", 3072, 32, (32, 32), 8192, 32_064, 4096),
        3_821_079_552,
        7_642_159_104,
        "mit",
    ),
    _row(
        "HuggingFaceTB/SmolLM2-135M",
        _decoder("llama", 576, 30, (9, 3), 1536, 49_152, 8192, tied=True),
        134_515_008,
        269_030_016,
        "apache-2.0",
    ),
    _row(
        "HuggingFaceTB/SmolLM2-360M",
        _decoder("llama", 960, 32, (15, 5), 2560, 49_152, 8192, tied=True),
        361_821_120,
        723_642_240,
        "apache-2.0",
    ),
    _row(
        "HuggingFaceTB/SmolLM2-1.7B",
        _decoder("llama", 2048, 24, (32, 32), 8192, 49_152, 8192, tied=True),
        1_711_376_384,
        3_422_752_768,
        "apache-2.0",
    ),
)

_ENTRIES = (*_DECODERS, *ENCODER_ENTRIES)
