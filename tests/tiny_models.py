"""Tiny models of well-known families, with a tokenizer trained on real text, saved as folders that anybody loads."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    ByT5Tokenizer,
    CanineTokenizer,
    MBart50Tokenizer,
    MBartTokenizer,
    NllbTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)
from transformers.models.mbart.tokenization_mbart import FAIRSEQ_LANGUAGE_CODES as MBART_LANGUAGES
from transformers.models.mbart50.tokenization_mbart50 import FAIRSEQ_LANGUAGE_CODES as MBART50_LANGUAGES
from transformers.utils import logging

from tui_trainer.data.preparing.byte_bpe import BOS, EOS, PAD, train_tokenizer

# A model that is saved within a test prints nothing of its own.
logging.disable_progress_bar()

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
    "gemma2": {**_GATED, "head_dim": 8, "final_logit_softcapping": 3.0},
    "phi": _GATED,
    "mistral": _GATED,
    "qwen3": {**_GATED, "head_dim": 8},
    "phi3": _GATED,
    "opt": _OPT,
    "bloom": {"hidden_size": 32, "n_layer": 2, "n_head": 4},
    "mamba": {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 4},
}
# Experts that are one tensor: of families that had linear layers in transformers 4, and of one that never had.
EXPERTS: dict[str, dict[str, Any]] = {
    "mixtral": {**_GATED, "num_local_experts": 4, "num_experts_per_tok": 2, "output_router_logits": True,
                "router_aux_loss_coef": 0.02},
    "qwen3_moe": {**_GATED, "head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
                  "norm_topk_prob": True},
    "gpt_oss": {**_GATED, "head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 16},
}  # fmt: skip
TRAINED = ("llama", "gpt2", "qwen2", "gemma", "phi")
PACKED = (*TRAINED, "mistral", "qwen3", "phi3")
NOT_PACKED = ("opt", "bloom", "mamba")

_ENCODER = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 130, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
}  # fmt: skip
_T5 = {
    "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "dropout_rate": 0.0,
    "decoder_start_token_id": 0,
}  # fmt: skip
_BART = {
    "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "max_position_embeddings": 128, "dropout": 0.0,
}  # fmt: skip
ENCODERS: dict[str, dict[str, Any]] = {
    "bert": _ENCODER,
    "distilbert": {"dim": 32, "hidden_dim": 64, "n_layers": 2, "n_heads": 4, "max_position_embeddings": 130,
                   "dropout": 0.0, "attention_dropout": 0.0, "seq_classif_dropout": 0.0},
    "roberta": _ENCODER,
    "xlm-roberta": _ENCODER,
    "electra": {**_ENCODER, "embedding_size": 16},
    "albert": {**_ENCODER, "embedding_size": 16, "classifier_dropout_prob": 0.0},
    "deberta-v2": {**_ENCODER, "relative_attention": True, "position_buckets": 16, "pos_att_type": ["p2c", "c2p"],
                   "share_att_key": True, "norm_rel_ebd": "layer_norm", "position_biased_input": False},
    "mpnet": _ENCODER,
    "modernbert": {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
                   "max_position_embeddings": 130, "bos_token_id": 2, "eos_token_id": 3},
}  # fmt: skip
SEQ2SEQ: dict[str, dict[str, Any]] = {
    "t5": {**_T5, "feed_forward_proj": "gated-gelu"},
    "mt5": {**_T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    "bart": {**_BART, "decoder_start_token_id": 2},
    "mbart": {**_BART, "decoder_start_token_id": 2},
}

# A language model, with towers that take images of 16 x 16 dots, or of 32 x 32 (Mistral 3).
_SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "vocab_size": VOCABULARY}
_LANGUAGE = {**_GATED, **_SPECIAL, "head_dim": 8}
_VISION = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
           "image_size": 16, "patch_size": 8}  # fmt: skip
_QWEN_VISION = {"depth": 1, "hidden_size": 16, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": 32,
                "patch_size": 4}  # fmt: skip
_QWEN_ROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]}
_QWEN_MARKS = {"image_token_id": 3, "video_token_id": 4, "vision_start_token_id": 5, "vision_end_token_id": 6}
TOWERS: dict[str, dict[str, Any]] = {
    "gemma3": {
        "text_config": {**_LANGUAGE, "model_type": "gemma3_text", "sliding_window": 16,
                        "layer_types": ["sliding_attention", "full_attention"]},
        "vision_config": {**_VISION, "model_type": "siglip_vision_model", "vision_use_head": False},
        "mm_tokens_per_image": 4, "image_token_index": 3, "boi_token_index": 4, "eoi_token_index": 5,
    },
    "mistral3": {
        "text_config": {**_LANGUAGE, "model_type": "mistral"},
        "vision_config": {**_VISION, "model_type": "pixtral", "head_dim": 8, "image_size": 32},
        "image_token_index": 3, "spatial_merge_size": 2, "tie_word_embeddings": False,
    },
    "qwen2_5_vl": {
        "text_config": {**_GATED, **_SPECIAL, "model_type": "qwen2_5_vl_text", "rope_parameters": _QWEN_ROPE},
        "vision_config": {**_QWEN_VISION, "fullatt_block_indexes": [0], "window_size": 16}, **_QWEN_MARKS,
        "tie_word_embeddings": True,
    },
    "qwen3_vl": {
        "text_config": {**_LANGUAGE, "model_type": "qwen3_vl_text", "rope_parameters": _QWEN_ROPE},
        "vision_config": {**_QWEN_VISION, "num_position_embeddings": 16, "deepstack_visual_indexes": [0]},
        **_QWEN_MARKS,
    },
    "qwen3_5": {
        "text_config": {**_LANGUAGE, "model_type": "qwen3_5_text",
                        "rope_parameters": {**_QWEN_ROPE, "partial_rotary_factor": 1.0},
                        "layer_types": ["linear_attention", "full_attention"], "linear_num_key_heads": 2,
                        "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8},
        "vision_config": {**_QWEN_VISION, "num_position_embeddings": 16}, **_QWEN_MARKS,
    },
}  # fmt: skip


@dataclass(frozen=True)
class _Tokens:
    """The tokenizer of a family: its kind, its special tokens in the order of their ids, and what stands around a text
    ($A) and a pair ($A, $B)."""

    kind: str
    special: dict[str, str]
    single: str
    pair: str


def _of_bert(kind: str) -> _Tokens:
    special = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
    return _Tokens(kind, special, "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1")


def _of_roberta(kind: str, unknown: str = "<unk>") -> _Tokens:
    special = {"bos": "<s>", "pad": "<pad>", "eos": "</s>", "unk": unknown, "mask": "<mask>"}
    return _Tokens(kind, special, "<s> $A </s>", "<s> $A </s> </s> $B </s>")


_OF_T5 = _Tokens("unigram", {"pad": "<pad>", "eos": "</s>", "unk": "<unk>"}, "$A </s>", "$A </s> $B </s>")
_TOKENS = {
    **dict.fromkeys(("bert", "distilbert", "electra"), _of_bert("wordpiece")),
    **dict.fromkeys(("albert", "deberta-v2"), _of_bert("unigram")),
    "modernbert": _of_bert("bytes"),
    **dict.fromkeys(("roberta", "bart"), _of_roberta("bytes")),
    **dict.fromkeys(("xlm-roberta", "mbart"), _of_roberta("unigram")),
    "mpnet": _of_roberta("wordpiece", "[UNK]"),
    **dict.fromkeys(("t5", "mt5"), _OF_T5),
}
# Qwen 3.5 has recurrent layers.
PACKED_TOWERS = tuple(family for family in TOWERS if family != "qwen3_5")


def tiny_model(family: str, **changes: Any) -> PreTrainedModel:
    """Random weights, the same ones each time: a decoder, an encoder that fills gaps, or both in one."""
    special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    build: Any = AutoModelForCausalLM
    if family in _TOKENS:
        names = list(_TOKENS[family].special)
        special = {f"{name}_token_id": at for at, name in enumerate(names) if name != "unk"}
        build = AutoModelForSeq2SeqLM if family in SEQ2SEQ else AutoModelForMaskedLM
    fields = {**special, "vocab_size": VOCABULARY, **(SHAPES | EXPERTS | ENCODERS | SEQ2SEQ)[family], **changes}
    torch.manual_seed(0)
    model: PreTrainedModel = build.from_config(AutoConfig.for_model(family, **fields))
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
    model = tiny_model(family, **changes)
    model.save_pretrained(folder)
    tiny_tokenizer(family).save_pretrained(folder)
    return folder


def tiny_model_with_towers(family: str, vision: dict[str, Any] | None = None, **language: Any) -> PreTrainedModel:
    """One of `TOWERS` with random weights, the same ones each time; `language` changes its language model, `vision` its
    tower."""
    torch.manual_seed(0)
    build: Any = AutoModelForImageTextToText
    text, vision = {**TOWERS[family]["text_config"], **language}, {**TOWERS[family]["vision_config"], **(vision or {})}
    if "out_hidden_size" in vision:
        vision["out_hidden_size"] = text["hidden_size"]
    fields = {**TOWERS[family], "text_config": text, "vision_config": vision}
    model: PreTrainedModel = build.from_config(AutoConfig.for_model(family, **fields))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.mul_(5.0)
    return model


def save_tiny_model_with_towers(
    folder: Path, family: str, vision: dict[str, Any] | None = None, **language: Any
) -> Path:
    """A folder as the hub has it, with a file of the processor beside the model and the tokenizer."""
    tiny_model_with_towers(family, vision, **language).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text('{"do_resize": true,   "size": {"height": 16, "width": 16}}')
    return folder


def save_tiny_byte_model(folder: Path, family: str) -> Path:
    """`byt5` or `canine`: their tokenizers read bytes and code points, and have no file of a vocabulary."""
    torch.manual_seed(0)
    if family == "byt5":
        fields = {**_T5, "pad_token_id": 0, "eos_token_id": 1, "vocab_size": 384, "tie_word_embeddings": False}
        model: Any = AutoModelForSeq2SeqLM.from_config(AutoConfig.for_model("t5", **fields))
        ByT5Tokenizer().save_pretrained(folder)
    else:
        fields = {**_ENCODER, "num_hash_buckets": 64, "local_transformer_stride": 16}
        model = AutoModel.from_config(AutoConfig.for_model("canine", **fields))
        CanineTokenizer().save_pretrained(folder)
    model.save_pretrained(folder)
    return folder


def save_tiny_translator(folder: Path, kind: str, words: Sequence[str], **languages: str) -> Path:
    """A model that translates among languages, with the tokenizer of its class: `nllb`, `mbart` or `mbart50`.

    The tokenizer knows `words` whole; every text is marked with its language, by `src_lang` and `tgt_lang`.
    """
    tokens = [f"▁{word}" for word in words]
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    if kind == "nllb":
        merges = [(token[:at], token[at]) for token in tokens for at in range(1, len(token))]
        pieces = [*special, *(letter for token in tokens for letter in token), *("".join(pair) for pair in merges)]
        vocabulary = {piece: at for at, piece in enumerate(dict.fromkeys(pieces))}
        named: dict[str, Any] = {"extra_special_tokens": ["eng_Latn", "fra_Latn", "deu_Latn", "fuv_Latn"], **languages}
        made: Any = NllbTokenizer(vocab=vocabulary, merges=list(dict.fromkeys(merges)), **named)
    else:
        build, codes = {"mbart": (MBartTokenizer, MBART_LANGUAGES), "mbart50": (MBart50Tokenizer, MBART50_LANGUAGES)}[
            kind
        ]
        whole = [(piece, 0.0 if piece in special else -1.0) for piece in (*special, *tokens)]
        made = build(vocab=[*whole, *((code, 0.0) for code in codes), ("<mask>", 0.0)], **languages)
    made.save_pretrained(folder)
    ids = {f"{name}_token_id": at for at, name in enumerate(("bos", "pad", "eos"))}
    fields = {**_BART, **ids, "decoder_start_token_id": 2, "vocab_size": len(made)}
    torch.manual_seed(0)
    # NLLB is an M2M100, whose parameters only a process of its own can count; for the languages any decoder will do.
    AutoModelForSeq2SeqLM.from_config(AutoConfig.for_model("mbart", **fields)).save_pretrained(folder)
    return folder


def tiny_tokenizer(family: str = "llama") -> PreTrainedTokenizerFast:
    """Trained on `texts`, with the special tokens of the family, and what it puts around a text."""
    if family not in _TOKENS:
        plain = train_tokenizer(texts(), VOCABULARY)
        return PreTrainedTokenizerFast(
            tokenizer_object=plain, pad_token=PAD, bos_token=BOS, eos_token=EOS, unk_token=EOS
        )
    tokens = _TOKENS[family]
    made = _trained(tokens.kind, list(tokens.special.values()), tokens.special["unk"])
    ids = [(token, made.token_to_id(token)) for token in tokens.special.values()]
    made.post_processor = processors.TemplateProcessing(single=tokens.single, pair=tokens.pair, special_tokens=ids)
    named = {f"{name}_token": token for name, token in tokens.special.items()}
    # RoBERTa's classifiers read the first token, as BERT's do.
    begins = {"cls_token": "<s>", "sep_token": "</s>"} if tokens.special.get("bos") else {}
    inputs = ["input_ids", "attention_mask", *(["token_type_ids"] if "[CLS]" in ids[2] else [])]
    return PreTrainedTokenizerFast(
        tokenizer_object=made, model_max_length=128, model_input_names=inputs, **named, **begins
    )


def _trained(kind: str, special: list[str], unknown: str) -> Tokenizer:
    settings: dict[str, Any] = {"vocab_size": VOCABULARY, "special_tokens": special, "show_progress": False}
    if kind == "wordpiece":
        made = Tokenizer(models.WordPiece(unk_token=unknown))
        made.normalizer, made.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
        made.decoder = decoders.WordPiece()
        trainer: Any = trainers.WordPieceTrainer(**settings)
    elif kind == "unigram":
        made = Tokenizer(models.Unigram())
        made.pre_tokenizer, made.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
        trainer = trainers.UnigramTrainer(unk_token=unknown, **settings)
    else:
        made = Tokenizer(models.BPE())
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        made.decoder = decoders.ByteLevel()
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        trainer = trainers.BpeTrainer(initial_alphabet=alphabet, **settings)
    made.train_from_iterator(texts(), trainer)
    return made
