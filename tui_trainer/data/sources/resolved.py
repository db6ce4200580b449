"""The data of a run: found on disk and hashed once, and handed on by the config that names it.

`source.py` finds the files. It is imported when they are needed, because a config is loaded without numpy.
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
    """The sources that the settings of [data] name; a field is the setting of the same name.

    They are looked up when they are first needed, and then never again: files that are added later are not seen. Make
    a new instance to look again.
    """

    paths: tuple[str, ...] = ()
    eval_paths: tuple[str, ...] = ()
    text_column: str = "auto"
    name: str = ""
    split: str = ""
    eval_split: str = ""
    revision: str = ""
    streaming: bool = False

    @classmethod
    def of(cls, *sources: "Source") -> Self:
        """Return the data of sources that are open already."""
        data = cls(paths=tuple(source.path for source in sources), text_column=sources[0].text_column)
        vars(data)["sources"] = sources
        return data

    @cached_property
    def sources(self) -> "tuple[Source, ...]":
        """The source to train on, and a second one to evaluate on if it is named or a split of its own.

        The configuration of the first counts for the second where it has one. Raises DataError for what `open_sources`
        refuses, and for validation splits that are ambiguous or that only some of the sources have.
        """
        from tui_trainer.data.sources.source import DataChoice, open_sources, uses_of_splits, validation_of

        choice = DataChoice(name=self.name, split=self.split, revision=self.revision, streaming=self.streaming)
        trained = open_sources(self.paths, self.text_column, choice)
        if named_by := "data.eval_path" if self.eval_paths else "data.eval_split" if self.eval_split else "":
            measured = replace(choice, split=self.eval_split, measured=True)
            held_out: Source | None = open_sources(self.eval_paths or self.paths, self.text_column, measured)
        else:
            held_out = validation_of(trained)
        trained = replace(trained, splits=tuple(uses_of_splits(trained, held_out, named_by)))
        return (trained, held_out) if held_out else (trained,)

    @property
    def parts(self) -> "tuple[Source, ...]":
        """The single sources, first those to train on."""
        return tuple(part for source in self.sources for part in source.parts)

    @property
    def splits(self) -> "tuple[SplitUse, ...]":
        """The use that a run makes of the splits of its sources."""
        return self.sources[0].splits

    @property
    def bytes_on_disk(self) -> int:
        """The size of all sources, in bytes."""
        return sum(source.bytes_on_disk for source in self.sources)

    @property
    def description(self) -> str:
        """All sources in words."""
        return ", measured on ".join(source.description for source in self.sources)

    @cached_property
    def signature(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """The size and time of each file, by source, as they were before the files were hashed."""
        return tuple(source.signature() for source in self.sources)

    def fingerprint(self, progress: Progress | None = None) -> str:
        """Return a hash of all names and contents, which is computed once."""
        known = vars(self)
        if "hashed" not in known:
            import xxhash

            _ = self.signature
            first, *others = prints = [source.fingerprint(progress) for source in self.sources]
            known["hashed"] = xxhash.xxh3_128(json.dumps(prints).encode()).hexdigest() if others else first
        return str(known["hashed"])
