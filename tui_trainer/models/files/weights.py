"""Read the names, shapes and dtypes of a model's weights from the headers of its safetensors files.

A file consists of the length of the header (8 bytes, little-endian), the header as JSON, and the data. Source: the
safetensors README, "Format". The limit of the header is that of the library, whose own reader returns no offsets and
does not explain what is wrong with a damaged file.
"""

import json
import math
import re
import stat
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tui_trainer.config.sections import MODEL_KEY
from tui_trainer.errors import ConfigError, Problem, system_reason
from tui_trainer.models.modules import Linear, ModelPart, path_in_block
from tui_trainer.terminal.safe_text import one_line

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
_LENGTH_BYTES = 8
_LARGEST_HEADER = 100_000_000
_LARGEST_INDEX = 100_000_000
_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
    "I32": 32, "U32": 32, "F32": 32, "F64": 64, "I64": 64, "U64": 64, "C64": 64,
}  # fmt: skip

_COPY_AGAIN_HINT = "copy or download the model again"
_HEAD = re.compile(r"(.*\.)?(lm_head|embed_out)\.weight|(model\.)?output\.weight")
_EMBEDDING = re.compile(r"(^|[._])(embed|embeddings?|embed_tokens|embed_in|embed_positions|wte|wpe)\.weight$")
_BLOCK_NUMBER = re.compile(r"\.(\d+)\.")
# Names of a norm's parts in the first BERT, which transformers renames when it loads them.
_OLD_NAMES = {".gamma": ".weight", ".beta": ".bias"}


@dataclass(frozen=True, slots=True)
class TensorFacts:
    """Shape, dtype and file of a stored tensor. `dtype` has the name of safetensors: F32, BF16, F16."""

    shape: tuple[int, ...]
    dtype: str
    file: str

    @property
    def parameters(self) -> int:
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        """Bytes of the data. An unknown dtype counts as 16 bits."""
        return self.parameters * _BITS.get(self.dtype, 16) // 8


def read_headers(folder: Path) -> dict[str, TensorFacts]:
    """Return all tensors of model.safetensors, or of the shards in the index; empty without either.

    Raise ConfigError, for all files at once, if files are missing, truncated or not safetensors."""
    index_file = folder / INDEX_FILE
    if (folder / SINGLE_FILE).is_file():
        return read_file_header(folder / SINGLE_FILE)
    return _read_shards(folder, _shards(index_file)) if index_file.is_file() else {}


def weight_files(folder: Path) -> tuple[str, ...]:
    """Return the names of the files that `read_headers` reads, even of missing ones."""
    if (folder / SINGLE_FILE).is_file():
        return (SINGLE_FILE,)
    index_file = folder / INDEX_FILE
    return tuple(sorted(set(_shards(index_file).values()))) if index_file.is_file() else ()


def read_file_header(path: Path) -> dict[str, TensorFacts]:
    """Return the tensors of one file. Raise ConfigError if it is not a complete safetensors file."""
    try:
        size, header = _header(path)
        return _tensors(header, size, path.name)
    except OSError as error:
        raise _broken_file_error(path, f"cannot be read: {system_reason(error)}") from None
    except _Damage as damage:
        raise _broken_file_error(path, str(damage)) from None


def tensor_starts(path: Path) -> list[int]:
    """Return the sorted offsets of the tensors' data in a file, in bytes from its start.

    Raise ConfigError if it is not a complete safetensors file."""
    read_file_header(path)
    data_bytes, header = _header(path)
    data_start = path.stat().st_size - data_bytes
    return sorted(data_start + entry["data_offsets"][0] for name, entry in header.items() if name != "__metadata__")


class _Damage(Exception):
    """The reason why a file is not a complete safetensors file, as the end of a sentence that begins with its name."""


