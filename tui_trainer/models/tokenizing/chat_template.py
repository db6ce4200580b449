"""The chat template of a run: the tokenizer's own, one of the files in chat_templates/, or a file of the user.

The named ones are written after the formats that their models document, in plain Jinja that other programs read too.
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tui_trainer.errors import ConfigError, Problem
from tui_trainer.models.tokenizing.tokenizer import tokenizer_facts
from tui_trainer.safe_text import one_line
from tui_trainer.units import MIB

KEY = "task.chat_template"
_FOLDER = Path(__file__).parent / "chat_templates"
_ENDING = ".jinja"
_LARGEST = MIB
# How config.json, or the tokenizer, calls the family, and the named template that its chat models were trained with.
_OF_FAMILY = {
    "llama": "llama3", "mistral": "mistral", "mixtral": "mistral", "gemma": "gemma", "gemma2": "gemma", "phi3": "phi3",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """`text` is Jinja; `special` what it may name, such as eos_token. `for_tools` replaces it for conversations
    with tools, where a tokenizer has a template of its own for them."""

    name: str
    text: str
    special: Mapping[str, str] = field(default_factory=dict)
    for_tools: str = ""

    def text_for(self, tools: object) -> str:
        return self.for_tools if tools and self.for_tools else self.text


def template_names() -> list[str]:
    return sorted(path.stem for path in _FOLDER.glob(f"*{_ENDING}"))


def is_file_name(wanted: str) -> bool:
    """Whether a file is meant, and not one of the names."""
    return "/" in wanted or wanted.endswith(_ENDING)


def template_text(wanted: str) -> str:
    """The text of a named template, or of a file. Raises ConfigError with the nearest name."""
    if wanted in template_names():
        return (_FOLDER / f"{wanted}{_ENDING}").read_text(encoding="utf-8")
    if not is_file_name(wanted):
        near = difflib.get_close_matches(wanted, template_names(), n=1)
        guess = f"did you mean {near[0]}? " if near else ""
        hint = f"{guess}known: {', '.join(template_names())}, or the path of a {_ENDING} file"
        raise _problem(f"there is no chat template {one_line(wanted, 60)!r}", hint)
    try:
        with Path(wanted).expanduser().open("rb") as file:
            content = file.read(_LARGEST + 1)
        if len(content) > _LARGEST:
            raise _problem(f"{one_line(wanted, 120)} is no chat template: it is larger than a megabyte", "name another")
        return content.decode("utf-8")
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or "no home folder"
        raise _problem(f"{one_line(wanted, 120)} cannot be read: {reason}", _hint()) from None
    except UnicodeDecodeError:
        raise _problem(f"{one_line(wanted, 120)} is not UTF-8", "write it again as UTF-8") from None


def template_problems(wanted: str, folder: Path | None, family: str) -> list[Problem]:
    """What is wrong with a choice. `folder` is that of a model whose own template is meant where none is named."""
    if wanted:
        try:
            template_text(wanted)
        except ConfigError as error:
            return list(error.problems)
        return []
    found = tokenizer_facts(folder) if folder else None
    if found is None or found.has_chat_template:
        return []
    return list(no_template(str(folder), family).problems)


def no_template(model: str, family: str = "") -> ConfigError:
    """For a model whose tokenizer has no template, and none was named."""
    likely = _OF_FAMILY.get(family)
    hint = f"{_hint()}; {likely} is what chat models of this family use" if likely else _hint()
    return _problem("the tokenizer has no chat template", hint, one_line(model, 120))


def _hint() -> str:
    return f"set it to one of {', '.join(template_names())}, or to a {_ENDING} file"


def _problem(message: str, hint: str, where: str = "") -> ConfigError:
    return ConfigError(Problem(message=message, key=KEY, hint=hint, where=where))
