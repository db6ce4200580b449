"""Conversation rows in every form become the same messages; other rows are reported in one sentence."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from tui_trainer.data.columns.conversations import find_conversations
from tui_trainer.data.columns.row import Row
from tui_trainer.errors import DataError

WHERE = "train.jsonl, line 3"
QUESTION, ANSWER = {"role": "user", "content": "Why?"}, {"role": "assistant", "content": "Because \U0001f600."}
CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}


def row(**values) -> Row:
    return Row(WHERE, values)


def read_conversation(values: dict, **columns):
    return find_conversations([row(**values)], **columns).read(row(**values))


FORMS = [
    ({"messages": [QUESTION, ANSWER]}, {}),
    ({"messages": json.dumps([QUESTION, ANSWER])}, {}),
    ({"messages": json.dumps([QUESTION, ANSWER], indent=2)}, {}),
    ({"prompt": json.dumps([QUESTION]), "completion": json.dumps([ANSWER])}, {}),
    ({"messages": [{**QUESTION, "name": None}, {**ANSWER, "tool_calls": None}], "source": "x"}, {}),
    ({"messages": [{"role": "user", "content": [{"type": "text", "text": "Why?"}]}, ANSWER]}, {}),
    ({"id": 7, "conversations": [{"from": "human", "value": "Why?"},
                                 {"from": "gpt", "value": ANSWER["content"]}]}, {}),
    ({"instruction": "Why?", "input": "", "output": ANSWER["content"]}, {}),
    ({"instruction": "Why?", "input": None, "output": ANSWER["content"]}, {}),
    ({"prompt": "Why?", "completion": ANSWER["content"]}, {}),
    ({"prompt": [QUESTION], "completion": [ANSWER]}, {}),
    ({"question": "Why?", "answer": ANSWER["content"]}, {}),
    ({"question": "Why?", "answers": {"text": [ANSWER["content"], "So."], "answer_start": [1]}}, {}),
    ({"Q": "Why?", "A": ANSWER["content"]}, {"text_column": "Q", "target_column": "A"}),
    ({"conversation": [QUESTION, ANSWER]}, {"text_column": "conversation"}),
    ({"messages": [QUESTION, ANSWER], "answer": "4"}, {"text_column": "messages"}),
    ({"prompt": [QUESTION], "completion": ANSWER["content"]}, {"text_column": "prompt"}),
]  # fmt: skip


def test_every_form_gives_the_same_messages(subtests):
    for values, columns in FORMS:
        with subtests.test(values=values):
            assert read_conversation(values, **columns).messages == (QUESTION, ANSWER)


WITH_CONTEXT = [
    ({"instruction": "Sum up.", "input": "A text.", "output": "T."}, "Sum up.\n\nA text."),
    ({"instruction": "Sum up.", "context": "A text.", "response": "T."}, "Sum up.\n\nA text."),
    ({"context": "A text.", "question": "What?", "answer": "T."}, "A text.\n\nWhat?"),
]


def test_input_and_context_become_part_of_the_question(subtests):
    for values, asked in WITH_CONTEXT:
        with subtests.test(values=values):
            assert [message["content"] for message in read_conversation(values).messages] == [asked, "T."]
    # JSON lists of other things are plain text.
    asked, answered = '[{"name": "Ada"}] Who?', '[{"name": "Ada", "role": "author"}]'
    messages = read_conversation({"prompt": asked, "completion": answered}).messages
    assert [message["content"] for message in messages] == [asked, answered]


def test_system_and_tools_columns_are_kept():
    tools = [{"type": "function", "function": {"name": "add"}}]
    for given in (tools, json.dumps(tools)):
        conversation = read_conversation({"prompt": "1 + 1?", "completion": "2", "system": "Be brief.", "tools": given})
        assert conversation.messages[0] == {"role": "system", "content": "Be brief."}
        assert conversation.tools == tuple(tools)


CALL_FORMS = [
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "assistant", "tool_calls": [{"function": {"name": "add", "arguments": '{"a": 1}'}}]},
    {"role": "assistant", "content": "", "function_call": {"name": "add", "arguments": '{"a": 1}'}},
    {"from": "function_call", "value": '{"name": "add", "arguments": {"a": 1}}'},
]


def test_a_tool_call_becomes_an_object_in_every_spelling(subtests):
    for turn in CALL_FORMS:
        with subtests.test(turn=turn):
            conversation = read_conversation(
                {"messages": [QUESTION, turn, {"from": "observation", "value": "2"}, ANSWER]}
            )
            assert conversation.messages[1] == {"role": "assistant", "content": "", "tool_calls": [CALL]}
            assert conversation.messages[2] == {"role": "tool", "content": "2"}
    # Text that is not a call stays text.
    turn = {"from": "function_call", "value": "add(1)"}
    assert read_conversation({"conversations": [turn]}).messages == ({"role": "assistant", "content": "add(1)"},)
    # A timestamp beside a message is accepted.
    turn = {**ANSWER, "timestamp": datetime(2024, 1, 1, tzinfo=UTC)}
    assert "2024-01-01" in read_conversation({"messages": [QUESTION, turn]}).text


NOT_CONVERSATIONS = [
    ({"messages": None}, ("the conversation is null, not a list",)),
    ({"messages": []}, ("no messages",)),
    ({"messages": ["Why?", 5]}, ("message 1 is a string", "a role and a content")),
    ({"messages": [QUESTION, {"role": "assistant", "content": None}]}, ("the content of message 2 is null",)),
    ({"messages": [QUESTION, {"role": "assistant", "content": 5}]}, ("the content of message 2 is a number",)),
    ({"messages": [{"role": "User:", "content": "a"}]}, ("the role 'User:' of message 1", "known roles: system,")),
    ({"messages": [{"content": "a"}]}, ("message 1 has no role", "add one of the roles system,")),
    (
        {"messages": [{"role": "user", "content": [{"type": "image", "url": "x"}]}]},
        ("not text (image)", "images are not supported"),
    ),
    ({"messages": [{"role": "assistant", "content": "", "tool_calls": [{"id": 1}]}]}, ("has no function name",)),
    ({"messages": [{"role": "user", "content": "\ud800"}]}, ("surrogate",)),
    ({"messages": "[broken"}, ("is not valid JSON",)),
    ({"messages": [QUESTION, ANSWER], "tools": "{"}, ("'tools'", "is not valid JSON")),
    ({"messages": [QUESTION, ANSWER], "tools": {"a": 1}}, ("'tools' is an object",)),
    ({"text": "Why?"}, ("the row has no column 'messages'", "columns found: text")),
]


def test_a_row_that_is_not_a_conversation_is_reported_with_its_place(subtests):
    for values, words in NOT_CONVERSATIONS:
        with subtests.test(values=values):
            columns = find_conversations([row(messages=[QUESTION, ANSWER])])
            with pytest.raises(DataError) as error:
                columns.read(row(**values))
            for word in (WHERE, *words):
                assert word in str(error.value)
    # A null or empty answer is refused.
    columns = find_conversations([row(prompt="a", completion="b")])
    with pytest.raises(DataError, match="line 3: the column 'completion' is null, not a string"):
        columns.read(row(prompt="a", completion=None))
    with pytest.raises(DataError, match="line 3: the column 'completion' is empty"):
        columns.read(row(prompt="a", completion=" "))


def test_wrong_columns_are_reported():
    with pytest.raises(DataError, match=r"train.jsonl: there is no column 'mesages'; did you mean 'messages'\?"):
        find_conversations([row(messages=[QUESTION, ANSWER])], text_column="mesages")
    with pytest.raises(DataError, match=r"no column 'anwser'; did you mean 'answer'\?.*data.target_column"):
        find_conversations([row(question="a", answer="b")], target_column="anwser")
    # Plain text is refused with the task that reads it.
    with pytest.raises(DataError, match=r'no column holds conversations; columns found: id, text; .*"causal_lm"'):
        find_conversations([row(id=1, text="Once upon a time.")])


def test_the_note_lists_the_columns_that_are_not_read():
    assert (
        "(not read: id, score)"
        in find_conversations([row(id=1, messages=[QUESTION], score=2, system="s", tools=None)]).note()
    )
