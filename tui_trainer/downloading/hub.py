"""Download models and data sets from the Hugging Face Hub into its local cache, after a confirmation by the user.

From a model, only config, tokenizer and weights are downloaded: safetensors, or .bin files if there are no others. From
a data set, only the README.md and files that can be read are downloaded. Code is neither downloaded nor run.

huggingface_hub transfers the files and continues interrupted downloads. This module adds the offer with size and
licence, the choice of files, and errors of one sentence for a small disk, a gated repository and a missing network."""

import glob
import os
import re
import socket
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal
from urllib.parse import urlsplit

from tui_trainer.data.progress import Meter, Progress
from tui_trainer.data.sources.hub import HubPath, chosen_names, data_names, missing_part
from tui_trainer.data.sources.splits import DESCRIPTION_FILES, README
from tui_trainer.errors import DataError, FolderError, InputError, Problem, RunError, full_disk_words
from tui_trainer.files.hub_layout import Repository, is_hub_name, network_errors, network_reason, repository_folder
from tui_trainer.hardware.storage import read_place
from tui_trainer.models.config_json import bad_model, refuse_other_kinds
from tui_trainer.models.tokenizer import TEMPLATE_FOLDER, TOKENIZER_FILES
from tui_trainer.planning.disk import space_words
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.units import MIB, quantity

# Only files up to this size are downloaded in parallel: on Ctrl+C huggingface_hub waits for all started downloads.
SMALL_BYTES = 16 * MIB
_SMALL_FILE_NAMES = {"config.json", "generation_config.json", *TOKENIZER_FILES}
# In the order in which transformers looks for them: one file, or shards with an index.
_WEIGHTS = (
    re.compile(r"model\.safetensors"),
    re.compile(r"model-\d+-of-\d+\.safetensors|model\.safetensors\.index\.json"),
    re.compile(r"pytorch_model\.bin"),
    re.compile(r"pytorch_model-\d+-of-\d+\.bin|pytorch_model\.bin\.index\.json"),
)
_TEMPLATES = re.compile(rf"{TEMPLATE_FOLDER}/[\w.-]+\.jinja")
# Branch in which the Hub keeps a Parquet copy of most data sets. Source: "List Parquet files", docs of the Hub.
_COPY = "refs/convert/parquet"
_MOST_ENDINGS = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class RepositoryKind:
    """Differences between the repositories of models and of data sets. `make_error` makes the error for a wrong name.

    `option` is the command-line option for a repository's name, and `revision_key` the setting for its revision."""

    word: Literal["model", "dataset"]
    repository: Repository
    make_error: Callable[..., InputError]
    option: str
    revision_key: str

    @property
    def repo_type(self) -> str:
        """Value of the argument `repo_type` of huggingface_hub."""
        return self.repository.removesuffix("s")

    def page(self, name: str) -> str:
        return f"{_endpoint()}/{'datasets/' if self.repository == 'datasets' else ''}{name}"


@dataclass(frozen=True, slots=True)
class HubFile:
    name: str
    size_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class DownloadOffer:
    """A download that the user has to confirm. `missing_bytes` counts the files that are not on this machine yet.

    `left_out_words` describes the other files of the repository; empty if only unimportant files are left out."""

    kind: RepositoryKind
    name: str
    revision: str
    files: tuple[HubFile, ...]
    missing_bytes: int
    gated: bool
    license: str
    target: Path
    left_out_words: str = ""

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


Ask = Callable[[DownloadOffer], bool]

Choose = Callable[[Any, list[HubFile]], tuple[Sequence[HubFile], str]]
"""Function that chooses files from the Hub's facts about a repository and its files, and describes the other files."""


