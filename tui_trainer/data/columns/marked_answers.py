"""Answers that are marked as desirable or undesirable, in the rows of a table.

    prompt, completion, label       texts, or lists of messages; TRL
    messages, label                 conversations, whose last turn is marked
    conversations, kto_tag          LLaMA-Factory; also with instruction and output

A mark is true or false, 1 or 0, or 1 or -1. Rows in any other form are refused, with the reason.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tui_trainer.data.columns.conversations import Conversation, ConversationColumns, Message, find_conversations
from tui_trainer.data.columns.labels import LABEL_KEY
from tui_trainer.data.columns.row import (
    AUTO,
    Row,
    columns_of,
    file_of,
    kind_of_value,
    listed,
    missing_column,
    usual_columns,
    value_of,
)
from tui_trainer.data.columns.usual_names import MARK_NAMES
from tui_trainer.errors import DataError
from tui_trainer.terminal.safe_text import one_line

_GOOD, _BAD, _NEGATIVE = ("true", "1", "1.0"), ("false", "0", "0.0"), ("-1", "-1.0")


@dataclass(frozen=True, slots=True)
class MarkedAnswer:
    """A prompt, the messages before the last one of a conversation, and its answer, which is desirable or not."""

    conversation: Conversation
    is_desirable: bool

    @property
    def prompt(self) -> Conversation:
        return replace(self.conversation, messages=self.conversation.messages[:-1])

    @property
    def answer(self) -> Message:
        return self.conversation.messages[-1]


@dataclass(frozen=True, slots=True)
class MarkedAnswerColumns:
    """The columns of a table that hold conversations and the marks of their last answers."""

    conversations: ConversationColumns
    mark: str
    bad_marks: tuple[str, ...] = _BAD
    """The marks of undesirable answers. A table has 0 or -1, because 0 beside -1 may mean neither."""

    def note(self) -> str:
        return f"{self.conversations.note()}; '{one_line(self.mark, 40)}' marks answers as desirable or undesirable"

    def with_columns_of(self, row: Row) -> "MarkedAnswerColumns":
        """Return the columns for a table that also has the columns of this row."""
        return replace(self, conversations=self.conversations.with_columns_of(_without(row, self.mark)))

    def read(self, row: Row) -> MarkedAnswer:
        """Return the marked answer of a row. Raises DataError, with the position of the row, if it has none."""
        is_desirable = self._is_desirable(row)
        row = _without(row, self.mark)
        conversation = self.conversations.read(row)
        conversation.refuse_unlearnable(row, "completion")
        roles = [message["role"] for message in conversation.messages]
        if roles[-1] != "assistant":
            message = f"the conversation ends with a turn of the role {roles[-1]}, not an answer"
            raise DataError(message, where=row.where, hint="add the answer, or remove the row")
        if roles[-2:-1] not in (["user"], ["tool"]):
            hint = "write the prompt and one answer to it"
            raise DataError("the last answer does not follow a user turn", where=row.where, hint=hint)
        return MarkedAnswer(conversation, is_desirable)

    def _is_desirable(self, row: Row) -> bool:
        value = value_of(row, self.mark)
        mark = _mark_in(value)
        if mark in _GOOD or mark in self.bad_marks:
            return mark in _GOOD
        shown_value = one_line(str(value), 20) if isinstance(value, str | int | float) else kind_of_value(value)
        message = f"the column '{one_line(self.mark, 40)}' is {shown_value}, which is no mark"
        raise DataError(message, where=row.where, hint="write true for a desirable answer, and false for another")


def find_marked_answers(
    head: Sequence[Row],
    text_column: str = AUTO,
    target_column: str = AUTO,
    pair_column: str = "",
    mark_column: str = AUTO,
) -> MarkedAnswerColumns:
    """Choose the columns of conversations and marks from the first rows. Raises DataError if there are none."""
    names, label = columns_of(head), file_of(head)
    if mark_column == AUTO:
        mark_column = next(iter(usual_columns(MARK_NAMES, names)), "")
        if not mark_column:
            hint = f"columns found: {listed(names)}; set {LABEL_KEY} to the column of true and false"
            raise DataError("no column marks answers as desirable or undesirable", where=label, hint=hint)
    if mark_column not in names:
        raise missing_column(mark_column, label, names, key=LABEL_KEY)
    rows = [_without(row, mark_column) for row in head]
    conversations = find_conversations(rows, text_column, target_column, pair_column)
    has_negative = any(_mark_in(row.values.get(mark_column)) in _NEGATIVE for row in head)
    return MarkedAnswerColumns(conversations, mark_column, _NEGATIVE if has_negative else _BAD)


def _mark_in(value: object) -> str:
    return str(value).strip().lower() if isinstance(value, str | int | float) else ""


def _without(row: Row, column: str) -> Row:
    return Row(row.where, {name: value for name, value in row.values.items() if name != column})
