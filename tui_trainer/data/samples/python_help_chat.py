"""Questions about the standard library and their answers, for chat models."""

from collections.abc import Mapping
from functools import cache

from tui_trainer.data.samples import Sample
from tui_trainer.data.standard_library import DocumentedFunction, documented_functions

_QUESTIONS = ("What does {} do?", "Explain {}.", "What is {} for?", "Tell me about {}.")
_CALLS = ("How is it called?", "Which arguments does it take?")
_SYSTEM = "You answer questions about Python's standard library."
# Shorter answers say nothing, longer ones are cut by small models.
_ANSWER_CHARACTERS = range(20, 400)
_LONGEST_ARGUMENTS = 120


@cache
def python_help_chat() -> list[tuple[str, Mapping[str, object]]]:
    """Conversations of one or two questions, each answer once; some begin with a system turn.

    Functions that share their answer with an earlier one are left out: a model must not find the held-out answer in
    the training rows.
    """
    rows: list[tuple[str, Mapping[str, object]]] = []
    seen: set[str] = set()
    for function in documented_functions():
        answer = function.first_paragraph
        if len(answer) not in _ANSWER_CHARACTERS or answer in seen:
            continue
        seen.add(answer)
        rows.append((function.full_name, {"messages": _conversation(function, answer, len(rows))}))
    return rows


def _conversation(function: DocumentedFunction, answer: str, number: int) -> list[dict[str, str]]:
    """Every third conversation asks for the arguments as well, every fifth begins with a system turn."""
    name = function.full_name
    system = [{"role": "system", "content": _SYSTEM}] if number % 5 == 0 else []
    first = _turns(_QUESTIONS[number % len(_QUESTIONS)].format(name), answer)
    asks_more = number % 3 == 0 and len(function.arguments) <= _LONGEST_ARGUMENTS
    second = _turns(_CALLS[number % len(_CALLS)], f"{name}({function.arguments})") if asks_more else []
    return [*system, *first, *second]


def _turns(question: str, answer: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


SAMPLE = Sample(
    name="python-help-chat",
    title="Conversations about Python's functions",
    description="questions about the standard library, answered with its docstrings, as conversations",
    content=python_help_chat,
)