def _header(path: Path) -> tuple[int, dict[str, Any]]:
    """Return (size of the data in bytes, header) of a safetensors file."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise _Damage("is not a file")
    size = path.stat().st_size
    with path.open("rb") as file:
        text_bytes = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        if size < _LENGTH_BYTES or text_bytes < 2 or text_bytes > _LARGEST_HEADER:
            file.seek(0)
            is_pointer = file.read(64).startswith(b"version https://git-lfs")
            pointer_message = "is a Git LFS pointer without weights: run `git lfs pull` in its folder"
            raise _Damage(pointer_message if is_pointer else "is not a safetensors file")
        if size < _LENGTH_BYTES + text_bytes:
            raise _Damage(f"is truncated: it has {size} bytes, but the header alone takes {_LENGTH_BYTES + text_bytes}")
        text = file.read(text_bytes)
    try:
        header = json.loads(text)
    except (ValueError, RecursionError):
        raise _Damage("is damaged: its header is not JSON") from None
    if not isinstance(header, dict):
        raise _Damage("is damaged: its header lists no tensors")
    return size - _LENGTH_BYTES - text_bytes, header


def _tensors(header: Mapping[str, Any], data_bytes: int, file: str) -> dict[str, TensorFacts]:
    tensors: dict[str, TensorFacts] = {}
    data_end = 0
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        tensor, tensor_end = _tensor(name, entry, file)
        tensors[name], data_end = tensor, max(data_end, tensor_end)
    if data_end > data_bytes:
        raise _Damage(f"is truncated: {data_end - data_bytes} of {data_end} bytes of weights are missing")
    if data_end < data_bytes:
        raise _Damage(f"is damaged: it has {data_bytes - data_end} bytes more than its header describes")
    return tensors


def _tensor(name: str, entry: Any, file: str) -> tuple[TensorFacts, int]:
    """Return the facts of a tensor, and the offset where its data ends."""
    try:
        shape, dtype = tuple(entry["shape"]), entry["dtype"]
        begin, data_end = entry["data_offsets"]
        shape_and_offsets = (*shape, begin, data_end)
        is_valid = all(type(number) is int and number >= 0 for number in shape_and_offsets) and isinstance(dtype, str)
    except (TypeError, KeyError, ValueError):
        is_valid = False
    if not is_valid:
        raise _Damage(f"is damaged: its header does not describe {one_line(name, 80)}")
    facts = TensorFacts(shape, dtype, file)
    if data_end < begin or (dtype in _BITS and data_end - begin != facts.size_bytes):
        raise _Damage(f"is damaged: {data_end - begin} bytes do not match the shape and dtype of {one_line(name, 80)}")
    return facts, data_end


def _shards(index: Path) -> dict[str, str]:
    """Return the file of each tensor in an index. Raise ConfigError for file names outside of the folder."""
    try:
        if index.stat().st_size > _LARGEST_INDEX:
            raise ValueError
        weight_map = json.loads(index.read_bytes())["weight_map"]
        file_names = {file if isinstance(file, str) else ".." for file in weight_map.values()}
        are_valid = all(Path(name).name == name and name not in ("", "..") and "\0" not in name for name in file_names)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise _broken_file_error(index, "is not a weight index") from None
    if not are_valid or not weight_map:
        raise _broken_file_error(index, "names files outside its folder" if weight_map else "lists no weights")
    return dict(weight_map)


def _read_shards(folder: Path, weight_map: Mapping[str, str]) -> dict[str, TensorFacts]:
    file_names = sorted(set(weight_map.values()))
    tensors: dict[str, TensorFacts] = {}
    problems: list[Problem] = []
    if missing_files := [file for file in file_names if not (folder / file).exists()]:
        message = f"{len(missing_files)} of {len(file_names)} weight files are missing: {_first_names(missing_files)}"
        problems.append(Problem(message=message, where=one_line(str(folder)), key=MODEL_KEY, hint=_COPY_AGAIN_HINT))
    for file in file_names:
        if file not in missing_files:
            try:
                tensors |= read_file_header(folder / file)
            except ConfigError as error:
                problems += error.problems
    if problems:
        raise ConfigError(problems)
    if tensor_names := [name for name, file in weight_map.items() if name not in tensors or tensors[name].file != file]:
        reason = f"lists tensors that its files do not contain: {_first_names(tensor_names)}"
        raise _broken_file_error(folder / INDEX_FILE, reason)
    return tensors


def _first_names(names: Sequence[str], limit: int = 3) -> str:
    more_text = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(one_line(name, 80) for name in names[:limit]) + more_text


def _broken_file_error(path: Path, reason: str) -> ConfigError:
    message = f"{one_line(path.name)} {reason}"
    return ConfigError(Problem(message=message, where=one_line(str(path.parent)), key=MODEL_KEY, hint=_COPY_AGAIN_HINT))


def with_current_names(headers: Mapping[str, TensorFacts]) -> dict[str, TensorFacts]:
    """Return the tensors by the names that transformers gives them."""

    def current_name(name: str) -> str:
        old_ending = next((ending for ending in _OLD_NAMES if name.endswith(ending)), "")
        return name.removesuffix(old_ending) + _OLD_NAMES[old_ending] if old_ending else name

    return {current_name(name): facts for name, facts in headers.items()}


def is_head(name: str) -> bool:
    """Return whether a tensor is the matrix that computes the logits."""
    return bool(_HEAD.fullmatch(name))


def is_embedding(name: str) -> bool:
    """Return whether a tensor is an embedding of tokens or positions."""
    return bool(_EMBEDDING.search(name))


def has_head(headers: Mapping[str, TensorFacts]) -> bool:
    """Return whether the files contain a separate head. A tied head is not stored."""
    return any(map(is_head, headers))


def stored_parameters(headers: Mapping[str, TensorFacts], *, tied: bool) -> int:
    """Return the number of weights, with a tied head once, and without the masks and frequencies in old checkpoints."""
    weights = {name: facts for name, facts in headers.items() if not is_buffer(name, facts)}
    return sum(facts.parameters for name, facts in weights.items() if not (tied and is_head(name)))


def is_buffer(name: str, facts: TensorFacts) -> bool:
    """Return whether a tensor is not trained: causal masks (GPT-2, GPT-NeoX), rotary frequencies, positions."""
    if name.endswith(("rotary_emb.inv_freq", ".masked_bias", "position_ids")):
        return True
    return name.endswith((".attn.bias", ".attention.bias")) and len(facts.shape) == 4


def _is_matrix(facts: TensorFacts | None) -> bool:
    return facts is not None and len(facts.shape) == 2


def layer_count(names: Iterable[str]) -> int:
    """Return the highest block number in the names plus one; 0 without block numbers."""
    return max((int(match[1]) + 1 for name in names if (match := _BLOCK_NUMBER.search(name))), default=0)


def modules_of(
    headers: Mapping[str, TensorFacts], hidden: int, vocabulary: int
) -> tuple[tuple[Linear, ...], tuple[ModelPart, ...]]:
    """Return the linear layers and the other parts, distinguished by their names and dimensions.

    A matrix [outputs, inputs] that is no embedding is a linear layer. Without a stored head, there is a tied one."""
    matrices: Counter[tuple[str, int, int, bool]] = Counter()
    part_counts: Counter[tuple[str, int, bool]] = Counter()
    for name, facts in headers.items():
        if is_buffer(name, facts) or is_head(name):
            continue
        path, _, tensor_kind = path_in_block(name).rpartition(".")
        if tensor_kind == "weight" and _is_matrix(facts) and not is_embedding(name):
            has_bias = f"{name.removesuffix('weight')}bias" in headers
            matrices[path, facts.shape[1], facts.shape[0], has_bias] += 1
        elif tensor_kind != "bias" or not _is_matrix(headers.get(f"{name.removesuffix('bias')}weight")):
            part_counts[path or tensor_kind, facts.parameters, is_embedding(name)] += 1
    linears = [_linear(path, inputs, outputs, bias, count) for (path, inputs, outputs, bias), count in matrices.items()]
    # The head has the width of the embedding, which may be narrower than the layers (OPT).
    table_shapes = (facts.shape for name, facts in headers.items() if is_head(name) or is_embedding(name))
    head_inputs = next((shape[1] for shape in table_shapes if len(shape) == 2 and shape[0] == vocabulary), hidden)
    head = _linear("lm_head", head_inputs, vocabulary, False, 1, is_head=True)
    other_parts = tuple(
        ModelPart(path=path, parameters_each=size, count=count, is_embedding=is_table)
        for (path, size, is_table), count in part_counts.items()
    )
    return (*linears, head), other_parts


def _linear(path: str, inputs: int, outputs: int, has_bias: bool, count: int, is_head: bool = False) -> Linear:
    name = path.rpartition(".")[2]
    return Linear(name=name, path=path, inputs=inputs, outputs=outputs, has_bias=has_bias, count=count, is_head=is_head)
