"""The sources that a config names."""

from __future__ import annotations

from tui_trainer.config.mixture import paths_in
from tui_trainer.config.sections import Config
from tui_trainer.data.sources import Source, open_sources


def sources_of(config: Config) -> tuple[Source, Source | None]:
    """What is trained on, and what is evaluated on if it is named. Raises DataError."""
    data = config.data
    held_out = open_sources(paths_in(data.eval_path), data.text_column) if data.eval_path else None
    return open_sources(paths_in(data.path), data.text_column), held_out
