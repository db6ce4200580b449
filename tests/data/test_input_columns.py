"""Inputs of a trained model: the same columns as in training, without the answers."""

from __future__ import annotations

import pytest

from tui_trainer.config.sections import DataSection
from tui_trainer.data.columns.conversations import find_conversations, question_of
from tui_trainer.data.columns.row import AUTO, Row
from tui_trainer.errors import DataError
from tui_trainer.tasks.parts.starts_from_model import QuestionInputs, TextInputs, WordInputs

USER, ASSISTANT = {"role": "user", "content": "why?"}, {"role": "assistant", "content": "so"}


def row(**values: object) -> Row:
    return Row("rows.jsonl, line 1", values)


def read(reader, one: Row):
    reader.begin([one])
    return reader.read(one)


INPUTS = [
    ({"question": "who?", "context": "Ada wrote."}, "> question: who? context: Ada wrote."),
    ({"question": "who?", "context": "Ada.", "answers": {"text": ["Ada"]}}, "> question: who? context: Ada."),
    ({"document": "A text.", "summary": "Text."}, "> A text."),
    ({"document": "A text."}, "> A text."),
    ({"translation": {"en": "one"}}, "> one"),
    ({"sentence": "One text", "id": 4}, "> One text"),
]


def test_an_input_needs_no_answer(subtests):
    for values, wanted in INPUTS:
        with subtests.test(values=values):
            assert read(QuestionInputs(DataSection(path="x"), "> "), row(**values)) == wanted


CONVERSATIONS = [
    ({"messages": [USER, ASSISTANT]}, ["why?"]),
    ({"messages": [USER, ASSISTANT, USER]}, ["why?", "so", "why?"]),
    ({"prompt": "why?", "completion": "so"}, ["why?"]),
    ({"instruction": "sort", "input": "b a"}, ["sort\n\nb a"]),
    ({"text": "why?"}, ["why?"]),
    ({"system": "S", "prompt": "why?"}, ["S", "why?"]),
    ({"messages": [USER, {"role": "assistant", "content": ""}]}, ["why?"]),
    ({"messages": [{"type": "human", "content": "why?"}]}, ["why?"]),
    ({"messages": str([USER, ASSISTANT])}, ["why?"]),
    ({"messages": {"role": ["user"], "content": ["why?"]}}, ["why?"]),
    ({"custom_id": "a", "method": "POST", "body": {"model": "m", "messages": [USER]}}, ["why?"]),
    ({"instruction": "why?", "history": [["who?", "me"]]}, ["who?", "me", "why?"]),
    ({"query": "why?", "system_prompt": "S"}, ["S", "why?"]),
    ({"user": "ann", "text": "why?"}, ["why?"]),
    ({"prompt": "why?", "meta": {"messages": [ASSISTANT]}}, ["why?"]),
]


def test_a_conversation_is_asked_up_to_its_last_answer(subtests):
    for values, wanted in CONVERSATIONS:
        with subtests.test(values=values):
            one = row(**values)
            found = find_conversations([one], AUTO, AUTO, "", needs_answer=False).read(one)
            assert [message["content"] for message in question_of(found, one.where)] == wanted


def test_a_conversation_without_a_question_is_refused(subtests):
    for messages in [[ASSISTANT], [{"role": "user", "content": " "}]]:
        with subtests.test(messages=messages):
            one = row(messages=messages)
            found = find_conversations([one], needs_answer=False).read(one)
            with pytest.raises(DataError, match="line 1: the conversation has no user turn"):
                question_of(found, one.where)


WORDS = [
    ({"tokens": ["Ada", "wrote"]}, ["Ada", "wrote"]),
    ({"tokens": ["Ada", "wrote"], "ner_tags": [1, 0]}, ["Ada", "wrote"]),
    ({"text": "Ada\r\nwrote."}, ["Ada", "wrote", "."]),
    ({"text": "Ada wrote.", "entities": [[0, 3, "PER"]]}, ["Ada", "wrote", "."]),
    ({"text": "Ada wrote.", "tags": "B O"}, ["Ada", "wrote."]),
]


def test_words_come_with_their_positions_in_the_text(subtests):
    for values, words in WORDS:
        with subtests.test(values=values):
            text, places = read(WordInputs(DataSection(path="x")), row(**values))
            assert [text[start:end] for start, end in places] == words


def test_labels_are_never_used_as_the_text():
    one = row(body="A text.", label="joy and more of it")
    assert read(TextInputs(DataSection(path="x")), one) == ("A text.",)
    pair = TextInputs(DataSection(path="x", text_pair_column="b"))
    assert read(pair, row(a="One text", b="another one")) == ("One text", "another one")
    assert pair.of_text("one\ttwo") == ("one", "two")
