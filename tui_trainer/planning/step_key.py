"""What decides how long a step takes and what it holds: the key of everything that is measured of one.

The first screen reads measurements, so neither pydantic nor the settings are loaded here.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING

from tui_trainer.planning.records import Key

if TYPE_CHECKING:
    from tui_trainer.config.sections import Config
    from tui_trainer.models.shape import ModelShape
    from tui_trainer.planning.training_setup import TrainingSetup

# What decides how long a step takes, or what it holds, and is no word of a key.
_SETTINGS = (
    "model.attn_implementation", "model.kernels", "model.dtype", "data.group_by_length", "tuning.target_modules",
    "tuning.modules_to_save", "tuning.use_dora", "training.optim", "training.loss_chunk_tokens", "training.tf32",
    "training.torch_compile_mode", "training.deterministic", "dataloader.num_workers", "distributed.strategy",
)  # fmt: skip


def device_key(cpu_name: str, threads: int, card_name: str = "") -> str:
    """The name under which the figures of a device are kept: those of a card, whatever processor it sits beside."""
    return card_name or f"{cpu_name}, {threads} threads"


@dataclass(frozen=True, slots=True)
class StepKey:
    """What a number that was measured holds for, beside the device (`device_key`): elsewhere nothing was measured.

    `model`: the task, the model's shape, what it computes in and with which libraries: `TASK SHAPE, VERSIONS`. `setup`:
    how it is trained. `cut`: how many rows of how many tokens a step has, and in what passes.
    """

    model: str
    setup: str
    cut: str

    def __str__(self) -> str:
        return " | ".join((self.model, self.setup, self.cut))

    @classmethod
    def read(cls, text: object) -> "StepKey | None":
        """None for a key of before tasks and libraries were part of it."""
        parts = text.split(" | ") if isinstance(text, str) else []
        return cls(*parts) if len(parts) == 3 else None

    def on(self, device: str, data: str = "") -> Key:
        """The key of a record about such steps on this device; with `data`, about this cut of that data alone."""
        first, _, versions = self.model.partition(", ")
        task, _, shape = first.partition(" ")
        return Key(task, shape, f"{self.setup} | {self.cut} | {data}" if data else self.setup, device, versions)

    def has_setup_of(self, other: "StepKey") -> bool:
        """Whether both train one model in one way, whatever their rows."""
        return (self.model, self.setup) == (other.model, other.setup)


def step_key(
    config: "Config",
    libraries: Mapping[str, str | None],
    shape: "ModelShape",
    setup: "TrainingSetup",
    micro_batch: int,
    effective_batch: int,
    row_tokens: int,
    processes: int = 1,
) -> StepKey:
    """`effective_batch`: rows of one process in a step. Nothing of how fast a model learns is part of it."""
    from tui_trainer.config.load import value_of

    sizes = [shape.hidden_size, shape.layers, shape.attention_heads, shape.key_value_heads, shape.mlp_size]
    model = "-".join(map(str, [shape.model_type, *sizes, shape.vocabulary, shape.parameters, setup.precision]))
    if shape.head != "causal_lm":
        model += f"-{shape.head}"
    versions = [f"{name} {libraries.get(name) or 'unknown'}" for name in ("torch", "transformers")]
    more = {
        setup.provider: setup.provider != "transformers",
        f"{processes}processes": processes > 1,
        "ckpt": setup.gradient_checkpointing,
        "packed": setup.packed,
        "offloaded": setup.cpu_offload,
        "compiled": setup.compiled,
        "dropout": bool(shape.attention_dropout),
        f"answers{setup.target_tokens}": setup.target_tokens > 0,
    }
    how = [setup.method if setup.method == "full" else f"{setup.method}{setup.lora_rank}"]
    others = json.dumps([value_of(config, key) for key in _SETTINGS], default=str).encode()
    return StepKey(
        model=", ".join((f"{config.task.type} {model}", *versions)),
        setup="-".join([*how, *(word for word, is_so in more.items() if is_so), sha256(others).hexdigest()[:8]]),
        cut=f"{micro_batch}of{effective_batch}x{row_tokens}",
    )
