"""The split that each file belongs to: as declared, or else from the names of the file and its folders. Used for local
folders, globs and data sets of the Hub.

Splits and configurations are declared by folders that the library `datasets` wrote (`save_to_disk`, or its cache), and
by a README.md with `configs:`. A declaration takes precedence over all names. `datasets` is imported only for a
README.md.

Names are read without opening the files. The keywords are those of `datasets` (SPLIT_KEYWORDS,
KEYWORDS_IN_PATH_NAME_BASE_PATTERNS and SPLIT_PATTERN_SHARDED in its data_files.py), where `eval` and `evaluation` name
a test split. The differences are: case is ignored; `trainset` and `testdata` count; the name of a file takes precedence
over that of its folder, while the library puts the file into both splits.

Tables: a keyword counts anywhere in a name between characters that are not letters. A table without split next to one
with a split is ambiguous, and texts such as a README are not read.

Plain texts: most folders of texts are corpora, in which `test_utils.txt` and `evaluation/notes.md` are documents like
others. A text names a split only if a folder, or the stem of a `.txt` file or one of unknown extension, consists of a
keyword (`train.txt`, `wiki.test.tokens`, `test-00001-of-00002.txt`). Texts are splits only if every one of them, except
for a README and the like, names one, and `train` is among them. Otherwise all are documents, and a remark says so. But
`train/` and `test/` folders, or `train.txt` and `test.txt`, next to other texts are ambiguous.
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
from tui_trainer.files.local_paths import absolute_path
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.units import MIB

Split = Literal["train", "validation", "test"]

_KEYWORDS: Mapping[str, Split] = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "valid", "dev", "val"), "validation"),
    **dict.fromkeys(("test", "testing", "eval", "evaluation"), "test"),
}
_ANY_KEYWORD = "|".join(_KEYWORDS)
_KEYWORD = re.compile(rf"(?<![a-z])({_ANY_KEYWORD})(?:set|data)?(?![a-z])", re.IGNORECASE)
# In the cache of `datasets`, the keyword is at the end of a file's name.
_KEYWORD_AT_END = re.compile(rf".*[-_.]({_ANY_KEYWORD})", re.IGNORECASE)
_ONLY_KEYWORD = re.compile(rf"(?:.*\.)?({_ANY_KEYWORD})(?:[-_.]?\d+)?", re.IGNORECASE)
# Prose and code: `test.py` is a document of a corpus of code.
_PROSE_OR_CODE = frozenset({".md", ".rst", ".py"})
_SHARD = re.compile(r"(.+)-\d{5}-of-\d{5}\b.*")
_ABOUT_STEMS = frozenset({"license", "licence", "readme", "requirements", "citation", "notice"})
_TEXT_FORMS = frozenset({"text", "unknown"})
_SHOWN = 3
README = "README.md"
_STATE_FILE, _SPLITS_FILE, _INFO_FILE = "state.json", "dataset_dict.json", "dataset_info.json"
DESCRIPTION_FILES = frozenset({_STATE_FILE, _SPLITS_FILE, _INFO_FILE, "dataset_infos.json"})
# Results of Dataset.map, which hold the same rows again: 16 hexadecimal digits, then the process if there are several.
# Source: generate_fingerprint and Dataset.map of `datasets`.
MAP_CACHE_FILE = re.compile(r"cache-[0-9a-f]{16}(?:_\d+_of_\d+)?\.arrow")
# Source: camelcase_to_snakecase in datasets/naming.py; importing it takes seconds, and a misspelt path comes here.
_WORD_BOUNDARIES = re.compile(r"([A-Z]+)([A-Z][a-z])"), re.compile(r"([a-z\d])([A-Z])")
# load_dataset stores `data_files`, a part of the data set, under such a name.
_DATA_FILES_NAME = re.compile(r".*-[0-9a-f]{16}")
_NUMBERED_SHARD = re.compile(r"(.*?)(\d{5})-of-(\d{5})(?:-[0-9a-f]{16})?((?:\.\w+)*)")
# Options of `datasets` that do not change how rows are read, or that `_reader_options` passes on.
_SUPPORTED_OPTIONS = frozenset(
    "name version data_dir data_files description features chunksize batch_size block_size use_threads memory_map "
    "verbose sep delimiter names column_names header".split()
)
_FRONT_MATTER = re.compile(r"---\r?\n(.*?)\r?\n---", re.DOTALL)


class SplitPart(NamedTuple):
    """Key of files that belong together, in `folder` of `data_folder`. `label` is the name of their split, or ""."""

    folder: str
    label: str
    form: str
    split: Split | None = None
    data_folder: str = ""


Parts = Mapping[SplitPart, tuple[str, ...]]
_LOOSE_TEXTS = SplitPart("", "", "text")


@dataclass(frozen=True, kw_only=True, slots=True)
class NamedSplits:
    """The splits that files belong to: `parts`. Without any, there are no splits, and all files are read together.

    `ignored_files`: files that are not data. `remark`: a note about names that only look like splits. `missing_splits`:
    names of declared splits without any file. `listed_files`: files that are declared one by one."""

    parts: Parts = field(default_factory=dict)
    missing_splits: tuple[str, ...] = ()
    listed_files: frozenset[str] = frozenset()
    ignored_files: tuple[str, ...] = ()
    remark: str = ""

    def with_split(self, split: Split) -> list[SplitPart]:
        return [part for part in self.parts if part.split == split]

    @property
    def held_out_files(self) -> set[str]:
        return {name for part, names in self.parts.items() if part.split in ("validation", "test") for name in names}

    @property
    def ambiguity(self) -> str:
        """Reason why it is unclear to which split files belong; empty if it is clear."""
        loose_names = next((names for part, names in self.parts.items() if not part.label), None)
        if len(self.parts) > 1 and loose_names:
            return f"the split of {_listed(loose_names)} is unknown"
        if len(folders := sorted({part.data_folder for part in self.parts})) > 1:
            return f"splits are in several folders: {_listed([folder or '.' for folder in folders])}"
        return ""

    @property
    def missing_train(self) -> str:
        """Name of the declared training split that has no files; empty without one, or if a part is named "train"."""
        missing_split = next((split for split in self.missing_splits if split_in(split) == "train"), "")
        return "" if any(part.label == "train" for part in self.parts) else missing_split

    def training_part(self) -> SplitPart | str:
        """Return the part to train on, or the reason why it is unclear."""
        if self.missing_train:
            return f"the split {self.missing_train} is declared, but its files are missing"
        if len(self.parts) == 1 and not next(iter(self.parts)).split:
            return next(iter(self.parts))
        part = self.ambiguity or _only_part(self.with_split("train"), "train")
        if isinstance(part, SplitPart) and (held_out_files := self.held_out_files) >= {*self.parts[part]}:
            shared_names = sorted(held_out_files & {*self.parts[part]})
            return f"{part.label} and another split have the same files: {_listed(shared_names)}"
        return part

    def evaluation_part(self) -> SplitPart | str:
        """Return the part to evaluate on if no other one is named, or the reason why it is unclear."""
        if len(self.parts) == 1:
            return next(iter(self.parts))
        parts = self.with_split("validation") or self.with_split("test")
        return self.ambiguity or _only_part(parts, "validation or test")


@dataclass(frozen=True, kw_only=True, slots=True)
class SplitUse:
    """How a run uses the splits of one source. A split is shown as `test (test.csv)` or `train (2 files)`; `note` is a
    remark. `shares_rows`: some evaluated rows are also trained on."""

    source: str
    training_split: str = ""
    evaluation_split: str = ""
    unread_splits: tuple[str, ...] = ()
    note: str = ""
    shares_rows: bool = False

    def words(self) -> str:
        """Return text such as `corpus: train (train.csv) is trained on; not read: test (test.csv)`."""
        clauses = [
            f"{self.training_split} is trained on" if self.training_split else "",
            f"{self.evaluation_split} is evaluated on" if self.evaluation_split else "",
            f"not read: {', '.join(self.unread_splits)}" if self.unread_splits else "",
            "some evaluated rows are also trained on" if self.shares_rows else "",
            self.note,
        ]
        return f"{self.source}: {'; '.join(filter(None, clauses))}"


def split_in(name: str) -> Split | None:
    """Return the split that a name of a file or folder shows; None if it shows none, or several."""
    stem = _stem(name)
    splits: set[Split] = {_KEYWORDS[word.lower()] for word in _KEYWORD.findall(stem)}
    if len(splits) > 1 and (last_keyword := _KEYWORD_AT_END.fullmatch(stem)):
        return _KEYWORDS[last_keyword[1].lower()]
    return splits.pop() if len(splits) == 1 else None


def split_of_file(name: str) -> Split | None:
    """Return the split that the name of a single file shows; None if it shows none."""
    return _text_part(name).split if form_of(PurePosixPath(name)) in _TEXT_FORMS else split_in(name)


def is_readme_or_licence(name: str) -> bool:
    """Return whether a file is a README, a licence or the like."""
    return PurePosixPath(name.lower().removesuffix(".gz")).stem in _ABOUT_STEMS


def assign_splits(names: Iterable[str], split_folders: AbstractSet[str] = frozenset()) -> NamedSplits:
    """Return the splits of files. `names` are paths in the data set's folder, and
    `split_folders` are the folders that its description declares as splits."""
    table_names: list[str] = []
    text_names: list[str] = []
    for name in names:
        (text_names if form_of(PurePosixPath(name)) in _TEXT_FORMS else table_names).append(name)
    document_names = [name for name in text_names if not is_readme_or_licence(name)]
    description_names = tuple(name for name in text_names if is_readme_or_licence(name))
    parts, text_splits = parts_of(table_names, split_folders), _splits_of_texts(document_names)
    if not any(part.split or part.folder in split_folders for part in parts):
        loose_tables = {SplitPart("", "", "rows"): tuple(table_names)} if table_names and text_splits.parts else {}
        unread_names = description_names if text_splits.parts else ()
        parts = {**text_splits.parts, **loose_tables}
        return NamedSplits(parts=parts, ignored_files=unread_names, remark=text_splits.remark)
    if text_splits.parts:
        return NamedSplits(parts={**parts, **text_splits.parts}, ignored_files=description_names)
    if document_names and not split_folders and not any(part.split == "train" for part in parts):
        # A table such as `test_results` in a corpus of texts is not a split, and no reason to skip the texts.
        return NamedSplits(parts={**parts, _LOOSE_TEXTS: tuple(document_names)}, ignored_files=description_names)
    return NamedSplits(parts=parts, ignored_files=tuple(text_names))


def parts_of(names: Sequence[str], split_folders: AbstractSet[str] = frozenset()) -> Parts:
    """Group tables by folder, split and form. `split_folders`: folders that are splits."""
    mixed_folders = frozenset(
        str(folder)
        for name in names
        if (file_split := split_in(name.rpartition("/")[2]))
        for folder in PurePosixPath(name).parents
        if split_in(folder.name) not in (None, file_split)
    )
    parts: dict[SplitPart, list[str]] = {}
    for name in names:
        parts.setdefault(_part_of(name, split_folders, mixed_folders), []).append(name)
    return {part: tuple(files) for part, files in parts.items()}


def _part_of(name: str, split_folders: AbstractSet[str], mixed_folders: AbstractSet[str]) -> SplitPart:
    """Return the part that a table belongs to. `mixed_folders` look like one split, but have files of several."""
    path = PurePosixPath(name)
    form, parent = form_of(path), name.rpartition("/")[0]
    for folder in path.parents:
        split = split_in(folder.name)
        if str(folder) in split_folders or (split and str(folder) not in mixed_folders):
            parent = "" if str(folder.parent) == "." else str(folder.parent)
            return SplitPart(str(folder), folder.name, form, split, parent)
    if shard_match := _SHARD.fullmatch(path.name):
        return SplitPart(parent, shard_match[1], form, split_in(shard_match[1]), parent)
    # Files without a split are read together, from all folders.
    return SplitPart(parent, split, form, split, parent) if (split := split_in(path.name)) else SplitPart("", "", form)


def _splits_of_texts(documents: Sequence[str]) -> NamedSplits:
    """Return the splits of texts. If texts are only documents, there are no parts, but perhaps a remark."""
    names_of_part: dict[SplitPart, list[str]] = {}
    for name in documents:
        names_of_part.setdefault(_text_part(name), []).append(name)
    parts = {part: tuple(names) for part, names in names_of_part.items()}
    split_kinds, loose_names = {part.split for part in parts} - {None}, parts.get(_LOOSE_TEXTS, ())
    if "train" in split_kinds and len(split_kinds) > 1:
        folder_splits = {_KEYWORDS.get(name.split("/")[0].lower()) for name in documents if "/" in name} - {None}
        file_splits = {part.split for part in parts if part.split and not part.folder}
        if not loose_names or {"train"} < folder_splits or {"train"} < file_splits:
            return NamedSplits(parts=parts)
    split_like_names = [name for part, names in parts.items() if part.split not in (None, "train") for name in names]
    if not split_like_names:
        return NamedSplits()
    rule = "a folder of texts has splits only if every path names a split, and one split is train"
    names_are = f"{_listed(split_like_names)} {'is' if len(split_like_names) == 1 else 'are'}"
    return NamedSplits(remark=f"{names_are} read as documents, and not as a split, because {rule}")


def _text_part(name: str) -> SplitPart:
    *folders, file_name = name.split("/")
    for depth, folder in enumerate(folders):
        if split := _KEYWORDS.get(folder.lower()):
            return SplitPart("/".join(folders[: depth + 1]), split, "text", split, "/".join(folders[:depth]))
    stem = _stem(file_name)
    if PurePosixPath(file_name.lower().removesuffix(".gz")).suffix not in _PROSE_OR_CODE:
        for file_stem in (stem, PurePosixPath(stem).stem):
            if keyword_match := _ONLY_KEYWORD.fullmatch(file_stem):
                split = _KEYWORDS[keyword_match[1].lower()]
                return SplitPart("", split, "text", split, "/".join(folders))
    return _LOOSE_TEXTS


def _stem(name: str) -> str:
    """Return a file name without the extension of its form, and without the number of a shard."""
    if shard := _SHARD.fullmatch(name):
        return shard[1]
    path = PurePosixPath(name)
    path = path.with_suffix("") if path.suffix.lower() == ".gz" else path
    return path.stem if path.suffix.lower() in FORMS else path.name


def _only_part(parts: Sequence[SplitPart], name: str) -> SplitPart | str:
    """Return the only part, or else the only one that has exactly this name, or else the reason why it is unclear."""
    exact_parts = [part for part in parts if part.label == part.split]
    if len(parts) == 1 or len(exact_parts) == 1:
        return (exact_parts or parts)[0]
    if not parts:
        return f"no split is named {name}"
    return f"several splits are named {name}: {_listed([f'{part.label} ({part.form})' for part in parts])}"


def _listed(names: Sequence[str]) -> str:
    more_note = f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more_note


def data_files(folder: Path, names: Sequence[str]) -> list[str]:
    """Return the data files among the files of a folder: those in its state file, or else all but descriptions."""
    if _STATE_FILE in names and (listed_names := _files_in_state(folder)) is not None:
        names = [name for name in names if name != _STATE_FILE and (not listed_names or name in listed_names)]
    names = [name for name in names if name not in DESCRIPTION_FILES - {_STATE_FILE}]
    original_names = [name for name in names if not MAP_CACHE_FILE.fullmatch(name)]
    return original_names if any(name.endswith(".arrow") for name in original_names) else names


def _files_in_state(folder: Path) -> list[str] | None:
    """Return the data files that the state file of `save_to_disk` lists; None if the folder has no such file."""
    state = _read_object(folder / _STATE_FILE)
    if "_data_files" not in state:
        return None
    entries = state["_data_files"] if isinstance(state["_data_files"], list) else []
    return [str(entry["filename"]) for entry in entries if isinstance(entry, dict) and "filename" in entry]


def saved_splits(folder: Path) -> frozenset[str]:
    """Return the folders in `folder` that are splits of a saved DatasetDict."""
    splits = _read_object(folder / _SPLITS_FILE).get("splits")
    return frozenset(name for name in splits if isinstance(name, str)) if isinstance(splits, list) else frozenset()


def splits_of_cache(folder: Path, names: Iterable[str]) -> NamedSplits | None:
    """Return the splits in a folder of the cache of `datasets`, from dataset_info.json; None for other folders."""
    info = _read_object(folder / _INFO_FILE)
    splits, name = info.get("splits"), info.get("dataset_name")
    if not isinstance(splits, dict) or not isinstance(name, str):
        return None
    all_names = list(names)
    files_of_split = {}
    for split in splits:
        pattern = re.compile(rf"{re.escape(name)}-{re.escape(split)}(-\d{{5}}-of-\d{{5}})?\.arrow")
        files_of_split[split] = tuple(file for file in all_names if pattern.fullmatch(file))
    return _named_splits(files_of_split) if any(files_of_split.values()) else None


def cached_data_set(repo_id: str, name: str, revision: str) -> Path | None:
    """Return the folder in the cache of `datasets` that holds the configuration `name`; None if there is none.

    Raises DataError if there are several configurations and no name, or several commits and none is `revision`."""
    *owner, snake_name = repo_id.split("/")
    for boundary in _WORD_BOUNDARIES:
        snake_name = boundary.sub(r"\1_\2", snake_name)
    # Source: datasets/config.py: HF_DATASETS_CACHE, HF_HOME, XDG_CACHE_HOME.
    cache = os.environ.get("HF_DATASETS_CACHE")
    root = absolute_path(cache) if cache else huggingface_folder() / "datasets"
    data_set_folder = root / "___".join([*owner, snake_name.lower()])
    folders = [file.parent for file in data_set_folder.glob(f"*/*/*/{_INFO_FILE}")]
    folders.sort(key=lambda folder: folder.stat().st_mtime)
    main_ref = repository_folder("datasets", repo_id) / "refs/main"
    commit = revision
    with suppress(OSError):
        commit = main_ref.with_name(revision).read_text(encoding="utf-8").strip()
    is_main = revision == main_ref.name
    folders = [folder for folder in folders if is_main or folder.name == commit]
    names = {folder.parts[-3] for folder in folders}
    configurations = sorted(name for name in names if not _DATA_FILES_NAME.fullmatch(name))
    if not name and len(configurations) > 1:
        raise several_configurations(repo_id, configurations)
    configuration = name or next(iter(configurations), "")
    folders = [folder for folder in folders if folder.parts[-3] == configuration]
    commits = sorted({folder.name for folder in folders})
    if len(commits) > 1 and commit not in commits:
        commit_names = one_line(", ".join(commits), 200)
        problem = f"{repo_id} has several commits in the cache of the datasets library: {commit_names}"
        raise DataError(problem, hint="set data.revision to one of these commits")
    return next((folder for folder in reversed(folders) if len(commits) == 1 or folder.name == commit), None)


class NoConfiguration(DataError):
    """The data set lacks the configuration that was requested."""


def several_configurations(shown_name: str, configurations: Iterable[str]) -> DataError:
    known_names = one_line(", ".join(configurations), 200)
    return DataError(f"{shown_name} has several configurations: {known_names}", hint="set data.name to one of these")


def has_configurations(folder: Path) -> bool:
    """Return whether a README.md declares configurations for the data in `folder`."""
    return re.search(r"^configs:", _front_matter(folder), re.MULTILINE) is not None


def _front_matter(folder: Path) -> str:
    try:
        with (folder / README).open(encoding="utf-8", errors="replace") as file:
            match = _FRONT_MATTER.match(file.read(MIB))
    except OSError:
        return ""
    return match[1] if match else ""


def configured_splits(folder: Path, name: str, shown_name: str) -> tuple[NamedSplits, dict[str, Any]]:
    """Return the splits of configuration `name`, as `datasets` reads a README.md, and what it declares about all files.

    File names are relative to `folder`. The declarations are keyed by the fields of SourceFile. Raises DataError if a
    configuration has to be named and is not, for an invalid README.md, and for unsupported declarations: files on the
    network, and most options of readers."""
    import datasets
    import yaml

    datasets.logging.set_verbosity_error()
    front_matter = _front_matter(folder)
    error_types = (ValueError, TypeError, OSError, KeyError, AttributeError, RuntimeError, ImportError, yaml.YAMLError)
    try:
        if address := next(_addresses(yaml.safe_load(front_matter)["configs"]), ""):
            problem = f"the README.md of {shown_name} refers to data on the network: {one_line(address, 120)}"
            raise DataError(problem, hint="download the data, and list its files in data.path")
        names = datasets.get_dataset_config_names(str(folder))
        configuration = name or datasets.get_dataset_default_config_name(str(folder)) or ""
        if configuration not in names:
            raise (no_configuration(shown_name, name, names) if name else several_configurations(shown_name, names))
        # The builder leaves a lock file in its cache, which may be on a read-only disk.
        with TemporaryDirectory() as cache_folder:
            builder = datasets.load_dataset_builder(str(folder), configuration, cache_dir=cache_folder)
        files = builder.config.data_files or {}
        declared = {str(split): tuple(_relative_to(path, folder) for path in paths) for split, paths in files.items()}
    except error_types as error:
        problem = f"the README.md of {shown_name} does not say where the data is: {one_line(str(error), 160)}"
        raise DataError(problem, hint="correct the configs in that file, or list the files in data.path") from None
    exact_names = frozenset(name for names in declared.values() for name in names if name in front_matter)
    features = builder.info.features.to_dict() if builder.info.features else None
    reader_options = _reader_options(builder.config, shown_name)
    return _named_splits(declared, exact_names), {"features": features, **reader_options}


def _addresses(configs: object) -> Iterator[str]:
    """Yield every address among the file names in `configs`, at any depth."""
    if isinstance(configs, str) and "://" in configs:
        yield configs
    elif isinstance(configs, list):
        for item in configs:
            yield from _addresses(item)
    elif isinstance(configs, dict):
        for key, value in configs.items():
            if key != "description":
                yield from _addresses(value)


def _reader_options(config: Any, shown_name: str) -> dict[str, Any]:
    """Return how a configuration reads tables, by fields of SourceFile. Raises DataError for an unsupported option."""
    for option in fields(config):
        default = option.default_factory() if option.default_factory is not MISSING else option.default
        value = getattr(config, option.name)
        is_default = value == default or (option.name == "encoding" and str(value).lower() in ("utf-8", "utf8"))
        if option.name not in _SUPPORTED_OPTIONS and not is_default:
            raise _unsupported_option(option.name, value, shown_name)
    names, header = getattr(config, "names", None), getattr(config, "header", "infer")
    if header not in ("infer", None if names else 0):
        raise _unsupported_option("header", header, shown_name)
    separator = str(getattr(config, "sep", ","))
    if len(separator) != 1:
        raise _unsupported_option("sep", separator, shown_name)
    # The default of the library means that the separator is guessed here.
    return {"separator": "" if separator == "," else separator, "header": tuple(map(str, names or ()))}


def _unsupported_option(option: str, value: object, shown_name: str) -> DataError:
    problem = f"the README.md of {shown_name} sets {option} to {one_line(repr(value), 60)}, which is not supported"
    return DataError(problem, hint="convert the data to a supported format, and list its files in data.path")


def no_configuration(shown_name: str, name: str, names: Iterable[str]) -> NoConfiguration:
    known_names = one_line(", ".join(names), 200)
    problem = f"{shown_name} has no configuration '{one_line(name, 80)}'"
    hint = f"set data.name to one of {known_names}" if known_names else "leave data.name empty"
    return NoConfiguration(problem, hint=hint)


def _named_splits(declared: Mapping[str, tuple[str, ...]], listed_files: frozenset[str] = frozenset()) -> NamedSplits:
    """Return declared splits. Held-out files are removed from train, unless that would remove all its files."""
    parts = {SplitPart("", split, "declared", split_in(split)): files for split, files in declared.items() if files}
    missing_splits = tuple(split for split, files in declared.items() if not files)
    splits = NamedSplits(parts=parts, listed_files=listed_files, missing_splits=missing_splits)
    held_out = splits.held_out_files
    for part in splits.with_split("train"):
        parts[part] = tuple(name for name in parts[part] if name not in held_out) or parts[part]
    return splits


def missing_files(files_by_name: Mapping[str, SourceFile], read_names: Iterable[str]) -> list[str]:
    """Return missing files that belong to those read: shards of `-00000-of-00003`, and files in a state.json."""
    existing_shards: dict[tuple[str, ...], set[int]] = {}
    for name in files_by_name:
        if shard := _NUMBERED_SHARD.fullmatch(name):
            existing_shards.setdefault(shard.group(1, 3, 4), set()).add(int(shard[2]))
    first_of_group: dict[tuple[str, ...], str] = {}
    for name in read_names:
        shard = _NUMBERED_SHARD.fullmatch(name)
        first_of_group.setdefault(shard.group(1, 3, 4) if shard else (name.rpartition("/")[0],), name)
    missing_names = []
    for group, name in first_of_group.items():
        folder, parent = files_by_name[name].path.parent, name[: name.rfind("/") + 1]
        names_in_state = _files_in_state(folder) if name.endswith(".arrow") and not files_by_name[name].remote else None
        expected_names = [*(names_in_state or ())]
        if len(group) > 1:
            shard_prefix, count, extension = group[0].removeprefix(parent), int(group[1]), group[2]
            first_number = count in existing_shards[group]
            numbers = range(first_number, count + first_number)
            absent_numbers = (number for number in numbers if number not in existing_shards[group])
            expected_names += [f"{shard_prefix}{number:05d}-of-{group[1]}{extension}" for number in absent_numbers]
        file_names = [name for name in dict.fromkeys(expected_names) if parent + name not in files_by_name]
        is_remote = files_by_name[name].remote
        missing_names += [parent + file for file in file_names if is_remote or not (folder / file).exists()]
    return missing_names


def _relative_to(path: str, folder: Path) -> str:
    """Return the path relative to the folder, or unchanged if it is outside of the folder."""
    absolute = Path(os.path.abspath(path))  # noqa: PTH100  # absolute() keeps `..`, and resolve() follows links into the hub's cache
    for root in (Path(os.path.abspath(folder)), folder.resolve()):  # noqa: PTH100
        if absolute.is_relative_to(root):
            return absolute.relative_to(root).as_posix()
    return str(absolute)


def _read_object(path: Path) -> dict[str, Any]:
    """Return the object in a small JSON file; {} if the file is unreadable or holds no object."""
    try:
        if not path.is_file() or path.stat().st_size > MIB:
            return {}
        content = json.loads(path.read_text(encoding="utf-8"))
        return content if isinstance(content, dict) else {}
    except (OSError, ValueError, RecursionError):
        return {}
