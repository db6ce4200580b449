"""What Unsloth cannot do, or does without our help: told before a run with it starts."""

from __future__ import annotations

from tui_trainer.config.editing import toml_text
from tui_trainer.config.load import LoadedConfig
from tui_trainer.errors import Problem
from tui_trainer.models.unsloth import KEY, NAME, is_asked
from tui_trainer.planning.batching import PROCESSES


def provider_problems(loaded: LoadedConfig) -> list[Problem]:
    """Settings that do not go together with the one who loads the model."""
    config = loaded.config
    if not is_asked(config):
        return []
    # The value, and those that go. It loads decoders of text with the head of a language model.
    settings: dict[str, tuple[object, tuple[object, ...]]] = {
        "task.type": (config.task.type, ("causal_lm", "chat")),
        "model.init": (config.model.init, ("pretrained",)),
        "model.attn_implementation": (config.model.attn_implementation, ("auto",)),
        "model.kernels": (config.model.kernels, ("auto", "none")),
        "tuning.use_dora": (config.tuning.use_dora, (False,)),
        "training.torch_compile": (config.training.torch_compile, (False,)),
        "data.packing": (config.data.packing, ("auto", False)),
        PROCESSES: (config.distributed.processes, ("auto", 1)),
        "distributed.nodes": (config.distributed.nodes, (1,)),
        "distributed.cpu_offload": (config.distributed.cpu_offload, (False,)),
    }
    return [
        loaded.problem(
            key,
            f"is {toml_text(value)}, which does not go with {KEY} = {NAME}",
            f"set it to {toml_text(allowed[0])}, or {KEY} = transformers",
        )
        for key, (value, allowed) in settings.items()
        if value not in allowed
    ]
