"""Whether stored weights are sound: those that config.json describes, and plain tensors.

transformers would fill what is missing with random numbers, and say so in a warning only. Of .bin files it is told,
without reading them, what their pickle would call: torch loads them with `weights_only`, which refuses everything but
plain tensors; this says so before the start. Source of what is plain: `_get_allowed_globals` in
torch/_weights_only_unpickler.py of torch 2.15.
"""

import pickletools
import re
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from tui_trainer.models.files.weights import TensorFacts, has_head, is_buffer, layer_count
from tui_trainer.models.heads import CLASSIFYING
from tui_trainer.models.modules import ModelPart, place_in_block
from tui_trainer.models.shape import ModelShape
from tui_trainer.models.towers import is_of_language_model, is_of_tower
from tui_trainer.terminal.safe_text import one_line

# Whose tensors are stored under the names of their modules, so that a missing one is a mistake and not another name.
_NAMED_AS_STORED = frozenset(
    """albert bart bert bloom camembert deberta-v2 distilbert electra falcon gemma gemma2 gemma3_text gpt2 gpt_neox
    granite llama mbart mistral modernbert mpnet mt5 olmo2 opt pegasus phi phi3 qwen2 qwen3 roberta stablelm starcoder2
    t5 xlm-roberta""".split()
)


# A file of torch.save before torch 1.6 begins with pickles of: a magic number, a version, the machine, the tensors,
# and the names of their storages. Source: `_legacy_load` in torch/serialization.py of torch 2.15.
_OLD_PICKLES = 5
_LARGEST_PICKLE = 64 * 1024 * 1024
_PLAIN = re.compile(
    r"collections\.(OrderedDict|Counter)|_codecs\.encode|(__builtin__|builtins)\.(bytearray|set|complex)"
    r"|torch\._utils\._rebuild_\w+|torch\._tensor\._rebuild_from_type_v2|torch\.serialization\._get_layout"
    r"|torch\.nn\.parameter\.Parameter|torch\.(Size|device|per_(tensor|channel)_\w+)"
    r"|torch(\.\w+)?\.\w*(Tensor|Storage)|torch\.(bool|(u?int|q?u?int|b?float|complex|bits)\d\w*)"
)


def misfits(shape: ModelShape, headers: Mapping[str, TensorFacts]) -> list[str]:
    """What does not fit, at most one sentence for each kind of tensor, the first such tensor named."""
    if shape.towers:
        of_towers = _tower_misfits(shape, headers)
        headers = {name: facts for name, facts in headers.items() if is_of_language_model(name, shape.towers)}
        return [*of_towers, *misfits(replace(shape, towers={}), headers)]
    is_known = shape.model_type in _NAMED_AS_STORED
    found = list(_embedding_misfits(shape, headers))
    layers = layer_count(headers)
    if layers != (shape.stored_blocks or shape.layers):
        told = shape.stored_blocks or shape.layers
        found.append(f"config.json specifies {told} layers, but the weights have {layers}")
    elif is_known:
        found += _linear_misfits(shape, headers)
        found += _norm_misfits(shape, headers)
    over_vocabulary = shape.head not in CLASSIFYING
    if is_known and over_vocabulary and not shape.tied_embeddings and not has_head(headers):
        found.append("the weights have no head (lm_head.weight), so the model cannot generate text")
    return found


