"""What was measured on this machine, as JSON files in the state folder. What is missing or damaged was not measured.

The first screen reads such a file, so neither pydantic nor the settings are loaded here.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tui_trainer.models.heads import CAUSAL
from tui_trainer.runs.folder import write_atomically

if TYPE_CHECKING:
    from tui_trainer.config.sections import Config
    from tui_trainer.models.shape import ModelShape
    from tui_trainer.planning.training_setup import Precision, TrainingSetup

T = TypeVar("T")

# What decides how long a step takes, or what it holds, and is no word of a key.
_SETTINGS = (
    "model.attn_implementation", "model.kernels", "model.dtype", "data.group_by_length", "tuning.target_modules",
    "tuning.modules_to_save", "tuning.use_dora", "training.optim", "training.loss_chunk_tokens", "training.tf32",
    "training.torch_compile_mode", "training.deterministic", "dataloader.num_workers", "distributed.strategy",
)  # fmt: skip


def machine_key(cpu_name: str, threads: int, precision: "Precision" = "fp32", card_name: str = "") -> str:
    """Under which name the figures of this machine are kept: those of a card, whatever processor it sits beside."""
    machine = card_name or f"{cpu_name}, {threads} threads"
    return machine if precision == "fp32" else f"{machine}, {precision}"


def timed_as(card_name: str, setup: "TrainingSetup") -> str:
    """The name under which the rate of a card is kept: where it waits for the host it is another one."""
    return f"{card_name}, weights on the host" if setup.cpu_offload else card_name


@dataclass(frozen=True, slots=True)
class StepKey:
    """What a number that was measured holds for, beside the machine (`machine_key`): elsewhere nothing was measured.

    `model`: the task, the model's shape, what it computes in and with which libraries. `setup`: how it is trained.
    `cut`: how many rows of how many tokens a step has, and in what passes.
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
    if shape.head != CAUSAL:
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


def read_table(path: Path, *keys: str) -> dict[str, Any]:
    """The JSON object of a file, or the one under these keys; empty where there is none."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    for key in keys:
        found = found.get(key) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else {}


def entry_of(kind: type[T], entry: object) -> T | None:
    """None where the entry is damaged."""
    from pydantic import TypeAdapter, ValidationError

    with suppress(ValidationError):
        return TypeAdapter(kind).validate_python(entry)
    return None


def keep_entry(path: Path, *keys: str, entry: object, most: int) -> None:
    """In the place of an earlier one; of the table that it is in, the newest `most` entries stay.

    A folder that cannot be written is no error: nothing is known the next time either.
    """
    *outer, key = keys
    table = read_table(path, *outer)
    table.pop(key, None)
    table = dict(list({**table, key: entry}.items())[-most:])
    for name in outer:
        table = {**read_table(path), name: table}
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(table, indent=1).encode())
