import pytest

from tui_trainer.planning.memory import (
    FLOAT,
    activation_bytes_per_token,
    memory_parts,
    passing_bytes_per_token,
    total_bytes,
)
from tui_trainer.planning.model_shape import ModelShape

BASE = {
    "hidden_size": 64, "layers": 2, "attention_heads": 4, "key_value_heads": 4, "mlp_size": 192, "vocabulary": 50,
}  # fmt: skip


def shape(**changes):
    return ModelShape(**{**BASE, **changes})


def parts(*, micro_batch=4, eval_batch=4, row_tokens=32, accumulation=1, **changes):
    found = memory_parts(
        shape(**changes),
        micro_batch=micro_batch,
        eval_batch=eval_batch,
        row_tokens=row_tokens,
        accumulation=accumulation,
    )
    return {part.name: part.bytes for part in found}


def test_no_part_is_negative_and_the_total_is_their_sum():
    found = memory_parts(shape(), micro_batch=4, eval_batch=4, row_tokens=32)
    assert len(found) == 9
    assert all(part.bytes > 0 for part in found if part.name != "evaluation")
    assert total_bytes(found) == sum(part.bytes for part in found)


def test_twice_the_rows_keep_twice_the_activations_and_leave_the_weights_alone():
    small, large = parts(micro_batch=4), parts(micro_batch=8)
    for name in ("activations", "passing results", "backward pass", "head and loss"):
        assert large[name] == 2 * small[name], name
    for name in ("weights", "gradients", "optimiser", "libraries"):
        assert large[name] == small[name], name


def test_weights_gradients_and_moments_take_sixteen_bytes_a_parameter():
    found = parts()
    assert found["weights"] + found["gradients"] + found["optimiser"] == 16 * shape().parameters


def test_accumulating_holds_two_sets_of_gradients():
    assert parts(accumulation=4)["gradients"] == 2 * parts()["gradients"]


def test_dropout_keeps_three_numbers_a_head_for_each_pair_of_tokens():
    per_token = [activation_bytes_per_token(shape(attention_dropout=0.1), row_tokens) for row_tokens in (128, 256)]
    assert per_token[1] - per_token[0] == FLOAT * 3 * 4 * 128
    assert activation_bytes_per_token(shape(), 256) == activation_bytes_per_token(shape(), 128)


def test_shared_key_value_heads_keep_less_except_under_dropout():
    assert activation_bytes_per_token(shape(key_value_heads=1), 32) < activation_bytes_per_token(shape(), 32)
    dropped = [activation_bytes_per_token(shape(key_value_heads=n, attention_dropout=0.1), 32) for n in (1, 4)]
    assert dropped[0] == dropped[1]


def test_an_evaluation_counts_only_where_it_needs_more_than_a_step():
    assert parts(eval_batch=4)["evaluation"] == 0
    assert parts(eval_batch=64)["evaluation"] > 0


def test_blocks_that_glibc_maps_leave_no_places_behind():
    assert passing_bytes_per_token(shape(), 32, tokens=1000) > 0
    assert passing_bytes_per_token(shape(), 32, tokens=200_000) == 0


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"key_value_heads": 2},
        {"mlp_size": 96, "hidden_size": 128},
        {"attention_dropout": 0.1},
        {"key_value_heads": 1, "attention_dropout": 0.2},
    ],
    ids=["plain", "shared heads", "narrow MLP", "dropout", "dropout and shared heads"],
)
def test_a_real_layer_keeps_what_the_formula_says(changes):
    rows, row_tokens = 4, 32
    one, two = (kept_bytes(shape(**changes, layers=layers), rows, row_tokens) for layers in (1, 2))
    formula = activation_bytes_per_token(shape(**changes), row_tokens)
    assert (two - one) / (rows * row_tokens) == pytest.approx(formula, rel=0.02)


def kept_bytes(shape, rows, row_tokens):
    """The storages that autograd holds after a forward pass of the real model, without the weights."""
    import torch

    model = real_model(shape, row_tokens)
    weights = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    held = {}

    def hold(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            held[storage.data_ptr()] = storage
        return tensor

    ids_BT = torch.zeros(rows, row_tokens, dtype=torch.int64)
    with torch.autograd.graph.saved_tensors_hooks(hold, lambda tensor: tensor):
        model(input_ids=ids_BT, use_cache=False).logits.sum()
    return sum(storage.nbytes() for storage in held.values())


def real_model(shape, row_tokens):
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.mlp_size,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.attention_heads,
        num_key_value_heads=shape.key_value_heads,
        max_position_embeddings=row_tokens,
        attention_dropout=shape.attention_dropout,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
    )
    return LlamaForCausalLM(config).train()
