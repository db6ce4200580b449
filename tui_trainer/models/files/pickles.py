"""What a pickle would call when it is read, told without reading it: for weights that are stored as .bin files.

torch loads them with `weights_only`, which refuses everything but plain tensors; this says so before the start.
Source of what is plain: `_get_allowed_globals` in torch/_weights_only_unpickler.py of torch 2.15.
"""

import pickletools
import re
import tarfile
import zipfile
from pathlib import Path
from typing import BinaryIO

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
                raise ValueError("it holds no list of tensors")
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
