"""Which split a file belongs to, by its name and the names of the folders above it: the one place that knows.

Local folders, globs and data sets of the hub ask here. Nothing is opened. The keywords are those of the library
`datasets` (SPLIT_KEYWORDS, KEYWORDS_IN_PATH_NAME_BASE_PATTERNS and SPLIT_PATTERN_SHARDED in its data_files.py): note
that `eval` and `evaluation` name a test split there. What differs from it: case is ignored; `trainset` and `testdata`
count; a file's own name wins over its folder's, where the library puts the file into both splits.

Tables: a keyword anywhere in a name counts, between characters that are no letters. Beside a split, a file of no split
is a doubt, and texts such as a README are left alone.

Plain texts: most folders of texts are corpora, in which `test_utils.txt` and `evaluation/notes.md` are documents as
others are. A text names a split only where a folder, or the stem of a `.txt` file or one of no known ending, is nothing
but a keyword (`train.txt`, `wiki.test.tokens`, `test-00001-of-00002.txt`), and the texts are splits only where every
one of them, a README and the like aside, names one and `train` is among them. Else all are documents, and a remark
says so; but `train/` and `test/` folders, or `train.txt` and `test.txt`, beside loose texts are a doubt.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Literal, NamedTuple

from tui_trainer.data.sources.source_file import FORMS, form_of

Split = Literal["train", "validation", "test"]

_KEYWORDS: Mapping[str, Split] = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "valid", "dev", "val"), "validation"),
    **dict.fromkeys(("test", "testing", "eval", "evaluation"), "test"),
}
_ANY = "|".join(_KEYWORDS)
_KEYWORD = re.compile(rf"(?<![a-z])({_ANY})(?:set|data)?(?![a-z])", re.IGNORECASE)
# As the cache of `datasets` names its files: the keyword ends the name, whatever the data set is called.
_AT_THE_END = re.compile(rf".*[-_.]({_ANY})", re.IGNORECASE)
_NOTHING_ELSE = re.compile(rf"(?:.*\.)?({_ANY})(?:[-_.]?\d+)?", re.IGNORECASE)
# Prose and code: `test.py` is a document of a corpus of code.
_NEVER_NAMED = frozenset({".md", ".rst", ".py"})
_SHARD = re.compile(r"(.+)-\d{5}-of-\d{5}\b.*")
_ABOUT_IT = frozenset({"license", "licence", "readme", "requirements", "citation", "notice"})
_TEXTS = frozenset({"text", "unknown"})
_SHOWN = 3


class Part(NamedTuple):
    """Files that belong together. `label` is how the split is called, empty where none is; `folder` holds them, and
    `place` is the folder of the whole data set.
    """

    folder: str
    label: str
    form: str
    split: Split | None = None
    place: str = ""


Parts = Mapping[Part, tuple[str, ...]]
_LOOSE_TEXTS = Part("", "", "text")


@dataclass(frozen=True, kw_only=True, slots=True)
class NamedSplits:
    """What the names of files say. Without `parts` they name no split, and are read together.

    `beside`: what is no part of the data. `remark`: what a person should know where names only look like splits.
    `gone`: splits that are declared and of which no file is there. `exact`: files that are declared one by one.
    """

    parts: Parts = field(default_factory=dict)
    gone: tuple[str, ...] = ()
    exact: frozenset[str] = frozenset()
    beside: tuple[str, ...] = ()
    remark: str = ""

    def of(self, split: Split) -> list[Part]:
        return [part for part in self.parts if part.split == split]

    @property
    def held_out_files(self) -> set[str]:
        return {name for part, names in self.parts.items() if part.split in ("validation", "test") for name in names}

    @property
    def doubt(self) -> str:
        """Why it cannot be said which files belong to one split; empty where it can."""
        loose = next((names for part, names in self.parts.items() if not part.label), None)
        if len(self.parts) > 1 and loose:
            return f"of {_some(loose)} nobody knows the split"
        if len(places := sorted({part.place for part in self.parts})) > 1:
            return f"splits lie in several places: {_some([place or '.' for place in places])}"
        return ""

    def trained(self) -> Part | str:
        """The part to train on, or why it cannot be said which that is."""
        gone = next((split for split in self.gone if split_in(split) == "train"), "")
        if gone and not any(part.label == "train" for part in self.parts):
            return f"{gone} is declared and its files are missing"
        if len(self.parts) == 1 and not next(iter(self.parts)).split:
            return next(iter(self.parts))
        found = self.doubt or _only(self.of("train"), "train")
        if isinstance(found, Part) and (held_out := self.held_out_files) >= {*self.parts[found]}:
            return f"{_some(sorted(held_out & {*self.parts[found]}))} is of {found.label} and of another split as well"
        return found

    def measured(self) -> Part | str:
        """The part to evaluate on where nothing else is wanted of these files, or why that cannot be said."""
        if len(self.parts) == 1:
            return next(iter(self.parts))
        return self.doubt or _only(self.of("validation") or self.of("test"), "validation or test")


@dataclass(frozen=True, kw_only=True, slots=True)
class SplitUse:
    """Of one source; a split as `test (test.csv)` or `train (2 files)`. `note`: what else a person should know.

    `shares_rows`: some that are evaluated on are trained on as well.
    """

    source: str
    trains: str = ""
    evaluates: str = ""
    left_alone: tuple[str, ...] = ()
    note: str = ""
    shares_rows: bool = False

    def words(self) -> str:
        """`corpus: train (train.csv) is trained on; validation (valid.csv) is evaluated on; left alone: ...`."""
        said = [
            f"{self.trains} is trained on" if self.trains else "",
            f"{self.evaluates} is evaluated on" if self.evaluates else "",
            f"left alone: {', '.join(self.left_alone)}" if self.left_alone else "",
            "rows that are evaluated on are trained on as well" if self.shares_rows else "",
            self.note,
        ]
        return f"{self.source}: {'; '.join(filter(None, said))}"


def split_in(name: str) -> Split | None:
    """The split that the name of a file or folder has in it; None where it has none, or those of several."""
    stem = _stem(name)
    found: set[Split] = {_KEYWORDS[word.lower()] for word in _KEYWORD.findall(stem)}
    if len(found) > 1 and (end := _AT_THE_END.fullmatch(stem)):
        return _KEYWORDS[end[1].lower()]
    return found.pop() if len(found) == 1 else None


def split_of_file(name: str) -> Split | None:
    """The same for one file that is looked at alone."""
    return _text_part(name).split if form_of(PurePosixPath(name)) in _TEXTS else split_in(name)


def is_about_the_data(name: str) -> bool:
    """A README, a licence and the like."""
    return PurePosixPath(name.lower().removesuffix(".gz")).stem in _ABOUT_IT


def tell_apart(names: Iterable[str], saved: AbstractSet[str] = frozenset()) -> NamedSplits:
    """The splits of files named from the folder of their data set on; `saved` are folders that are splits whatever they
    are called.
    """
    rows: list[str] = []
    texts: list[str] = []
    for name in names:
        (texts if form_of(PurePosixPath(name)) in _TEXTS else rows).append(name)
    documents = [name for name in texts if not is_about_the_data(name)]
    about = tuple(name for name in texts if is_about_the_data(name))
    parts, of_texts = parts_of(rows, saved), _of_texts(documents)
    if not any(part.split or part.folder in saved for part in parts):
        loose = {Part("", "", "rows"): tuple(rows)} if rows and of_texts.parts else {}
        beside = about if of_texts.parts else ()
        return NamedSplits(parts={**of_texts.parts, **loose}, beside=beside, remark=of_texts.remark)
    if of_texts.parts:
        return NamedSplits(parts={**parts, **of_texts.parts}, beside=about)
    if documents and not saved and not any(part.split == "train" for part in parts):
        # One table called `test_results` in a corpus of texts: it is nobody's split, and no reason to drop the texts.
        return NamedSplits(parts={**parts, _LOOSE_TEXTS: tuple(documents)}, beside=about)
    return NamedSplits(parts=parts, beside=tuple(texts))


def parts_of(names: Sequence[str], saved: AbstractSet[str] = frozenset()) -> Parts:
    """Tables that belong together, by folder, split and form."""
    several = frozenset(
        str(folder)
        for name in names
        if (own := split_in(name.rpartition("/")[2]))
        for folder in PurePosixPath(name).parents
        if split_in(folder.name) not in (None, own)
    )
    found: dict[Part, list[str]] = {}
    for name in names:
        found.setdefault(_part_of(name, saved, several), []).append(name)
    return {part: tuple(files) for part, files in found.items()}


def _part_of(name: str, saved: AbstractSet[str], several: AbstractSet[str]) -> Part:
    """`several` are folders with a name like that of a split that hold more than one, such as train_test_data."""
    path = PurePosixPath(name)
    form, above = form_of(path), name.rpartition("/")[0]
    for folder in path.parents:
        split = split_in(folder.name)
        if str(folder) in saved or (split and str(folder) not in several):
            return Part(str(folder), folder.name, form, split, "" if str(folder.parent) == "." else str(folder.parent))
    if shard := _SHARD.fullmatch(path.name):
        return Part(above, shard[1], form, split_in(shard[1]), above)
    # Files that name no split are read together, from whatever folders.
    return Part(above, split, form, split, above) if (split := split_in(path.name)) else Part("", "", form)


def _of_texts(documents: Sequence[str]) -> NamedSplits:
    found: dict[Part, list[str]] = {}
    for name in documents:
        found.setdefault(_text_part(name), []).append(name)
    parts = {part: tuple(names) for part, names in found.items()}
    splits, loose = {part.split for part in parts} - {None}, parts.get(_LOOSE_TEXTS, ())
    if "train" in splits and len(splits) > 1:
        folders = {_KEYWORDS.get(name.split("/")[0].lower()) for name in documents if "/" in name} - {None}
        files = {part.split for part in parts if part.split and not part.folder}
        if not loose or {"train"} < folders or {"train"} < files:
            return NamedSplits(parts=parts)
    named = [name for part, names in parts.items() if part.split not in (None, "train") for name in names]
    if not named:
        return NamedSplits()
    rule = "a folder of texts is split only where every file names its split, and one of them is train"
    return NamedSplits(remark=f"{_some(named)} {'is' if len(named) == 1 else 'are'} read like the other texts: {rule}")


def _text_part(name: str) -> Part:
    *folders, last = name.split("/")
    for depth, folder in enumerate(folders):
        if split := _KEYWORDS.get(folder.lower()):
            return Part("/".join(folders[: depth + 1]), split, "text", split, "/".join(folders[:depth]))
    stem = _stem(last)
    if PurePosixPath(last.lower().removesuffix(".gz")).suffix not in _NEVER_NAMED:
        for shown in (stem, PurePosixPath(stem).stem):
            if found := _NOTHING_ELSE.fullmatch(shown):
                split = _KEYWORDS[found[1].lower()]
                return Part("", split, "text", split, "/".join(folders))
    return _LOOSE_TEXTS


def _stem(name: str) -> str:
    """Without the ending of its form, and the number of a shard."""
    if shard := _SHARD.fullmatch(name):
        return shard[1]
    path = PurePosixPath(name)
    path = path.with_suffix("") if path.suffix.lower() == ".gz" else path
    return path.stem if path.suffix.lower() in FORMS else path.name


def _only(parts: Sequence[Part], wanted: str) -> Part | str:
    exact = [part for part in parts if part.label == part.split]
    if len(parts) == 1 or len(exact) == 1:
        return (exact or parts)[0]
    if not parts:
        return f"none of them is named {wanted}"
    return f"several are named {wanted}: {_some([f'{part.label} ({part.form})' for part in parts])}"


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
