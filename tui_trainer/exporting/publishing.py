"""A trained model, or an export of it, sent to the Hugging Face Hub. What would go there is known before anything goes.

Paths of this machine are taken out of the texts, and nothing of the run but the folder itself is sent.
"""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tui_trainer.data.progress import Meter, Progress
from tui_trainer.errors import ConfigError, FolderError, InputError, RunError
from tui_trainer.exporting.trained_model import adapter_base, final_model, plan_of, refuse_changed_base
from tui_trainer.files.hub_layout import (
    could_be_on_the_hub,
    is_hub_name,
    network_errors,
    network_reason,
    published_name,
)
from tui_trainer.models.facts import find_model
from tui_trainer.runs.comparison import settings_of
from tui_trainer.runs.folder import RunFolder, files_below
from tui_trainer.tasks import find_task
from tui_trainer.terminal.safe_text import as_markdown, one_line, shell_word
from tui_trainer.units import MIB

_TEXTS = frozenset({".json", ".md", ".txt", ".jinja", ".toml", ".yaml", ".yml", ".model_card"})
_TEXT_LIMIT_BYTES = 64 * MIB
_TOKEN = re.compile(r"\b(?:hf_[A-Za-z0-9]{30,}|sk-[A-Za-z0-9_-]{30,}|AKIA[A-Z0-9]{16}|gh[pousr]_[A-Za-z0-9]{30,})\b")
_PLACES = "home|Users|root|mnt|media|data|srv|scratch|workspace|tmp"
_OTHER_PATH = re.compile(rf"(?<![\w./:~-])/(?:{_PLACES})/[^\s\"'`|),;<>]+")


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishedFile:
    """`content` is what goes there: the file as it is, or its text without paths of this machine."""

    name: str
    size_bytes: int
    content: Path | bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishOffer:
    """What the user is asked about. `notes` say what was taken out of texts, and which paths are still in them.

    `exists` is None for a new repository, else whether it is private.
    """

    name: str
    private: bool
    exists: bool | None
    base_model: str
    license: str
    files: tuple[PublishedFile, ...]
    notes: tuple[str, ...]

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


def source_of(folder: RunFolder, export: str) -> Path:
    """The folder that is sent. Raises InputError where there is none."""
    if not export:
        return _own_model(folder)
    place = folder.exports
    found = sorted(path.name for path in place.iterdir() if path.is_dir()) if place.is_dir() else []
    if export in found and not export.startswith((".", "failed-")):
        return place / export
    if f"failed-{export}" in found:
        raise InputError(f"the export {export} of {folder.name} differs from the trained model and is not published")
    hint = f"create it with `tui-trainer export {shell_word(folder.name)} --to {one_line(export, 40)}`"
    raise InputError(f"{folder.name} has no export {one_line(export, 40)!r}", hint=hint)


def _own_model(folder: RunFolder) -> Path:
    """The final model; of an adapter, for the very model that it was trained on, where that is here to be looked at."""
    source, plan, base = final_model(folder), None, None
    if name := adapter_base(source):
        with suppress(FolderError, ConfigError):
            plan = plan_of(folder)
            base = find_model(name, plan.config.model.revision, head=find_task(plan.config.task.type).head).folder
    if plan and base:
        refuse_changed_base(plan, base)
    return source


def make_offer(folder: RunFolder, source: Path, name: str, *, private: bool) -> PublishOffer:
    """Looks at the files and at the hub. Raises InputError where it cannot go there."""
    if name.count("/") != 1 or not is_hub_name(name):
        raise InputError(f"{one_line(name, 80)!r} is not a valid repository name", hint="use --to OWNER/NAME")
    files, notes = _files(folder, source)
    base = str(settings_of(folder).get("model.model_name_or_path") or "")
    api = _api()
    exists: bool | None = None
    from huggingface_hub import errors

    with _told(name), suppress(errors.RepositoryNotFoundError):
        exists = bool(api.repo_info(name).private)
    if exists is False and private:
        raise InputError(f"{name} already exists and is public", hint="use --public to publish there anyway")
    return PublishOffer(
        name=name,
        private=private if exists is None else exists,
        exists=exists,
        base_model=one_line(published_name(base)),
        license=_license_of(api, base),
        files=tuple(files),
        notes=tuple(notes),
    )


