"""Tiny chat models with tokenizers like those of well-known families, for what serves them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from tests.tiny_models import texts, tiny_model
from tui_trainer.exporting.run_converter import PATTERNS

_SPACE = "\u2581"
_SPECIAL = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"]
KINDS = ("llama", "llama3", "qwen2", "gemma")


def served_tokenizer(kind: str) -> PreTrainedTokenizerFast:
    """A tokenizer that splits texts as the family `kind` does, trained on short sentences."""
    byte_level = kind in ("llama3", "qwen2")
    tokenizer = Tokenizer(models.BPE(ignore_merges=kind == "llama3") if byte_level else models.BPE(byte_fallback=True))
    settings: dict[str, Any] = {"vocab_size": 700, "show_progress": False}
    if byte_level:
        pattern = next(
            regex for (regex, ignores), name in PATTERNS.items() if name == {"llama3": "llama-bpe"}.get(kind, kind)
        )
        split = pre_tokenizers.Split(Regex(pattern), "isolated")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
        tokenizer.decoder = decoders.ByteLevel()
        if kind == "qwen2":
            tokenizer.normalizer = normalizers.NFC()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(special_tokens=_SPECIAL, initial_alphabet=sorted(alphabet), **settings)
        tokenizer.train_from_iterator(texts(), trainer)
    else:
        tokenizer = _with_byte_fallback(prefixed=kind == "llama", settings=settings)
    if kind != "qwen2":
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    names = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names, clean_up_tokenization_spaces=False)


def _with_byte_fallback(*, prefixed: bool, settings: dict[str, Any]) -> Tokenizer:
    """Return a tokenizer as transformers makes it of a SentencePiece model: with each way to join two tokens to one."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first" if prefixed else "never")
    sample = [*texts(), "two  spaces   three    four", "a = b;\n\tc = d"]
    trained.train_from_iterator(sample, trainers.BpeTrainer(**settings))
    pieces: Iterable[str] = sorted(trained.get_vocab(), key=lambda token: trained.get_vocab()[token])
    tokens = [*_SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    ids = {token: number for number, token in enumerate(dict.fromkeys(tokens))}
    splits = [(token[:at], token[at:]) for token in ids for at in range(1, len(token)) if token not in _SPECIAL]
    merges = [pair for pair in splits if pair[0] in ids and pair[1] in ids and not pair[0].startswith("<0x")]
    tokenizer = Tokenizer(models.BPE(ids, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    replace = normalizers.Replace(" ", _SPACE)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), replace]) if prefixed else replace
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefixed else steps)
    tokenizer.add_special_tokens(_SPECIAL)
    return tokenizer


def save_served_model(folder: Path, kind: str) -> Path:
    """Save a tiny model of the family with such a tokenizer, as the hub has it."""
    tokenizer = served_tokenizer(kind)
    family = {"llama3": "llama", "gemma": "gemma2"}.get(kind, kind)
    more = {"final_logit_softcapping": 30.0} if kind == "gemma" else {}  # transformers reads no other from GGUF
    model = tiny_model(family, **more, vocab_size=len(tokenizer) + 3, max_position_embeddings=1024)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def write_sums(path: Path) -> Path:
    """Write conversations about sums as rows to train on."""
    rows = [
        [{"role": "user", "content": f"{n} and {n}?"}, {"role": "assistant", "content": f"{2 * n}"}] for n in range(24)
    ]
    path.write_text("\n".join(json.dumps({"messages": row}) for row in rows))
    return path
