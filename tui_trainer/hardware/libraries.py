"""Versions of installed libraries, read from their metadata. Nothing is imported."""

import os
import re
import sys
from collections.abc import Iterable
from importlib import metadata, util
from pathlib import Path
from typing import Literal

BytecodeObstacle = Literal["variable", "folder"]
"""Why Python saves no bytecode of torch: PYTHONDONTWRITEBYTECODE is set, or the folder is read-only."""
RESULT_LIBRARIES = tuple(
    "torch transformers tokenizers safetensors numpy peft bitsandbytes flash-attn flash-attn-3 liger-kernel kernels "
    "torchao triton".split()
)
"""Libraries that can change the results of a run. The journal records their versions."""
LIBRARIES = (*RESULT_LIBRARIES, "datasets", "accelerate", "deepspeed", "textual", "pip")
"""Libraries whose versions are facts of a machine. `Config.libraries` has those that a setting needs."""


def read_versions(names: Iterable[str] = LIBRARIES) -> dict[str, str | None]:
    """Return versions by distribution name; None if it is not installed."""
    return {name: _version(name) for name in names}


def torch_cuda(torch_version: str | None) -> tuple[int, int] | None:
    """Return the CUDA version of the installed torch, from its version.py or the tag in its version (`+cu132`)."""
    if torch_version is None:
        return None
    torch_file = _torch_file()
    version_text = _text_of(torch_file.with_name("version.py")) if torch_file else ""
    match = re.search(r"^cuda\b[^=\n]*=\s*['\"](\d+)\.(\d+)", version_text, re.MULTILINE)
    if not match and not version_text:
        match = re.search(r"\+cu(\d+)(\d)$", torch_version)
    return (int(match[1]), int(match[2])) if match else None


def numbers_of(version: str) -> tuple[int, ...]:
    """Return the numbers of a version: `2.8.3+cu12` as (2, 8, 3)."""
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, match[0].split("."))) if match else ()


def _version(name: str) -> str | None:
    try:
        package = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return None
    # Parsing all metadata would take milliseconds because of the long description.
    metadata_text = package.read_text("METADATA") or package.read_text("PKG-INFO") or ""
    version_match = re.search(r"^Version:\s*(\S+)", metadata_text, re.MULTILINE)
    return version_match[1] if version_match else None


def bytecode_obstacle() -> BytecodeObstacle | None:
    """Return why Python recompiles torch at every start, or None if its bytecode is saved."""
    torch_file = _torch_file()
    if torch_file is None:
        return None
    bytecode_file = Path(util.cache_from_source(torch_file))
    if bytecode_file.exists():
        return None
    if sys.dont_write_bytecode:
        return "variable"
    folder = next(parent for parent in bytecode_file.parents if parent.exists())
    return None if os.access(folder, os.W_OK) else "folder"


def _torch_file() -> Path | None:
    """Return the path of torch/__init__.py. Finding a top-level package imports nothing."""
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
