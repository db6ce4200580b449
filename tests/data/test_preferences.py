"""Preferences are read from each common form of rows, or refused with the reason."""

from __future__ import annotations

import json

import pytest

from tests.tiny_models import save_tiny_model
from tests.trained_runs import write_rows
from tui_trainer.config.load import Request
from tui_trainer.data.batching.collate import IGNORE
from tui_trainer.data.columns.preferences import find_preferences
from tui_trainer.data.columns.row import Row
from tui_trainer.data.preparing.token_rows import Rows
from tui_trainer.errors import DataError
from tui_trainer.launching.open_run import load_config
from tui_trainer.tasks import find_task


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


def read(values, *settings):
    """Return the columns and the prompt, chosen and rejected texts of one row."""
    row = Row("pairs.jsonl, line 1", values)
    columns = find_preferences([row], *settings)
    preference = columns.read(row)
    prompt = [f"{turn['role']}: {turn['content']}" for turn in preference.chosen.messages[:-1]]
    return columns, prompt, *(side.messages[-1]["content"] for side in (preference.chosen, preference.rejected))


HELLO = ["user: Hello"]
FORMS = {
    "texts": ({"prompt": "Hello", "chosen": "Hi!", "rejected": "No."}, HELLO),
    "messages": ({"prompt": [user("Hello")], "chosen": [assistant("Hi!")], "rejected": [assistant("No.")]}, HELLO),
    "whole conversations": (
        {"chosen": [user("Hello"), assistant("Hi!")], "rejected": [user("Hello"), assistant("No.")]}, HELLO,
    ),
    "whole conversations and their prompt (UltraFeedback)": (
        {
            "prompt": "Hello", "prompt_id": "a1", "chosen": [user("Hello"), assistant("Hi!")],
            "rejected": [user("Hello"), assistant("No.")], "messages": [user("Hello"), assistant("Hi!")],
            "score_chosen": 7.0, "score_rejected": 2.0,
        },
        HELLO,
    ),
    "several turns": (
        {
            "chosen": json.dumps([user("A"), assistant("B"), user("C"), assistant("Hi!")]),
            "rejected": json.dumps([user("A"), assistant("B"), user("C"), assistant("No.")]),
        },
        ["user: A", "assistant: B", "user: C"],
    ),
    "LLaMA-Factory": (
        {
            "conversations": [{"from": "human", "value": "Hello"}], "chosen": {"from": "gpt", "value": "Hi!"},
            "rejected": {"from": "gpt", "value": "No."},
        },
        HELLO,
    ),
    "instruction with input": (
        {"instruction": "Say", "input": "hello", "chosen": "Hi!", "rejected": "No."}, ["user: Say\n\nhello"],
    ),
    "a list of two": ({"instruction": "Hello", "input": "", "output": ["Hi!", "No."]}, HELLO),
    "system and question (Orca)": (
        {"system": "Be kind.", "question": "Hello", "chosen": "Hi!", "rejected": "No."}, ["system: Be kind.", *HELLO],
    ),
    "OpenAI": (
        {
            "input": {"messages": [user("Hello")]}, "preferred_output": [assistant("Hi!")],
            "non_preferred_output": [assistant("No.")],
        },
        HELLO,
    ),
}  # fmt: skip


def test_each_common_form_of_rows_is_read(subtests):
    for name, (values, expected_prompt) in FORMS.items():
        with subtests.test(name):
            _, *conversation = read(values)
            assert conversation == [expected_prompt, "Hi!", "No."]


def test_columns_with_other_names_are_set_in_pairs():
    values = {"ask": "Hello", "good": "Hi!", "bad": "No."}
    columns, *conversation = read(values, "ask", "good, bad")
    assert conversation == [HELLO, "Hi!", "No."]
    assert columns.target_column == "good,bad" and columns.question_columns == ("ask",)
    assert columns.note() == "the chosen answers are in 'good', the rejected ones in 'bad'; the prompts are in 'ask'"


def test_columns_that_are_not_read_are_named():
    columns, *_ = read({"prompt": "Hello", "chosen": "Hi!", "rejected": "No.", "score_chosen": 3})
    assert columns.note().endswith("(not read: score_chosen)")


