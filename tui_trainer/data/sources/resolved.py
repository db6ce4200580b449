"""The data of a run: its files are found and hashed once, and passed on with the config that names them.

`source.py` finds the files. It is imported only when they are needed, because a config is loaded without numpy.
"""

import json
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Self

from tui_trainer.data.progress import Progress

if TYPE_CHECKING:
    from tui_trainer.data.sources.source import Source
    from tui_trainer.data.sources.splits import SplitUse


@dataclass(frozen=True, kw_only=True)
class ResolvedData:
    """The sources that the settings of [data] name. Each field has the name of its setting.

    The files are searched when they are first needed, and never again: create a new instance to see files added later.
    """

    paths: tuple[str, ...] = ()
    replay_paths: tuple[str, ...] = ()
    eval_paths: tuple[str, ...] = ()
    text_column: str = "auto"
    name: str = ""
    split: str = ""
    eval_split: str = ""
    revision: str = ""
    streaming: bool = False

    @classmethod
    def of(cls, *sources: "Source") -> Self:
        """Return data that consists of these sources, which are already open."""
        resolved_data = cls(paths=tuple(source.path for source in sources), text_column=sources[0].text_column)
        vars(resolved_data)["sources"] = sources
        return resolved_data

    @cached_property
    def sources(self) -> "tuple[Source, ...]":
        """The training source, and an evaluation source if settings name it or there is a validation split.

        The last parts of the training source are those of `replay_paths`, to which data.name, data.split and validation
        splits do not apply. data.name applies to the second source if it has that configuration. Raises DataError for
        what `open_sources` refuses, and for validation splits that are ambiguous or that only some of the sources have.
        """
        from tui_trainer.data.sources.source import (
            DataChoice,
            join_sources,
            open_sources,
            uses_of_splits,
            validation_of,
        )

        training_choice = DataChoice(name=self.name, split=self.split, revision=self.revision, streaming=self.streaming)
        training = open_sources(self.paths, self.text_column, training_choice)
        if setting_of_held_out := "data.eval_path" if self.eval_paths else "data.eval_split" if self.eval_split else "":
            evaluation_choice = replace(training_choice, split=self.eval_split, is_evaluation=True)
            held_out: Source | None = open_sources(self.eval_paths or self.paths, self.text_column, evaluation_choice)
        else:
            held_out = validation_of(training)
        if self.replay_paths:
            replay_choice = DataChoice(revision=self.revision, streaming=self.streaming)
            replay = open_sources(self.replay_paths, self.text_column, replay_choice)
            training = join_sources([*training.parts, *replay.parts])
        training = replace(training, splits=tuple(uses_of_splits(training, held_out, setting_of_held_out)))
        return (training, held_out) if held_out else (training,)

    @property
    def parts(self) -> "tuple[Source, ...]":
        """The sources of all paths, those for training first."""
        return tuple(part for source in self.sources for part in source.parts)

    @property
    def splits(self) -> "tuple[SplitUse, ...]":
        """How a run uses the splits of its sources."""
        return self.sources[0].splits

    @property
    def bytes_on_disk(self) -> int:
        """Size of all sources, in bytes."""
        return sum(source.bytes_on_disk for source in self.sources)

    @property
    def description(self) -> str:
        """Description of all sources, for messages."""
        return ", evaluated on ".join(source.description for source in self.sources)

    @cached_property
    def signature(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """(size, mtime) of each file, by source, as they were before the files were hashed."""
        return tuple(source.signature() for source in self.sources)

    def fingerprint(self, progress: Progress | None = None) -> str:
        """Return a hash of the names and contents of all sources. It is computed only once."""
        attributes = vars(self)
        if "hashed" not in attributes:
            import xxhash

            _ = self.signature
            first, *others = fingerprints = [source.fingerprint(progress) for source in self.sources]
            attributes["hashed"] = xxhash.xxh3_128(json.dumps(fingerprints).encode()).hexdigest() if others else first
        return str(attributes["hashed"])
