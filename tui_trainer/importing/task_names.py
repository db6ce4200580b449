"""Tasks by the names that other tools have for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any

from tui_trainer.safe_text import one_line
from tui_trainer.tasks import task_names

_ANSWERS = (
    "seq2seq (an answer is written for a question and its text)",
    "chat (a question is answered)",
    "token_classification (words of a text are marked)",
)
# What is nearest by its meaning, where the name does not tell. The names are those of Hugging Face's pipelines and
# of peft's task types.
_NEAREST: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("question-answering", "extractive-question-answering", "question-ans"), _ANSWERS),
    **dict.fromkeys(("text-classification", "sentiment-analysis"), ("sequence_classification",)),
    **dict.fromkeys(("named-entity-recognition", "ner"), ("token_classification",)),
    **dict.fromkeys(("translation", "text2text-generation"), ("seq2seq",)),
    **dict.fromkeys(("conversational", "instruction-tuning"), ("chat",)),
}


def task_by(names: Mapping[str, str]) -> Callable[[Any], str]:
    """The reader of a tool's own names, in any spelling: case, blanks and underscores do not matter.

    It raises ValueError with the nearest tasks for all other names.
    """
    known = {_plain(name): task for name, task in names.items()}

    def task(value: Any) -> str:
        if not isinstance(value, str):
            raise ValueError(f"no task; {_all_tasks()}")
        name = _plain(value)
        if name in known:
            return known[name]
        near = _NEAREST.get(name) or _near_names(name, known)
        if near:
            raise ValueError(f"no task here learns that; nearest: {', '.join(near)}")
        raise ValueError(f"no task here learns that; {_all_tasks()}")

    return task


def _near_names(name: str, known: Mapping[str, str]) -> list[str]:
    spelt = {**{_plain(task): task for task in task_names()}, **known}
    return [f"{spelt[found]} ({found})" for found in get_close_matches(name, spelt, n=2)]


def _all_tasks() -> str:
    return f"tasks: {', '.join(task_names())}"


def _plain(name: str) -> str:
    return "-".join(one_line(name, 60).lower().replace("_", " ").replace("-", " ").split())
