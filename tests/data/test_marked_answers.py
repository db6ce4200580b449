"""Marked answers are read from each common form of rows, or refused with the reason."""

from __future__ import annotations

import json

import pytest

from tui_trainer.config.load import Request
from tui_trainer.data.columns.conversations import find_conversations
from tui_trainer.data.columns.marked_answers import find_marked_answers
from tui_trainer.data.columns.row import Row, kind_of_rows
from tui_trainer.errors import DataError
from tui_trainer.launching.open_run import load_config
from tui_trainer.tasks.kto import KtoReader

TURNS = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi!"}]
TEXTS = {"prompt": "Hello", "completion": "Hi!"}
FORMS = {
    "TRL": {**TEXTS, "label": False},
    "TRL's messages": {"prompt": TURNS[:1], "completion": TURNS[1:], "label": False},
    "conversations": {"messages": TURNS, "label": False},
    "a conversation in JSON": {"messages": json.dumps(TURNS), "label": False},
    "LLaMA-Factory": {"conversations": [{"from": "human", "value": "Hello"}, {"from": "gpt", "value": "Hi!"}],
                      "kto_tag": False},
    "LLaMA-Factory's Alpaca": {"instruction": "Hello", "input": "", "output": "Hi!", "kto_tag": False},
}  # fmt: skip


def rows_of(*all_values):
    return [Row(f"marked.jsonl, line {number}", values) for number, values in enumerate(all_values, 1)]


def read(values, *settings):
    """Return the mark and the turns of one row."""
    marked = find_marked_answers(rows_of(values), *settings).read(*rows_of(values))
    turns = [f"{turn['role']}: {turn['content']}" for turn in marked.conversation.messages]
    return marked.is_desirable, turns


def test_each_common_form_of_rows_is_read_and_shows_that_answers_are_marked(subtests):
    for name, values in FORMS.items():
        with subtests.test(name):
            assert read(values) == (False, ["user: Hello", "assistant: Hi!"])
            assert kind_of_rows(rows_of(values)).tasks == ("kto",)


OTHER_KINDS = {
    "labels of texts": ({"text": "Hello", "label": False}, None),
    "classes of pairs": ({"question": "Hello", "answer": "Hi!", "label": 0}, ("chat", "seq2seq")),
    "good answers alone": ({**TEXTS, "label": True}, ("chat", "seq2seq")),
    "numbers": ({**TEXTS, "label": 0}, ("chat", "seq2seq")),
}


def test_labels_of_other_kinds_are_no_marks(subtests):
    for name, (values, tasks) in OTHER_KINDS.items():
        with subtests.test(name):
            kind = kind_of_rows(rows_of(values))
            assert tasks == (kind.tasks if kind else None)


def test_numbers_that_may_be_marks_are_asked_about(subtests):
    for marks in ((0, 1), ("1", "0"), (-1, 1), (1.0, 0.0)):
        with subtests.test(str(marks)):
            rows = rows_of(*({**TEXTS, "label": mark} for mark in marks))
            with pytest.raises(DataError, match="which may mark good and bad answers") as refused:
                find_conversations(rows)
            assert 'if it does, set task.type = "kto"' in refused.value.problems[0].hint
            # A column that is set says what is learnt.
            assert find_conversations(rows, "prompt").pair.target == "completion"
            assert find_marked_answers(rows).mark == "label"
    assert find_conversations(rows_of(*({**TEXTS, "label": n} for n in range(3)))).pair.source == "prompt"


def test_marks_are_booleans_or_clear_numbers(subtests):
    for mark, is_desirable in ((True, 1), ("True", 1), ("false", 0), (1, 1), (0, 0), ("1", 1), (0.0, 0), (-1, 0)):
        with subtests.test(str(mark)):
            assert read({**TEXTS, "label": mark})[0] == is_desirable


def test_columns_with_other_names_are_set():
    values = {"ask": "Hello", "said": "Hi!", "liked": True}
    assert read(values, "ask", "said", "", "liked") == (True, ["user: Hello", "assistant: Hi!"])
    note = find_marked_answers(rows_of({**TEXTS, "label": True, "score": 3})).note()
    assert note.endswith("(not read: score); 'label' marks answers as desirable or undesirable")
    # The hint for whole conversations beside their prompts.
    values = {**TEXTS, "completion": TURNS, "label": True}
    assert read(values, "completion") == (True, ["user: Hello", "assistant: Hi!"])


