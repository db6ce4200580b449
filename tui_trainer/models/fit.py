"""Whether stored weights are those that config.json describes. transformers would fill what is missing with random
numbers, and say so in a warning only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tui_trainer.models.headers import TensorFacts
from tui_trainer.models.layers import Linear, Part, place_in_block
from tui_trainer.models.shape import ModelShape
from tui_trainer.models.weights import has_head, layer_count
from tui_trainer.safe_text import one_line


def misfits(shape: ModelShape, headers: Mapping[str, TensorFacts], *, is_known: bool) -> list[str]:
    """What does not fit, at most one sentence for each kind of tensor, the first such tensor named.

    `is_known`: the architecture is described here, so that a missing tensor is a mistake and not another name.
    """
    found = list(_embedding_misfits(shape, headers))
    layers = layer_count(headers)
    if layers != shape.layers:
        found.append(f"config.json says {shape.layers} layers, the weights have {layers}")
    elif is_known:
        found += _linear_misfits(shape, headers)
        found += _norm_misfits(shape, headers)
    if is_known and not shape.tied_embeddings and not has_head(headers):
        found.append("the weights have no head (lm_head.weight), so that the model cannot continue a text")
    return found


def embedding_rows(shape: ModelShape, headers: Mapping[str, TensorFacts] | None) -> int:
    """The tokens that the model has a vector for: by its weights, else by its config."""
    for part in shape.parts:
        if part.is_embedding and part.rows == shape.vocabulary and (stored := _stored(part, headers or {})):
            return stored[1].shape[0] if stored[1].shape else 0
    return shape.vocabulary


def _embedding_misfits(shape: ModelShape, headers: Mapping[str, TensorFacts]) -> Iterator[str]:
    for part in shape.parts:
        if not part.is_embedding or not part.rows:
            continue
        wanted = (part.rows, part.parameters // part.rows)
        stored = _stored(part, headers)
        if stored is None:
            yield f"the weights have no {part.name}.weight"
        elif stored[1].shape != wanted:
            yield _differs(stored[0], stored[1], wanted)


def _stored(part: Part, headers: Mapping[str, TensorFacts]) -> tuple[str, TensorFacts] | None:
    """Old files begin their names elsewhere: `wte.weight` is `transformer.wte.weight`."""
    ending = f".{part.name}.weight"
    return next(((name, facts) for name, facts in headers.items() if f".{name}".endswith(ending)), None)


def _linear_misfits(shape: ModelShape, headers: Mapping[str, TensorFacts]) -> Iterator[str]:
    by_place: dict[str, list[str]] = {}
    for name in headers:
        by_place.setdefault(place_in_block(name), []).append(name)
    for linear in shape.linears:
        if not linear.is_head and linear.count == shape.layers:
            names = by_place.get(f"{linear.path}.weight", [])
            if len(names) < linear.count:
                yield f"{linear.count - len(names)} of {linear.count} {linear.path}.weight are missing in the weights"
            elif wrong := next((name for name in names if not _has_size(headers[name], linear)), None):
                yield _differs(wrong, headers[wrong], (linear.outputs, linear.inputs))


def _norm_misfits(shape: ModelShape, headers: Mapping[str, TensorFacts]) -> Iterator[str]:
    """Norms may hold several tensors under their name (StableLM has one for each head)."""
    weights = [name for name in headers if name.endswith(".weight")]
    places = [f".{place_in_block(name)}" for name in weights]
    for part in shape.parts:
        if part.is_embedding:
            continue
        if part.count == 1:
            if not any(f".{part.name}." in f".{name}" for name in weights):
                yield f"the weights have no {part.path}.weight"
        elif (found := sum(f".{part.path}." in place for place in places)) < part.count:
            yield f"{part.count - found} of {part.count} {part.path}.weight are missing in the weights"


def _has_size(facts: TensorFacts, linear: Linear) -> bool:
    """GPT-2 stores its matrices the other way round."""
    return facts.shape in ((linear.outputs, linear.inputs), (linear.inputs, linear.outputs))


def _differs(name: str, facts: TensorFacts, wanted: tuple[int, ...]) -> str:
    has, should = (" x ".join(map(str, size)) for size in (facts.shape, wanted))
    return f"{one_line(name, 120)} is {has} and by config.json {should}"
