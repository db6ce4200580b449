"""Models and data sets of the Hugging Face Hub into its cache on this machine, after a question and never without one.

Of a model only what training reads is fetched: config, tokenizer and weights as safetensors (.bin files where there are
no others). Of a data set only files that can be read, as they lie in the repository, and the README.md that may say
which of them is what: code that comes with it is neither fetched nor run.

What was fetched before a stop is kept, and the next time goes on from there. huggingface_hub fetches; what it has not
is here: the question with size and licence, which files are wanted, and refusals of one sentence for a small disk, a
gated repository, no network.
"""

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
from tui_trainer.data.sources.splits import ABOUT, README
from tui_trainer.errors import DataError, FolderError, InputError, Problem, RunError, full_disk_words
from tui_trainer.files.hub_layout import Repository, is_hub_name, network_errors, network_reason, repository_folder
from tui_trainer.hardware.storage import read_place
from tui_trainer.models.config_json import bad_model, refuse_other_kinds
from tui_trainer.models.tokenizer import TEMPLATE_FOLDER, TOKENIZER_FILES
from tui_trainer.planning.disk import space_words
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.units import MIB

# Files up to this size are fetched several at a time: on Ctrl+C huggingface_hub waits for those that are under way.
SMALL_BYTES = 16 * MIB
_SMALL = {"config.json", "generation_config.json", *TOKENIZER_FILES}
# In the order in which transformers looks for them: one file, or shards with their index.
_WEIGHTS = (
    re.compile(r"model\.safetensors"),
    re.compile(r"model-\d+-of-\d+\.safetensors|model\.safetensors\.index\.json"),
    re.compile(r"pytorch_model\.bin"),
    re.compile(r"pytorch_model-\d+-of-\d+\.bin|pytorch_model\.bin\.index\.json"),
)
_TEMPLATES = re.compile(rf"{TEMPLATE_FOLDER}/[\w.-]+\.jinja")
# The branch into which the hub writes a copy of most data sets. Source: "List Parquet files", docs of the hub.
_COPY = "refs/convert/parquet"
_MOST_ENDINGS = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class RepositoryKind:
    """What models and data sets differ in. `refuse` makes the error for a mistake in what was asked; `option` and
    `revision_key` say where the user names one, and which."""

    word: Literal["model", "dataset"]
    repository: Repository
    refuse: Callable[..., InputError]
    option: str
    revision_key: str

    @property
    def repo_type(self) -> str:
        """As huggingface_hub calls it."""
        return self.repository.removesuffix("s")

    def page(self, name: str) -> str:
        return f"{_endpoint()}/{'datasets/' if self.repository == 'datasets' else ''}{name}"


@dataclass(frozen=True, slots=True)
class HubFile:
    name: str
    size_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class DownloadOffer:
    """What the user is asked about. `size_bytes` is of all files, `missing_bytes` of those that are not here yet.

    `left_out` says which files of the repository are not among them; empty where nobody would ask.
    """

    kind: RepositoryKind
    name: str
    revision: str
    files: tuple[HubFile, ...]
    missing_bytes: int
    gated: bool
    license: str
    target: Path
    left_out: str = ""

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


def counted(files: Sequence[object]) -> str:
    """`1 file`, `2,000 files`."""
    return f"{len(files):,} file{'s' * (len(files) != 1)}"


Ask = Callable[[DownloadOffer], bool]


Choose = Callable[[Any, list[HubFile]], tuple[Sequence[HubFile], str]]
"""What the hub tells of a repository and its files -> those that are wanted, and what is left out, in words."""


def download(
    kind: RepositoryKind, name: str, revision: str, choose: Choose, *, ask: Ask, progress: Progress | None
) -> Path | None:
    """Fetch what is wanted of a repository, and return the snapshot's folder; None when `ask` says no. Nobody is asked
    where nothing is missing.

    Raises what `RepositoryKind.refuse` makes for a name or a revision that the hub does not have, and where an account
    is needed; FolderError where the disk is too small; RunError when the network fails and on Ctrl+C.
    """
    from huggingface_hub import HfApi

    with _told_in_one_line(kind, name, revision):
        api = HfApi(library_name="tui-trainer")
        info: Any = api.repo_info(name, repo_type=kind.repo_type, revision=revision, files_metadata=True)
        files, left_out = choose(info, [HubFile(one.rfilename, one.size or 0) for one in info.siblings or ()])
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
            left_out=left_out,
        )
        if offer.missing_bytes:
            _refuse_without_account(offer)
            _refuse_small_disk(offer)
            if not ask(offer):
                return None
        return _fetch(offer, progress)


def _license(info: Any) -> str:
    """As the model's page says it; empty where it does not."""
    card = info.card_data
    told = (card.get("license_name") or card.get("license")) if card is not None else None
    return one_line(", ".join(map(str, told)) if isinstance(told, list) else str(told or ""), 80)


def _refuse_without_account(offer: DownloadOffer) -> None:
    from huggingface_hub import get_token

    if offer.gated and not get_token():
        what = f"{offer.name} is gated: only accounts that accepted its licence can download it"
        raise offer.kind.refuse(what, hint=_how_to_enter(offer.kind, offer.name))


