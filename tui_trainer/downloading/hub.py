"""Files of a repository of the Hugging Face Hub into its cache on this machine.

What was fetched before a stop is kept, and the next time goes on from there. Which files are wanted, and that the
user was asked, is the matter of `model.py` and `data_set.py`.
"""

import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from tui_trainer.data.progress import Meter, Progress
from tui_trainer.errors import FolderError, InputError, Problem, RunError
from tui_trainer.files.hub_layout import Repository, network_errors, network_reason, repository_folder
from tui_trainer.hardware.storage import read_place
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.units import format_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """What models and data sets differ in. `refuse` makes the error for a mistake in what was asked; `option` and
    `revision_key` say where the user names one, and which."""

    word: Literal["model", "data set"]
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

    kind: Kind
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
    kind: Kind, name: str, revision: str, choose: Choose, *, ask: Ask, progress: Progress | None
) -> Path | None:
    """Fetch what is wanted of a repository, and return the snapshot's folder; None when `ask` says no. Nobody is asked
    where nothing is missing.

    Raises what `Kind.refuse` makes for a name or a revision that the hub does not have, and where an account is needed;
    FolderError where the disk is too small; RunError when the network fails and on Ctrl+C.
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
        what = f"{offer.name} is given only to accounts that accepted its licence"
        raise offer.kind.refuse(what, hint=_how_to_enter(offer.kind, offer.name))


def _how_to_enter(kind: Kind, name: str) -> str:
    return f"accept it on {kind.page(name)}, then log in with `hf auth login` or set HF_TOKEN"


def _refuse_small_disk(offer: DownloadOffer) -> None:
    free = read_place("model cache", offer.target).free_bytes
    if free is not None and free < offer.missing_bytes:
        what = f"{offer.name} takes {format_bytes(offer.missing_bytes)} and {format_bytes(free)} are free"
        hint = "free some space, or set HF_HOME to a folder on a larger disk"
        raise FolderError(Problem(message=what, where=one_line(str(offer.target)), hint=hint))


def _fetch(offer: DownloadOffer, progress: Progress | None) -> Path:
    """The snapshot's folder, with its files in it: fetched one by one, the small ones first."""
    from huggingface_hub import hf_hub_download, snapshot_download
    from huggingface_hub.utils.logging import set_verbosity_error

    set_verbosity_error()  # type: ignore[no-untyped-call]  # it warns of every retry, into our progress
    meter = Meter(progress, f"downloading {offer.name}", offer.size_bytes, "bytes")
    before = 0
    where: dict[str, Any] = {"repo_type": offer.kind.repo_type, "revision": offer.revision}
    # Nothing of it, but it writes down which files the commit has: a download that was cut short, or that takes a part,
    # is not mistaken for the whole.
    folder = Path(snapshot_download(offer.name, **where, allow_patterns=[], tqdm_class=_bar_class(meter, 0)))
    if folder.name != offer.target.name:
        raise RunError(f"{offer.name} changed on the hub since the question; run the same command again")
    for file in sorted(offer.files, key=lambda file: file.size_bytes):
        hf_hub_download(
            offer.name, file.name, **where | {"revision": folder.name}, tqdm_class=_bar_class(meter, before)
        )
        before += file.size_bytes
        meter.report(before)
    meter.finish(before)
    return folder


def _bar_class(meter: Meter, before: int) -> Any:
    """What huggingface_hub takes for a progress bar: it tells our meter."""
    from tqdm.auto import tqdm  # type: ignore[import-untyped]

    class Bar(tqdm):  # type: ignore[misc]
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options | {"disable": True})
            self.done = float(options.get("initial") or 0)

        def update(self, n: float | None = 1) -> bool | None:
            self.done += n or 0
            meter.report(before + self.done)
            return None

    return Bar


@contextmanager
def _told_in_one_line(kind: Kind, name: str, revision: str) -> Iterator[None]:
    """huggingface_hub's errors and those of the network under it, as ours."""
    from huggingface_hub import errors

    try:
        yield
    except (FolderError, RunError):
        raise
    except KeyboardInterrupt:
        raise RunError(f"the download of {name} was stopped; the same command goes on from there") from None
    except errors.GatedRepoError:
        raise kind.refuse(f"this account may not have {name} yet", hint=_how_to_enter(kind, name)) from None
    except errors.RevisionNotFoundError:
        what = f"{name} has no revision {one_line(revision, 80)}"
        raise kind.refuse(what, hint=f"set {kind.revision_key} to a branch, a tag or a commit that it has") from None
    except errors.RepositoryNotFoundError:
        hint = f"look for a misspelling; a private {kind.word} needs `hf auth login` or HF_TOKEN"
        raise kind.refuse(f"the hub has no {kind.word} {name} that this account may see", hint=hint) from None
    except errors.OfflineModeIsEnabled:
        raise RunError("HF_HUB_OFFLINE is set, so that nothing is downloaded; unset it and try again") from None
    except network_errors() as error:
        raise RunError(network_sentence(kind, name, error)) from None


def network_sentence(kind: Kind, name: str, error: BaseException) -> str:
    """Why it could not be fetched, and what to do about it, without a network as well."""
    if isinstance(error, OSError) and error.errno == 28:
        return f"the disk is full; free some space, then the same command goes on with {name} from there"
    reason, short = network_reason(error), name.rpartition("/")[2]
    folder = one_line(str(Path(short).absolute()), 200)
    copy = f"copy the {kind.word} from another machine into {folder} and give {kind.option} ./{short}"
    if _never_connected(error):
        why = reason.partition("] ")[2] or reason
        what = f"{name} could not be downloaded: the hub at {host()} cannot be reached ({why})"
        return f"{what}; try again where there is a network, or {copy}"
    return f"{name} could not be downloaded: {reason}; the same command goes on from there, or {copy}"


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
