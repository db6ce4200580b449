"""Frozen weights in 4 bits (QLoRA, arXiv:2305.14314): which of them, how many bytes they take, and how they are loaded.

bitsandbytes packs the matrices of linear layers. Embeddings are no such layers; the head and what is trained as a whole
are left out by name: 4 bits do not train, and a tied head would take the embedding with it.
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

# Weights that share a scale in fp32, and scales that share one when they are quantised to 8 bits themselves.
BLOCK, SCALES_BLOCK = 64, 256
# Layers that transformers itself keeps in fp32: `_keep_in_fp32_modules` of its modeling files (5.23).
_KEPT_BY_TRANSFORMERS = {"t5": ("wo",), "mt5": ("wo",), "umt5": ("wo",)}


@dataclass(frozen=True, kw_only=True, slots=True)
class FourBits:
    """How a model is quantised. `compute_dtype` is torch's name, or empty: that of the weights left as they are.
    `kept`: ends of the paths of modules that are left out, besides the head."""

    quant_type: str = "nf4"
    double_quant: bool = True
    compute_dtype: str = ""
    kept: tuple[str, ...] = ()

    @classmethod
    def of(cls, config: Config, shape: ModelShape) -> FourBits | None:
        """As the settings say; None where no weight is in 4 bits."""
        if not config.tuning.in_four_bits:
            return None
        section = config.quantization
        dtype = section.bnb_4bit_compute_dtype
        saved = (*names_in(config.tuning.modules_to_save), *head_modules(shape))
        return cls(
            quant_type=section.bnb_4bit_quant_type,
            double_quant=section.bnb_4bit_use_double_quant,
            compute_dtype="" if dtype == "auto" else dtype,
            kept=(*saved, *_KEPT_BY_TRANSFORMERS.get(shape.model_type, ())),
        )

    @property
    def bits_per_weight(self) -> float:
        """4 bits and a share of the scales: 4.5, with double quantisation 4.127.

        Source: QLoRA, arXiv:2305.14314, section 3 (blocks of 64; their scales in 8 bits, in blocks of 256).
        """
        return 4 + (8 / BLOCK + 32 / (BLOCK * SCALES_BLOCK) if self.double_quant else 32 / BLOCK)


def quantised_linears(shape: ModelShape, four_bits: FourBits | None) -> tuple[Linear, ...]:
    """The kinds of linear layers whose matrices are packed; none without `four_bits`."""
    if four_bits is None:
        return ()
    kept = four_bits.kept
    return tuple(x for x in shape.linears if not x.is_head and not (kept and x.path.endswith(kept)))


def bitsandbytes_config(
    four_bits: FourBits, shape: PretrainedConfig, model: ModelSection, dtype: torch.dtype, auto_class: Any
) -> BitsAndBytesConfig:
    """As transformers takes it. `dtype` is that of the weights left as they are.

    Names that are given replace those that transformers finds by itself (the head, and what is tied to it), so both are
    given. It finds them in a model, which is made without numbers, and towers are found there too: they stay as they
    are. A name is an end of a path, or a whole part of it.
    """
    import torch
    from transformers import BitsAndBytesConfig
    from transformers.quantizers.base import get_keys_to_not_convert

    with torch.device("meta"):
        skeleton = auto_class.from_config(shape, dtype=dtype, trust_remote_code=model.trust_remote_code)
    parts = [rf"(.*\.)?{re.escape(name)}" for name in four_bits.kept]
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type=four_bits.quant_type,
        bnb_4bit_use_double_quant=four_bits.double_quant,
        bnb_4bit_compute_dtype=getattr(torch, four_bits.compute_dtype) if four_bits.compute_dtype else dtype,
        llm_int8_skip_modules=[*get_keys_to_not_convert(skeleton), *tower_modules(skeleton), *four_bits.kept, *parts],
    )


def refuse_poisoned_files(folder: Path) -> None:
    """Raises ConfigError with the tensor that holds a number which is not finite: packed, it looks like any other."""
    import torch

    for name, tensor in stored_tensors(folder):
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            message = f"{one_line(name, 120)} contains values that are not finite"
            hint = "the weights file is damaged, or the model diverged in training: use another copy"
            raise ConfigError(Problem(message=message, where=str(folder), key="model.model_name_or_path", hint=hint))


def stored_tensors(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """One after the other, so that there is one in memory at a time."""
    import torch
    from safetensors import safe_open

    paths = sorted(folder.glob("*.safetensors"))
    for path in paths:
        with safe_open(path, framework="pt") as file:
            yield from ((name, file.get_tensor(name)) for name in file.keys())  # noqa: SIM118  # it is no dict
    for path in () if paths else sorted(folder.glob("pytorch_model*.bin")):
        stored = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
        yield from ((name, value) for name, value in stored.items() if torch.is_tensor(value))