def _how_to_enter(kind: RepositoryKind, name: str) -> str:
    return f"accept the licence on {kind.page(name)}, then log in with `hf auth login` or set HF_TOKEN"


def _refuse_small_disk(offer: DownloadOffer) -> None:
    free = read_place("model cache", offer.target).free_bytes
    if free is not None and free < offer.missing_bytes:
        what = space_words(f"{offer.name} takes", offer.missing_bytes, free)
        hint = "free some space, or set HF_HOME to a folder on a larger disk"
        raise FolderError(Problem(message=what, where=one_line(str(offer.target)), hint=hint))


def _fetch(offer: DownloadOffer, progress: Progress | None) -> Path:
    """The snapshot's folder, with its files in it: the small ones together, and then one by one."""
    from huggingface_hub import hf_hub_download, snapshot_download
    from huggingface_hub.utils.logging import set_verbosity_error

    set_verbosity_error()  # type: ignore[no-untyped-call]  # it warns of every retry, into our progress
    meter = Meter(progress, f"downloading {offer.name}", offer.size_bytes, "bytes")
    small = [file for file in offer.files if file.size_bytes <= SMALL_BYTES]
    before = sum(file.size_bytes for file in small)
    where: dict[str, Any] = {"repo_type": offer.kind.repo_type, "revision": offer.revision}
    # It also writes down which files the commit has: a download that was cut short, or that takes a part, is not
    # mistaken for the whole.
    names = [glob.escape(file.name) for file in small]
    bars = _bar_class(meter, 0, unit="it", unit_bytes=before / max(1, len(small)))
    folder = Path(snapshot_download(offer.name, **where, allow_patterns=names, tqdm_class=bars))
    if folder.name != offer.target.name:
        raise RunError(f"{offer.name} changed on the Hub during the download; run the same command again")
    for file in sorted(offer.files, key=lambda file: file.size_bytes):
        if file.size_bytes <= SMALL_BYTES:
            continue
        bars = _bar_class(meter, before, unit="B")
        hf_hub_download(offer.name, file.name, **where | {"revision": folder.name}, tqdm_class=bars)
        before += file.size_bytes
        meter.report(before)
    meter.finish(before)
    return folder


def _bar_class(meter: Meter, before: int, *, unit: str, unit_bytes: float = 1) -> Any:
    """What huggingface_hub takes for a progress bar: those that count this unit tell our meter."""
    from tqdm.auto import tqdm  # type: ignore[import-untyped]

    class Bar(tqdm):  # type: ignore[misc]
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options | {"disable": True})
            self.done, self.counts = float(options.get("initial") or 0), options.get("unit", "it") == unit

        def update(self, n: float | None = 1) -> bool | None:
            if self.counts:
                self.done += n or 0
                meter.report(before + self.done * unit_bytes)
            return None

    return Bar


@contextmanager
def _told_in_one_line(kind: RepositoryKind, name: str, revision: str) -> Iterator[None]:
    """huggingface_hub's errors and those of the network under it, as ours."""
    from huggingface_hub import errors

    try:
        yield
    except (FolderError, RunError):
        raise
    except KeyboardInterrupt:
        raise RunError(f"the download of {name} was stopped; run the same command to continue") from None
    except errors.GatedRepoError:
        raise kind.refuse(f"this account has no access to {name} yet", hint=_how_to_enter(kind, name)) from None
    except errors.RevisionNotFoundError:
        what = f"{name} has no revision {one_line(revision, 80)}"
        raise kind.refuse(what, hint=f"set {kind.revision_key} to an existing branch, tag or commit") from None
    except errors.RepositoryNotFoundError:
        hint = f"check the spelling; a private {kind.word} needs `hf auth login` or HF_TOKEN"
        raise kind.refuse(f"the Hub has no {kind.word} {name} that this account can access", hint=hint) from None
    except errors.OfflineModeIsEnabled:
        raise RunError("HF_HUB_OFFLINE is set, so downloading is disabled; unset it and try again") from None
    except network_errors() as error:
        raise RunError(network_sentence(kind, name, error)) from None


def network_sentence(kind: RepositoryKind, name: str, error: BaseException) -> str:
    """Why it could not be fetched, and what to do about it, without a network as well."""
    if full := full_disk_words(error):
        return f"{full}; free some space, then run the same command to continue the download of {name}"
    reason, short = network_reason(error), name.rpartition("/")[2]
    folder = one_line(str(Path(short).absolute()), 200)
    copy = f"copy the {kind.word} from another machine into {folder} and give {kind.option} ./{short}"
    if _never_connected(error):
        why = reason.partition("] ")[2] or reason
        what = f"{name} could not be downloaded: the Hub at {host()} cannot be reached ({why})"
        return f"{what}; try again when online, or {copy}"
    return f"{name} could not be downloaded: {reason}; run the same command to continue, or {copy}"


def _never_connected(error: BaseException | None) -> bool:
    """No name server, no route, nobody who listens. Of the HTTP library's errors only the names have stayed."""
    while error is not None:
        told = isinstance(error, socket.gaierror | ConnectionRefusedError)
        if told or type(error).__name__ in ("ConnectError", "ConnectTimeout"):
            return True
        error = error.__cause__ or error.__context__
    return False


