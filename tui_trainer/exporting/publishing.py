"""Publish a trained model or an export on the Hugging Face Hub. An offer first lists all files for the user to confirm.

Only files of the folder are sent, and local paths are removed from their texts."""

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
from tui_trainer.terminal.safe_text import escape_markdown, one_line, shell_word
from tui_trainer.units import MIB

_TEXTS = frozenset({".json", ".md", ".txt", ".jinja", ".toml", ".yaml", ".yml", ".model_card"})
_TEXT_LIMIT_BYTES = 64 * MIB
_TOKEN = re.compile(r"\b(?:hf_[A-Za-z0-9]{30,}|sk-[A-Za-z0-9_-]{30,}|AKIA[A-Z0-9]{16}|gh[pousr]_[A-Za-z0-9]{30,})\b")
_PLACES = "home|Users|root|mnt|media|data|srv|scratch|workspace|tmp"
_OTHER_PATH = re.compile(rf"(?<![\w./:~-])/(?:{_PLACES})/[^\s\"'`|),;<>]+")


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishedFile:
    """File to publish. `content` is the path of the file, or its new text if local paths were removed."""

    name: str
    size_bytes: int
    content: Path | bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishOffer:
    """Content of a publication, for the user to confirm. `notes` list local paths that were replaced or that remain.

    `exists` is None for a new repository, otherwise whether the existing one is private."""

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
    """Return the folder to publish: the final model or an export. Raises InputError for an unknown export."""
    if not export:
        return _final_model_to_publish(folder)
    exports = folder.exports
    export_names = sorted(path.name for path in exports.iterdir() if path.is_dir()) if exports.is_dir() else []
    if export in export_names and not export.startswith((".", "failed-")):
        return exports / export
    if f"failed-{export}" in export_names:
        raise InputError(f"the export {export} of {folder.name} differs from the trained model and is not published")
    hint = f"create it with `tui-trainer export {shell_word(folder.name)} --to {one_line(export, 40)}`"
    raise InputError(f"{folder.name} has no export {one_line(export, 40)!r}", hint=hint)


def _final_model_to_publish(folder: RunFolder) -> Path:
    """Return the folder of the final model. Raises FolderError if the base model of its adapter has changed."""
    source, plan, base = final_model(folder), None, None
    if name := adapter_base(source):
        with suppress(FolderError, ConfigError):
            plan = plan_of(folder)
            base = find_model(name, plan.config.model.revision, head=find_task(plan.config.task.type).head).folder
    if plan and base:
        refuse_changed_base(plan, base)
    return source


def make_offer(folder: RunFolder, source: Path, name: str, *, private: bool) -> PublishOffer:
    """Read the files of `source`, ask the hub about the repository, and return the offer. Raises InputError."""
    if name.count("/") != 1 or not is_hub_name(name):
        raise InputError(f"{one_line(name, 80)!r} is not a valid repository name", hint="use --to OWNER/NAME")
    files, notes = _published_files(folder, source)
    base_name = str(settings_of(folder).get("model.model_name_or_path") or "")
    api = _api()
    is_private: bool | None = None
    from huggingface_hub import errors

    with _hub_errors(name), suppress(errors.RepositoryNotFoundError):
        is_private = bool(api.repo_info(name).private)
    if is_private is False and private:
        raise InputError(f"{name} already exists and is public", hint="use --public to publish there anyway")
    return PublishOffer(
        name=name,
        private=private if is_private is None else is_private,
        exists=is_private,
        base_model=one_line(published_name(base_name)),
        license=_license_of(api, base_name),
        files=tuple(files),
        notes=tuple(notes),
    )


def publish(offer: PublishOffer, progress: Progress) -> str:
    """Send the files as one commit and return the address of the repository. Raises RunError."""
    from huggingface_hub import CommitOperationAdd
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()
    api = _api()
    meter, done_bytes = Meter(progress, f"uploading {offer.name}", offer.size_bytes, "bytes"), 0
    with _hub_errors(offer.name):
        url = api.create_repo(offer.name, private=offer.private, exist_ok=True)
        additions = []
        for file in sorted(offer.files, key=lambda file: file.size_bytes):
            content = file.content if isinstance(file.content, bytes) else str(file.content)
            additions.append(CommitOperationAdd(path_in_repo=file.name, path_or_fileobj=content))
            if file.size_bytes > MIB:
                # Large files are sent one by one before the commit, which then only names them.
                api.preupload_lfs_files(offer.name, additions=additions[-1:])
            done_bytes += file.size_bytes
            meter.report(done_bytes)
        api.create_commit(offer.name, additions, commit_message="Trained with tui-trainer")
        meter.finish(done_bytes)
    return str(url)


