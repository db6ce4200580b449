"""Awkward rows of each task that reads a table, as `preview` shows them: exactly the marked tokens carry loss."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.previews import scratch, table
from tui_trainer.cli import main

LIMIT, LONG = 96, 120
MARK, END = "<|im_start|>", "<|im_end|>"
CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}


def said(*turns: str, **more: Any) -> dict[str, Any]:
    """Return a conversation in which user and assistant take turns."""
    return {
        "messages": [{"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(turns)],
        **more,
    }


TALKS = [
    said("Hi", "Hello."),
    said("Long?", "word " * LONG),
    said("漢 😀?", "é 👋🏽!"),
    said("One?", "1", "Two?", "2"),
    {"messages": [
        {"role": "user", "content": "?"}, {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "content": "2"}, {"role": "assistant", "content": "Two."},
    ]},
]  # fmt: skip
TEXTS = [
    {"text": "plain", "label": "joy"},
    {"text": "word " * LONG, "label": "anger"},
    {"text": "a", "label": "joy"},
    {"text": "漢 😀 é", "label": "anger"},
    {"text": "line\none\ttab ", "label": "joy"},
    {"text": "<eos> [SEP] [CLS]", "label": "anger"},
]
WORDS = [
    {"tokens": ["Ada", "sleeps"], "ner_tags": ["B-PER", "O"]},
    {"tokens": ["word"] * LONG, "ner_tags": ["O"] * LONG},
    {"tokens": ["Rio", "de", "Janeiro"], "ner_tags": ["B-LOC", "I-LOC", "I-LOC"]},
    {"tokens": ["漢", "😀", "é"], "ner_tags": ["B-LOC", "O", "O"]},
    {"tokens": ["antidisestablishmentarianism"], "ner_tags": ["B-PER"]},
    {"tokens": ["<eos>", "[SEP]"], "ner_tags": ["O", "B-PER"]},
]
PAIRS = [
    {"input": "one", "output": "1"},
    {"input": "word " * LONG, "output": "long"},
    {"input": "short", "output": "word " * LONG},
    {"input": "漢 😀", "output": "é 👋🏽"},
    {"input": "line\nbreak", "output": "two\nlines"},
    {"input": "<eos>", "output": "<pad> </s>"},
]


def documents(task: str, rows: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """Return the documents of `preview --json` in the order of the rows."""
    limits = (f"data.max_length={LIMIT}", "task.max_target_length=16", "training.effective_batch_size=6")
    assert main([*scratch(task, table("rows.jsonl", rows), *limits), "-n", "50", "--json"]) == 0
    found = [one for sample in json.loads(capsys.readouterr().out)["samples"] for one in sample["documents"]]
    return sorted(found, key=lambda one: one["number"])


def marked(document: dict[str, Any]) -> str:
    """Return a row with trained tokens in brackets, tags behind their tokens, and an answer behind an arrow."""
    text = "".join(map(_marked, document["pieces"])).replace("][", "")
    answer = "".join(map(_marked, document["answer"])).replace("][", "")
    more = f" -> {answer}" if answer else f" -> [{document['label']}]" if document["label"] else ""
    return text + more + (" (cut)" if document["cut"] else "")


def _marked(piece: dict[str, Any]) -> str:
    return f"[{piece['text']}]" + (f"/{piece['tag']}" if piece["tag"] else "") if piece["trained"] else piece["text"]


def words(count: int) -> str:
    return " ".join(["word"] * count)


def conversation(question: str, answer: str) -> str:
    return f"{MARK}user\n{question}{END}\n{MARK}assistant\n{answer}"


def test_assistant_turns_carry_loss(capsys):
    assert [marked(one) for one in documents("chat", TALKS, capsys)] == [
        conversation("Hi", f"[Hello.{END}]"),
        conversation("Long?", f"[{words(LIMIT - 11)}] (cut)"),
        conversation("漢 😀?", f"[é 👋🏽!{END}]"),
        conversation("One?", f"[1{END}]\n") + conversation("Two?", f"[2{END}]"),
        conversation("?", f'[<tool_call>\n{{"name": "add", "arguments": {{"a": 1}}}}\n</tool_call>{END}]\n')
        + conversation("<tool_response>\n2\n</tool_response>", f"[Two.{END}]"),
    ]


def test_labels_of_texts_carry_loss(capsys):
    assert [marked(one) for one in documents("sequence_classification", TEXTS, capsys)] == [
        "<cls>plain<sep> -> [joy]",
        f"<cls>{words(LIMIT - 2)}<sep> -> [anger] (cut)",
        "<cls>a<sep> -> [joy]",
        "<cls>漢 😀 é<sep> -> [anger]",
        "<cls>line\none\ttab <sep> -> [joy]",
        "<cls><eos> [SEP] [CLS]<sep> -> [anger]",
    ]


def test_first_pieces_of_words_carry_loss(capsys):
    assert [marked(one) for one in documents("token_classification", WORDS, capsys)] == [
        "<cls>[ Ad]/B-PERa[ ]/Osleeps<sep>",
        f"<cls>{'[ word]/O' * (LIMIT - 2)}<sep> (cut)",
        "<cls>[ Ri]/B-LOCo[ ]/I-LOCde[ Jan]/I-LOCeiro<sep>",
        "<cls>[ ]/B-LOC漢[ ]/O😀[ ]/Oé<sep>",
        "<cls>[ an]/B-PERtidisestablishmentarianism<sep>",
        "<cls>[ <]/Oeos>[ []/B-PERSEP]<sep>",
    ]


def test_outputs_carry_loss(capsys):
    assert [marked(one) for one in documents("seq2seq", PAIRS, capsys)] == [
        "one<eos> -> [1<eos>]",
        f"{words(LIMIT - 1)}<eos> -> [long<eos>] (cut)",
        f"short<eos> -> [{words(15)}<eos>]",
        "漢 😀<eos> -> [é 👋🏽<eos>]",
        "line\nbreak<eos> -> [two\nlines<eos>]",
        "<eos><eos> -> [<pad> </s><eos>]",
    ]
