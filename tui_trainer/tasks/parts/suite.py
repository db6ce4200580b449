"""A suite of `tui-trainer gate` and of `evaluation.gate_suite`: its rows with their checks, and the verdict on the
answers of two models.

A suite is a JSONL file. Each row has a `prompt` or `messages`, `must` ("learn" or "keep"), and checks of the answer,
which must all hold. `exporting/gate.py` and `training/evaluate.py` let the models answer. torch is not imported."""

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import comb
from pathlib import Path
from typing import Any, Literal

from tui_trainer.config.sections import GENERAL_SUITE
from tui_trainer.data.columns.row import AUTO, Row
from tui_trainer.data.problems import ProblemList
from tui_trainer.data.sources.json_rows import json_lines
from tui_trainer.errors import DataError, InputError, name_hint, system_reason
from tui_trainer.files.local_paths import expand_home
from tui_trainer.models.writing import Answer
from tui_trainer.tasks.contract import InputReader
from tui_trainer.tasks.parts.free_answers import is_json, is_looping
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.units import listed

_GENERAL_FILE = Path(__file__).with_name("general_suite.jsonl")
PROMPT, MESSAGES, MUST = "prompt", "messages", "must"
Must = Literal["learn", "keep"]
Outcome = Literal["kept", "learnt", "broken", "not learnt", "not counted", "right", "wrong"]
NO_ANSWERS = "neither texts nor labels, which a gate could check: `tui-trainer evaluate` compares such models"
_OWN_SUITE = "use your own suite (--suite FILE)"


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    """Answer of a model: a text, or the predicted `labels` of a classifier. `tokens` is the length of the text."""

    text: str = ""
    labels: tuple[str, ...] = ()
    tokens: int = 0
    has_stopped: bool = True
    is_looping: bool = False

    @classmethod
    def of(cls, answer: Answer) -> "Reply":
        is_loop = is_looping(answer.ids)
        return cls(text=answer.text, tokens=len(answer.ids), has_stopped=answer.has_stopped, is_looping=is_loop)


@dataclass(frozen=True, slots=True)
class Check:
    """Kind of check. `fault(value, reply)` returns why a reply is wrong, or "". `reads_text`: only its text counts."""

    expected: str
    is_valid: Callable[[Any], bool]
    fault: Callable[[Any, Reply], str]
    reads_text: bool = True


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_text, value))


def _is_pattern(value: Any) -> bool:
    try:
        return _is_text(value) and bool(re.compile(value))
    except re.error:
        return False


def _is_true(value: Any) -> bool:
    return value is True


def _quoted(text: str) -> str:
    return f"'{one_line(text, 60)}'"


def _json_fault(value: Any, reply: Reply) -> str:
    if not is_json(reply.text):
        return "is not JSON"
    content = json.loads(reply.text)
    keys, reply_keys = value if isinstance(value, list) else [], content if isinstance(content, dict) else ()
    return next((f"lacks the JSON key {_quoted(key)}" for key in keys if key not in reply_keys), "")


def _labels_in(value: Any) -> list[str]:
    """Return the labels of a valid check `label`."""
    return value if isinstance(value, list) else [value]


def _label_fault(value: Any, reply: Reply) -> str:
    labels = _labels_in(value)
    return "" if {*labels} == {*reply.labels} else f"is not {listed(labels, 'and')}"