WHOLE = [user("Hello"), assistant("Hi!")]
REFUSALS = {
    "equal answers": ({"prompt": "Hello", "chosen": "Hi!", "rejected": "Hi!"}, "both answers are the same"),
    "equal conversations": ({"chosen": WHOLE, "rejected": WHOLE}, "both answers are the same"),
    "an empty answer": ({"prompt": "Hello", "chosen": "Hi!", "rejected": "  "}, "'rejected' is empty"),
    "an answer that is null": ({"prompt": "Hello", "chosen": "Hi!", "rejected": None}, "'rejected' is null"),
    "an empty prompt": ({"prompt": " ", "chosen": "Hi!", "rejected": "No."}, "the user turns are empty"),
    "no prompt": ({"chosen": "Hi!", "rejected": "No."}, "no column holds the prompts"),
    "speakers in a text": (
        {"chosen": "\n\nHuman: Hello\n\nAssistant: Hi!", "rejected": "\n\nHuman: Hello\n\nAssistant: No."},
        "no column holds the prompts of chosen, rejected; write each conversation as a list of messages",
    ),
    "conversations that part too early": (
        {"chosen": [user("A"), assistant("B"), user("C"), assistant("D")],
         "rejected": [user("A"), assistant("X"), user("C"), assistant("E")]},
        "differ before their last turn",
    ),
    "conversations of different lengths": (
        {"chosen": [user("A"), assistant("B")], "rejected": [user("A"), assistant("B"), user("C"), assistant("D")]},
        "differ before their last turn",
    ),
    "a conversation beside an answer": (
        {"prompt": "Hello", "chosen": WHOLE, "rejected": [assistant("No.")]}, "only one of chosen, rejected",
    ),
    "a prompt that ends with an answer": (
        {"prompt": WHOLE, "chosen": "Hi!", "rejected": "No."}, "the prompt ends with a turn of the role assistant",
    ),
    "another prompt than the conversations": (
        {"prompt": "Bye", "chosen": WHOLE, "rejected": [user("Hello"), assistant("No.")]},
        "the prompt in prompt is no turn of the conversations",
    ),
    "no pair": ({"prompt": "Hello", "completion": "Hi!"}, "no columns hold a chosen and a rejected answer"),
    "three answers": ({"instruction": "Hello", "output": ["a", "b", "c"]}, "no columns hold a chosen"),
}  # fmt: skip


def test_rows_that_are_no_preferences_are_refused_with_the_reason(subtests):
    for name, (values, words) in REFUSALS.items():
        with subtests.test(name):
            with pytest.raises(DataError) as refused:
                read(values)
            assert words in str(refused.value)


def test_a_row_of_another_form_than_the_first_is_refused():
    columns = find_preferences([Row("x, line 1", {"instruction": "Hello", "output": ["Hi!", "No."]})])
    with pytest.raises(DataError, match="'output' is not a list of two answers"):
        columns.read(Row("x, line 2", {"instruction": "Hello", "output": "Hi!"}))


PAIR = {"prompt": "Hello", "chosen": "Hi!", "rejected": "No."}
SCORED = {**PAIR, "score_chosen": 7.5, "score_rejected": 2}
MARGINS = {
    "the column margin": ({**PAIR, "margin": 0.5}, "auto", 0.5, "the margin of each pair is 'margin'"),
    "a margin of 0": ({**PAIR, "Margin": 0}, "auto", 0, "the margin of each pair is 'Margin'"),
    "a number in a string": ({**PAIR, "margin": "1,5"}, "auto", 1.5, "the margin of each pair is 'margin'"),
    "another column": ({**PAIR, "gap": 3}, "gap", 3, "the margin of each pair is 'gap'"),
    "scores": (
        SCORED, "score_chosen, score_rejected", 5.5, "the margin of each pair is 'score_chosen' minus 'score_rejected'",
    ),
    "scores that no setting names": (
        SCORED, "auto", 0,
        'no margins are used; to use the differences of the scores, set data.label_column = '
        '"score_chosen,score_rejected"',
    ),
    "margins that shall not be used": ({**PAIR, "margin": 0.5}, "", 0, "no margins are used"),
    "no margins": (PAIR, "auto", 0, "no margins are used"),
}  # fmt: skip


def test_margins_are_read_from_a_column_or_are_the_difference_of_scores(subtests):
    for name, (values, setting, margin, note) in MARGINS.items():
        with subtests.test(name):
            row = Row("pairs.jsonl, line 1", values)
            columns = find_preferences([row], margin_columns=setting)
            assert columns.margin_of(row) == margin and columns.margin_note() == note
            assert columns.read(row).chosen.messages[-1]["content"] == "Hi!"
            assert not any(column in columns.note() for column in columns.margin), "they are read"