def _tower_misfits(shape: ModelShape, headers: Mapping[str, TensorFacts]) -> Iterator[str]:
    """Towers of which the files have less than their config describes."""
    for tower, wanted in shape.towers.items():
        own = (facts for name, facts in headers.items() if is_of_tower(name, {tower: 0}) and not is_buffer(name, facts))
        if (stored := sum(facts.parameters for facts in own)) < wanted:
            yield f"the weights have {stored:,} parameters of {tower}, but config.json specifies {wanted:,}"


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
        wanted = (part.rows, part.parameters_each // part.rows)
        stored = _stored(part, headers)
        if stored is None:
            yield f"the weights have no {part.name}.weight"
        elif stored[1].shape != wanted:
            yield _differs(stored[0], stored[1], wanted)


def _stored(part: ModelPart, headers: Mapping[str, TensorFacts]) -> tuple[str, TensorFacts] | None:
    """Old files begin their names elsewhere: `wte.weight` is `transformer.wte.weight`."""
    # The table of both halves is stored under its own name, or under that of one of them.
    for called in (part.name, "embed_tokens") if part.name == "shared" else (part.name,):
        for name, facts in headers.items():
            if f".{name}".endswith(f".{called}.weight"):
                return name, facts
    return None


def _linear_misfits(shape: ModelShape, headers: Mapping[str, TensorFacts]) -> Iterator[str]:
    # How many blocks a product of a block can be in; those that are used again and again are stored once.
    both = {shape.layers, shape.decoder_layers}
    blocks = both if shape.decoder_layers else {shape.stored_blocks or shape.layers}
    by_place: dict[str, list[str]] = {}
    for name in headers:
        by_place.setdefault(place_in_block(name), []).append(name)
    for linear in shape.linears:
        if not linear.is_head and linear.count in blocks:
            # ALBERT has layers inside of groups.
            ending = f".{linear.path}.weight"
            inside = (name for place, names in by_place.items() if place.endswith(ending) for name in names)
            names = by_place.get(f"{linear.path}.weight") or list(inside)
            if not names and linear.count == 1:
                continue  # with one layer, what stands beside the layers has as many
            if len(names) < linear.count:
                absent = f"{linear.count - len(names)} of {linear.count} tensors {linear.path}.weight"
                yield f"{absent} are missing from the weights"
            # GPT-2 stores its matrices the other way round.
            sizes = ((linear.outputs, linear.inputs), (linear.inputs, linear.outputs))
            wrong = [name for name in names if headers[name].shape not in sizes]
            # Both halves of a model may have products of this name, of sizes of their own.
            if len(wrong) > len(names) - linear.count >= 0:
                yield _differs(wrong[0], headers[wrong[0]], sizes[0])


def _norm_misfits(shape: ModelShape, headers: Mapping[str, TensorFacts]) -> Iterator[str]:
    """Norms may hold several tensors under their name (StableLM has one for each head)."""
    weights = [name for name in headers if name.endswith(".weight")]
    places = [f".{place_in_block(name)}" for name in weights]
    for part in shape.parts:
        if part.is_embedding or part.is_head:
            continue
        if part.count == 1:
            if not any(f".{part.name}." in f".{name}" for name in weights):
                yield f"the weights have no {part.path}.weight"
        elif (found := sum(f".{part.path}." in place for place in places)) < part.count:
            yield f"{part.count - found} of {part.count} tensors {part.path}.weight are missing from the weights"


def _differs(name: str, facts: TensorFacts, wanted: tuple[int, ...]) -> str:
    has, should = (" x ".join(map(str, size)) for size in (facts.shape, wanted))
    return f"{one_line(name, 120)} has the shape {has}, but config.json specifies {should}"


def foreign_calls(path: Path) -> tuple[str, ...]:
    """The functions and classes that a file of torch.save names beside those of plain tensors, as `posix.system`.

    Empty for plain tensors, and for the archives before torch 0.2, which torch judges when it loads them. Raises
    ValueError for a file that is damaged.
    """
    try:
        if not zipfile.is_zipfile(path):
            if tarfile.is_tarfile(path):
                return ()
            with path.open("rb") as file:
                return _foreign(set().union(*(_names(file) for _ in range(_OLD_PICKLES))))
        with zipfile.ZipFile(path) as archive:
            inside = [entry for entry in archive.infolist() if entry.filename.endswith("data.pkl")]
            if not inside or inside[0].file_size > _LARGEST_PICKLE:
                raise ValueError("it contains no list of tensors")
            content = archive.read(inside[0])
    except (zipfile.BadZipFile, OSError, EOFError, NotImplementedError) as error:
        raise ValueError(str(error)) from None
    return _foreign(_names(content))


def _foreign(names: set[str]) -> tuple[str, ...]:
    return tuple(sorted(name for name in names if not _PLAIN.fullmatch(name)))


def _names(content: bytes | BinaryIO) -> set[str]:
    """`module.name` of every GLOBAL; those of STACK_GLOBAL take the last two texts before them."""
    found: set[str] = set()
    texts: list[str] = []
    memo: dict[int, str] = {}
    for code, argument, _ in pickletools.genops(content):
        if code.name == "GLOBAL" or code.name == "INST":
            found.add(str(argument).replace(" ", "."))
        elif code.name == "STACK_GLOBAL":
            found.add(".".join(texts[-2:]) or "?")
        elif isinstance(argument, str):
            texts.append(argument)
        elif code.name == "MEMOIZE" and texts:
            memo[len(memo)] = texts[-1]
        elif code.name in ("BINGET", "LONG_BINGET", "GET") and argument in memo:
            texts.append(memo[argument])
    return found
