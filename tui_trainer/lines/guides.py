"""The guides, divided into sections that fit a screen."""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import tui_trainer

FOLDER: Final = Path(tui_trainer.__file__).parent / "guides"
_PICTURE = re.compile(r"^!\[.*\]\(.*\)\n", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class GuideSection:
    """A section of a guide as Markdown, without its heading. `title` is empty for the introduction of a guide."""

    guide: str
    title: str
    text: str


@cache
def guides() -> dict[str, str]:
    """Return the titles of all guides, by name."""
    return {path.stem: _text(path.stem).partition("\n")[0].strip("# ") for path in sorted(FOLDER.glob("*.md"))}


@cache
def sections(guide: str) -> tuple[GuideSection, ...]:
    """Return the sections of a guide in their order, without pictures."""
    introduction, *texts = re.split(r"^## ", _PICTURE.sub("", _text(guide)), flags=re.MULTILINE)
    parts = [("", introduction.partition("\n")[2])]
    parts += [(title.strip(), body) for title, _, body in (section.partition("\n") for section in texts)]
    return tuple(GuideSection(guide, title, body.strip()) for title, body in parts)


def _text(guide: str) -> str:
    return (FOLDER / f"{guide}.md").read_text(encoding="utf-8")
