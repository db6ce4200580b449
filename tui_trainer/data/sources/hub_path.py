"""How a data set of the Hugging Face Hub is written in data.path: `hub:owner/name[@revision][/what of it]`.

The last part is a folder, a file or a glob of the repository. The form is that of huggingface_hub's `hf://` paths.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePath

from tui_trainer.data.sources.file_formats import form_of
from tui_trainer.errors import DataError
from tui_trainer.hub_layout import NAME_PART, is_hub_name, is_revision
from tui_trainer.safe_text import one_line

PREFIX = "hub:"
MAIN = "main"
FORM = "hub:owner/name, with @revision and /folder or /file behind it where they are wanted"
# Two kinds of revision hold a `/`; in all others it is written %2F. Source: HfFileSystem.resolve_path of
# huggingface_hub, SPECIAL_REFS_REVISION_REGEX.
_REVISION = r"refs/convert/\w+|refs/pr/\d+|[^/@]+"
_FORM = re.compile(rf"({NAME_PART}/{NAME_PART})(?:@({_REVISION}))?(?:/(.*))?")


@dataclass(frozen=True, slots=True)
class HubPath:
    """A data set, or a part of one: `inside` is a folder, a file or a glob, empty for all of it."""

    name: str
    revision: str = MAIN
    inside: str = ""

    def __str__(self) -> str:
        revision = self.revision if self.revision.startswith("refs/") else self.revision.replace("/", "%2F")
        at = "" if self.revision == MAIN else f"@{revision}"
        return f"{PREFIX}{self.name}{at}{'/' * bool(self.inside)}{self.inside}"

    def part(self, inside: str) -> HubPath:
        return HubPath(self.name, self.revision, inside)


def parse_hub_path(path: str) -> HubPath:
    """`path` with or without `hub:` before it. Raises DataError for what cannot be the name of a data set."""
    found = _FORM.fullmatch(path.removeprefix(PREFIX).strip())
    if not found or not is_hub_name(found[1]):
        what = f"'{one_line(path, 120)}' cannot be a data set of the hub"
        raise DataError(what, hint=f"it is written {FORM}; the owner of an older one stands on its page")
    revision = (found[2] or MAIN).replace("%2F", "/")
    if not is_revision(revision):
        raise DataError(f"'{one_line(revision, 80)}' cannot be a revision", hint="give a branch, a tag or a commit")
    steps = [step for step in (found[3] or "").split("/") if step not in ("", ".")]
    if ".." in steps:
        raise DataError(f"'{one_line(path, 120)}' leaves its data set", hint=f"it is written {FORM}")
    return HubPath(found[1], revision, "/".join(steps))


def could_be_on_the_hub(path: str) -> bool:
    """Whether somebody may have meant `hub:` before it: `owner/name`, without the ending of a file."""
    return path.count("/") == 1 and is_hub_name(path) and form_of(PurePath(path)) == "unknown"
