"""Rows of every form become the same messages; what is no conversation is told in one sentence."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from tui_trainer.data.columns.conversations import find_conversations
from tui_trainer.data.columns.row import Row
from tui_trainer.errors import DataError

WHERE = "train.jsonl, line 3"
ASKED, ANSWERED = {"role": "user", "content": "Why?"}, {"role": "assistant", "content": "Because \U0001f600."}
CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}


def row(**values) -> Row:
    return Row(WHERE, values)


def talk_of(values: dict, **columns):
    return find_conversations([row(**values)], **columns).read(row(**values))


@pytest.mark.parametrize(
    ("values", "columns"),
    [
        ({"messages": [ASKED, ANSWERED]}, {}),
        ({"messages": json.dumps([ASKED, ANSWERED])}, {}),
        ({"messages": json.dumps([ASKED, ANSWERED], indent=2)}, {}),
        ({"prompt": json.dumps([ASKED]), "completion": json.dumps([ANSWERED])}, {}),
        ({"messages": [{**ASKED, "name": None}, {**ANSWERED, "tool_calls": None}], "source": "x"}, {}),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "Why?"}]}, ANSWERED]}, {}),
        ({"id": 7, "conversations": [{"from": "human", "value": "Why?"},
                                     {"from": "gpt", "value": ANSWERED["content"]}]}, {}),
        ({"instruction": "Why?", "input": "", "output": ANSWERED["content"]}, {}),
        ({"instruction": "Why?", "input": None, "output": ANSWERED["content"]}, {}),
        ({"prompt": "Why?", "completion": ANSWERED["content"]}, {}),
        ({"prompt": [ASKED], "completion": [ANSWERED]}, {}),
        ({"question": "Why?", "answer": ANSWERED["content"]}, {}),
        ({"question": "Why?", "answers": {"text": [ANSWERED["content"], "So."], "answer_start": [1]}}, {}),
        ({"Q": "Why?", "A": ANSWERED["content"]}, {"text_column": "Q", "target_column": "A"}),
        ({"conversation": [ASKED, ANSWERED]}, {"text_column": "conversation"}),
        ({"messages": [ASKED, ANSWERED], "answer": "4"}, {"text_column": "messages"}),
        ({"prompt": [ASKED], "completion": ANSWERED["content"]}, {"text_column": "prompt"}),
    ],
)  # fmt: skip
def test_every_form_gives_the_same_talk(values, columns):
    assert talk_of(values, **columns).messages == (ASKED, ANSWERED)


@pytest.mark.parametrize(
    ("values", "asked"),
    [
        ({"instruction": "Sum up.", "input": "A text.", "output": "T."}, "Sum up.\n\nA text."),
        ({"instruction": "Sum up.", "context": "A text.", "response": "T."}, "Sum up.\n\nA text."),
        ({"context": "A text.", "question": "What?", "answer": "T."}, "A text.\n\nWhat?"),
    ],
)
def test_input_and_context_belong_to_the_question(values, asked):
    assert [message["content"] for message in talk_of(values).messages] == [asked, "T."]


def test_a_question_and_an_answer_that_are_json_lists_of_other_things_are_text():
    asked, answered = '[{"name": "Ada"}] Who?', '[{"name": "Ada", "role": "author"}]'
    messages = talk_of({"prompt": asked, "completion": answered}).messages
    assert [message["content"] for message in messages] == [asked, answered]


def test_system_and_tools_columns_are_kept():
    tools = [{"type": "function", "function": {"name": "add"}}]
    for given in (tools, json.dumps(tools)):
        conversation = talk_of({"prompt": "1 + 1?", "completion": "2", "system": "Be brief.", "tools": given})
        assert conversation.messages[0] == {"role": "system", "content": "Be brief."}
        assert conversation.tools == tuple(tools)


@pytest.mark.parametrize(
    "turn",
    [
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "assistant", "tool_calls": [{"function": {"name": "add", "arguments": '{"a": 1}'}}]},
        {"role": "assistant", "content": "", "function_call": {"name": "add", "arguments": '{"a": 1}'}},
        {"from": "function_call", "value": '{"name": "add", "arguments": {"a": 1}}'},
    ],
)
def test_a_call_is_an_object_however_it_is_written(turn):
    conversation = talk_of({"messages": [ASKED, turn, {"from": "observation", "value": "2"}, ANSWERED]})
    assert conversation.messages[1] == {"role": "assistant", "content": "", "tool_calls": [CALL]}
    assert conversation.messages[2] == {"role": "tool", "content": "2"}


def test_a_time_beside_a_message_is_no_mistake():
    turn = {**ANSWERED, "timestamp": datetime(2024, 1, 1, tzinfo=UTC)}
    assert "2024-01-01" in talk_of({"messages": [ASKED, turn]}).text


def test_text_that_is_no_call_stays_the_text_of_its_turn():
    turn = {"from": "function_call", "value": "add(1)"}
    assert talk_of({"conversations": [turn]}).messages == ({"role": "assistant", "content": "add(1)"},)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"messages": None}, ("the conversation is null, not a list",)),
        ({"messages": []}, ("no messages",)),
        ({"messages": ["Why?"]}, ("message 1 is a string", "a role and a content")),
        ({"messages": [ASKED, {"role": "assistant", "content": None}]}, ("the content of message 2 is null",)),
        ({"messages": [ASKED, {"role": "assistant", "content": 5}]}, ("the content of message 2 is a number",)),
        ({"messages": [{"role": "User:", "content": "a"}]}, ("the role of message 1 is 'User:'", "roles are system,")),
        ({"messages": [{"content": "a"}]}, ("the role of message 1 is none",)),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "url": "x"}]}]},
            ("no text (image)", "images are not trained on yet"),
        ),
        ({"messages": [{"role": "assistant", "content": "", "tool_calls": [{"id": 1}]}]}, ("names no function",)),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, ("surrogate",)),
        ({"messages": "[broken"}, ("no JSON",)),
        ({"messages": [ASKED, ANSWERED], "tools": "{"}, ("'tools'", "no JSON")),
        ({"messages": [ASKED, ANSWERED], "tools": {"a": 1}}, ("'tools' is an object",)),
        ({"text": "Why?"}, ("the row has no column 'messages'", "columns found: text")),
    ],
)
def test_a_row_that_is_no_talk_is_told_with_its_place(values, words):
    columns = find_conversations([row(messages=[ASKED, ANSWERED])])
    with pytest.raises(DataError) as told:
        columns.read(row(**values))
    for word in (WHERE, *words):
        assert word in str(told.value)


def test_a_null_answer_is_no_answer():
    columns = find_conversations([row(prompt="a", completion="b")])
    with pytest.raises(DataError, match="line 3: the column 'completion' is null, not a string"):
        columns.read(row(prompt="a", completion=None))
    with pytest.raises(DataError, match="line 3: the column 'completion' is empty"):
        columns.read(row(prompt="a", completion=" "))


def test_a_wrong_column_is_told_with_the_nearest_one():
    with pytest.raises(DataError, match=r"train.jsonl: there is no column 'mesages'; did you mean 'messages'\?"):
        find_conversations([row(messages=[ASKED, ANSWERED])], text_column="mesages")
    with pytest.raises(DataError, match=r"no column 'anwser'; did you mean 'answer'\?.*data.target_column"):
        find_conversations([row(question="a", answer="b")], target_column="anwser")


def test_plain_text_is_sent_to_the_task_for_it():
    with pytest.raises(DataError, match=r'no column holds conversations; columns found: id, text; .*"causal_lm"'):
        find_conversations([row(id=1, text="Once upon a time.")])


def test_the_note_says_what_is_not_read():
    assert (
        "(not read: id, score)"
        in find_conversations([row(id=1, messages=[ASKED], score=2, system="s", tools=None)]).note()
    )
