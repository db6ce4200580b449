"""Tiny models of well-known families, what a dry run counts of their layers, and what real ones keep."""

from dataclasses import replace

from tui_trainer.models.shape import shape_of
from tui_trainer.planning.memory.dry_run import measure_layer
from tui_trainer.planning.memory.parts import ModelMemory
from tui_trainer.planning.training_setup import TrainingSetup

ROWS, ROW_TOKENS = 2, 24


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
    """Return a setup: full training in fp32 on a CPU apart from the given settings."""
    if not lora:
        return TrainingSetup(**changes)
    names = tuple(sorted({linear.name for linear in shape_of(config_of(family)).linears if not linear.is_head}))
    return TrainingSetup(method="lora", lora_rank=5, lora_targets=targets or names, lora_dropout=dropout, **changes)


def counted(config, setup=None, row_tokens=ROW_TOKENS, **shape):
    """Return the setup with what a dry run counts of such a model."""
    setup = setup or TrainingSetup()
    if setup.counted:
        return setup
    layer, why_not = measure_layer(config, shape_of(config, head=setup.head, **shape), setup, row_tokens)
    assert layer is not None, why_not
    return replace(setup, counted=layer)


def layer_of(config, setup=None, row_tokens=ROW_TOKENS):
    """Return one layer of such a model, counted by a dry run."""
    setup = counted(config, setup, row_tokens)
    return ModelMemory(shape_of(config, head=setup.head), setup, row_tokens)


def kept_bytes(model, run):
    """Return the bytes that autograd keeps while `run()` computes, without the weights of the model."""
    from torch.autograd.graph import saved_tensors_hooks

    weights, kept = {weight.untyped_storage().data_ptr() for weight in model.parameters()}, {}

    def keep(tensor):
        # A storage that is held has an address of its own.
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        run()
    return sum(storage.nbytes() for address, storage in kept.items() if address not in weights)