def download(
    kind: RepositoryKind, name: str, revision: str, choose: Choose, *, ask: Ask, progress: Progress | None
) -> Path | None:
    """Download the chosen files of a repository and return the folder of the snapshot; None if `ask` returns False.

    `ask` is not called if no file is missing. Raises the error of `kind.refuse` for an unknown name or revision or a
    missing account, FolderError if the disk is too small, and RunError if the network fails or on Ctrl+C."""
    from huggingface_hub import HfApi

    with _hub_errors(kind, name, revision):
        api = HfApi(library_name="tui-trainer")
        info: Any = api.repo_info(name, repo_type=kind.repo_type, revision=revision, files_metadata=True)
        files, left_out = choose(info, [HubFile(entry.rfilename, entry.size or 0) for entry in info.siblings or ()])
        target = repository_folder(kind.repository, name) / "snapshots" / str(info.sha)
        offer = DownloadOffer(
            kind=kind,
            name=name,
            revision=revision,
            files=tuple(files),
            missing_bytes=sum(file.size_bytes for file in files if not (target / file.name).exists()),
            gated=bool(info.gated),
            license=_license(info),
            target=target,
            left_out_words=left_out,
        )
        if offer.missing_bytes:
            _refuse_without_account(offer)
            _refuse_small_disk(offer)
            if not ask(offer):
                return None
        return _fetch(offer, progress)


def _license(info: Any) -> str:
    """Return the licence in the model card; empty if there is none."""
    card = info.card_data
    licence = (card.get("license_name") or card.get("license")) if card is not None else None
    return one_line(", ".join(map(str, licence)) if isinstance(licence, list) else str(licence or ""), 80)


def _refuse_without_account(offer: DownloadOffer) -> None:
    from huggingface_hub import get_token

    if offer.gated and not get_token():
        message = f"{offer.name} is gated: only accounts that accepted its licence can download it"
        raise offer.kind.make_error(message, hint=_access_hint(offer.kind, offer.name))


def _access_hint(kind: RepositoryKind, name: str) -> str:
    return f"accept the licence on {kind.page(name)}, then log in with `hf auth login` or set HF_TOKEN"


def _refuse_small_disk(offer: DownloadOffer) -> None:
    free_bytes = read_place("model cache", offer.target).free_bytes
    if free_bytes is not None and free_bytes < offer.missing_bytes:
        message = space_words(f"{offer.name} takes", offer.missing_bytes, free_bytes)
        hint = "free some space, or set HF_HOME to a folder on a larger disk"
        raise FolderError(Problem(message=message, where=one_line(str(offer.target)), hint=hint))


def _fetch(offer: DownloadOffer, progress: Progress | None) -> Path:
    """Download the files of an offer, small files in parallel, and return the folder of the snapshot."""
    from huggingface_hub import hf_hub_download, snapshot_download
    from huggingface_hub.utils.logging import set_verbosity_error

    set_verbosity_error()  # type: ignore[no-untyped-call]  # it would print a warning for every retry into our progress
    meter = Meter(progress, f"downloading {offer.name}", offer.size_bytes, "bytes")
    small_files = [file for file in offer.files if file.size_bytes <= SMALL_BYTES]
    done_bytes = sum(file.size_bytes for file in small_files)
    hub_options: dict[str, Any] = {"repo_type": offer.kind.repo_type, "revision": offer.revision}
    # snapshot_download also stores which files the commit has. A partial download is then not mistaken for a whole one.
    patterns = [glob.escape(file.name) for file in small_files]
    bar_class = _bar_class(meter, 0, unit="it", unit_bytes=done_bytes / max(1, len(small_files)))
    folder = Path(snapshot_download(offer.name, **hub_options, allow_patterns=patterns, tqdm_class=bar_class))
    if folder.name != offer.target.name:
        raise RunError(f"{offer.name} changed on the Hub during the download; run the same command again")
    for file in sorted(offer.files, key=lambda file: file.size_bytes):
        if file.size_bytes <= SMALL_BYTES:
            continue
        bar_class = _bar_class(meter, done_bytes, unit="B")
        hf_hub_download(offer.name, file.name, **hub_options | {"revision": folder.name}, tqdm_class=bar_class)
        done_bytes += file.size_bytes
        meter.report(done_bytes)
    meter.finish(done_bytes)
    return folder


