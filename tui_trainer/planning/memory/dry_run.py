"""Memory of a layer whose family has no formula: counted once, in a child process, on tensors without numbers.

`measure_layer` asks `dry_run_child` and keeps the answer. It is a process of its own because it loads torch, which
plans do not. Nothing is guessed when it fails: the result then says why the memory is not known.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from tui_trainer.models.child import ChildFailed, answer_place, ask_child, keep_answer
from tui_trainer.planning.training_setup import LayerBytes, TrainingSetup

TIMEOUT_SECONDS = 120.0
_FORMAT_VERSION = 3
_CHILD = "tui_trainer.planning.memory.dry_run_child"
# What a layer's results depend on; the rest of a setup does not change the answer, and must not change the key.
_DECIDING = (
    "device", "head", "target_tokens", "precision", "weights", "method", "lora_rank", "lora_targets", "lora_dropout",
    "packed", "eager_attention",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class DryRun:
    """What a dry run found; `layer` is None when it failed, and `reason` says so to a user."""

    layer: LayerBytes | None
    reason: str


def measure_layer(
    config: Mapping[str, Any], setup: TrainingSetup, row_tokens: int, *, timeout_seconds: float = TIMEOUT_SECONDS
) -> DryRun:
    """Bytes of one layer of the model that a config.json describes, in rows of `row_tokens`.

    Takes some seconds the first time; the answer is kept by config, setup and version of transformers. Attention is
    counted as a CPU computes it; dropout within it keeps nothing on a GPU, whose fused kernels draw it again. With a
    decoder behind an encoder the layers of both count together, as bytes of one token of the input in one layer of the
    encoder, for answers of `setup.target_tokens`. No code that comes with a model is run.
    """
    everything = asdict(setup)
    deciding = {name: everything[name] for name in _DECIDING}
    parts = {"config": dict(config), "setup": deciding, "row_tokens": row_tokens}
    question = json.dumps(parts, sort_keys=True, default=str)
    place = answer_place("dry-runs", _FORMAT_VERSION, question)
    with suppress(OSError, ValueError, KeyError, TypeError):
        return _read(place.read_text(encoding="utf-8"))
    try:
        answer = ask_child(_CHILD, question, timeout_seconds)
        found = _read(answer)
    except ChildFailed as failure:
        return DryRun(layer=None, reason=f"not known: the dry run {failure}")
    except (ValueError, KeyError, TypeError):
        return DryRun(layer=None, reason="not known: the dry run gave no answer")
    keep_answer(place, answer)
    return found


def _read(answer: str) -> DryRun:
    content = json.loads(answer)
    layer = LayerBytes(**{name: int(content[name]) for name in ("kept", "made", "wide")})
    return DryRun(layer=layer, reason="measured by a dry run on tensors without numbers")
