"""A model of the Hugging Face Hub into its cache on this machine: after a question, and never without one.

Only what training reads is fetched: config, tokenizer and weights as safetensors (.bin files where there are no
others). What was fetched before a stop is kept, and the next time goes on from there.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

from tui_trainer.data.progress import Meter, Progress
from tui_trainer.errors import FolderError, Problem, RunError
from tui_trainer.hardware.places import read_place
from tui_trainer.models.architectures import refuse_other_kinds
from tui_trainer.models.config_fields import bad_model
from tui_trainer.models.hub_cache import is_hub_name, repository_folder
from tui_trainer.models.hub_files import HubFile, files_to_fetch
from tui_trainer.safe_text import one_line
from tui_trainer.units import format_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class DownloadOffer:
    """What the user is asked about. `size_bytes` is of all files, `missing_bytes` of those that are not here yet."""

    name: str
    revision: str
    files: tuple[str, ...]
    size_bytes: int
    missing_bytes: int
    gated: bool
    license: str
    target: Path


def download(
    name: str,
    revision: str = "main",
    *,
    ask: Callable[[DownloadOffer], bool],
    progress: Progress | None = None,
    cancel: Callable[[], bool] = lambda: False,
) -> Path | None:
    """Fetch a model and return the folder it is in; None when `ask` says no.

    Raises ConfigError for a name or revision that the hub does not have, for a model that may not be had without an
    account, and for one that no task trains; FolderError when the disk is too small; RunError when the network fails
    and when `cancel` says stop.
    """
    if not is_hub_name(name):
        raise bad_model(f"{one_line(name, 120)} cannot be a name on the hub", hint="names look like org/model")
    with _told_in_one_line(name, revision):
        info = _api().model_info(name, revision=revision, files_metadata=True)
        offer, files = _offer(name, revision, info)
        if offer.missing_bytes:
            _refuse_without_account(offer)
            _refuse_small_disk(offer)
            if not ask(offer):
                return None
        return _fetch(offer, files, progress, cancel)


def _api() -> Any:
    from huggingface_hub import HfApi

    return HfApi(library_name="tui-trainer")


def _offer(name: str, revision: str, info: Any) -> tuple[DownloadOffer, tuple[HubFile, ...]]:
    refuse_other_kinds(info.config or {}, where=name, head=None)
    listed = [HubFile(sibling.rfilename, sibling.size or 0) for sibling in info.siblings or ()]
    files = files_to_fetch(name, listed)
    target = repository_folder(name) / "snapshots" / str(info.sha)
    offer = DownloadOffer(
        name=name,
        revision=revision,
        files=tuple(file.name for file in files),
        size_bytes=sum(file.size_bytes for file in files),
        missing_bytes=sum(file.size_bytes for file in files if not (target / file.name).exists()),
        gated=bool(info.gated),
        license=_license(info),
        target=target,
    )
    return offer, files


def _license(info: Any) -> str:
    """As the model's page says it; empty where it does not."""
    card = info.card_data
    told = (card.get("license_name") or card.get("license")) if card is not None else None
    return one_line(", ".join(map(str, told)) if isinstance(told, list) else str(told or ""), 80)


def _refuse_without_account(offer: DownloadOffer) -> None:
    from huggingface_hub import get_token

    if offer.gated and not get_token():
        what = f"{offer.name} is given only to accounts that accepted its licence"
        raise bad_model(what, hint=_how_to_enter(offer.name))


def _how_to_enter(name: str) -> str:
    return f"accept it on {_endpoint()}/{name}, then log in with `hf auth login` or set HF_TOKEN"


def _refuse_small_disk(offer: DownloadOffer) -> None:
    free = read_place("model cache", offer.target).free_bytes
    if free is not None and free < offer.missing_bytes:
        what = f"{offer.name} takes {format_bytes(offer.missing_bytes)} and {format_bytes(free)} are free"
        hint = "free some space, or set HF_HOME to a folder on a larger disk"
        raise FolderError(Problem(message=what, where=one_line(str(offer.target)), hint=hint))


