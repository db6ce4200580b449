"""The parts that a model is made of, counted by kind: matmuls, and everything else that holds weights."""

from dataclasses import dataclass
from typing import Literal

Reads = Literal["source", "target", "row"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Linear:
    """One kind of matmul of a model, as its modules name it: `q_proj` [inputs x outputs], `count` times.

    `path` is its place in a block, `self_attn.q_proj`, or in the model where there is one only; GPT-2 has two that
    are called `c_proj`. `is_head`: it belongs to what a task ends with, the matrix that makes logits last; LoRA trains
    it as a whole. `uses` is how often a pass goes through each (ALBERT's layers are one). `reads` says of what: all
    tokens of the input, those of the target behind an encoder, or one for each row (a classifier of texts).
    """

    name: str
    inputs: int
    outputs: int
    count: int
    is_head: bool = False
    path: str = ""
    has_bias: bool = False
    uses: int = 1
    reads: Reads = "source"

    @property
    def matrix_parameters(self) -> int:
        """The weights of all `count` matrices, without biases."""
        return self.inputs * self.outputs * self.count

    @property
    def parameters(self) -> int:
        """The weights of all `count` of them, with biases."""
        return self.matrix_parameters + (self.outputs * self.count if self.has_bias else 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """Modules with weights that are no matmul: embeddings and norms. `rows` are those of a table, 0
    where they are not known; `is_head` as of a `Linear`."""

    path: str
    parameters_each: int
    count: int = 1
    is_embedding: bool = False
    rows: int = 0
    is_head: bool = False

    @property
    def name(self) -> str:
        return self.path.rpartition(".")[2]

    @property
    def parameters(self) -> int:
        return self.parameters_each * self.count


def place_in_block(name: str) -> str:
    """`model.layers.7.mlp.up_proj` is `mlp.up_proj`, whatever the layer; a name without a number stays as it is."""
    words = name.split(".")
    first = next((at for at, word in enumerate(words) if word.isdigit()), None)
    return name if first is None else ".".join(words[first + 1 :])