BAD_MARGINS = {
    "a worse answer": ({"margin": -0.5}, "auto", "the margin is -0.5, although the chosen answer should be the better"),
    "scores in the wrong order": (
        {"score_chosen": 2, "score_rejected": 7}, "score_chosen,score_rejected",
        "the difference of the scores is -5, although",
    ),
    "no margin in this row": ({}, "auto", "the row has no column 'margin'"),
    "a margin that is null": ({"margin": None}, "auto", "'margin' is null, not a number"),
    "a word": ({"margin": "much"}, "auto", "'margin' is 'much', not a number"),
    "a truth value": ({"margin": True}, "auto", "'margin' is a boolean, not a number"),
    "not finite": ({"margin": float("inf")}, "auto", "'margin' is not a finite number"),
    "a column that does not exist": ({}, "gap", "no column 'gap'"),
    "three columns": ({"margin": 1, "b": 1, "c": 1}, "margin,b,c", "data.label_column names 3 columns"),
}  # fmt: skip


def test_a_row_without_a_usable_margin_is_refused_with_the_reason(subtests):
    for name, (values, setting, words) in BAD_MARGINS.items():
        with subtests.test(name):
            head = [Row("pairs.jsonl, line 1", SCORED | {"margin": 1, "b": 1, "c": 1})]
            row = Row("pairs.jsonl, line 2", PAIR | values)
            with pytest.raises(DataError) as refused:
                find_preferences(head, margin_columns=setting).margin_of(row)
            assert words in str(refused.value)


@pytest.fixture
def prepare(tmp_path):
    """`prepare(rows)`: the prepared data of these rows, in rows of 48 tokens."""
    model = save_tiny_model(tmp_path / "llama", "llama")

    def make(rows):
        path = write_rows(tmp_path / "pairs.jsonl", rows)
        settings = {"task.type": "preference", "task.chat_template": "chatml", "data.max_length": 48}
        assignments = tuple(f"{key}={value}" for key, value in {**settings, "model.model_name_or_path": model}.items())
        loaded = load_config(Request(assignments=assignments, shortcuts={"data.path": str(path)}))
        return find_task("preference").prepare(loaded.config, loaded.data, tmp_path / "prepared", lambda *_: None)

    return make


SHORT = [{"prompt": f"Hello {n}", "chosen": "Hi!", "rejected": "No."} for n in range(20)]


def test_pairs_that_become_equal_when_they_are_cut_are_counted(prepare):
    """Two long pairs differ only in their last word."""
    long = [{"prompt": f"Count {n}", **{x: f"{'one two ' * 12}{x}" for x in ("chosen", "rejected")}} for n in range(2)]
    data = prepare(SHORT + long)
    assert data.counts.train_rows + data.counts.eval_rows == 20 and data.counts.equal_answers == 2
    reason = "because their answers are the same if they are cut to 48 tokens; raise data.max_length"
    assert f"2 pairs are skipped, {reason}" in data.notes and not any("no token" in note for note in data.notes)
    with pytest.raises(DataError, match="the answers of all pairs are the same if they are cut to 48 tokens"):
        prepare(long)


def test_a_long_prompt_loses_its_beginning_in_both_documents_alike(prepare):
    data = prepare([{"prompt": f"{'go on ' * 40}{n}", "chosen": f"Hi {n}!", "rejected": "No, no."} for n in range(20)])
    whole = prepare([{"prompt": "go", "chosen": f"Hi {n}!", "rejected": "No, no."} for n in range(20)])
    assert data.counts.truncated_rows == 20 and data.counts.truncated_answers == 0
    assert data.counts.train_labels == whole.counts.train_labels, "answers stay whole"
    for row in map(Rows(data.train_path).example, range(data.counts.train_rows)):
        chosen, rejected = ([int(x) for x in doc.tokens[doc.labels == IGNORE]] for doc in row.documents)
        assert chosen == rejected and max(map(len, row.documents)) == 48


def test_a_contradictory_row_is_refused_with_both_positions(prepare):
    swapped = {"prompt": "Hello 3", "chosen": "No.", "rejected": "Hi!"}
    with pytest.raises(DataError, match=r"line 21: the row prefers the answer that pairs\.jsonl, line 4 rejects"):
        prepare([*SHORT, swapped])
