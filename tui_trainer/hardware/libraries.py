"""Versions of the libraries that matter, read from their metadata. Nothing is imported."""

import os
import re
import sys
from collections.abc import Iterable
from importlib import metadata, util
from pathlib import Path
from typing import Literal

BytecodeObstacle = Literal["variable", "folder"]
"""Why Python keeps no bytecode of torch: PYTHONDONTWRITEBYTECODE is set, or the folder is read-only."""
RESULT_LIBRARIES = tuple(
    "torch transformers tokenizers safetensors numpy peft bitsandbytes flash-attn flash-attn-3 liger-kernel kernels "
    "torchao triton".split()
)
"""Libraries that can change the results of a run. The journal records their versions."""
LIBRARIES = (*RESULT_LIBRARIES, "datasets", "accelerate", "deepspeed", "textual", "pip")
"""Libraries whose versions are facts of a machine. Which values need which of them: `Config.libraries`."""


def read_versions(names: Iterable[str] = LIBRARIES) -> dict[str, str | None]:
    """Version by distribution name; None where it is not installed."""
    return {name: _version(name) for name in names}


def torch_cuda(torch_version: str | None) -> tuple[int, int] | None:
    """The CUDA that the installed torch was built for, from its version.py or the tag `+cu132` of its version."""
    if torch_version is None:
        return None
    file = _torch_file()
    text = _text_of(file.with_name("version.py")) if file else ""
    found = re.search(r"^cuda\b[^=\n]*=\s*['\"](\d+)\.(\d+)", text, re.MULTILINE)
    if not found and not text:
        found = re.search(r"\+cu(\d+)(\d)$", torch_version)
    return (int(found[1]), int(found[2])) if found else None


def numbers_of(version: str) -> tuple[int, ...]:
    """`2.8.3+cu12` as (2, 8, 3)."""
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, found[0].split("."))) if found else ()


def _version(name: str) -> str | None:
    try:
        found = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return None
    # All of the metadata would take the parser milliseconds, for the long description.
    version = re.search(r"^Version:\s*(\S+)", found.read_text("METADATA") or found.read_text("PKG-INFO") or "", re.M)
    return version[1] if version else None


def bytecode_obstacle() -> BytecodeObstacle | None:
    """Return why Python compiles torch again at every start, or None where it keeps the bytecode."""
    file = _torch_file()
    if file is None:
        return None
    bytecode = Path(util.cache_from_source(file))
    if bytecode.exists():
        return None
    if sys.dont_write_bytecode:
        return "variable"
    folder = next(parent for parent in bytecode.parents if parent.exists())
    return None if os.access(folder, os.W_OK) else "folder"


def _torch_file() -> Path | None:
    """Return the path of torch/__init__.py. Looking for a top-level package imports nothing."""
    try:
        spec = util.find_spec("torch")
    except (ValueError, ImportError):
        return None
    return Path(spec.origin) if spec and spec.origin else None


def _text_of(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError:
        return ""