def _endpoint() -> str:
    return os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")


def host() -> str:
    """The hub's, to be shown."""
    return one_line(urlsplit(_endpoint()).hostname or _endpoint(), 80)


MODEL = RepositoryKind(
    word="model", repository="models", refuse=bad_model, option="--model", revision_key="model.revision"
)


def download_model(name: str, revision: str = "main", *, ask: Ask, progress: Progress | None = None) -> Path | None:
    """Fetch a model and return the folder it is in; None when `ask` says no.

    Raises ConfigError for a name or revision that the hub does not have, for a model that may not be had without an
    account, and for one that no task trains; FolderError when the disk is too small; RunError when the network fails
    and on Ctrl+C.
    """
    if not is_hub_name(name):
        raise bad_model(f"{one_line(name, 120)} is not a valid name on the Hub", hint="names look like org/model")

    def choose(info: Any, listed: list[HubFile]) -> tuple[Sequence[HubFile], str]:
        refuse_other_kinds(info.config or {}, where=name, head=None)
        return model_files_to_fetch(name, listed), ""

    return download(MODEL, name, revision, choose, ask=ask, progress=progress)


def model_files_to_fetch(model: str, listed: Iterable[HubFile]) -> tuple[HubFile, ...]:
    """Config, tokenizer and one form of the weights. Raises ConfigError where there is no model of transformers."""
    files = list(listed)
    names = {file.name for file in files}
    if "config.json" not in names:
        raise bad_model(f"{model} has no config.json", hint=_instead(names))
    kept = [file for file in files if file.name in _SMALL or _TEMPLATES.fullmatch(file.name)]
    for pattern in _WEIGHTS:
        if weights := [file for file in files if pattern.fullmatch(file.name)]:
            return (*kept, *weights)
    raise bad_model(f"{model} has no weights that transformers can load", hint=_instead(names))


def _instead(names: set[str]) -> str:
    if "adapter_config.json" in names:
        return "the repository contains an adapter: give the model that the adapter was trained on"
    if any(name.endswith(".gguf") for name in names):
        return "it has .gguf files for llama.cpp, which cannot be trained: use the original model"
    shown = one_line(", ".join(sorted(names)[:4]), 160)
    return f"its files: {shown}" if shown else "it is empty"


DATA_SET = RepositoryKind(
    word="dataset", repository="datasets", refuse=DataError, option="--data", revision_key="the part after the @"
)


def download_data(wanted: HubPath, *, ask: Ask, progress: Progress | None = None) -> Path | None:
    """Fetch a data set, or the part of it that is wanted, and return the snapshot's folder; None when `ask` says no.

    Raises DataError for a name, a revision or a part that the hub does not have, for a data set that may not be had
    without an account, and for one without a file that can be read; FolderError when the disk is too small; RunError
    when the network fails and on Ctrl+C.
    """

    def choose(_: Any, listed: list[HubFile]) -> tuple[Sequence[HubFile], str]:
        files = data_files_to_fetch(wanted, listed)
        return files, _left_out(listed, files)

    return download(DATA_SET, wanted.name, wanted.revision, choose, ask=ask, progress=progress)


def data_files_to_fetch(wanted: HubPath, listed: Sequence[HubFile]) -> tuple[HubFile, ...]:
    """The data that is wanted of a repository. Raises DataError where there is none."""
    names = [file.name for file in listed]
    chosen = {*chosen_names(names, wanted.inside)}
    if not chosen:
        raise missing_part(wanted, names) if data_names(names) else _nothing_to_read(wanted, names)
    return tuple(file for file in listed if file.name in chosen or file.name == README)


def _nothing_to_read(wanted: HubPath, names: Sequence[str]) -> DataError:
    copy = f"the Hub has a Parquet copy of many datasets: try {HubPath(wanted.name, _COPY)}"
    if any("/" not in name and name.endswith(".py") for name in names):
        what = f"{wanted.name} has only a loading script, and loading scripts are never run"
        return DataError(what, hint=copy)
    shown = _endings(names)
    what = f"{wanted.name} has no data that can be read{f': only {shown}' if shown else ': the repository is empty'}"
    hint = f"supported: .parquet .arrow .jsonl .json .csv .tsv .conll .txt, also compressed as .gz; {copy}"
    return DataError(what, hint=hint)


def _left_out(listed: Iterable[HubFile], files: Sequence[HubFile]) -> str:
    """What of the repository is not fetched, in words."""
    untold = {*(file.name for file in files), ".gitattributes", *ABOUT}
    rest = [file.name for file in listed if file.name not in untold]
    return f"{counted(rest)} ({_endings(rest)})" if rest else ""


def _endings(names: Iterable[str]) -> str:
    counts = Counter(PurePosixPath(name).suffix.lower() or PurePosixPath(name).name for name in sorted(names))
    return one_line(", ".join(f"{count:,} {ending}" for ending, count in counts.most_common(_MOST_ENDINGS)), 120)
