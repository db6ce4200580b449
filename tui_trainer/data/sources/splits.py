"""Which split a file belongs to: by what is declared, else by its name and the names of the folders above it. Local
folders, globs and data sets of the hub ask here.

Declared are splits and configurations in folders that the library `datasets` made (`save_to_disk`, or its cache), and
in a README.md with `configs:`. Whoever wrote them is believed, and no name is asked. `datasets` is imported for a
README.md alone.

Names: nothing is opened. The keywords are those of `datasets` (SPLIT_KEYWORDS, KEYWORDS_IN_PATH_NAME_BASE_PATTERNS and
SPLIT_PATTERN_SHARDED in its data_files.py): note that `eval` and `evaluation` name a test split there. What differs
from it: case is ignored; `trainset` and `testdata` count; a file's own name wins over its folder's, where the library
puts the file into both splits.

Tables: a keyword anywhere in a name counts, between characters that are no letters. Beside a split, a file of no split
is a doubt, and texts such as a README are left alone.

Plain texts: most folders of texts are corpora, in which `test_utils.txt` and `evaluation/notes.md` are documents as
others are. A text names a split only where a folder, or the stem of a `.txt` file or one of no known ending, is nothing
but a keyword (`train.txt`, `wiki.test.tokens`, `test-00001-of-00002.txt`), and the texts are splits only where every
one of them, a README and the like aside, names one and `train` is among them. Else all are documents, and a remark
says so; but `train/` and `test/` folders, or `train.txt` and `test.txt`, beside loose texts are a doubt.
"""

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any, Literal, NamedTuple

from tui_trainer.data.sources.source_file import FORMS, SourceFile, form_of
from tui_trainer.errors import DataError
from tui_trainer.files.hub_layout import huggingface_folder, repository_folder
from tui_trainer.files.local_paths import from_the_root
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.units import MIB

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
README = "README.md"
_STATE, _SPLITS, _INFO = "state.json", "dataset_dict.json", "dataset_info.json"
ABOUT = frozenset({_STATE, _SPLITS, _INFO, "dataset_infos.json"})
# Source: generate_fingerprint and Dataset.map of `datasets`: 16 hexadecimal digits, then the process where there are
# several. They hold the same rows once more.
LATER_WORK = re.compile(r"cache-[0-9a-f]{16}(?:_\d+_of_\d+)?\.arrow")
# Source: camelcase_to_snakecase in datasets/naming.py; importing it takes seconds, and a misspelt path comes here.
_WORDS = re.compile(r"([A-Z]+)([A-Z][a-z])"), re.compile(r"([a-z\d])([A-Z])")
# What load_dataset makes of `data_files`: a part of the data set under a name that nobody chose.
_FRAGMENT = re.compile(r".*-[0-9a-f]{16}")
_NUMBERED_SHARD = re.compile(r"(.*?)(\d{5})-of-(\d{5})(?:-[0-9a-f]{16})?((?:\.\w+)*)")
# Of the configurations of `datasets`: what says nothing of how rows are read, and what `_reading` passes on.
_FOLLOWED = frozenset(
    "name version data_dir data_files description features chunksize batch_size block_size use_threads memory_map "
    "verbose sep delimiter names column_names header".split()
)
_FRONT = re.compile(r"---\r?\n(.*?)\r?\n---", re.DOTALL)


class SplitPart(NamedTuple):
    """Files that belong together. `label` is how the split is called, empty where none is; `folder` holds them, and
    `place` is the folder of the whole data set.
    """

    folder: str
    label: str
    form: str
    split: Split | None = None
    place: str = ""


