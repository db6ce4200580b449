"""The configurations of `memory_grid.py`: small models of well-known families, and of some others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from tui_trainer.models.four_bits import FourBits
from tui_trainer.models.heads import Head
from tui_trainer.models.shape import ModelShape, shape_of
from tui_trainer.models.targets import (
    adapted_linears,
    adapter_parameters,
    head_modules,
    match_targets,
    saved_module_parameters,
)
from tui_trainer.planning.training_setup import Dtype, Precision, TrainingSetup

CLASSES = 8


@dataclass(frozen=True, kw_only=True)
class Case:
    """One configuration. A micro-batch is `rows` of `row_tokens`; `rank` 0: all weights are trained."""

    family: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int | None = None
    head_size: int | None = None
    mlp: int | None = None
    vocabulary: int = 8192
    rows: int
    row_tokens: int
    eval_rows: int | None = None
    accumulation: int = 1
    rank: int = 0
    targets: str = "all-linear"
    precision: Precision = "fp32"
    weights: Dtype = "float32"
    checkpointing: bool = False
    packed: bool = False
    chunk: int = 0
    labels: int = 0
    """Tokens of a pass that have a label, as where short documents are padded; 0: all."""
    dropout: float = 0.0
    """Of encoders, as config.json has it: of results, of scores, and of T5's whatever it drops."""
    answer: int = 0
    """Tokens of each answer behind an encoder."""
    lora_dropout: float = 0.0
    tied: bool | None = None
    """Of decoders: whether the head is the embedding; None: as in the family."""
    in_4_bits: bool = False
    eager: bool = False
    """Attention step by step."""

    @property
    def name(self) -> str:
        """`llama 6x384 8x64 lora16 bf16 ckpt packed`: layers x width, rows x tokens."""
        words = [self.family, f"{self.layers}x{self.hidden}", f"{self.rows}x{self.row_tokens}"]
        words += [f"{self.method}{self.rank or ''}", self.precision]
        words += ["w16"] if self.weights != "float32" else []
        words += ["ckpt"] if self.checkpointing else []
        words += ["packed"] if self.packed else []
        words += [f"chunk{self.chunk}"] if self.chunk else []
        words += [f"labels{self.labels}"] if self.labels else []
        words += [f"acc{self.accumulation}"] if self.accumulation > 1 else []
        words += [f"answer{self.answer}"] if self.answer else []
        words += [f"dropout{self.dropout:g}"] if self.dropout else []
        words += ["eager"] if self.eager else []
        return " ".join(words)

    def config(self) -> dict[str, Any]:
        """The fields of config.json."""
        mlp = self.mlp or -(-self.hidden * 8 // 3 // 32) * 32
        common = {"model_type": self.family, "vocab_size": self.vocabulary, "bos_token_id": None, "eos_token_id": None}
        if self.head != "causal_lm":
            return {**common, **ENCODER_FIELDS[self.family](self, self.mlp or 4 * self.hidden)}
        if self.family in OTHER_FIELDS:
            return {**common, **OTHER_FIELDS[self.family](self, mlp)}
        if self.family == "gpt2":
            names = {"n_embd": self.hidden, "n_layer": self.layers, "n_head": self.heads, "n_inner": mlp}
            return {**common, **names, "attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0}
        return {
            **common,
            "hidden_size": self.hidden,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads or self.heads,
            "head_dim": self.head_size or self.hidden // self.heads,
            "intermediate_size": mlp,
            "max_position_embeddings": max(1024, self.row_tokens),
            "tie_word_embeddings": self.family in ("qwen2", "gemma") if self.tied is None else self.tied,
        }

    @property
    def head(self) -> Head:
        if self.family not in ENCODER_FIELDS:
            return "causal_lm"
        return "seq2seq_lm" if self.answer else "sequence_classification"

    @property
    def method(self) -> str:
        return "qlora" if self.in_4_bits else "lora" if self.rank else "full"

    def shape(self) -> ModelShape:
        return shape_of(self.config(), head=self.head, labels=CLASSES if self.head == "sequence_classification" else 0)

    def setup(self, device: str) -> TrainingSetup:
        shape, tuned = self.shape(), self.targets if self.rank else ""
        targets = match_targets(shape, tuned) if tuned else ()
        trained = adapter_parameters(adapted_linears(shape, targets), self.rank) + saved_module_parameters(
            shape, ",".join(head_modules(shape))
        )
        return TrainingSetup(
            device="cuda" if device == "cuda" else "cpu",
            precision=self.precision,
            weights=self.weights,
            method=self.method,
            four_bits=FourBits() if self.in_4_bits else None,
            lora_rank=self.rank,
            lora_dropout=self.lora_dropout > 0,
            lora_targets=targets,
            trained_parameters=trained if self.rank else 0,
            head=self.head,
            target_tokens=self.answer,
            gradient_checkpointing=self.checkpointing,
            packed=self.packed,
            eager_attention=self.eager,
            loss_chunk_tokens=self.chunk,
        )

    def wider(self, times: int) -> Case:
        """So many times as wide: heads of the same size, more of them."""
        return replace(self, hidden=times * self.hidden, heads=times * self.heads,
                       kv_heads=self.kv_heads and times * self.kv_heads, mlp=self.mlp and times * self.mlp,
                       vocabulary=times * self.vocabulary)  # fmt: skip

    def tiny(self) -> Case:
        return replace(self, hidden=64, layers=1, heads=2, kv_heads=2, head_size=None, mlp=96, vocabulary=64, rows=1,
                       row_tokens=16, eval_rows=1, accumulation=1, labels=0, answer=8 if self.answer else 0,
                       chunk=8 if self.chunk else 0)  # fmt: skip


def bert_fields(case: Case, mlp: int) -> dict[str, Any]:
    return {
        "hidden_size": case.hidden, "num_hidden_layers": case.layers, "num_attention_heads": case.heads,
        "intermediate_size": mlp, "max_position_embeddings": max(512, case.row_tokens + 2), "type_vocab_size": 2,
        "hidden_dropout_prob": case.dropout, "attention_probs_dropout_prob": case.dropout, "num_labels": CLASSES,
        "pad_token_id": 0,
    }  # fmt: skip


def distilbert_fields(case: Case, mlp: int) -> dict[str, Any]:
    return {
        "dim": case.hidden, "n_layers": case.layers, "n_heads": case.heads, "hidden_dim": mlp, "num_labels": CLASSES,
        "max_position_embeddings": 512, "dropout": case.dropout, "attention_dropout": case.dropout, "pad_token_id": 0,
    }  # fmt: skip


def t5_fields(case: Case, mlp: int) -> dict[str, Any]:
    return {
        "d_model": case.hidden, "d_kv": case.hidden // case.heads, "d_ff": mlp, "num_layers": case.layers,
        "num_decoder_layers": case.layers, "num_heads": case.heads, "feed_forward_proj": "gated-gelu",
        "dropout_rate": case.dropout, "pad_token_id": 0, "decoder_start_token_id": 0, "is_encoder_decoder": True,
    }  # fmt: skip


def bart_fields(case: Case, mlp: int) -> dict[str, Any]:
    return {
        "d_model": case.hidden, "encoder_layers": case.layers, "decoder_layers": case.layers, "encoder_ffn_dim": mlp,
        "decoder_ffn_dim": mlp, "encoder_attention_heads": case.heads, "decoder_attention_heads": case.heads,
        "max_position_embeddings": 512, "dropout": case.dropout, "pad_token_id": 0, "decoder_start_token_id": 2,
        "is_encoder_decoder": True,
    }  # fmt: skip


def deberta_fields(case: Case, mlp: int) -> dict[str, Any]:
    relative = {"relative_attention": True, "position_buckets": 64, "pos_att_type": ["p2c", "c2p"],
                "share_att_key": True, "norm_rel_ebd": "layer_norm", "position_biased_input": False}  # fmt: skip
    return {**bert_fields(case, mlp), **relative, "type_vocab_size": 0}


def modernbert_fields(case: Case, mlp: int) -> dict[str, Any]:
    return {
        "hidden_size": case.hidden, "num_hidden_layers": case.layers, "num_attention_heads": case.heads,
        "intermediate_size": mlp, "max_position_embeddings": 512, "pad_token_id": 0, "num_labels": CLASSES,
        "cls_token_id": 1, "sep_token_id": 2,
    }  # fmt: skip


ENCODER_FIELDS: dict[str, Callable[[Case, int], dict[str, Any]]] = {
    "bert": bert_fields,
    "roberta": bert_fields,
    "distilbert": distilbert_fields,
    "t5": t5_fields,
    "bart": bart_fields,
    "deberta-v2": deberta_fields,
    "modernbert": modernbert_fields,
    "m2m_100": bart_fields,
}


def opt_fields(case: Case, mlp: int) -> dict[str, Any]:
    return {
        "hidden_size": case.hidden, "num_hidden_layers": case.layers, "num_attention_heads": case.heads, "ffn_dim": mlp,
        "word_embed_proj_dim": case.hidden, "max_position_embeddings": 512, "dropout": case.dropout, "pad_token_id": 0,
    }  # fmt: skip


def mamba_fields(case: Case, mlp: int) -> dict[str, Any]:
    return {"hidden_size": case.hidden, "num_hidden_layers": case.layers, "pad_token_id": 0}


def bloom_fields(case: Case, mlp: int) -> dict[str, Any]:
    return {"hidden_size": case.hidden, "n_layer": case.layers, "n_head": case.heads, "pad_token_id": 0}


def experts_fields(case: Case, mlp: int) -> dict[str, Any]:
    return {
        "hidden_size": case.hidden, "num_hidden_layers": case.layers, "num_attention_heads": case.heads,
        "num_key_value_heads": case.kv_heads or case.heads, "intermediate_size": mlp, "num_experts": 8,
        "num_experts_per_tok": 2, "max_position_embeddings": 512, "pad_token_id": 0,
    }  # fmt: skip


OTHER_FIELDS: dict[str, Callable[[Case, int], dict[str, Any]]] = {
    "opt": opt_fields,
    "mamba": mamba_fields,
    "bloom": bloom_fields,
    "olmoe": experts_fields,
}


HALF: dict[str, Any] = {"precision": "bf16", "weights": "bfloat16"}
CASES = (
    Case(family="llama", hidden=256, layers=6, heads=4, rows=4, row_tokens=256),
    Case(family="llama", hidden=512, layers=6, heads=8, rows=8, row_tokens=64, vocabulary=16384),
    Case(family="llama", hidden=384, layers=8, heads=6, kv_heads=2, rows=2, row_tokens=512),
    Case(family="llama", hidden=640, layers=4, heads=10, rows=2, row_tokens=128, vocabulary=32000),
    Case(family="llama", hidden=512, layers=8, heads=8, rows=4, row_tokens=256, rank=16),
    Case(family="llama", hidden=768, layers=6, heads=12, rows=2, row_tokens=128, rank=8, targets="q_proj,v_proj"),
    Case(family="llama", hidden=512, layers=8, heads=8, rows=4, row_tokens=128, precision="bf16"),
    Case(family="llama", hidden=512, layers=6, heads=8, rows=4, row_tokens=256, **HALF),
    Case(family="llama", hidden=768, layers=8, heads=12, kv_heads=4, rows=2, row_tokens=256, rank=16, **HALF),
    Case(family="llama", hidden=512, layers=10, heads=8, rows=4, row_tokens=256, checkpointing=True),
    Case(family="llama", hidden=512, layers=8, heads=8, rows=4, row_tokens=256, rank=16, checkpointing=True, **HALF),
    Case(family="llama", hidden=384, layers=6, heads=6, rows=4, row_tokens=256, packed=True),
    Case(family="llama", hidden=384, layers=6, heads=6, rows=2, row_tokens=128, accumulation=4),
    Case(family="llama", hidden=512, layers=6, heads=8, rows=2, row_tokens=128, accumulation=4, **HALF),
    Case(family="llama", hidden=384, layers=4, heads=6, rows=8, row_tokens=128, vocabulary=32000, chunk=256),
    Case(family="llama", hidden=384, layers=4, heads=6, rows=2, row_tokens=128, eval_rows=32),
    Case(family="qwen2", hidden=448, layers=6, heads=7, kv_heads=1, mlp=1216, rows=4, row_tokens=128),
    Case(family="qwen2", hidden=512, layers=8, heads=8, kv_heads=2, rows=2, row_tokens=256, rank=32, packed=True),
    Case(family="qwen2", hidden=512, layers=8, heads=8, kv_heads=2, rows=4, row_tokens=128, rank=16, **HALF),
    Case(family="qwen2", hidden=512, layers=6, heads=8, kv_heads=2, rows=4, row_tokens=256, precision="bf16",
         checkpointing=True),
    Case(family="gemma", hidden=512, layers=4, heads=4, kv_heads=1, head_size=128, mlp=2048, rows=4, row_tokens=128),
    Case(family="gemma", hidden=384, layers=6, heads=4, kv_heads=1, head_size=96, mlp=1536, vocabulary=16384, rows=4,
         row_tokens=128, rank=16, **HALF),
    Case(family="gemma", hidden=512, layers=6, heads=8, kv_heads=1, mlp=2048, rows=2, row_tokens=256, rank=16,
         checkpointing=True),
    Case(family="phi", hidden=512, layers=6, heads=8, mlp=2048, rows=2, row_tokens=256),
    Case(family="phi", hidden=512, layers=6, heads=8, mlp=2048, rows=4, row_tokens=128, rank=16),
    Case(family="phi", hidden=384, layers=8, heads=6, mlp=1536, rows=4, row_tokens=128, precision="bf16"),
    Case(family="gpt2", hidden=512, layers=8, heads=8, mlp=2048, rows=4, row_tokens=64),
    Case(family="gpt2", hidden=384, layers=6, heads=6, mlp=1536, rows=4, row_tokens=256, rank=16),
    Case(family="gpt2", hidden=256, layers=4, heads=4, mlp=1024, rows=8, row_tokens=128, vocabulary=32000, labels=320),
    Case(family="gpt2", hidden=512, layers=6, heads=8, mlp=2048, rows=2, row_tokens=256, precision="bf16",
         packed=True),
    Case(family="bert", hidden=256, layers=4, heads=4, rows=16, row_tokens=64),
    Case(family="bert", hidden=384, layers=6, heads=6, rows=8, row_tokens=128, dropout=0.1),
    Case(family="bert", hidden=512, layers=6, heads=8, rows=8, row_tokens=128, dropout=0.1, rank=8),
    Case(family="roberta", hidden=384, layers=6, heads=6, rows=8, row_tokens=64, dropout=0.1, accumulation=2),
    Case(family="distilbert", hidden=384, layers=6, heads=6, rows=4, row_tokens=256, dropout=0.1, checkpointing=True),
    Case(family="t5", hidden=256, layers=3, heads=4, rows=8, row_tokens=96, answer=48),
    Case(family="t5", hidden=384, layers=4, heads=6, mlp=1024, rows=4, row_tokens=128, answer=64, dropout=0.1),
    Case(family="t5", hidden=512, layers=4, heads=8, mlp=1024, rows=4, row_tokens=128, answer=32, dropout=0.1, rank=8),
    Case(family="t5", hidden=256, layers=6, heads=4, rows=8, row_tokens=128, answer=64, dropout=0.1,
         checkpointing=True),
    Case(family="bart", hidden=384, layers=4, heads=6, rows=8, row_tokens=128, answer=32, dropout=0.1),
    Case(family="bart", hidden=512, layers=3, heads=8, rows=8, row_tokens=64, answer=64, rank=16),
)  # fmt: skip

# Families to which no constant was fitted.
UNLISTED = (
    Case(family="olmo2", hidden=384, layers=6, heads=6, rows=4, row_tokens=256),
    Case(family="gpt_neox", hidden=512, layers=6, heads=8, mlp=2048, rows=4, row_tokens=128, rank=16),
    Case(family="gemma2", hidden=384, layers=6, heads=6, kv_heads=2, mlp=1536, rows=4, row_tokens=128),
    Case(family="opt", hidden=512, layers=6, heads=8, mlp=2048, rows=4, row_tokens=128, precision="bf16"),
    Case(family="bloom", hidden=512, layers=6, heads=8, rows=4, row_tokens=128),
    Case(family="mamba", hidden=256, layers=6, heads=4, rows=2, row_tokens=128),
    Case(family="stablelm", hidden=512, layers=8, heads=8, rows=4, row_tokens=256, checkpointing=True),
    Case(family="gemma3_text", hidden=512, layers=8, heads=8, kv_heads=2, rows=4, row_tokens=128, rank=16, **HALF),
    Case(family="cohere", hidden=512, layers=6, heads=8, rows=2, row_tokens=256),
    Case(family="olmoe", hidden=256, layers=4, heads=4, mlp=256, rows=4, row_tokens=128),
    Case(family="modernbert", hidden=384, layers=6, heads=6, mlp=768, rows=8, row_tokens=128),
    Case(family="deberta-v2", hidden=384, layers=6, heads=6, rows=8, row_tokens=128, dropout=0.1),
    Case(family="m2m_100", hidden=384, layers=4, heads=6, rows=8, row_tokens=96, answer=48, dropout=0.1),
)  # fmt: skip

# Each family with each attention, with and without checkpoints, full and with LoRA.
_CROSSED_FAMILIES = (
    Case(family="llama", hidden=384, layers=6, heads=6, kv_heads=2, rows=4, row_tokens=256),
    Case(family="gpt2", hidden=384, layers=6, heads=6, mlp=1536, rows=4, row_tokens=256),
    Case(family="bert", hidden=384, layers=6, heads=6, rows=8, row_tokens=128, dropout=0.1),
    Case(family="bart", hidden=384, layers=3, heads=6, rows=8, row_tokens=128, answer=64, dropout=0.1),
)
CROSSED = tuple(
    replace(family, eager=eager, checkpointing=checkpointing, rank=rank)
    for family, eager, checkpointing, rank in product(_CROSSED_FAMILIES, (False, True), (False, True), (0, 16))
)