def publish(offer: PublishOffer, progress: Progress) -> str:
    """Send it, as one commit. Returns where it is. Raises RunError."""
    from huggingface_hub import CommitOperationAdd
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()
    api = _api()
    meter, done = Meter(progress, f"uploading {offer.name}", offer.size_bytes, "bytes"), 0
    with _told(offer.name):
        url = api.create_repo(offer.name, private=offer.private, exist_ok=True)
        additions = []
        for file in sorted(offer.files, key=lambda file: file.size_bytes):
            content = file.content if isinstance(file.content, bytes) else str(file.content)
            additions.append(CommitOperationAdd(path_in_repo=file.name, path_or_fileobj=content))
            if file.size_bytes > MIB:
                # Large files go one by one; the commit then has only to name them.
                api.preupload_lfs_files(offer.name, additions=additions[-1:])
            done += file.size_bytes
            meter.report(done)
        api.create_commit(offer.name, additions, commit_message="Trained with tui-trainer")
        meter.finish(done)
    return str(url)


def _api() -> Any:
    """Raises InputError without a network or an account: nothing was sent."""
    from huggingface_hub import HfApi, constants, get_token

    if constants.HF_HUB_OFFLINE:
        raise InputError("HF_HUB_OFFLINE is set, so publishing is disabled", hint="unset it and try again")
    if not get_token():
        raise InputError("publishing needs a Hugging Face account", hint="log in with `hf auth login`, or set HF_TOKEN")
    return HfApi(library_name="tui-trainer")


def _license_of(api: Any, base: str) -> str:
    """As the page of the base model says it; empty where it does not, or nobody can be asked."""
    if not base or Path(base).exists() or not could_be_on_the_hub(base):
        return ""
    try:
        card = api.model_info(base).card_data
    except Exception:  # a word on the screen is all that depends on it
        return ""
    told = (card.get("license_name") or card.get("license")) if card is not None else None
    return one_line(str(told or ""), 80)


def _files(folder: RunFolder, source: Path) -> tuple[list[PublishedFile], list[str]]:
    names = [name for name in files_below(source) if not any(part.startswith(".") for part in Path(name).parts)]
    if not names:
        raise FolderError("contains no files", where=one_line(str(source)))
    files, notes = [], []
    for name in names:
        path = source / name
        size = path.stat().st_size
        if path.suffix.lower() not in _TEXTS or size > _TEXT_LIMIT_BYTES:
            files.append(PublishedFile(name=name, size_bytes=size, content=path))
            continue
        text = path.read_bytes().decode("utf-8", "surrogateescape")
        if _TOKEN.search(text):
            raise InputError(f"{name} contains what looks like an access token; nothing was published")
        clean, taken = _without_paths(text, folder)
        notes += [f"{name}: {one_line(old)} is replaced by {one_line(new)}" for old, new in taken]
        notes += [
            f"{name} contains the path {one_line(found, 120)}" for found in dict.fromkeys(_OTHER_PATH.findall(clean))
        ]
        content = clean.encode("utf-8", "surrogateescape")
        files.append(PublishedFile(name=name, size_bytes=len(content), content=content if taken else path))
    return files, notes


def _without_paths(text: str, folder: RunFolder) -> tuple[str, list[tuple[str, str]]]:
    """Without the places of the base model, of the run and of this user; and what was replaced by what."""
    base = str(settings_of(folder).get("model.model_name_or_path") or "")
    places = {str(folder.root): folder.name, str(folder.root.parent): "runs", str(Path.home()): "~"}
    if base.startswith(("/", "~", ".")):
        resolved = str(Path(base).expanduser().absolute())
        places |= {base: published_name(base), resolved: published_name(base)}
    taken = []
    for old, new in sorted(places.items(), key=lambda pair: -len(pair[0])):
        if len(old) < 2:
            continue
        # As it is, in Markdown, and as JSON writes it, with other letters than those of ASCII and without.
        written = [(old, new), (as_markdown(old), as_markdown(new))]
        written += [(_in_json(old, is_ascii), _in_json(new, is_ascii)) for is_ascii in (True, False)]
        before = text
        for one, other in dict.fromkeys(written):
            text = re.sub(rf"{re.escape(one)}(?![\w-])", lambda _, other=other: other, text)  # type: ignore[misc]
        if text != before:
            taken.append((old, new))
    return text, taken


def _in_json(text: str, is_ascii: bool) -> str:
    return json.dumps(text, ensure_ascii=is_ascii)[1:-1]


@contextmanager
def _told(name: str) -> Iterator[None]:
    """huggingface_hub's errors and those of the network under it, as ours."""
    from huggingface_hub import errors

    try:
        yield
    except KeyboardInterrupt:
        raise RunError(f"publishing {name} was stopped; rerun the same command to continue") from None
    except network_errors() as error:
        status = getattr(getattr(error, "response", None), "status_code", None)
        if isinstance(error, errors.HfHubHTTPError) and status in (401, 403):
            hint = f"log in with an account that can write to {name.partition('/')[0]}"
            raise InputError(f"this account has no write access to {name}", hint=hint) from None
        raise RunError(f"{name} could not be published: {network_reason(error)}") from None
