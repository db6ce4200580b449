"""The sources that a config names."""

from tui_trainer.config.mixture import paths_in
from tui_trainer.config.sections import Config
from tui_trainer.data.sources.choice import Choice
from tui_trainer.data.sources.source import Source
from tui_trainer.data.sources.split_use import training_and_evaluation


def sources_of(config: Config) -> list[Source]:
    """What is trained on, and what is evaluated on if it is named, or is a split of its own. Raises DataError."""
    data = config.data
    choice = Choice(name=data.name, split=data.split, revision=data.revision, streaming=data.streaming)
    eval_paths = paths_in(data.eval_path) if data.eval_path else ()
    both = training_and_evaluation(paths_in(data.path), eval_paths, data.text_column, choice, data.eval_split)
    return [source for source in both if source]
