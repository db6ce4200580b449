"""What the names and shapes of stored weights say about a model."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping

from tui_trainer.models.files.headers import TensorFacts
from tui_trainer.models.modules import Linear, ModelPart, place_in_block

_HEAD = re.compile(r"(.*\.)?(lm_head|embed_out)\.weight|(model\.)?output\.weight")
_EMBEDDING = re.compile(r"(^|[._])(embed|embeddings?|embed_tokens|embed_in|embed_positions|wte|wpe)\.weight$")
_BLOCK_NUMBER = re.compile(r"\.(\d+)\.")


# What the first BERT called the parts of a norm; transformers renames them when it loads them.
_OLD_NAMES = {".gamma": ".weight", ".beta": ".bias"}


def with_names_of_today(headers: Mapping[str, TensorFacts]) -> dict[str, TensorFacts]:
    """The tensors under the names that transformers gives them."""

    def renamed(name: str) -> str:
        old = next((ending for ending in _OLD_NAMES if name.endswith(ending)), "")
        return name.removesuffix(old) + _OLD_NAMES[old] if old else name

    return {renamed(name): facts for name, facts in headers.items()}


def is_head(name: str) -> bool:
    """Whether a tensor is the matrix that makes logits."""
    return bool(_HEAD.fullmatch(name))


def is_embedding(name: str) -> bool:
    """Whether a tensor is a table of tokens or positions."""
    return bool(_EMBEDDING.search(name))


def has_head(headers: Mapping[str, TensorFacts]) -> bool:
    """Whether the head is stored beside the embedding; a tied one is not."""
    return any(map(is_head, headers))


def has_experts(headers: Mapping[str, TensorFacts]) -> bool:
    """Whether it is a mixture of experts."""
    return any(".experts." in name for name in headers)


def stored_parameters(headers: Mapping[str, TensorFacts], *, tied: bool) -> int:
    """The weights of the model, a tied head once, without the masks and frequencies that old checkpoints also hold."""
    return sum(
        facts.parameters
        for name, facts in headers.items()
        if not is_buffer(name, facts) and not (tied and is_head(name))
    )


def is_buffer(name: str, facts: TensorFacts) -> bool:
    """Whether a tensor is computed and not learnt: causal masks (GPT-2, GPT-NeoX), rotary frequencies, positions."""
    if name.endswith(("rotary_emb.inv_freq", ".masked_bias", "position_ids")):
        return True
    return name.endswith((".attn.bias", ".attention.bias")) and len(facts.shape) == 4


def layer_count(names: Iterable[str]) -> int:
    """One more than the highest number of a block; 0 where no name has one."""
    return max((int(found[1]) + 1 for name in names if (found := _BLOCK_NUMBER.search(name))), default=0)


def modules_of(
    headers: Mapping[str, TensorFacts], hidden: int, vocabulary: int
) -> tuple[tuple[Linear, ...], tuple[ModelPart, ...]]:
    """Matmuls and other parts, told apart by their names and dimensions.

    A matrix [outputs, inputs] that is no embedding is a product; without a stored head there is a tied one.
    """
    products: Counter[tuple[str, int, int, bool]] = Counter()
    parts: Counter[tuple[str, int, bool]] = Counter()
    for name, facts in headers.items():
        if is_buffer(name, facts) or is_head(name):
            continue
        path, _, kind = place_in_block(name).rpartition(".")
        if kind == "weight" and len(facts.shape) == 2 and not is_embedding(name):
            has_bias = f"{name.removesuffix('weight')}bias" in headers
            products[path, facts.shape[1], facts.shape[0], has_bias] += 1
        elif kind != "bias" or not (own := headers.get(f"{name.removesuffix('bias')}weight")) or len(own.shape) != 2:
            parts[path or kind, facts.parameters, is_embedding(name)] += 1
    linears = [_linear(path, inputs, outputs, bias, count) for (path, inputs, outputs, bias), count in products.items()]
    # The head reads what the table of tokens gives, which may be narrower than the layers (OPT).
    tables = (facts.shape for name, facts in headers.items() if is_head(name) or is_embedding(name))
    width = next((shape[1] for shape in tables if len(shape) == 2 and shape[0] == vocabulary), hidden)
    head = _linear("lm_head", width, vocabulary, False, 1, is_head=True)
    others = (ModelPart(path=p, parameters_each=n, count=count, is_embedding=e) for (p, n, e), count in parts.items())
    return (*linears, head), tuple(others)


def _linear(path: str, inputs: int, outputs: int, has_bias: bool, count: int, is_head: bool = False) -> Linear:
    name = path.rpartition(".")[2]
    return Linear(name=name, path=path, inputs=inputs, outputs=outputs, has_bias=has_bias, count=count, is_head=is_head)
