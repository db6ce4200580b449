"""Check that stored weights match config.json and contain only tensors.

transformers would initialise missing tensors at random and only log a warning. torch loads .bin files with
`weights_only`, which refuses pickles that call other functions; this module lists those calls before the start. Source
of the allowed names: `_get_allowed_globals` in torch/_weights_only_unpickler.py of torch 2.15.
"""

import pickletools
import re
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from tui_trainer.models.files.weights import TensorFacts, has_head, layer_count, stored_parameters
from tui_trainer.models.heads import CLASSIFYING_HEADS
from tui_trainer.models.modules import ModelPart, path_in_block
from tui_trainer.models.shape import ModelShape
from tui_trainer.models.towers import is_of_language_model, is_of_tower
from tui_trainer.terminal.safe_text import one_line

# Types that store tensors under the names of their modules, so that a missing name is a missing tensor.
_NAMED_AS_STORED = frozenset(
    """albert bart bert bloom camembert deberta-v2 distilbert electra falcon gemma gemma2 gemma3_text gpt2 gpt_neox
    granite llama mbart mistral modernbert mpnet mt5 olmo2 opt pegasus phi phi3 qwen2 qwen3 roberta stablelm starcoder2
    t5 xlm-roberta""".split()
)

# Files of torch.save before torch 1.6 begin with five pickles: a magic number, a version, the machine, the tensors, and
# the names of their storages. Source: `_legacy_load` in torch/serialization.py of torch 2.15.
_OLD_PICKLES = 5
_LARGEST_PICKLE = 64 * 1024 * 1024
_PLAIN = re.compile(
    r"collections\.(OrderedDict|Counter)|_codecs\.encode|(__builtin__|builtins)\.(bytearray|set|complex)"
    r"|torch\._utils\._rebuild_\w+|torch\._tensor\._rebuild_from_type_v2|torch\.serialization\._get_layout"
    r"|torch\.nn\.parameter\.Parameter|torch\.(Size|device|per_(tensor|channel)_\w+)"
    r"|torch(\.\w+)?\.\w*(Tensor|Storage)|torch\.(bool|(u?int|q?u?int|b?float|complex|bits)\d\w*)"
)


def misfits(shape: ModelShape, headers: Mapping[str, TensorFacts]) -> list[str]:
    """Return a sentence for each mismatch of stored weights and shape. One tensor stands for all of its kind."""
    if shape.towers:
        tower_misfits = _tower_misfits(shape, headers)
        headers = {name: facts for name, facts in headers.items() if is_of_language_model(name, shape.towers)}
        return [*tower_misfits, *misfits(replace(shape, towers={}), headers)]
    has_module_names = shape.model_type in _NAMED_AS_STORED
    sentences = list(_embedding_misfits(shape, headers))
    stored_layers, expected_layers = layer_count(headers), shape.stored_blocks or shape.layers
    if stored_layers != expected_layers:
        sentences.append(f"config.json specifies {expected_layers} layers, but the weights have {stored_layers}")
    elif has_module_names:
        sentences += _linear_misfits(shape, headers)
        sentences += _norm_misfits(shape, headers)
    needs_head = shape.head not in CLASSIFYING_HEADS and not shape.tied_embeddings
    if has_module_names and needs_head and not has_head(headers):
        sentences.append("the weights have no head (lm_head.weight), so the model cannot generate text")
    return sentences


def _tower_misfits(shape: ModelShape, headers: Mapping[str, TensorFacts]) -> Iterator[str]:
    """Yield a sentence for each tower with fewer weights in the files than its config describes."""
    for tower, count in shape.towers.items():
        tower_headers = {name: facts for name, facts in headers.items() if is_of_tower(name, {tower: 0})}
        if (stored_count := stored_parameters(tower_headers, tied=False)) < count:
            yield f"the weights have {stored_count:,} parameters in module {tower}, but config.json specifies {count:,}"


def embedding_rows(shape: ModelShape, headers: Mapping[str, TensorFacts] | None) -> int:
    """Return the number of tokens with a vector in the stored embedding, else the vocabulary size of the config."""
    for part in shape.parts:
        if part.is_embedding and part.rows == shape.vocabulary and (stored_tensor := _stored(part, headers or {})):
            return stored_tensor[1].shape[0] if stored_tensor[1].shape else 0
    return shape.vocabulary