def _bar_class(meter: Meter, done_bytes: int, *, unit: str, unit_bytes: float = 1) -> Any:
    """Return a progress bar class to pass to huggingface_hub. Its bars that count in `unit` report to `meter`."""
    from tqdm.auto import tqdm  # type: ignore[import-untyped]

    class Bar(tqdm):  # type: ignore[misc]
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options | {"disable": True})
            self.done, self.counts = float(options.get("initial") or 0), options.get("unit", "it") == unit

        def update(self, n: float | None = 1) -> bool | None:
            if self.counts:
                self.done += n or 0
                meter.report(done_bytes + self.done * unit_bytes)
            return None

    return Bar


@contextmanager
def _hub_errors(kind: RepositoryKind, name: str, revision: str) -> Iterator[None]:
    """Convert errors of huggingface_hub and of the network, raised within this context, into ours."""
    from huggingface_hub import errors

    try:
        yield
    except (FolderError, RunError):
        raise
    except KeyboardInterrupt:
        raise RunError(f"the download of {name} was stopped; run the same command to continue") from None
    except errors.GatedRepoError:
        raise kind.make_error(f"this account has no access to {name} yet", hint=_access_hint(kind, name)) from None
    except errors.RevisionNotFoundError:
        message = f"{name} has no revision {one_line(revision, 80)}"
        raise kind.make_error(message, hint=f"set {kind.revision_key} to an existing branch, tag or commit") from None
    except errors.RepositoryNotFoundError:
        hint = f"check the spelling; a private {kind.word} needs `hf auth login` or HF_TOKEN"
        raise kind.make_error(f"the Hub has no {kind.word} {name} that this account can access", hint=hint) from None
    except errors.OfflineModeIsEnabled:
        raise RunError("HF_HUB_OFFLINE is set, so downloading is disabled; unset this variable and try again") from None
    except network_errors() as error:
        raise RunError(network_sentence(kind, name, error)) from None


def network_sentence(kind: RepositoryKind, name: str, error: BaseException) -> str:
    """Return a sentence on why a download failed, and what the user can do even without a network."""
    if full_disk_text := full_disk_words(error):
        return f"{full_disk_text}; free some space, then run the same command to continue the download of {name}"
    reason, short_name = network_reason(error), name.rpartition("/")[2]
    folder = one_line(str(Path(short_name).absolute()), 200)
    alternative = f"copy the {kind.word} from another machine into {folder} and give {kind.option} ./{short_name}"
    if _never_connected(error):
        reason_words = reason.partition("] ")[2] or reason
        message = f"{name} could not be downloaded: the Hub at {host()} cannot be reached ({reason_words})"
        return f"{message}; try again when online, or {alternative}"
    return f"{name} could not be downloaded: {reason}; run the same command to continue, or {alternative}"


def _never_connected(error: BaseException | None) -> bool:
    """Return whether an error means that no connection was made, by the class names of the HTTP library."""
    while error is not None:
        is_refused = isinstance(error, socket.gaierror | ConnectionRefusedError)
        if is_refused or type(error).__name__ in ("ConnectError", "ConnectTimeout"):
            return True
        error = error.__cause__ or error.__context__
    return False


def _endpoint() -> str:
    return os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")


def host() -> str:
    """Return the host name of the Hub, safe for a terminal."""
    return one_line(urlsplit(_endpoint()).hostname or _endpoint(), 80)


MODEL = RepositoryKind(
    word="model", repository="models", make_error=bad_model, option="--model", revision_key="model.revision"
)


def download_model(name: str, revision: str = "main", *, ask: Ask, progress: Progress | None = None) -> Path | None:
    """Download a model and return its folder; None if `ask` returns False.

    Raises ConfigError for an unknown name or revision, a missing account, or a model that no task can train;
    FolderError if the disk is too small; RunError if the network fails or on Ctrl+C."""
    if not is_hub_name(name):
        raise bad_model(f"{one_line(name, 120)} is not a valid name on the Hub", hint="names look like org/model")

    def choose(info: Any, files: list[HubFile]) -> tuple[Sequence[HubFile], str]:
        refuse_other_kinds(info.config or {}, where=name, head=None)
        return model_files_to_fetch(name, files), ""

    return download(MODEL, name, revision, choose, ask=ask, progress=progress)