Parts = Mapping[SplitPart, tuple[str, ...]]
_LOOSE_TEXTS = SplitPart("", "", "text")


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

    def of(self, split: Split) -> list[SplitPart]:
        return [part for part in self.parts if part.split == split]

    @property
    def held_out_files(self) -> set[str]:
        return {name for part, names in self.parts.items() if part.split in ("validation", "test") for name in names}

    @property
    def doubt(self) -> str:
        """Why it cannot be said which files belong to one split; empty where it can."""
        loose = next((names for part, names in self.parts.items() if not part.label), None)
        if len(self.parts) > 1 and loose:
            return f"the split of {_some(loose)} is unknown"
        if len(places := sorted({part.place for part in self.parts})) > 1:
            return f"splits are in several places: {_some([place or '.' for place in places])}"
        return ""

    @property
    def gone_train(self) -> str:
        """The training split that is declared without any file; empty where there is none, or another one."""
        gone = next((split for split in self.gone if split_in(split) == "train"), "")
        return "" if any(part.label == "train" for part in self.parts) else gone

    def trained(self) -> SplitPart | str:
        """The part to train on, or why it cannot be said which that is."""
        if self.gone_train:
            return f"the split {self.gone_train} is declared, but its files are missing"
        if len(self.parts) == 1 and not next(iter(self.parts)).split:
            return next(iter(self.parts))
        found = self.doubt or _only(self.of("train"), "train")
        if isinstance(found, SplitPart) and (held_out := self.held_out_files) >= {*self.parts[found]}:
            shared = sorted(held_out & {*self.parts[found]})
            return f"{found.label} and another split have the same files: {_some(shared)}"
        return found

    def measured(self) -> SplitPart | str:
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
        """`corpus: train (train.csv) is trained on; validation (valid.csv) is evaluated on; not read: ...`."""
        said = [
            f"{self.trains} is trained on" if self.trains else "",
            f"{self.evaluates} is evaluated on" if self.evaluates else "",
            f"not read: {', '.join(self.left_alone)}" if self.left_alone else "",
            "some evaluated rows are also trained on" if self.shares_rows else "",
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
        loose = {SplitPart("", "", "rows"): tuple(rows)} if rows and of_texts.parts else {}
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
    found: dict[SplitPart, list[str]] = {}
    for name in names:
        found.setdefault(_part_of(name, saved, several), []).append(name)
    return {part: tuple(files) for part, files in found.items()}


def _part_of(name: str, saved: AbstractSet[str], several: AbstractSet[str]) -> SplitPart:
    """`several` are folders with a name like that of a split that hold more than one, such as train_test_data."""
    path = PurePosixPath(name)
    form, above = form_of(path), name.rpartition("/")[0]
    for folder in path.parents:
        split = split_in(folder.name)
        if str(folder) in saved or (split and str(folder) not in several):
            return SplitPart(
                str(folder), folder.name, form, split, "" if str(folder.parent) == "." else str(folder.parent)
            )
    if shard := _SHARD.fullmatch(path.name):
        return SplitPart(above, shard[1], form, split_in(shard[1]), above)
    # Files that name no split are read together, from whatever folders.
    return SplitPart(above, split, form, split, above) if (split := split_in(path.name)) else SplitPart("", "", form)


def _of_texts(documents: Sequence[str]) -> NamedSplits:
    found: dict[SplitPart, list[str]] = {}
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
    rule = "a folder of texts has splits only if every file names its split, and one split is train"
    return NamedSplits(
        remark=f"{_some(named)} {'is' if len(named) == 1 else 'are'} read as documents, and not as a split: {rule}"
    )


def _text_part(name: str) -> SplitPart:
    *folders, last = name.split("/")
    for depth, folder in enumerate(folders):
        if split := _KEYWORDS.get(folder.lower()):
            return SplitPart("/".join(folders[: depth + 1]), split, "text", split, "/".join(folders[:depth]))
    stem = _stem(last)
    if PurePosixPath(last.lower().removesuffix(".gz")).suffix not in _NEVER_NAMED:
        for shown in (stem, PurePosixPath(stem).stem):
            if found := _NOTHING_ELSE.fullmatch(shown):
                split = _KEYWORDS[found[1].lower()]
                return SplitPart("", split, "text", split, "/".join(folders))
    return _LOOSE_TEXTS


def _stem(name: str) -> str:
    """Without the ending of its form, and the number of a shard."""
    if shard := _SHARD.fullmatch(name):
        return shard[1]
    path = PurePosixPath(name)
    path = path.with_suffix("") if path.suffix.lower() == ".gz" else path
    return path.stem if path.suffix.lower() in FORMS else path.name


def _only(parts: Sequence[SplitPart], wanted: str) -> SplitPart | str:
    exact = [part for part in parts if part.label == part.split]
    if len(parts) == 1 or len(exact) == 1:
        return (exact or parts)[0]
    if not parts:
        return f"no split is named {wanted}"
    return f"several splits are named {wanted}: {_some([f'{part.label} ({part.form})' for part in parts])}"


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def data_files(folder: Path, names: Sequence[str]) -> list[str]:
    """`names`, which lie in `folder`, without the files that describe the data; where a state file lists the data, what
    it lists.
    """
    if _STATE in names and (listed := _listed(folder)) is not None:
        names = [name for name in names if name != _STATE and (not listed or name in listed)]
    names = [name for name in names if name not in ABOUT - {_STATE}]
    first_hand = [name for name in names if not LATER_WORK.fullmatch(name)]
    return first_hand if any(name.endswith(".arrow") for name in first_hand) else names


def _listed(folder: Path) -> list[str] | None:
    """The data of a folder of `save_to_disk`, as its state file lists it; None for another folder."""
    state = _content(folder / _STATE)
    if "_data_files" not in state:
        return None
    entries = state["_data_files"] if isinstance(state["_data_files"], list) else []
    return [str(entry["filename"]) for entry in entries if isinstance(entry, dict) and "filename" in entry]


def saved_splits(folder: Path) -> frozenset[str]:
    """The folders in `folder` that are splits, where a DatasetDict was saved there."""
    splits = _content(folder / _SPLITS).get("splits")
    return frozenset(name for name in splits if isinstance(name, str)) if isinstance(splits, list) else frozenset()


def splits_of_cache(folder: Path, names: Iterable[str]) -> NamedSplits | None:
    """Of a folder in the cache of `datasets`, by what its dataset_info.json says; None for another folder."""
    info = _content(folder / _INFO)
    splits, name = info.get("splits"), info.get("dataset_name")
    if not isinstance(splits, dict) or not isinstance(name, str):
        return None
    listed = list(names)
    found = {}
    for split in splits:
        of_it = re.compile(rf"{re.escape(name)}-{re.escape(split)}(-\d{{5}}-of-\d{{5}})?\.arrow")
        found[split] = tuple(file for file in listed if of_it.fullmatch(file))
    return _declared(found) if any(found.values()) else None


def cached_data_set(repo_id: str, name: str, revision: str) -> Path | None:
    """The folder in the cache of `datasets` that holds the configuration `name`; None where there is none.

    Raises DataError where several configurations are there and none is named, and for several commits where it is not
    known which `revision` is.
    """
    *owner, last = repo_id.split("/")
    for words in _WORDS:
        last = words.sub(r"\1_\2", last)
    # Source: datasets/config.py: HF_DATASETS_CACHE, HF_HOME, XDG_CACHE_HOME.
    cache = os.environ.get("HF_DATASETS_CACHE")
    root = from_the_root(cache) if cache else huggingface_folder() / "datasets"
    place = root / "___".join([*owner, last.lower()])
    folders = sorted((file.parent for file in place.glob(f"*/*/*/{_INFO}")), key=lambda folder: folder.stat().st_mtime)
    main = repository_folder("datasets", repo_id) / "refs/main"
    commit = revision
    with suppress(OSError):
        commit = main.with_name(revision).read_text(encoding="utf-8").strip()
    is_main = revision == main.name
    folders = [folder for folder in folders if is_main or folder.name == commit]
    configurations = sorted({folder.parts[-3] for folder in folders if not _FRAGMENT.fullmatch(folder.parts[-3])})
    if not name and len(configurations) > 1:
        raise several_configurations(repo_id, configurations)
    wanted = name or next(iter(configurations), "")
    folders = [folder for folder in folders if folder.parts[-3] == wanted]
    commits = sorted({folder.name for folder in folders})
    if len(commits) > 1 and commit not in commits:
        what = (
            f"{repo_id} has several commits in the cache of the datasets library: {one_line(', '.join(commits), 200)}"
        )
        raise DataError(what, hint="set data.revision to one of them")
    return next((folder for folder in reversed(folders) if len(commits) == 1 or folder.name == commit), None)


class NoConfiguration(DataError):
    """A configuration is asked for that a data set does not have."""


def several_configurations(shown: str, configurations: Iterable[str]) -> DataError:
    listed = one_line(", ".join(configurations), 200)
    return DataError(f"{shown} has several configurations: {listed}", hint="set data.name to one of them")


def has_configurations(folder: Path) -> bool:
    """Whether a README.md says how the data of `folder` is configured."""
    return re.search(r"^configs:", _front(folder), re.MULTILINE) is not None


def _front(folder: Path) -> str:
    try:
        with (folder / README).open(encoding="utf-8", errors="replace") as file:
            front = _FRONT.match(file.read(MIB))
    except OSError:
        return ""
    return front[1] if front else ""


def configured_splits(folder: Path, name: str, shown: str) -> tuple[NamedSplits, dict[str, Any]]:
    """The splits of one configuration, as `datasets` reads README.md, with files named from `folder` on; and what it
    declares of each file, by the fields of SourceFile.

    Raises DataError where a configuration has to be named and is not, for a README.md that says nothing sound, and for
    what is not followed here: files that lie on the net, and most options of readers.
    """
    import datasets
    import yaml

    datasets.logging.set_verbosity_error()
    written = _front(folder)
    unsound = (ValueError, TypeError, OSError, KeyError, AttributeError, RuntimeError, ImportError, yaml.YAMLError)
    try:
        if address := next(_addresses(yaml.safe_load(written)["configs"]), ""):
            what = f"the README.md of {shown} refers to data on the network: {one_line(address, 120)}"
            raise DataError(what, hint="download that file, and list the files in data.path")
        names = datasets.get_dataset_config_names(str(folder))
        chosen = name or datasets.get_dataset_default_config_name(str(folder)) or ""
        if chosen not in names:
            raise (no_configuration(shown, name, names) if name else several_configurations(shown, names))
        # It leaves a lock file where its cache is, which may be a disk that cannot be written to.
        with TemporaryDirectory() as elsewhere:
            builder = datasets.load_dataset_builder(str(folder), chosen, cache_dir=elsewhere)
        files = builder.config.data_files or {}
        found = {str(split): tuple(_relative(path, folder) for path in paths) for split, paths in files.items()}
    except unsound as error:
        what = f"the README.md of {shown} does not say where its data is: {one_line(str(error), 160)}"
        raise DataError(what, hint="correct its configs, or list the files in data.path") from None
    exact = frozenset(name for names in found.values() for name in names if name in written)
    features = builder.info.features.to_dict() if builder.info.features else None
    return _declared(found, exact), {"features": features, **_reading(builder.config, shown)}


def _addresses(configs: object) -> Iterator[str]:
    """What is no path among all that names files, at any depth."""
    if isinstance(configs, str) and "://" in configs:
        yield configs
    elif isinstance(configs, list):
        for each in configs:
            yield from _addresses(each)
    elif isinstance(configs, dict):
        for key, value in configs.items():
            if key != "description":
                yield from _addresses(value)


def _reading(config: Any, shown: str) -> dict[str, Any]:
    """How the tables are read, by the fields of SourceFile. Raises DataError for an option that is not followed."""
    for option in fields(config):
        default = option.default_factory() if option.default_factory is not MISSING else option.default
        value = getattr(config, option.name)
        is_same = value == default or (option.name == "encoding" and str(value).lower() in ("utf-8", "utf8"))
        if option.name not in _FOLLOWED and not is_same:
            raise _not_followed(option.name, value, shown)
    names, header = getattr(config, "names", None), getattr(config, "header", "infer")
    if header not in ("infer", None if names else 0):
        raise _not_followed("header", header, shown)
    separator = str(getattr(config, "sep", ","))
    if len(separator) != 1:
        raise _not_followed("sep", separator, shown)
    # The library's own default, which is guessed here.
    return {"separator": "" if separator == "," else separator, "header": tuple(map(str, names or ()))}


def _not_followed(option: str, value: object, shown: str) -> DataError:
    what = f"the README.md of {shown} sets {option} to {one_line(repr(value), 60)}, which is not supported"
    return DataError(what, hint="convert the data to a supported format, and list its files in data.path")


def no_configuration(shown: str, name: str, names: Iterable[str]) -> NoConfiguration:
    has = one_line(", ".join(names), 200)
    what = f"{shown} has no configuration '{one_line(name, 80)}'"
    return NoConfiguration(what, hint=f"set data.name to one of {has}" if has else "leave data.name empty")


def _declared(found: Mapping[str, tuple[str, ...]], exact: frozenset[str] = frozenset()) -> NamedSplits:
    """A file that a validation or test split names is none of train, as long as train has others."""
    parts = {SplitPart("", split, "declared", split_in(split)): files for split, files in found.items() if files}
    splits = NamedSplits(parts=parts, exact=exact, gone=tuple(split for split, files in found.items() if not files))
    held_out = splits.held_out_files
    for part in splits.of("train"):
        parts[part] = tuple(name for name in parts[part] if name not in held_out) or parts[part]
    return splits


def missing_files(named: Mapping[str, SourceFile], read: Iterable[str]) -> list[str]:
    """What belongs to the files that are `read` and is not there: the other shards of `-00000-of-00003`, and the rest
    of what a state.json lists.
    """
    there: dict[tuple[str, ...], set[int]] = {}
    for name in named:
        if shard := _NUMBERED_SHARD.fullmatch(name):
            there.setdefault(shard.group(1, 3, 4), set()).add(int(shard[2]))
    groups: dict[tuple[str, ...], str] = {}
    for name in read:
        shard = _NUMBERED_SHARD.fullmatch(name)
        groups.setdefault(shard.group(1, 3, 4) if shard else (name.rpartition("/")[0],), name)
    missing = []
    for group, name in groups.items():
        place, above = named[name].path.parent, name[: name.rfind("/") + 1]
        listed = _listed(place) if name.endswith(".arrow") and not named[name].remote else None
        lasts = [*(listed or ())]
        if len(group) > 1:
            first, count, form = group[0].removeprefix(above), int(group[1]), group[2]
            from_one = count in there[group]
            absent = (n for n in range(from_one, count + from_one) if n not in there[group])
            lasts += [f"{first}{n:05d}-of-{group[1]}{form}" for n in absent]
        missing += [
            above + last
            for last in dict.fromkeys(lasts)
            if above + last not in named and (named[name].remote or not (place / last).exists())
        ]
    return missing


def _relative(path: str, folder: Path) -> str:
    """What lies outside of the folder stays as it is."""
    found = Path(os.path.abspath(path))  # noqa: PTH100  # absolute() keeps `..`, and resolve() follows links into the hub's cache
    for place in (Path(os.path.abspath(folder)), folder.resolve()):  # noqa: PTH100
        if found.is_relative_to(place):
            return found.relative_to(place).as_posix()
    return str(found)


def _content(path: Path) -> dict[str, Any]:
    """What stands in a small JSON file; empty where it is no object."""
    try:
        if not path.is_file() or path.stat().st_size > MIB:
            return {}
        content = json.loads(path.read_text(encoding="utf-8"))
        return content if isinstance(content, dict) else {}
    except (OSError, ValueError, RecursionError):
        return {}
