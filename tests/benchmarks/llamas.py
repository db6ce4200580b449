"""Llamas of random weights in the shapes of well-known ones, and a Qwen3, with documents for them, in a folder.

    python tests/benchmarks/llamas.py FOLDER [--shape 1.2b]

Writes FOLDER/SHAPE (weights, config, a tokenizer trained on the documents) and FOLDER/documents-SHAPE.jsonl, unless
they are there. How fast weights train, and in how much memory, does not depend on what is in them.
"""

from __future__ import annotations

import argparse
import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SHARD = "5GB"


@dataclass(frozen=True, kw_only=True)
class Llama:
    """A model, and documents for it: about `words` words each (the median), of at most `most_words`."""

    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    key_value_heads: int
    vocabulary: int
    tied: bool = True
    documents: int = 3000
    words: float = 28.5
    most_words: int = 150
    max_length: int = 256
    effective: int = 32
    family: str = "llama"
    head_size: int | None = None
    micro_batch: int = 32
    """Rows of one pass where they are padded: those of a large vocabulary's logits fit the card."""

    def config(self) -> dict[str, Any]:
        return {
            "model_type": self.family, "head_dim": self.head_size or self.hidden_size // self.heads,
            "vocab_size": self.vocabulary, "hidden_size": self.hidden_size, "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.layers, "num_attention_heads": self.heads,
            "num_key_value_heads": self.key_value_heads, "max_position_embeddings": max(512, self.max_length),
            "tie_word_embeddings": self.tied, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
        }  # fmt: skip


_LONG: dict[str, Any] = {"documents": 1500, "words": 270, "most_words": 1400, "max_length": 2048, "effective": 16,
                         "micro_batch": 4}  # fmt: skip
_FULL_ROWS: dict[str, Any] = {"documents": 24, "words": 10**6, "most_words": 20_000, "max_length": 4096}
SHAPES = {
    "tiny": Llama(hidden_size=32, intermediate_size=64, layers=2, heads=4, key_value_heads=2, vocabulary=384,
                  documents=200, max_length=64, effective=8, micro_batch=8),
    "small": Llama(hidden_size=256, intermediate_size=704, layers=6, heads=4, key_value_heads=4, vocabulary=4096),
    "134m": Llama(hidden_size=768, intermediate_size=2048, layers=12, heads=12, key_value_heads=4, vocabulary=65536,
                  **_LONG),
    # meta-llama/Llama-3.2-1B and Llama-3.1-8B, by their config.json.
    "1.2b": Llama(hidden_size=2048, intermediate_size=8192, layers=16, heads=32, key_value_heads=8, vocabulary=128256,
                  **_LONG),
    "8b": Llama(hidden_size=4096, intermediate_size=14336, layers=32, heads=32, key_value_heads=8, vocabulary=128256,
                tied=False, **_LONG),
    # Documents of many rows, which are full: one of 4,096 tokens with LoRA, two of them with all weights.
    "8b-4096": Llama(hidden_size=4096, intermediate_size=14336, layers=32, heads=32, key_value_heads=8,
                     vocabulary=128256, tied=False, effective=1, micro_batch=1, **_FULL_ROWS),
    # Qwen/Qwen3-1.7B, by its config.json.
    "1.7b-4096": Llama(family="qwen3", hidden_size=2048, intermediate_size=6144, layers=28, heads=16, head_size=128,
                       key_value_heads=8, vocabulary=151936, effective=2, micro_batch=2, **_FULL_ROWS),
}  # fmt: skip
_TOKENIZER_VOCABULARY = 4096


def write_documents(path: Path, llama: Llama) -> list[str]:
    """Pieces of Python's reference, as long as documents are: log-normal."""
    from math import log
    from pydoc_data.topics import topics

    words = " ".join(topics[name] for name in sorted(topics)).split(" ")
    draw = random.Random(1)
    texts, at = [], 0
    while len(texts) < llama.documents:
        count = max(4, min(llama.most_words, round(draw.lognormvariate(log(llama.words), 0.75))))
        if at + count > len(words):
            at = 0
        texts.append(" ".join(words[at : at + count]))
        at += count
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    return texts


def tokenizer_of(texts: list[str], vocabulary: int) -> Any:
    from transformers import PreTrainedTokenizerFast

    from tui_trainer.data.preparing.byte_bpe import BOS, EOS, PAD, train_tokenizer

    trained = train_tokenizer(texts, min(vocabulary, _TOKENIZER_VOCABULARY))
    return PreTrainedTokenizerFast(tokenizer_object=trained, pad_token=PAD, bos_token=BOS, eos_token=EOS)


def write_model(folder: Path, llama: Llama, texts: list[str]) -> None:
    """In fp32 what is small, in bf16 what is large, made on the card where there is one."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    large = llama.hidden_size > 512
    with torch.device("cuda" if large and torch.cuda.is_available() else "cpu"):
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.bfloat16 if large else torch.float32)
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**llama.config()))
        torch.set_default_dtype(before)
    model.save_pretrained(folder, max_shard_size=SHARD)
    tokenizer_of(texts, llama.vocabulary).save_pretrained(folder)


def make(place: Path, shape: str) -> tuple[Path, Path]:
    """(the model's folder, its documents), made unless they are there. The documents come last: then both are whole."""
    folder, documents = place / shape, place / f"documents-{shape}.jsonl"
    if not documents.exists():
        place.mkdir(parents=True, exist_ok=True)
        unfinished = documents.with_suffix(".part")
        write_model(folder, SHAPES[shape], write_documents(unfinished, SHAPES[shape]))
        unfinished.rename(documents)
    return folder, documents


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--shape", choices=SHAPES, default="1.2b")
    chosen = parser.parse_args()
    for path in make(chosen.folder, chosen.shape):
        print(path)


if __name__ == "__main__":
    main()
