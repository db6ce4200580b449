"""Preferences in the rows of a table: a prompt with a better and a worse answer.

    prompt, chosen, rejected                         texts, or lists of messages
    chosen, rejected                                 whole conversations that differ in their last turn
    instruction, input, chosen, rejected             also system, history and tools
    conversations, chosen, rejected                  LLaMA-Factory: the answers are one turn each
    instruction, input, output: [better, worse]      LLaMA-Factory before 2024
    input, preferred_output, non_preferred_output    OpenAI

For reward models, a row may also have a margin: the column `margin`, or the difference of two scores. Rows in any other
form are refused, with the reason.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tui_trainer.data.columns.conversations import (
    Conversation,
    ConversationColumns,
    answer_messages,
    find_conversations,
)
from tui_trainer.data.columns.labels import LABEL_KEY, number_of
from tui_trainer.data.columns.row import (
    AUTO,
    Row,
    columns_of,
    file_of,
    is_structured,
    listed,
    missing_column,
    preference_columns,
    refuse_missing,
    split_transcript,
    usual_columns,
    value_of,
)
from tui_trainer.data.columns.text_columns import usual_input
from tui_trainer.data.columns.usual_names import CONVERSATION_NAMES
from tui_trainer.errors import DataError
from tui_trainer.terminal.safe_text import one_line

_TARGET_KEY = "data.target_column"
_ABOUT_ANSWERS = re.compile("chosen|rejected", re.IGNORECASE)
_LIST_NAMES = ("output", "response", "completion")
_MARGIN, _SCORES = "margin", ("score_chosen", "score_rejected")
# The columns that a list [better, worse] is split into.
_SPLIT_COLUMNS = ("the better answer", "the worse answer")


@dataclass(frozen=True, slots=True)
class Preference:
    """Two conversations that differ only in their last turn, an answer."""

    chosen: Conversation
    rejected: Conversation


@dataclass(frozen=True, kw_only=True, slots=True)
class PreferenceColumns:
    """The columns of a table that hold preferences."""

    answers: tuple[str, str]
    """Columns of the chosen and of the rejected answers."""
    list_column: str = ""
    """Column of lists [better, worse] that `answers` are split from; empty if these are columns of the table."""
    prompt: ConversationColumns | None = None
    """Columns of the prompts; None if only whole conversations can be read."""
    unread: tuple[str, ...] = ()
    """Columns that are not read; empty if `prompt` lists them."""
    margin: tuple[str, ...] = ()
    """The column of the margins, or those of the scores of both answers; () if no margins are used."""
    unused_scores: tuple[str, ...] = ()
    """Columns of scores from which margins could be computed, but are not."""

    @property
    def question_columns(self) -> tuple[str, ...]:
        """Columns of the prompts, in this order."""
        return tuple(filter(None, (self.prompt.conversation, *self.prompt.question_columns))) if self.prompt else ()

    @property
    def target_column(self) -> str:
        """The columns of the answers, as a value of `data.target_column`."""
        return self.list_column or ",".join(self.answers)

    def note(self) -> str:
        if self.list_column:
            sentence = f"the chosen and rejected answers are lists in '{one_line(self.list_column, 40)}'"
        else:
            chosen, rejected = (one_line(name, 40) for name in self.answers)
            sentence = f"the chosen answers are in '{chosen}', the rejected ones in '{rejected}'"
        if self.prompt is None:
            not_read = f" (not read: {listed(self.unread)})" if self.unread else ""
            return f"{sentence}, as whole conversations{not_read}"
        return f"{sentence}; {self.prompt.note(has_answers=False)}"

    def margin_note(self) -> str:
        if not self.margin:
            names = ",".join(self.unused_scores)
            how = f'; to use the differences of the scores, set {LABEL_KEY} = "{names}"' if names else ""
            return f"no margins are used{how}"
        columns = " minus ".join(f"'{one_line(name, 40)}'" for name in self.margin)
        return f"the margin of each pair is {columns}"

    def margin_of(self, row: Row) -> float:
        """Return how much better the chosen answer is; 0 if no margins are used. Raises DataError if it is worse."""
        if not self.margin:
            return 0.0
        numbers = [number_of(value_of(row, name), f"'{one_line(name, 40)}'", row.where) for name in self.margin]
        margin = numbers[0] - sum(numbers[1:])
        if margin < 0:
            source = "the difference of the scores" if numbers[1:] else "the margin"
            message = f"{source} is {margin:g}, although the chosen answer should be the better one"
            hint = f'remove the row, or use no margins: {LABEL_KEY} = ""'
            raise DataError(message, where=row.where, hint=hint)
        return margin

    def with_columns_of(self, row: Row) -> "PreferenceColumns":
        """Return the columns for a table that also has the columns of this row."""
        return self if self.prompt is None else replace(self, prompt=self.prompt.with_columns_of(row))

    def read(self, row: Row) -> Preference:
        """Return the two conversations of a row. Raises DataError, with the position of the row, if it has none."""
        if self.list_column:
            row = _with_split_list(row, self.list_column)
        has_tools = self.prompt is not None and bool(self.prompt.tools)
        answers = [answer_messages(row, name, may_call=has_tools) for name in self.answers]
        are_whole = [messages[0]["role"] != "assistant" for messages in answers]
        if are_whole[0] != are_whole[1]:
            message = f"only one of {listed(self.answers)} is a whole conversation, the other is an answer"
            raise DataError(message, where=row.where, hint="write answers, and the prompt in its own column")
        conversations = self._whole_conversations(row) if are_whole[0] else self._answered_prompts(row, answers)
        chosen, rejected = conversations
        if chosen.messages[:-1] != rejected.messages[:-1]:
            message = f"the conversations in {listed(self.answers)} differ before their last turn"
            raise DataError(message, where=row.where, hint="write pairs that differ only in the last answer")
        if chosen.messages == rejected.messages:
            raise DataError("both answers are the same", where=row.where, hint="remove the row")
        for conversation in conversations:
            if conversation.messages[-1]["role"] != "assistant":
                role = conversation.messages[-1]["role"]
                message = f"a conversation in {listed(self.answers)} ends with a turn of the role {role}, not an answer"
                raise DataError(message, where=row.where, hint="add the answer, or remove the row")
            conversation.refuse_unlearnable(row, "completion")
        return Preference(chosen, rejected)

    def _answered_prompts(self, row: Row, answers: Sequence[Sequence[dict[str, object]]]) -> list[Conversation]:
        if self.prompt is None:
            hint = "add a column named prompt, or write whole conversations as lists of messages"
            raise DataError(f"{listed(self.answers)} are answers without a prompt", where=row.where, hint=hint)
        prompt = self.prompt.read(row)
        if prompt.messages[-1]["role"] not in ("user", "tool"):
            message = f"the prompt ends with a turn of the role {prompt.messages[-1]['role']}"
            raise DataError(message, where=row.where, hint="end the prompt with a user turn")
        return [replace(prompt, messages=(*prompt.messages, *messages)) for messages in answers]

    def _whole_conversations(self, row: Row) -> list[Conversation]:
        """Return the conversations of a row that has whole ones. Raises DataError if its prompt is not part of them."""
        others = [name for name in row.values if name not in self.question_columns]
        conversations = [ConversationColumns(conversation=name).with_names(others).read(row) for name in self.answers]
        contents = {message["content"].strip() for message in conversations[0].messages}
        for message in self.prompt.read(row).messages if self.prompt else ():
            if message["role"] == "user" and message["content"].strip() not in contents:
                text = f"the prompt in {listed(self.question_columns)} is no turn of the conversations"
                hint = f"correct the row, or remove the column: {listed(self.answers)} already contain their prompts"
                raise DataError(text, where=row.where, hint=hint)
        return conversations


def find_preferences(
    head: Sequence[Row],
    text_column: str = AUTO,
    target_column: str = AUTO,
    pair_column: str = "",
    margin_columns: str = "",
) -> PreferenceColumns:
    """Choose the columns of the preferences from the first rows. Raises DataError if there are none.

    `target_column` names the column of the chosen answers and that of the rejected ones, separated by a comma.
    `margin_columns` names the column of the margins, or those of both scores; auto: `margin`, if it exists.
    """
    label, names = file_of(head), columns_of(head)
    refuse_missing(names, label, text=text_column, text_pair=pair_column)
    answers, list_column = _answer_columns(head, target_column, label)
    margin = find_margins(names, margin_columns, label)
    others, prompt = [name for name in names if name not in (*answers, list_column, *margin)], None
    # Columns such as score_chosen describe the answers.
    prompt_names = [name for name in others if name == text_column or not _ABOUT_ANSWERS.search(name)]
    values = [{name: row.values[name] for name in prompt_names if name in row.values} for row in head]
    prompt_rows = [Row(row.where, row_values) for row, row_values in zip(head, values, strict=True)]
    if text_column != AUTO or usual_input(prompt_names).source or usual_columns(CONVERSATION_NAMES, prompt_names):
        prompt = find_conversations(prompt_rows, text_column, AUTO, pair_column, needs_answer=False)
        prompt = prompt.with_names(others)
        # The answers are known, so that they are no late columns of the prompts.
        prompt = replace(prompt, names=prompt.names.union(answers, margin))
    elif not is_structured(head, answers[0]):
        hint = f"columns found: {listed(names)}; set data.text_column to the column of the prompts"
        if any(split_transcript(row.values.get(answers[0])) for row in head):
            hint = "write each conversation as a list of messages, because names of speakers may also occur in texts"
        raise DataError(f"no column holds the prompts of {listed(answers)}", where=label, hint=hint)
    unread = () if prompt else ConversationColumns(conversation=answers[0]).with_names(others).unread
    scores = () if margin else tuple(usual_columns(_SCORES, names))
    return PreferenceColumns(
        answers=answers,
        list_column=list_column,
        prompt=prompt,
        unread=unread,
        margin=margin,
        unused_scores=scores if len(scores) == len(_SCORES) else (),
    )


def find_margins(names: Sequence[str], setting: str, label: str = "") -> tuple[str, ...]:
    """Return the column of the margins, or those of the scores of the chosen and of the rejected answer; () for none.
    `setting` is `data.label_column`."""
    if setting == AUTO:
        return tuple(usual_columns((_MARGIN,), names)[:1])
    columns = tuple(filter(None, map(str.strip, setting.split(","))))
    if unknown_name := next((name for name in columns if name not in names), ""):
        raise missing_column(unknown_name, label, names, key=LABEL_KEY)
    if len(columns) > 2:
        message, hint = f"{LABEL_KEY} names {len(columns)} columns", f"name one of margins, or {','.join(_SCORES)}"
        raise DataError(message, where=label, hint=hint)
    return columns


def _columns_of_answers(head: Sequence[Row]) -> tuple[str, ...]:
    """Return the columns that show that the rows are preferences: two columns of answers, or one of lists [better,
    worse]; () for other rows."""
    names = columns_of(head)
    by_name = {name.strip().lower(): name for name in reversed(names)}
    if columns := preference_columns(by_name):
        return columns
    for name in usual_columns(_LIST_NAMES, names):
        values = [row.values.get(name) for row in head]
        if usual_input(names).source and all(_is_pair(value) for value in values):
            return (name,)
    return ()


def _answer_columns(head: Sequence[Row], target_column: str, label: str) -> tuple[tuple[str, str], str]:
    """Return the columns of the answers and, if these are in lists, the column of the lists."""
    names = columns_of(head)
    if target_column == AUTO:
        found_columns = _columns_of_answers(head)
        if not found_columns:
            hint = f"columns found: {listed(names)}; set {_TARGET_KEY} to both columns, such as good,bad"
            raise DataError("no columns hold a chosen and a rejected answer", where=label, hint=hint)
    else:
        found_columns = tuple(name.strip() for name in target_column.split(","))
        if unknown_name := next((name for name in found_columns if name not in names), ""):
            raise missing_column(unknown_name, label, names, key=_TARGET_KEY)
    if len(found_columns) == 1:
        return _SPLIT_COLUMNS, found_columns[0]
    if len(found_columns) != 2:
        message = f"{_TARGET_KEY} names {len(found_columns)} columns"
        raise DataError(message, where=label, hint="name the chosen and the rejected one, such as good,bad")
    return (found_columns[0], found_columns[1]), ""


def _is_pair(value: object) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(isinstance(answer, str) for answer in value)


def _with_split_list(row: Row, column: str) -> Row:
    """Return the row with a column for each answer of its list [better, worse]. Raises DataError for another value."""
    value = row.values.get(column)
    if not isinstance(value, list) or not _is_pair(value):
        message = f"the column '{one_line(column, 40)}' is not a list of two answers, the better one first"
        raise DataError(message, where=row.where, hint='write ["the better answer", "the worse answer"]')
    others = {name: other for name, other in row.values.items() if name != column}
    return Row(row.where, {**others, **dict(zip(_SPLIT_COLUMNS, value, strict=True))})