def _embedding_misfits(shape: ModelShape, headers: Mapping[str, TensorFacts]) -> Iterator[str]:
    for part in shape.parts:
        if not part.is_embedding or not part.rows:
            continue
        expected_shape = (part.rows, part.parameters_each // part.rows)
        stored_tensor = _stored(part, headers)
        if stored_tensor is None:
            yield f"the weights have no {part.name}.weight"
        elif stored_tensor[1].shape != expected_shape:
            yield _differs(stored_tensor[0], stored_tensor[1], expected_shape)


def _stored(part: ModelPart, headers: Mapping[str, TensorFacts]) -> tuple[str, TensorFacts] | None:
    """Return (name, facts) of an embedding. Prefixes vary: `wte.weight` is also `transformer.wte.weight`."""
    # A shared embedding is stored under its own name, or under that of the encoder's or decoder's embedding.
    for module_name in (part.name, "embed_tokens") if part.name == "shared" else (part.name,):
        for name, facts in headers.items():
            if f".{name}".endswith(f".{module_name}.weight"):
                return name, facts
    return None


def _linear_misfits(shape: ModelShape, headers: Mapping[str, TensorFacts]) -> Iterator[str]:
    # Possible counts of a layer that occurs once in each block. Blocks that are used repeatedly are stored once.
    stack_sizes = {shape.layers, shape.decoder_layers}
    block_counts = stack_sizes if shape.decoder_layers else {shape.stored_blocks or shape.layers}
    names_by_path: dict[str, list[str]] = {}
    for name in headers:
        names_by_path.setdefault(path_in_block(name), []).append(name)
    for linear in shape.linears:
        if not linear.is_head and linear.count in block_counts:
            # ALBERT has layers inside of groups.
            path_ending = f".{linear.path}.weight"
            matches = (name for path, names in names_by_path.items() if path.endswith(path_ending) for name in names)
            names = names_by_path.get(f"{linear.path}.weight") or list(matches)
            if not names and linear.count == 1:
                continue  # in a model with one block, this may be a layer outside of the blocks
            if len(names) < linear.count:
                missing_text = f"{linear.count - len(names)} of {linear.count} tensors {linear.path}.weight"
                yield f"{missing_text} are missing from the weights"
            # GPT-2 stores transposed matrices.
            possible_shapes = ((linear.outputs, linear.inputs), (linear.inputs, linear.outputs))
            misfit_names = [name for name in names if headers[name].shape not in possible_shapes]
            # Encoder and decoder may have layers of the same name and of different sizes.
            if len(misfit_names) > len(names) - linear.count >= 0:
                yield _differs(misfit_names[0], headers[misfit_names[0]], possible_shapes[0])


def _norm_misfits(shape: ModelShape, headers: Mapping[str, TensorFacts]) -> Iterator[str]:
    """Yield a sentence for each missing norm. A norm may have several tensors (StableLM has one for each head)."""
    weight_names = [name for name in headers if name.endswith(".weight")]
    paths = [f".{path_in_block(name)}" for name in weight_names]
    for part in shape.parts:
        if part.is_embedding or part.is_head:
            continue
        if part.count == 1:
            if not any(f".{part.name}." in f".{name}" for name in weight_names):
                yield f"the weights have no {part.path}.weight"
        elif (stored_count := sum(f".{part.path}." in path for path in paths)) < part.count:
            yield f"{part.count - stored_count} of {part.count} tensors {part.path}.weight are missing from the weights"


def _differs(name: str, facts: TensorFacts, expected_sizes: tuple[int, ...]) -> str:
    stored_shape, expected_shape = (" x ".join(map(str, shape)) for shape in (facts.shape, expected_sizes))
    return f"{one_line(name, 120)} has the shape {stored_shape}, but config.json specifies {expected_shape}"


def foreign_calls(path: Path) -> tuple[str, ...]:
    """Return the functions and classes in a torch.save file that plain tensors do not need, such as `posix.system`.

    Archives of torch before 0.2 give none: torch checks them when it loads them. Raise ValueError for damaged files."""
    try:
        if not zipfile.is_zipfile(path):
            if tarfile.is_tarfile(path):
                return ()
            with path.open("rb") as file:
                return _foreign(set().union(*(_names(file) for _ in range(_OLD_PICKLES))))
        with zipfile.ZipFile(path) as archive:
            entries = [entry for entry in archive.infolist() if entry.filename.endswith("data.pkl")]
            if not entries or entries[0].file_size > _LARGEST_PICKLE:
                raise ValueError("it contains no list of tensors")
            content = archive.read(entries[0])
    except (zipfile.BadZipFile, OSError, EOFError, NotImplementedError) as error:
        raise ValueError(str(error)) from None
    return _foreign(_names(content))


def _foreign(names: set[str]) -> tuple[str, ...]:
    return tuple(sorted(name for name in names if not _PLAIN.fullmatch(name)))


def _names(content: bytes | BinaryIO) -> set[str]:
    """Return `module.name` of every GLOBAL opcode in a pickle; a STACK_GLOBAL takes the two strings before it."""
    names: set[str] = set()
    strings: list[str] = []
    memo: dict[int, str] = {}
    for code, argument, _ in pickletools.genops(content):
        if code.name == "GLOBAL" or code.name == "INST":
            names.add(str(argument).replace(" ", "."))
        elif code.name == "STACK_GLOBAL":
            names.add(".".join(strings[-2:]) or "?")
        elif isinstance(argument, str):
            strings.append(argument)
        elif code.name == "MEMOIZE" and strings:
            memo[len(memo)] = strings[-1]
        elif code.name in ("BINGET", "LONG_BINGET", "GET") and argument in memo:
            strings.append(memo[argument])
    return names