def _fetch(
    offer: DownloadOffer, files: tuple[HubFile, ...], progress: Progress | None, cancel: Callable[[], bool]
) -> Path:
    """File by file, the small ones first."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.utils.logging import set_verbosity_error

    set_verbosity_error()  # it warns of every retry, into our progress
    meter = Meter(progress, f"downloading {offer.name}", offer.size_bytes, "bytes")
    before = 0
    folders = set()
    for file in sorted(files, key=lambda file: file.size_bytes):
        _stop_if_asked(cancel)
        bar = _bar_class(meter, before, cancel)
        path = Path(hf_hub_download(offer.name, file.name, revision=offer.revision, tqdm_class=bar))
        folders.add(_root_of(path, file.name))
        before += file.size_bytes
        meter.report(before)
    meter.finish(before)
    if len(folders) != 1:
        raise RunError(f"{offer.name} changed on the hub while it was downloaded; run the same command again")
    return folders.pop()


def _root_of(path: Path, name: str) -> Path:
    return path.parents[name.count("/")]


class _Cancelled(Exception):
    """`cancel` said stop in the middle of a file."""


def _stop_if_asked(cancel: Callable[[], bool]) -> None:
    if cancel():
        raise _Cancelled


def _bar_class(meter: Meter, before: int, cancel: Callable[[], bool]) -> Any:
    """What huggingface_hub takes for a progress bar: it tells our meter, and raises when it shall stop."""
    from tqdm.auto import tqdm  # type: ignore[import-untyped]

    class Bar(tqdm):  # type: ignore[misc]
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options | {"disable": True})
            self.done = float(options.get("initial") or 0)

        def update(self, n: float | None = 1) -> bool | None:
            self.done += n or 0
            _stop_if_asked(cancel)
            meter.report(before + self.done)
            return None

    return Bar


@contextmanager
def _told_in_one_line(name: str, revision: str) -> Iterator[None]:
    """huggingface_hub's errors and those of the network under it, as ours."""
    from huggingface_hub import errors

    # The bases of its own error are those of the HTTP library under it, which has changed more than once.
    network = cast("tuple[type[Exception], ...]", (OSError, *errors.HfHubHTTPError.__bases__))
    try:
        yield
    except (FolderError, RunError):
        raise
    except (_Cancelled, KeyboardInterrupt):
        raise RunError(f"the download of {name} was stopped; the same command goes on from there") from None
    except errors.GatedRepoError:
        raise bad_model(f"this account may not have {name} yet", hint=_how_to_enter(name)) from None
    except errors.RevisionNotFoundError:
        what = f"{name} has no revision {one_line(revision, 80)}"
        raise bad_model(what, hint="set model.revision to a branch, a tag or a commit that it has") from None
    except errors.RepositoryNotFoundError:
        hint = "look for a misspelling; a private model needs `hf auth login` or HF_TOKEN"
        raise bad_model(f"the hub has no model {name} that this account may see", hint) from None
    except errors.OfflineModeIsEnabled:
        raise RunError("HF_HUB_OFFLINE is set, so that nothing is downloaded; unset it and try again") from None
    except network as error:
        raise RunError(_network_sentence(name, error)) from None


def _network_sentence(name: str, error: BaseException) -> str:
    if isinstance(error, OSError) and error.errno == 28:
        return f"the disk is full; free some space, then the same command goes on with {name} from there"
    reason = one_line((str(error).strip().splitlines() or [type(error).__name__])[0], 160)
    copy = f"copy the model from another machine into {_folder_to_copy_into(name)} and give --model ./{_short(name)}"
    if _never_connected(error):
        host = one_line(urlsplit(_endpoint()).hostname or _endpoint(), 80)
        why = reason.partition("] ")[2] or reason
        what = f"{name} could not be downloaded: the hub at {host} cannot be reached ({why})"
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


def _folder_to_copy_into(name: str) -> str:
    return one_line(str(Path(_short(name)).absolute()), 200)


def _short(name: str) -> str:
    return name.rpartition("/")[2]


def _endpoint() -> str:
    return os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