def model_files_to_fetch(model: str, files_on_hub: Iterable[HubFile]) -> tuple[HubFile, ...]:
    """Return the files of a model to download: config, tokenizer and one form of the weights. Raises ConfigError."""
    files = list(files_on_hub)
    names = {file.name for file in files}
    if "config.json" not in names:
        raise bad_model(f"{model} has no config.json", hint=_other_formats_hint(names))
    small_files = [file for file in files if file.name in _SMALL_FILE_NAMES or _TEMPLATES.fullmatch(file.name)]
    for pattern in _WEIGHTS:
        if weights := [file for file in files if pattern.fullmatch(file.name)]:
            return (*small_files, *weights)
    raise bad_model(f"{model} has no weights that transformers can load", hint=_other_formats_hint(names))


def _other_formats_hint(names: set[str]) -> str:
    if "adapter_config.json" in names:
        return "the repository contains an adapter; give the model that the adapter was trained on"
    if any(name.endswith(".gguf") for name in names):
        return "the repository has .gguf files for llama.cpp, which cannot be trained; use the original model"
    names_text = one_line(", ".join(sorted(names)[:4]), 160)
    return f"files found: {names_text}" if names_text else "the repository is empty"


DATA_SET = RepositoryKind(
    word="dataset", repository="datasets", make_error=DataError, option="--data", revision_key="the revision after @"
)


def download_data(path: HubPath, *, ask: Ask, progress: Progress | None = None) -> Path | None:
    """Download a data set, or a part of it, and return the folder of the snapshot; None if `ask` returns False.

    Raises DataError for an unknown name, revision or part, a missing account, or a data set without readable files;
    FolderError if the disk is too small; RunError if the network fails or on Ctrl+C."""

    def choose(_: Any, all_files: list[HubFile]) -> tuple[Sequence[HubFile], str]:
        files = data_files_to_fetch(path, all_files)
        return files, _left_out(all_files, files)

    return download(DATA_SET, path.name, path.revision, choose, ask=ask, progress=progress)


def data_files_to_fetch(path: HubPath, all_files: Sequence[HubFile]) -> tuple[HubFile, ...]:
    """Return the files of a data set to download. Raises DataError if there are none."""
    names = [file.name for file in all_files]
    names_to_fetch = {*chosen_names(names, path.subpath)}
    if not names_to_fetch:
        raise missing_part(path, names) if data_names(names) else _nothing_to_read(path, names)
    return tuple(file for file in all_files if file.name in names_to_fetch or file.name == README)


def _nothing_to_read(path: HubPath, names: Sequence[str]) -> DataError:
    copy_hint = f"the Hub has a Parquet copy of many datasets: try {HubPath(path.name, _COPY)}"
    if any("/" not in name and name.endswith(".py") for name in names):
        message = f"{path.name} has only a loading script, and loading scripts are never run"
        return DataError(message, hint=copy_hint)
    kinds = _endings(names)
    message = f"{path.name} has no data that can be read{f': only {kinds}' if kinds else ': the repository is empty'}"
    hint = f"supported: .parquet .arrow .jsonl .json .csv .tsv .conll .txt, also compressed as .gz; {copy_hint}"
    return DataError(message, hint=hint)


def _left_out(all_files: Iterable[HubFile], files: Sequence[HubFile]) -> str:
    """Return a description of the files in `all_files` that are not in `files` and thus not downloaded."""
    unimportant = {*(file.name for file in files), ".gitattributes", *DESCRIPTION_FILES}
    left_out_names = [file.name for file in all_files if file.name not in unimportant]
    return f"{quantity(len(left_out_names), 'file')} ({_endings(left_out_names)})" if left_out_names else ""


def _endings(names: Iterable[str]) -> str:
    counts = Counter(PurePosixPath(name).suffix.lower() or PurePosixPath(name).name for name in sorted(names))
    return one_line(", ".join(f"{count:,} {ending}" for ending, count in counts.most_common(_MOST_ENDINGS)), 120)
