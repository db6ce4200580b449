"""Versions of the libraries that matter, read from their metadata. Nothing is imported."""

import re
from collections.abc import Iterable
from importlib import metadata, util
from pathlib import Path

LIBRARIES = tuple(
    "torch transformers tokenizers safetensors numpy datasets peft accelerate bitsandbytes flash-attn flash-attn-3 "
    "liger-kernel kernels torchao deepspeed triton textual pip".split()
)


def read_versions(names: Iterable[str] = LIBRARIES) -> dict[str, str | None]:
    """Version by distribution name; None where it is not installed."""
    return {name: _version(name) for name in names}


def torch_cuda(torch_version: str | None) -> tuple[int, int] | None:
    """The CUDA that the installed torch was built for, from its version.py or the tag `+cu132` of its version."""
    if torch_version is None:
        return None
    text = _version_file()
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


def _version_file() -> str:
    """Text of torch/version.py. Looking for a top-level package imports nothing."""
    try:
        spec = util.find_spec("torch")
        if spec is None or spec.origin is None:
            return ""
        return Path(spec.origin).with_name("version.py").read_text(encoding="utf-8")
    except (OSError, ValueError, ImportError):
        return ""
