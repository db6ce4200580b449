"""Tiny models of the families whose memory has a formula, and what their layers really keep and make."""

from tui_trainer.models.shape import shape_of
from tui_trainer.planning.memory.layers import BLOCKS
from tui_trainer.planning.training_setup import TrainingSetup

ROWS, ROW_TOKENS = 2, 24
FAMILIES = tuple(BLOCKS)


def config_of(family, **changes):
    if family == "gpt2":
        fields = {"n_embd": 96, "n_layer": 2, "n_head": 4, "n_inner": 224, "n_positions": 64, "vocab_size": 40}
        return {"model_type": family, **fields, "attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0, **changes}
    head_size = 40 if family in ("gemma", "qwen3") else 24
    fields = {
        "hidden_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "intermediate_size": 224, "vocab_size": 40, "max_position_embeddings": 64, "tie_word_embeddings": True,
        "bos_token_id": None, "eos_token_id": None, "pad_token_id": 0, "head_dim": head_size,
    }  # fmt: skip
    return {"model_type": family, **fields, **changes}


def setup_of(family, *, lora=False, dropout=False, targets=None, **changes):
    """Full in fp32 on a CPU, unless told otherwise."""
    if not lora:
        return TrainingSetup(**changes)
    names = tuple(sorted({linear.name for linear in shape_of(config_of(family)).linears if not linear.is_head}))
    return TrainingSetup(method="lora", lora_rank=5, lora_targets=targets or names, lora_dropout=dropout, **changes)