def _api() -> Any:
    """Return the hub's client. Raises InputError without a network connection or an account."""
    from huggingface_hub import HfApi, constants, get_token

    if constants.HF_HUB_OFFLINE:
        raise InputError("HF_HUB_OFFLINE is set, so publishing is disabled", hint="unset it and try again")
    if not get_token():
        raise InputError("publishing needs a Hugging Face account", hint="log in with `hf auth login`, or set HF_TOKEN")
    return HfApi(library_name="tui-trainer")


def _license_of(api: Any, base: str) -> str:
    """Return the license that the hub names for the base model; empty if it names none or does not answer."""
    if not base or Path(base).exists() or not could_be_on_the_hub(base):
        return ""
    try:
        card = api.model_info(base).card_data
    except Exception:  # the license is only shown
        return ""
    license_name = (card.get("license_name") or card.get("license")) if card is not None else None
    return one_line(str(license_name or ""), 80)


def _published_files(folder: RunFolder, source: Path) -> tuple[list[PublishedFile], list[str]]:
    file_names = [name for name in files_below(source) if not any(part.startswith(".") for part in Path(name).parts)]
    if not file_names:
        raise FolderError("contains no files", where=one_line(str(source)))
    files, notes = [], []
    for name in file_names:
        path = source / name
        size_bytes = path.stat().st_size
        if path.suffix.lower() not in _TEXTS or size_bytes > _TEXT_LIMIT_BYTES:
            files.append(PublishedFile(name=name, size_bytes=size_bytes, content=path))
            continue
        text = path.read_bytes().decode("utf-8", "surrogateescape")
        if _TOKEN.search(text):
            raise InputError(f"{name} contains what looks like an access token; nothing was published")
        clean_text, replacements = _without_paths(text, folder)
        notes += [f"{name}: {one_line(old)} is replaced by {one_line(new)}" for old, new in replacements]
        other_paths = dict.fromkeys(_OTHER_PATH.findall(clean_text))
        notes += [f"{name} contains the path {one_line(other_path, 120)}" for other_path in other_paths]
        content = clean_text.encode("utf-8", "surrogateescape")
        files.append(PublishedFile(name=name, size_bytes=len(content), content=content if replacements else path))
    return files, notes


def _without_paths(text: str, folder: RunFolder) -> tuple[str, list[tuple[str, str]]]:
    """Replace paths of the base model, the run and the home folder. Return (new text, list of (old, new) paths)."""
    base_name = str(settings_of(folder).get("model.model_name_or_path") or "")
    replacements = {str(folder.root): folder.name, str(folder.root.parent): "runs", str(Path.home()): "~"}
    if base_name.startswith(("/", "~", ".")):
        absolute_base = str(Path(base_name).expanduser().absolute())
        replacements |= {base_name: published_name(base_name), absolute_base: published_name(base_name)}
    used_pairs = []
    for old_path, new_path in sorted(replacements.items(), key=lambda pair: -len(pair[0])):
        if len(old_path) < 2:
            continue
        # A path may be written as plain text, in Markdown, or in JSON with or without escapes of non-ASCII letters.
        spellings = [(old_path, new_path), (escape_markdown(old_path), escape_markdown(new_path))]
        spellings += [(_in_json(old_path, is_ascii), _in_json(new_path, is_ascii)) for is_ascii in (True, False)]
        text_before = text
        for spelling, word in dict.fromkeys(spellings):
            text = re.sub(rf"{re.escape(spelling)}(?![\w-])", lambda _, word=word: word, text)  # type: ignore[misc]
        if text != text_before:
            used_pairs.append((old_path, new_path))
    return text, used_pairs


def _in_json(text: str, is_ascii: bool) -> str:
    return json.dumps(text, ensure_ascii=is_ascii)[1:-1]


@contextmanager
def _hub_errors(name: str) -> Iterator[None]:
    """Return a context that raises our error classes for errors of huggingface_hub and of the network."""
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