REFUSALS = {
    "another mark": ({**TEXTS, "label": "good"}, "the column 'label' is good, which is no mark"),
    "no mark": ({**TEXTS, "label": None}, "the column 'label' is null, which is no mark"),
    "a score": ({**TEXTS, "label": 0.5}, "the column 'label' is 0.5, which is no mark"),
    "no column of marks": (TEXTS, "no column marks answers as desirable or undesirable"),
    "an empty answer": ({**TEXTS, "completion": " ", "label": True}, "'completion' is empty"),
    "an empty prompt": ({**TEXTS, "prompt": " ", "label": True}, "the user turns are empty"),
    "no answer": ({"messages": TURNS[:1], "label": True}, "no assistant turn"),
    "a question at the end": ({"messages": [*TURNS, *TURNS[:1]], "label": True}, "ends with a turn of the role user"),
    "an answer alone": ({"messages": TURNS[1:], "label": True}, "does not follow a user turn"),
    "the prompt twice": (
        {**TEXTS, "completion": TURNS, "label": True},
        "'completion' holds a whole conversation, not an answer",
    ),
    "two answers": ({"messages": [*TURNS, *TURNS[1:]], "label": True}, "does not follow a user turn"),
}


def test_rows_without_a_marked_answer_are_refused_with_the_reason(subtests):
    for name, (values, words) in REFUSALS.items():
        with subtests.test(name):
            with pytest.raises(DataError) as refused:
                read(values)
            assert words in str(refused.value)


def test_a_number_that_may_mean_neither_is_refused():
    first, second = rows_of({**TEXTS, "label": -1}, {**TEXTS, "label": 0})
    with pytest.raises(DataError, match="line 2: the column 'label' is 0, which is no mark"):
        find_marked_answers([first, second]).read(second)


def other_answers(*prompts_and_answers):
    """Return the other answer that each row gets."""
    values = [{"prompt": prompt, "completion": answer, "label": True} for prompt, answer in prompts_and_answers]
    rows = rows_of(*values)
    reader = reader_of(rows)
    return [reader.read(row).content[1].text.split("assistant\n")[1].partition("<")[0] for row in rows]


def test_each_row_gets_an_answer_to_another_prompt_and_each_answer_is_used(subtests):
    cases = {
        "different prompts": (("p1", "a"), ("p2", "b"), ("p3", "c"), ("p4", "d")),
        "a good and a bad answer to each prompt": (("p1", "a"), ("p1", "b"), ("p2", "c"), ("p2", "d"), ("p3", "e")),
        "more answers to the first prompt": (("p1", "a"), ("p1", "b"), ("p1", "c"), ("p2", "d"), ("p1", "e")),
        "fewer answers to the first prompt": (("p1", "a"), ("p2", "b"), ("p2", "c"), ("p2", "d"), ("p1", "e")),
    }
    expected = {
        "different prompts": "b a b c", "a good and a bad answer to each prompt": "c d a b c",
        "more answers to the first prompt": "d d d a d", "fewer answers to the first prompt": "b a a a b",
    }  # fmt: skip
    for name, rows in cases.items():
        with subtests.test(name):
            assert " ".join(other_answers(*rows)) == expected[name]


def test_rows_with_one_prompt_are_refused():
    with pytest.raises(DataError, match="line 1: no other row has another prompt"):
        other_answers(("p1", "a"), ("p1", "b"))


def reader_of(rows):
    reader = KtoReader(load_config(Request(assignments=("task.type=kto", "model.init=scratch"))).config)
    reader.begin(rows)
    return reader


def test_an_answer_that_an_earlier_row_marks_the_other_way_is_refused():
    values = [{"prompt": f"p{n}", "completion": "a", "label": True} for n in range(2)]
    rows = rows_of(*values, {**values[0], "label": False})
    reader = reader_of(rows)
    for row in rows[:2]:
        reader.read(row)
    with pytest.raises(DataError, match=r"line 3: the answer is undesirable, but desirable in .*, line 1"):
        reader.read(rows[2])


def test_answers_with_a_single_mark_are_refused(subtests):
    rows = rows_of(*({"prompt": f"p{n}", "completion": "a", "label": n < 2} for n in range(4)))
    for is_held_out, words in ((False, "all answers are desirable"), (True, "all held-out answers are undesirable")):
        with subtests.test(words):
            reader = reader_of(rows)
            for row in rows if is_held_out else rows[:2]:
                reader.read(row)
            reader.is_held_out = is_held_out
            for row in rows[2:] if is_held_out else ():
                reader.read(row)
            with pytest.raises(DataError, match=words):
                reader.finish_reading()
