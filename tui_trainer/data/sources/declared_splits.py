"""Where splits and configurations are written down, so that no name of a file is asked: in folders that the library
`datasets` made (`save_to_disk`, or its cache), and in a README.md with `configs:`.

Whoever wrote them is believed. `datasets` is imported for a README.md alone.
"""

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tui_trainer.data.sources.named_splits import NamedSplits, Part, split_in
from tui_trainer.data.sources.source_file import SourceFile
from tui_trainer.errors import DataError
from tui_trainer.files.hub_layout import huggingface_folder, repository_folder
from tui_trainer.files.local_paths import from_the_root
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.units import MIB

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
_SHARD = re.compile(r"(.*?)(\d{5})-of-(\d{5})(?:-[0-9a-f]{16})?((?:\.\w+)*)")
# Of the configurations of `datasets`: what says nothing of how rows are read, and what `_reading` passes on.
_FOLLOWED = frozenset(
    "name version data_dir data_files description features chunksize batch_size block_size use_threads memory_map "
    "verbose sep delimiter names column_names header".split()
)
_FRONT = re.compile(r"---\r?\n(.*?)\r?\n---", re.DOTALL)


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
        what = f"{repo_id} is in the cache of datasets in several commits: {one_line(', '.join(commits), 200)}"
        raise DataError(what, hint="set data.revision to one of them")
    return next((folder for folder in reversed(folders) if len(commits) == 1 or folder.name == commit), None)


class NoConfiguration(DataError):
    """A configuration is asked for that a data set does not have."""


def several_configurations(shown: str, configurations: Iterable[str]) -> DataError:
    listed = one_line(", ".join(configurations), 200)
    return DataError(f"{shown} holds several configurations: {listed}", hint="set data.name to one of them")


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
            what = f"the README.md of {shown} names data on the net: {one_line(address, 120)}"
            raise DataError(what, hint="download that file, and name the files themselves in data.path")
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
        raise DataError(what, hint="correct its configs, or name the files themselves in data.path") from None
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
    what = f"the README.md of {shown} sets {option} to {one_line(repr(value), 60)}, which is not followed here"
    return DataError(what, hint="write the data again in a plain form, and name its files in data.path")


def no_configuration(shown: str, name: str, names: Iterable[str]) -> NoConfiguration:
    has = one_line(", ".join(names), 200)
    what = f"{shown} has no configuration '{one_line(name, 80)}'"
    return NoConfiguration(what, hint=f"set data.name to one of {has}" if has else "leave data.name empty")


def _declared(found: Mapping[str, tuple[str, ...]], exact: frozenset[str] = frozenset()) -> NamedSplits:
    """A file that a validation or test split names is none of train, as long as train has others."""
    parts = {Part("", split, "declared", split_in(split)): files for split, files in found.items() if files}
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
        if shard := _SHARD.fullmatch(name):
            there.setdefault(shard.group(1, 3, 4), set()).add(int(shard[2]))
    groups: dict[tuple[str, ...], str] = {}
    for name in read:
        shard = _SHARD.fullmatch(name)
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
