"""Memory of a process with a part of every layer (tensor parallel): fewer heads, a narrower MLP, a part of the words.

Weights, gradients and the optimizer's state of split matrices are divided, and so is what attention and MLP keep;
between layers, and for the loss, each process has all.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tui_trainer.models.modules import Linear, Part
from tui_trainer.models.shape import ModelShape
from tui_trainer.planning.memory.parts import FLOAT, HALF, MemoryPart
from tui_trainer.planning.training_setup import TrainingSetup

# Products whose results are split, and those whose inputs are, of the families in `planning/strategies.py`.
_OUTPUTS_SPLIT = {"q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "fc1"}
_INPUTS_SPLIT = {"o_proj", "dense", "down_proj", "fc2"}


def own_config(config: Mapping[str, Any], shape: ModelShape, widths: int) -> dict[str, Any]:
    """A config.json whose layers compute what one of so many processes does."""
    return {
        **config,
        "num_attention_heads": shape.attention_heads // widths,
        "num_key_value_heads": shape.key_value_heads // widths,
        "head_dim": shape.head_size,
        "intermediate_size": -(-shape.mlp_size // widths),
    }


def own_part(shape: ModelShape, setup: TrainingSetup) -> tuple[ModelShape, TrainingSetup]:
    """The model and how it is trained, as one of `setup.widths` processes has it: all weights train."""
    widths = setup.widths

    def split_product(linear: Linear) -> Linear:
        if linear.name in _OUTPUTS_SPLIT or (linear.is_head and not shape.labels):
            return replace(linear, outputs=-(-linear.outputs // widths))
        return replace(linear, inputs=-(-linear.inputs // widths)) if linear.name in _INPUTS_SPLIT else linear

    def fewer_words(part: Part) -> Part:
        if not part.is_embedding or part.rows != shape.vocabulary:
            return part
        rows = -(-part.rows // widths)
        return replace(part, rows=rows, parameters_each=part.parameters_each // part.rows * rows)

    linears, parts = tuple(map(split_product, shape.linears)), tuple(map(fewer_words, shape.parts))
    parameters = shape.parameters - _counted(shape, shape.linears, shape.parts) + _counted(shape, linears, parts)
    narrower = replace(
        shape,
        attention_heads=shape.attention_heads // widths,
        key_value_heads=shape.key_value_heads // widths,
        mlp_size=-(-shape.mlp_size // widths),
        linears=linears,
        parts=parts,
        parameters=parameters,
    )
    return narrower, replace(setup, trained_parameters=parameters)


def _counted(shape: ModelShape, linears: tuple[Linear, ...], parts: tuple[Part, ...]) -> int:
    found = sum(x.parameters for x in linears) + sum(x.parameters for x in parts)
    return found - (sum(x.matrix_parameters for x in linears if x.is_head) if shape.tied_embeddings else 0)


def gathered_head(shape: ModelShape, setup: TrainingSetup) -> MemoryPart:
    """The head is whole for the loss."""
    size = FLOAT if setup.weights == "float32" else HALF
    size += HALF if setup.precision != "fp32" and size == FLOAT else 0
    found = size * shape.hidden_size * shape.vocabulary if shape.head == "causal_lm" else 0
    return MemoryPart("gathered", found, "the head, whole")