CHECKS: Mapping[str, Check] = {
    "exact": Check("a text", _is_text, lambda text, reply:
                   "" if reply.text.strip() == text.strip() else f"is not {_quoted(text)}"),
    "contains": Check("a text", _is_text, lambda text, reply:
                      "" if text in reply.text else f"does not contain {_quoted(text)}"),
    "regex": Check("a valid regular expression", _is_pattern, lambda pattern, reply:
                   "" if re.search(pattern, reply.text.strip()) else f"does not match {_quoted(pattern)}"),
    "json": Check("true, or a list of keys", lambda value: value is True or _is_texts(value), _json_fault),
    "label": Check("a label, or a list of labels", lambda value: _is_texts(_labels_in(value)), _label_fault, False),
    "stops": Check("true", _is_true, lambda _, reply: "" if reply.has_stopped else "does not stop", False),
    "no_loop": Check("true", _is_true, lambda _, reply: "repeats itself" if reply.is_looping else "", False),
    "max_tokens": Check("a whole number above 0", lambda value: type(value) is int and value > 0, lambda most, reply:
                        "" if reply.has_stopped and reply.tokens <= most else f"is longer than {most:,} tokens", False),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class SuiteRow:
    """Row of a suite. `prompt` is its text or the text of its last message; `messages` is empty for a plain text."""

    where: str
    prompt: str
    messages: tuple[Any, ...]
    must: Must
    checks: Mapping[str, Any]

    @property
    def values(self) -> dict[str, Any]:
        """Content of the row in the file."""
        question = {MESSAGES: list(self.messages)} if self.messages else {PROMPT: self.prompt}
        return {**question, MUST: self.must, **self.checks}

    def fault(self, reply: Reply) -> str:
        """Return why a reply is wrong, as a predicate such as "is not JSON"; empty if it is right."""
        fault = next(filter(None, (CHECKS[name].fault(value, reply) for name, value in self.checks.items())), "")
        symptom = next((words for words, has_symptom in _SYMPTOMS.values() if has_symptom(self, reply)), "")
        return f"{fault}, and {symptom}" if fault and symptom and symptom not in fault else fault


def _copies_prompt(row: SuiteRow, reply: Reply) -> bool:
    """Return whether a text only repeats its prompt: the whole prompt, or its first half or more."""
    prompt, text = row.prompt.strip(), reply.text.strip()
    if not text or {"exact", "label"} & {*row.checks}:  # an exact answer may be its prompt
        return False
    return text.startswith(prompt) or (prompt.startswith(text) and 2 * len(text) >= len(prompt))


# Faults that are counted in every row, whatever it checks.
_SYMPTOMS: Mapping[str, tuple[str, Callable[[SuiteRow, Reply], bool]]] = {
    "looping": ("repeats itself", lambda row, reply: reply.is_looping),
    "unstopped": ("does not stop", lambda row, reply: not reply.has_stopped),
    "copying": ("only copies the prompt", _copies_prompt),
}


def read_suite(path: str) -> list[SuiteRow]:
    """Read a suite, or the one of this program if `path` is empty. Raises DataError with the lines that are wrong."""
    file_path, problems = expand_home(path) if path else _GENERAL_FILE, ProblemList()
    suite_rows = list[SuiteRow]()
    try:
        with file_path.open("rb") as file:
            for row in json_lines(file, one_line(file_path.name), problems):
                try:
                    suite_rows.append(suite_row(row))
                except DataError as error:
                    problems.add(error, row.values)
    except OSError as error:
        raise DataError(f"cannot be read: {system_reason(error)}", where=one_line(path)) from None
    problems.raise_any()
    if not suite_rows:
        raise DataError("the suite has no rows", where=one_line(path), hint="see `tui-trainer guide after-training`")
    return suite_rows


def rows_to_keep(setting: str) -> list[SuiteRow]:
    """Return the `keep` rows of the suite that `evaluation.gate_suite` names; [] if it is off. Raises DataError."""
    rows = read_suite("" if setting == GENERAL_SUITE else setting) if setting else []
    kept_rows = [row for row in rows if row.must == "keep"]
    if rows and not kept_rows:
        raise DataError("the suite has no rows to keep", where=one_line(setting), hint='add "must": "keep" to some')
    return kept_rows


def suite_row(row: Row) -> SuiteRow:
    """Return a row of a suite. Raises DataError if any part of it cannot be understood."""
    where, values = row.where, dict[str, Any](row.values)

    def refuse(message: str, hint: str = "") -> DataError:
        return DataError(message, where=where, hint=hint)

    known_keys = (PROMPT, MESSAGES, MUST, *CHECKS)
    if unknown_key := next((key for key in values if key not in known_keys), None):
        raise refuse(f"the key '{one_line(unknown_key, 40)}' is unknown", name_hint(unknown_key, known_keys))
    if (PROMPT in values) == (MESSAGES in values):
        raise refuse("a row has either a prompt or messages", "give one of them")
    if values.get(MUST) not in ("learn", "keep"):
        raise refuse("must is neither 'learn' nor 'keep'", 'add "must": "learn" for what the training should teach')
    checks = {name: values[name] for name in CHECKS if name in values}
    if not checks:
        raise refuse("the row checks nothing", f"add one of {listed(tuple(CHECKS))}")
    for name, value in checks.items():
        if not CHECKS[name].is_valid(value):
            raise refuse(f"{name} is not {CHECKS[name].expected}")
    if "label" in checks and len(checks) > 1:
        raise refuse("label is for classifiers, and the other checks are for texts", "keep one of them")
    if "exact" in checks:
        exact_reply = Reply(text=checks["exact"])
        for name, value in checks.items():
            if CHECKS[name].reads_text and (fault := CHECKS[name].fault(value, exact_reply)):
                raise refuse(
                    f"`exact` and `{name}` contradict each other: the text in `exact` {fault}", "keep one of them"
                )
    prompt, messages = values.get(PROMPT), values.get(MESSAGES, [])
    if MESSAGES in values:
        last_turn = messages[-1] if isinstance(messages, list) and messages else None
        if not isinstance(last_turn, dict) or last_turn.get("role") not in ("user", "tool"):
            raise refuse("messages is not a list of turns that ends with one of the user")
        prompt = last_turn.get("content")
    if not isinstance(prompt, str) or not prompt.strip():
        raise refuse(f"{PROMPT if PROMPT in values else 'the last turn'} is not a text")
    return SuiteRow(where=where, prompt=prompt, messages=tuple(messages), must=values[MUST], checks=checks)


def inputs_of(rows: Sequence[SuiteRow], reader: InputReader, text_column: str) -> list[Any]:
    """Return what a task's reader makes of each row. Raises DataError for conversations that cannot be read."""
    column = MESSAGES if text_column == AUTO else text_column
    inputs = []
    for row in rows:
        if not row.messages:
            inputs.append(reader.of_text(row.prompt))
            continue
        table_row = Row(row.where, {column: list(row.messages)})
        reader.begin([table_row])
        inputs.append(reader.read(table_row))
    return inputs


def refuse_task(task: Any, suite: str, *, has_reference: bool) -> None:
    """Raise InputError if a suite, or the general one if `suite` is empty, cannot judge models of a `Task`.

    Without a reference, the general suite says nothing: only a model that was right before can be broken."""
    if task.labels_rows and (task.head != "sequence_classification" or task.scores_answers):
        raise InputError(f"models of {task.name} predict {NO_ANSWERS}")
    if not suite and task.labels_rows:
        message = "the general suite has no labels, so it cannot judge a classifier"
        raise InputError(
            message, hint=f'{_OWN_SUITE}, with rows such as {{"prompt": "...", "must": "keep", "label": "x"}}'
        )
    if not suite and not has_reference:
        message = "the general suite shows what a base model has lost, and this run has none to compare with"
        raise InputError(message, hint=_OWN_SUITE)


def refuse_unsuitable(rows: Sequence[SuiteRow], task: str, labels: Sequence[str], *, holds_conversations: bool) -> None:
    """Raise DataError for rows that do not suit a task. `labels` are those of a classifier; empty for generators."""
    problems = ProblemList()
    for row in rows:
        unknown_labels = [label for label in _labels_in(row.checks.get("label", [])) if label not in labels]
        if labels and "label" not in row.checks:
            message, hint = f"models of {task} predict labels and write no text", "check the `label`"
        elif unknown_labels and not labels:
            message, hint = f"models of {task} write texts and predict no labels", "check the text, as with `exact`"
        elif unknown_labels:
            message = f"the label '{one_line(unknown_labels[0], 40)}' is unknown to the model"
            hint = name_hint(unknown_labels[0], labels)
        elif row.messages and not holds_conversations:
            message, hint = f"models of {task} hold no conversations", "use `prompt` instead of `messages`"
        else:
            continue
        problems.add(DataError(message, where=row.where, hint=hint))
    problems.raise_any()


@dataclass(frozen=True, kw_only=True, slots=True)
class RowVerdict:
    """Verdict on one row. `before` is the reply of the reference model; None without one. `now` is the reply of the
    judged model, and `why` says what is wrong with it; empty if it is right."""

    row: SuiteRow
    outcome: Outcome
    before: Reply | None
    now: Reply
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelVerdict:
    """Verdict on one model. `failures` are the reasons why it does not pass; empty if it does.

    `symptoms` maps each symptom to its number of answers, [before or None, now]. `better` and `worse` count the rows
    whose answer became right or wrong, and `p_value` is that of a sign test on these rows."""

    name: str
    outcomes: Mapping[Outcome, int]
    better: int
    worse: int
    p_value: float | None
    equal_answers: int
    symptoms: Mapping[str, tuple[int | None, int]]
    failures: tuple[str, ...]
    rows: tuple[RowVerdict, ...]


def _outcome(must: Must, was_right: bool | None, is_right: bool) -> Outcome:
    if is_right:
        return "kept" if was_right else "right" if was_right is None and must == "keep" else "learnt"
    if was_right:
        return "broken"
    return "not learnt" if must == "learn" else "wrong" if was_right is None else "not counted"


def sign_test(better: int, worse: int) -> float:
    """Return the p-value of a two-sided exact sign test: how often chance alone gives a split as uneven as this."""
    changed = better + worse
    tail = sum(comb(changed, count) for count in range(min(better, worse) + 1))
    return min(1.0, float(2 * tail / 2**changed))


def judge(
    name: str,
    rows: Sequence[SuiteRow],
    before: Sequence[Reply] | None,
    now: Sequence[Reply],
    *,
    allow_broken: int = 0,
    allow_missing: int = 0,
) -> ModelVerdict:
    """Return the verdict on a model with the replies `now`. `before` has the replies of the reference model. If it is
    None, each wrong reply to a `keep` row counts as a broken one."""
    verdicts = list[RowVerdict]()
    for row, old, new in zip(rows, [None] * len(rows) if before is None else before, now, strict=True):
        why = row.fault(new)
        outcome = _outcome(row.must, None if old is None else not row.fault(old), not why)
        verdicts.append(RowVerdict(row=row, outcome=outcome, before=old, now=new, why=why))
    outcomes = Counter[Outcome](verdict.outcome for verdict in verdicts)
    symptoms = {
        symptom: (None if before is None else sum(map(has_symptom, rows, before)), sum(map(has_symptom, rows, now)))
        for symptom, (_, has_symptom) in _SYMPTOMS.items()
    }
    limits = (
        (outcomes["broken"] + outcomes["wrong"], "wrong" if before is None else "broken", allow_broken),
        (outcomes["not learnt"], "not learnt", allow_missing),
    )
    better, worse = (0, 0) if before is None else (outcomes["learnt"], outcomes["broken"])
    return ModelVerdict(
        name=name,
        outcomes=dict(outcomes),
        better=better,
        worse=worse,
        p_value=None if before is None else sign_test(better, worse),
        equal_answers=sum(old == new for old, new in zip(before or [], now, strict=False)),
        symptoms=symptoms,
        failures=tuple(f"{count:,} {words}, {limit:,} allowed" for count, words, limit in limits if count > limit),
        rows=tuple(verdicts),
    )
