"""Configs of other tools in the shapes that people have, all made up, each with its right outcome: the config that it
becomes, or why it is refused. `test_wild_configs.py` tries them all.

A new shape is a new line here, and not a test of its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Model = Literal["decoder", "encoder", "text to text"]


@dataclass(frozen=True, kw_only=True)
class WildConfig:
    """One file, and what becomes of it.

    `content`: the text of the file, or its keys, which are written as JSON. `beside`: other files of its folder, by
    name. `kind` and `processes` are asked for with --as and --processes. Either `refused` stands in the refusal; or
    `values` are the settings that it becomes, all of them, with each of `told` in the report, and the plan takes them
    with a tiny model of the kind `model`.
    """

    name: str
    content: str | Mapping[str, Any]
    file: str = ""
    beside: Mapping[str, str] = field(default_factory=dict)
    kind: str = ""
    processes: int | None = None
    model: Model = "decoder"
    refused: tuple[str, ...] = ()
    values: Mapping[str, Any] = field(default_factory=dict)
    told: tuple[str, ...] = ()

    def write(self, folder: Path) -> Path:
        for name, text in self.beside.items():
            (folder / name).write_text(text, encoding="utf-8")
        is_text = isinstance(self.content, str)
        path = folder / (self.file or ("config.yaml" if is_text else "config.json"))
        path.write_text(str(self.content) if is_text else json.dumps(self.content, indent=1), encoding="utf-8")
        return path


SCRIPTS = (
    WildConfig(
        name="arguments of a Trainer with a model",
        content={"model_name_or_path": "org/m", "learning_rate": 1e-5, "per_device_train_batch_size": 4, "seed": 1},
        kind="transformers",
        values={
            "model.model_name_or_path": "org/m", "training.learning_rate": 1e-5, "training.seed": 1,
            "training.effective_batch_size": 4, "tuning.method": "full",
        },
    ),
)  # fmt: skip

FOREIGN = (
    WildConfig(name="no key is known", content="colour: red\n", refused=("has no key that is known (colour)", "--as")),
)

CASES = (*SCRIPTS, *FOREIGN)
