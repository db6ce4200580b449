"""What a trained model is asked about: the inputs in the rows of a table, whether or not there are answers beside them.

Columns are found as for training; labels and answers are passed over.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from tui_trainer.config.sections import DataSection
from tui_trainer.data.batching.collate import collate_whole
from tui_trainer.data.columns.conversations import ConversationColumns, Message, find_conversations, question_of
from tui_trainer.data.columns.labels import label_column
from tui_trainer.data.columns.pair_columns import PairColumns
from tui_trainer.data.columns.row import AUTO, Row, file_of, missing_column
from tui_trainer.data.columns.tagged_rows import InputWords, find_words, word_places
from tui_trainer.data.columns.text_column import ColumnChoices, strings_of, text_of
from tui_trainer.data.preparing.token_rows import TokenRow
from tui_trainer.errors import DataError
from tui_trainer.models.tokenizing.chat_rendering import ConversationRenderer, Rendered
from tui_trainer.models.writing import pad_token_id, row_padding_id
from tui_trainer.tasks.contract import InputRow


class TextInputs:
    """(text,) of each row, or (text, second text) where the settings name a column for it."""

    def __init__(self, data: DataSection) -> None:
        self._data = data
        self._columns: tuple[str, ...] = ()

    def begin(self, head: Sequence[Row]) -> None:
        label, found = file_of(head), strings_of(head)
        pair = self._data.text_pair_column
        if pair and pair not in found:
            raise missing_column(pair, label, found, key="data.text_pair_column")
        answers = ""
        with suppress(DataError):
            answers = label_column(self._data.label_column, head, label)
        text = ColumnChoices(self._data.text_column).choose(head, without=(answers, pair))
        self._columns = (text, pair) if pair else (text,)

    def read(self, row: Row) -> tuple[str, ...]:
        texts = tuple(text_of(row, column) for column in self._columns)
        if not all(text.strip() for text in texts):
            raise DataError("the text is empty", where=row.where)
        return texts

    def of_text(self, text: str) -> tuple[str, ...]:
        """The texts of a pair are parted by a tab."""
        first, tab, second = text.partition("\t")
        return (first, second) if tab and self._data.text_pair_column else (text,)


class QuestionInputs:
    """The input of each row, as a model that answers texts learnt it, behind `task.source_prefix`."""

    def __init__(self, data: DataSection, prefix: str) -> None:
        self._pair, self._prefix = PairColumns(data.text_column, data.text_pair_column, AUTO), prefix

    def begin(self, head: Sequence[Row]) -> None:
        self._pair.choose_input(head)

    def read(self, row: Row) -> str:
        return self._prefix + self._pair.read_input(row)

    def of_text(self, text: str) -> str:
        return self._prefix + text


class ConversationInputs:
    """Each conversation up to where the assistant is to say something, rendered."""

    def __init__(self, data: DataSection, renderer: ConversationRenderer) -> None:
        self._data, self._renderer, self._columns = data, renderer, ConversationColumns()

    def begin(self, head: Sequence[Row]) -> None:
        data = self._data
        self._columns = find_conversations(head, data.text_column, AUTO, data.text_pair_column, needs_answer=False)

    def read(self, row: Row) -> Rendered:
        conversation = self._columns.read(row)
        messages = question_of(conversation, row.where)
        try:
            return self._renderer.render_prompt(messages, conversation.tools)
        except DataError as error:
            problem = error.problems[0]
            raise DataError(problem.message, where=row.where, hint=problem.hint) from None

    def of_text(self, text: str) -> Rendered:
        return self.of_messages([{"role": "user", "content": text}])

    def of_messages(self, messages: Sequence[Message]) -> Rendered:
        return self._renderer.render_prompt(messages)


class WordInputs:
    """The words of each row and where they stand in its text."""

    def __init__(self, data: DataSection) -> None:
        self._data = data
        self._columns: InputWords | None = None

    def begin(self, head: Sequence[Row]) -> None:
        self._columns = find_words(head, self._data.text_column, self._data.label_column)

    def read(self, row: Row) -> tuple[str, list[tuple[int, int]]]:
        assert self._columns is not None, "`begin` comes first"
        return self._columns.read(row)

    def of_text(self, text: str) -> tuple[str, list[tuple[int, int]]]:
        return text, word_places(text)


def logits_of(model: Any, tokenizer: Any, rows: Sequence[InputRow]) -> Any:
    """float32, [B, C] or [B, T, C], of a model that reads whole rows."""
    import torch

    tokens = [
        TokenRow(np.asarray(row.ids), more={name: np.asarray(values) for name, values in row.more.items()})
        for row in rows
    ]
    batch = collate_whole(tokens, row_padding_id(model, pad_token_id(tokenizer)), np.zeros(0))
    inputs = {"input_ids": batch.input_ids, **batch.more}
    with torch.no_grad():
        return model(**{name: torch.from_numpy(each).to(model.device) for name, each in inputs.items()}).logits.float()
