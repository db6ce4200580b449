"""Frozen weights in 4 bits (QLoRA, arXiv:2305.14314): which weights, their bytes, and how they are loaded.

bitsandbytes quantises the matrices of linear layers, which excludes embeddings. The head and the modules that are
trained as a whole are excluded by name: 4-bit weights do not train, and a tied head would also quantise the embedding.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tui_trainer.config.fields import names_in
from tui_trainer.config.sections import Config, ModelSection
from tui_trainer.errors import ConfigError, Problem
from tui_trainer.models.modules import Linear
from tui_trainer.models.shape import ModelShape
from tui_trainer.models.targets import head_modules
from tui_trainer.models.towers import tower_modules
from tui_trainer.terminal.safe_text import one_line

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from transformers import BitsAndBytesConfig, PretrainedConfig

# Weights that share a scale in fp32, and scales that share one if they are quantised to 8 bits.
BLOCK, SCALES_BLOCK = 64, 256
# Layers that transformers keeps in fp32. Source: `_keep_in_fp32_modules` of its modeling files (5.23).
_KEPT_BY_TRANSFORMERS = {"t5": ("wo",), "mt5": ("wo",), "umt5": ("wo",)}


@dataclass(frozen=True, kw_only=True, slots=True)
class FourBits:
    """Settings of quantisation. `compute_dtype` is torch's name, or "" for the dtype of the other weights.
    `unquantised` holds ends of the paths of modules that are not quantised, in addition to the head."""

    quant_type: str = "nf4"
    double_quant: bool = True
    compute_dtype: str = ""
    unquantised: tuple[str, ...] = ()

    @classmethod
    def of(cls, config: Config, shape: ModelShape) -> FourBits | None:
        """Return the quantisation that a config asks for, or None without 4-bit weights."""
        if not config.tuning.in_four_bits:
            return None
        settings = config.quantization
        dtype = settings.bnb_4bit_compute_dtype
        saved_names = (*names_in(config.tuning.modules_to_save), *head_modules(shape))
        return cls(
            quant_type=settings.bnb_4bit_quant_type,
            double_quant=settings.bnb_4bit_use_double_quant,
            compute_dtype="" if dtype == "auto" else dtype,
            unquantised=(*saved_names, *_KEPT_BY_TRANSFORMERS.get(shape.model_type, ())),
        )

    @property
    def bits_per_weight(self) -> float:
        """Bits of one weight with its share of the scales: 4.5, or 4.127 with double quantisation.

        Source: QLoRA, arXiv:2305.14314, section 3 (blocks of 64; their scales in 8 bits, in blocks of 256)."""
        return 4 + (8 / BLOCK + 32 / (BLOCK * SCALES_BLOCK) if self.double_quant else 32 / BLOCK)


def quantised_linears(shape: ModelShape, four_bits: FourBits | None) -> tuple[Linear, ...]:
    """Return the kinds of linear layers that are quantised; empty without `four_bits`."""
    if four_bits is None:
        return ()
    layers = (linear for linear in shape.linears if not linear.is_head)
    return tuple(linear for linear in layers if not linear.path.endswith(four_bits.unquantised))


def bitsandbytes_config(
    four_bits: FourBits, shape: PretrainedConfig, model: ModelSection, dtype: torch.dtype, auto_class: Any
) -> BitsAndBytesConfig:
    """Return the quantisation config for transformers. `dtype` is that of the other weights.

    The config lists the modules to skip: the head, layers tied to the head, and towers. This list replaces the one that
    transformers would make, found in a model without data. A name matches the end of a path or a component of it."""
    import torch
    from transformers import BitsAndBytesConfig
    from transformers.quantizers.base import get_keys_to_not_convert

    with torch.device("meta"):
        skeleton = auto_class.from_config(shape, dtype=dtype, trust_remote_code=model.trust_remote_code)
    regexes = [rf"(.*\.)?{re.escape(name)}" for name in four_bits.unquantised]
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type=four_bits.quant_type,
        bnb_4bit_use_double_quant=four_bits.double_quant,
        bnb_4bit_compute_dtype=getattr(torch, four_bits.compute_dtype) if four_bits.compute_dtype else dtype,
        llm_int8_skip_modules=[
            *get_keys_to_not_convert(skeleton),
            *tower_modules(skeleton),
            *four_bits.unquantised,
            *regexes,
        ],
    )


def refuse_poisoned_files(folder: Path) -> None:
    """Raise ConfigError for a tensor with values that are not finite, because quantisation would hide them."""
    import torch

    for name, tensor in stored_tensors(folder):
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            message = f"{one_line(name, 120)} contains values that are not finite"
            hint = "the weights file is damaged, or the model diverged in training: use another copy"
            raise ConfigError(Problem(message=message, where=str(folder), key="model.model_name_or_path", hint=hint))


def stored_tensors(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """Yield (name, tensor) of all weight files, with one tensor in memory at a time."""
    import torch
    from safetensors import safe_open

    safetensors_paths = sorted(folder.glob("*.safetensors"))
    for path in safetensors_paths:
        with safe_open(path, framework="pt") as file:
            yield from ((name, file.get_tensor(name)) for name in file.keys())  # noqa: SIM118  # it is no dict
    for path in () if safetensors_paths else sorted(folder.glob("pytorch_model*.bin")):
        stored_tensors_of_file = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
        yield from ((name, value) for name, value in stored_tensors_of_file.items() if torch.is_tensor(value))
