"""Rows, configs and finished runs for the tests of tasks."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tests.runs.journals import read_all
from tui_trainer.config.load import LoadedConfig, Request
from tui_trainer.data.preparing.token_rows import Rows, TokenRow
from tui_trainer.launching.open_run import load_config, open_new
from tui_trainer.launching.run_lifecycle import execute_run
from tui_trainer.runs.folder import RunFolder

# A run of seconds that evaluates and saves only at its end.
TINY = {
    "model.scratch.hidden_size": 32, "model.scratch.num_hidden_layers": 2, "model.scratch.num_attention_heads": 4,
    "model.scratch.vocab_size": 320, "data.eval_fraction": 0.2, "training.effective_batch_size": 8,
    "training.learning_rate": 0.01, "evaluation.eval_steps": 0, "checkpoint.save_steps": 0, "logging.sample_steps": 0,
    "output.name": "run",
}  # fmt: skip


def write_rows(path: Path, rows: Iterable[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def load(*settings: Mapping[str, Any]) -> LoadedConfig:
    """Load the config of these settings; later ones replace earlier ones."""
    merged = {key: value for some in settings for key, value in some.items()}
    return load_config(Request(assignments=tuple(f"{key}={value}" for key, value in merged.items())))


def set_options(*settings: Mapping[str, Any]) -> list[str]:
    """Return the settings as options of the command line."""
    merged = {key: value for some in settings for key, value in some.items()}
    return [word for key, value in merged.items() for word in ("--set", f"{key}={value}")]


def finish(loaded: LoadedConfig) -> RunFolder:
    """Train a run to its end and return its folder."""
    run = open_new(loaded)
    outcome = execute_run(run)
    assert outcome.exit_code == 0, outcome
    return run.folder


def of_kind(folder: RunFolder, kind: type[Any]) -> list[Any]:
    """Return the events of one kind in the journal."""
    return [event for event in read_all(folder.journal) if isinstance(event, kind)]


def examples(path: Path) -> list[TokenRow]:
    """Read prepared rows."""
    rows = Rows(path)
    return [rows.example(index) for index in range(len(rows))]
