"""Data files in the shapes that people have, all made up, each with its right outcome: what is learnt of every row, or
why the file is refused. `test_wild_data.py` tries them all.

A new shape is a new line here, and not a test of its own.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Rows = Sequence[Mapping[str, Any]]
Model = Literal["decoder", "encoder", "text to text", "text to text of T5's kind", "from scratch"]


@dataclass(frozen=True, kw_only=True)
class Wild:
    """One file, and what becomes of it under a model where nobody names a task.

    `content`: rows, or the text or the bytes of the file, or these of each file of a folder. Either `refused` stands in
    the refusal, with `where` it stands; or `task` is what is learnt, `learnt` of each row as
    `test_wild_data.learnt_of` writes it, with all of `reads` in what the model reads, and all of `notes` in what is
    said.
    """

    name: str
    content: Rows | str | bytes | Mapping[str, Rows | str]
    file: str = "rows.jsonl"
    model: Model = "decoder"
    settings: Mapping[str, Any] = field(default_factory=dict)
    refused: tuple[str, ...] = ()
    where: str = ""
    task: str = ""
    learnt: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    whole: tuple[str, ...] = ()
    template: str = ""

    def write(self, folder: Path) -> Path:
        if not isinstance(self.content, Mapping):
            return written(folder / self.file, self.content)
        for name, content in self.content.items():
            written(folder / "files" / name, content)
        return folder / "files"


def written(path: Path, content: Rows | str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif isinstance(content, str):
        path.write_text(content, encoding="utf-8")
    elif path.suffix == ".parquet":
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.Table.from_pylist([dict(row) for row in content]), path)
    elif path.suffix == ".json":
        path.write_text(json.dumps(list(content)), encoding="utf-8")
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in content), encoding="utf-8")
    return path


TURNS = [{"role": "user", "content": "Sheep?"}, {"role": "assistant", "content": "None."}]
OTHER_TURNS = [{"role": "user", "content": "Sheep?"}, {"role": "assistant", "content": "Go."}]
GOAT_TURNS = [{"role": "user", "content": "Goats?"}, {"role": "assistant", "content": "Go."}]

STORY = "There were many sheep on the hill, and one of them sang."
TEXTS = (
    Wild(name="plain text", content="Many sheep.\n", file="sheep.txt", task="causal_lm", learnt=("Many sheep.\n",)),
    Wild(name="one text column", content=[{"text": "A sheep."}] * 2, task="causal_lm", learnt=("A sheep.",) * 2),
    Wild(
        name="text beside numbers and names",
        content=[{"id": "a1", "stars": 5, "notes": STORY, "author": "Ann Lee"}] * 2,
        task="causal_lm", learnt=(STORY,) * 2, notes=("the text is in the column 'notes'", "author, id, stars"),
    ),
    Wild(
        name="text beside lists", content=[{"url": "a.example/1", "story": STORY * 2, "tags": ["sheep", "song"]}] * 2,
        task="causal_lm", learnt=(STORY * 2,) * 2, notes=("(other candidates: tags, url)",),
    ),
    Wild(
        name="writing without blanks", content=[{"id": "a1", "zh": "山上有许多羊其中一只在唱歌人们都停下来听。"}] * 2,
        task="causal_lm", learnt=("山上有许多羊其中一只在唱歌人们都停下来听。",) * 2,
    ),
    Wild(
        name="text beside columns of nulls",
        content=[{"text": "A sheep.", "messages": None, "chosen": None, "rejected": None}] * 2,
        task="causal_lm", learnt=("A sheep.",) * 2,
    ),
    Wild(
        name="conversations in a column that is named", content=[{"id": STORY, "talk_1": TURNS}] * 2,
        settings={"data.text_column": "talk_1"},
        task="chat", learnt=("None.",) * 2, notes=("the column 'talk_1' holds no text",),
    ),
    Wild(
        name="a word and what it means",
        content=[{"english": "a sheep", "translation": "Many sheep sing a song on the hill in the morning."}] * 2,
        refused=('data.text_column = "english" and data.target_column = "translation" to train on answers',),
    ),
    Wild(
        name="text named among two", content=[{"title": "Two words", "notes": "A sheep sang."}] * 2,
        settings={"data.text_column": "notes"},
        task="causal_lm", learnt=("A sheep sang.",) * 2, notes=("(other candidates: title)",),
    ),
    Wild(
        name="text named beside messages", content=[{"messages": TURNS, "plain": "A sheep sang."}] * 2,
        settings={"data.text_column": "plain", "task.type": "causal_lm"},
        task="causal_lm", learnt=("A sheep sang.",) * 2, notes=("(other candidates: messages)",),
    ),
    Wild(
        name="two texts, neither the longer", content=[{"title": "Many sheep", "notes": "One sang."}],
        refused=("several columns could be the text", "set data.text_column to one of title, notes"),
    ),
    Wild(
        name="dialogs of strings beside a title", content=[{"title": STORY, "dialogs": ["Sheep?", "None."]}],
        task="chat", learnt=("None.",), notes=("whose texts alternate between user and assistant",),
    ),
    Wild(
        name="an id beside an unknown list", content=[{"id": "a1", "talk": [["Sheep?", "None."]]}],
        refused=("several columns could be the text", "id, talk"),
    ),
    Wild(
        name="a category beside turns",
        content=[{"category": "small talk about sheep", "turns": [{"who": "me", "says": "Sheep?"}]}],
        refused=("message 1",), where="line 1",
    ),
    Wild(name="an id alone", content=[{"id": "a1", "n": 3}], refused=("no column is clearly the text",)),
    Wild(
        name="a table of numbers", content=[{"n": 3, "m": 4}], refused=("no column holds text", "columns found: n, m")
    ),
    Wild(
        name="messages that causal_lm is asked to learn", content=[{"messages": TURNS, "id": STORY}],
        settings={"task.type": "causal_lm"},
        refused=("the rows are conversations (messages), not texts", 'task.type = "chat"'),
    ),
    Wild(
        name="alpaca that causal_lm is asked to learn", content=[{"instruction": "Count.", "output": STORY}],
        settings={"task.type": "causal_lm"},
        refused=("pairs of input and answer (instruction, output), not texts", 'task.type = "chat"'),
    ),
    Wild(
        name="summaries for a decoder", content=[{"document": STORY, "summary": "Sheep."}],
        task="chat", learnt=("Sheep.",), reads=(STORY,), notes=("the questions are in 'document'",),
    ),
    Wild(
        name="summaries for a decoder, columns named", content=[{"document": STORY, "summary": "Sheep."}] * 2,
        settings={"data.text_column": "document", "data.target_column": "summary"},
        task="chat", learnt=("Sheep.",) * 2, reads=(STORY,), notes=("causal_lm does not use data.target_column",),
    ),
    Wild(
        name="unusual columns named", content=[{"frage": "Sheep?", "antwort": "None.", "nr": 1}] * 2,
        settings={"data.text_column": "frage", "data.target_column": "antwort"},
        task="chat", learnt=("None.",) * 2, reads=("Sheep?",),
    ),
    Wild(
        name="a target that causal_lm does not read", content=[{"frage": "Sheep?", "antwort": "None."}],
        settings={"data.text_column": "frage", "data.target_column": "antwort", "task.type": "causal_lm"},
        refused=("data.target_column", "'antwort'", "the task causal_lm does not use it"),
    ),
    Wild(
        name="a label column named for a decoder",
        content=[{"text": "a sheep", "mood": "good"}, {"text": "a rose", "mood": "bad"}],
        settings={"data.label_column": "mood"},
        task="sequence_classification", learnt=("a sheep -> good", "a rose -> bad"),
    ),
    Wild(
        name="CSV with a text and an index", file="rows.csv", content="nr,quote\n1,A sheep sang.\n2,It sang again.\n",
        task="causal_lm", learnt=("A sheep sang.", "It sang again."),
    ),
    Wild(name="plain text for an encoder", file="a.txt", content=STORY, model="encoder", refused=("need a decoder",)),
    Wild(
        name="conversations for an encoder", content=[{"messages": TURNS}], model="encoder",
        refused=("conversations need a decoder",),
    ),
    Wild(
        name="labelled conversations for an encoder", content=[{"messages": TURNS, "label": "good", "id": STORY}],
        model="encoder",
        refused=("conversations need a decoder",),
    ),
    Wild(
        name="texts without labels for an encoder", content=[{"text": "a sheep"}], model="encoder",
        refused=("no column has a usual name for labels", "columns found: text", "is a masked language model"),
    ),
    Wild(
        name="the words of a tagged table for a decoder", file="rows.csv",
        content="sentence,words,ner_tags\n1,Ann sleeps,B-PER O\n", settings={"task.type": "causal_lm"},
        refused=("words with their tags (words, ner_tags)", 'task.type = "token_classification"'),
    ),
)  # fmt: skip
CONVERSATIONS = (
    Wild(name="messages", content=[{"messages": TURNS}] * 2, task="chat", learnt=("None.",) * 2, reads=("Sheep?",)),
)
PREFERENCES = (
    Wild(
        name="prompt, chosen, rejected", content=[{"prompt": "Sheep?", "chosen": "None.", "rejected": "Many."}],
        task="preference", learnt=("None. | Many.",), reads=("Sheep?",),
    ),
    Wild(
        name="the chosen answers, named", content=[{"prompt": "Sheep?", "chosen": "None.", "rejected": "Many."}] * 2,
        settings={"data.text_column": "prompt", "data.target_column": "chosen"},
        task="chat", learnt=("None.",) * 2, notes=("not read: rejected",),
    ),
    Wild(
        name="chosen and rejected conversations", content=[{"chosen": TURNS, "rejected": OTHER_TURNS, "id": STORY}],
        task="preference", learnt=("None. | Go.",), reads=("Sheep?",), notes=("not read: id",),
    ),
    Wild(
        name="equal conversations", content=[{"chosen": TURNS, "rejected": TURNS}],
        refused=("both answers are the same",),
    ),
    Wild(
        name="chosen and rejected, as texts of dialogues",
        content=[{"chosen": "Human: Sheep?\n\nAssistant: None.", "rejected": "Human: Sheep?\n\nAssistant: Many."}],
        refused=("preferences",),
    ),
    Wild(
        name="conversations with chosen and rejected",
        content=[{"conversations": TURNS[:1], "chosen": TURNS[1], "rejected": OTHER_TURNS[1]}],
        task="preference", learnt=("None. | Go.",), reads=("Sheep?",),
    ),
    Wild(
        name="preferences for text to text", content=[{"prompt": "Sheep?", "chosen": "None.", "rejected": "Many."}],
        model="text to text",
        refused=("preferences",),
    ),
    Wild(
        name="preferences for an encoder",
        content=[{"question": "Sheep?", "response_chosen": "None.", "response_rejected": "Many.", "label": 1}],
        model="encoder",
        refused=("preferences", "response_chosen, response_rejected"),
    ),
    Wild(
        name="marked answers, as messages",
        content=[{"messages": TURNS, "label": True}, {"messages": GOAT_TURNS, "label": False}],
        task="kto", learnt=("None. | Go.", "Go. | None."), reads=("Sheep?",), notes=("'label' marks answers",),
    ),
    Wild(
        name="marked answers, as texts",
        content=[{"prompt": f"{n} sheep?", "completion": "None.", "label": n < 2} for n in range(3)],
        task="kto", learnt=("None. | None.",) * 3, reads=("0 sheep?",), notes=("67 % of the answers are desirable",),
    ),
    Wild(
        name="marked answers with a tag",
        content=[{"instruction": f"{n} sheep?", "output": f"{n}.", "kto_tag": n == 1} for n in range(2)],
        task="kto", learnt=("0. | 1.", "1. | 0."), notes=("'kto_tag' marks answers",),
    ),
    Wild(
        name="a contradiction in marked answers",
        content=[{"messages": TURNS, "label": good} for good in (True, False)], where="rows.jsonl, line 2",
        refused=("the answer is undesirable, but desirable in rows.jsonl, line 1", "remove one of the two rows"),
    ),
    Wild(
        name="marked answers that all are good",
        content=[{"prompt": f"{n} sheep?", "completion": "None.", "kto_tag": True} for n in range(2)],
        refused=("all answers are desirable", 'set task.type = "chat"'),
    ),
    Wild(
        name="marked answers for text to text", model="text to text",
        content=[{"prompt": "Sheep?", "completion": "None.", "label": good} for good in (True, False)],
        refused=("answers marked as good or bad (prompt, completion, label)", 'task.type = "kto"'),
    ),
    Wild(
        name="good answers alone", content=[{"prompt": "Sheep?", "completion": "None.", "label": True}] * 2,
        task="chat", learnt=("None.",) * 2, notes=("not read: label",),
    ),
    Wild(
        name="triplets for embeddings", content=[{"anchor": STORY, "positive": "sheep", "negative": "rose"}],
        refused=("for embeddings", "anchor, positive, negative"),
    ),
    Wild(
        name="questions with choices", content=[{"question": "How many?", "choices": ["one", "two"], "answer": "A"}],
        refused=("questions with choices", "question, choices"),
    ),
    Wild(
        name="SQuAD's own JSON without questions", file="squad.json",
        content=json.dumps({"data": [{"title": "Sheep of the world", "paragraphs": [{"context": STORY, "qas": []}]}]}),
        refused=("contains no text",),
    ),
)  # fmt: skip
MEDIA = (
    Wild(
        name="LLaVA: an image beside a conversation",
        content=[{"image": "a.jpg", "conversations": [{"from": "human", "value": "<image>\nSheep?"}, *TURNS[1:]]}],
        refused=("images with their texts", "image"),
    ),
    Wild(
        name="images of LLaMA-Factory", content=[{"messages": TURNS, "images": ["a.jpg"]}],
        refused=("images with their texts (images)",),
    ),
    Wild(name="captions", content=[{"image": "a.jpg", "text": "A sheep."}], refused=("images with their texts",)),
    Wild(
        name="sounds and what is said", content=[{"audio": {"path": "a.wav"}, "sentence": "A sheep."}],
        refused=("sounds with their texts (audio)",),
    ),
    Wild(name="videos", content=[{"videos": ["a.mp4"], "messages": TURNS}], refused=("videos with their texts",)),
    Wild(
        name="the mark of an image alone",
        content=[{"messages": TURNS}, {"messages": [{"role": "user", "content": "<image>Sheep?"}, TURNS[1]]}],
        refused=("the text contains <image>",), where="line 2",
    ),
    Wild(
        name="an image in a late row", content=[*[{"messages": TURNS}] * 100, {"messages": TURNS, "images": ["a.jpg"]}],
        refused=("the row has images ('images')",), where="line 101",
    ),
    Wild(
        name="a column of images without one",
        content=[{"messages": TURNS, "images": []}, {"messages": TURNS, "images": None}],
        task="chat", learnt=("None.",) * 2, notes=("not read: images",),
    ),
    Wild(
        name="XML with an image", content=[{"prompt": "Write RSS.", "completion": "<image><url>a</url></image>"}] * 2,
        task="chat", learnt=("<image><url>a</url></image>",) * 2,
    ),
    Wild(
        name="labelled images, text named",
        content=[
            {"image": "a.jpg", "text": "a sheep", "label": "x"},
            {"image": "b.jpg", "text": "a rose", "label": "y"},
        ],
        model="encoder", settings={"data.text_column": "text"},
        task="sequence_classification", learnt=("a sheep -> x", "a rose -> y"), notes=("other candidates: image",),
    ),
)  # fmt: skip
LABELS = (
    Wild(
        name="text and label", content=[{"text": "a sheep", "label": "animal"}, {"text": "a rose", "label": "plant"}],
        model="encoder",
        task="sequence_classification", learnt=("a sheep -> animal", "a rose -> plant"),
    ),
)  # fmt: skip
PAIRS = (
    Wild(
        name="document and summary", content=[{"document": "Many sheep.", "summary": "Sheep."}] * 2,
        model="text to text",
        task="seq2seq", learnt=("Many sheep. -> Sheep.",) * 2,
    ),
)  # fmt: skip
TAGS = (
    Wild(
        name="words and tags", content=[{"tokens": ["Ann", "sleeps"], "ner_tags": ["B-PER", "O"]}] * 2, model="encoder",
        task="token_classification", learnt=("Ann/B-PER sleeps/O",) * 2,
    ),
)  # fmt: skip


def labelled(name: str, *labels: Any, column: str = "label", learnt: Sequence[str] = (), **more: Any) -> Wild:
    """Texts "row 1", "row 2", ... with a label each, in JSONL, or in a CSV where `file` says so."""
    rows = [{"text": f"row {number}", column: label} for number, label in enumerate(labels, 1)]
    content: Any = rows
    if more.get("file", "").endswith(".csv"):
        table = io.StringIO()
        csv.writer(table).writerows([["text", column], *([row["text"], row[column]] for row in rows)])
        content = table.getvalue()
    said = tuple(f"row {number} -> {label}" for number, label in enumerate(learnt, 1))
    task = {"task": "sequence_classification", "learnt": said} if learnt else {}
    return Wild(name=name, content=content, model="encoder", **task, **more)


def paired(name: str, *columns: str, labels: Sequence[Any] = ("x", "y"), label: str = "label", **more: Any) -> Wild:
    """Two texts a row with a label."""
    rows = [dict.fromkeys(columns[2:], n) | {columns[0]: f"one {n}", columns[1]: f"two {n}"} for n in (1, 2)]
    content = [{**row, label: value} for row, value in zip(rows, labels, strict=True)]
    told = ("data.text_pair_column is", f"the columns {columns[0]} and {columns[1]} hold pairs of texts")
    task = {"task": "sequence_classification", "learnt": tuple(f"one {n}two {n} -> {labels[n - 1]}" for n in (1, 2))}
    outcome = {} if "refused" in more else {**task, "notes": told}
    return Wild(name=name, content=content, model="encoder", **{**outcome, **more})


def answered(name: str, row: Mapping[str, Any], learnt: str = "", **more: Any) -> Wild:
    """Two rows alike of an input and its answer."""
    task = {"task": "seq2seq", "learnt": (learnt,) * 2} if learnt else {}
    return Wild(name=name, content=[row] * 2, model="text to text", **task, **more)


def wide(name: str, *lines: str, **more: Any) -> Wild:
    task = {"task": "sequence_classification"} if "learnt" in more else {}
    return Wild(name=name, content="\n".join([*lines, ""]), file="rows.csv", model="encoder", **task, **more)


CLASSES, MANY = {"task.type": "sequence_classification"}, {"task.problem_type": "multi_label_classification"}
ONE = {"task.problem_type": "single_label_classification"}
ANSWERS = {"task.type": "seq2seq"}
SENTENCE = "a long answer of many words, number"
LABEL_FORMS = (
    labelled("one-hot lists", [0, 1], [1, 0], learnt=("1", "0"), notes=("0 or 1 for each of 2 classes",)),
    labelled("one-hot lists as single labels", [0, 1], [1, 0], learnt=("1", "0"), settings=ONE),
    labelled("multi-hot lists", [0, 1, 1], [0, 0, 0], learnt=("1, 2", ""),
             notes=("3 classes, named 0 to 2",)),
    labelled("multi-hot floats", [0.0, 1.0], [1.0, 1.0], learnt=("1", "0, 1")),
    labelled("multi-hot of true and false", [True, False], [False, True], learnt=("0", "1")),
    labelled("a multi-hot list that is shorter", [0, 1, 1], [1, 0, 0], [1, 0], refused=("'1' is listed twice",
             "a 0 or 1 for each")),
    labelled("lists of ids", [27], [2, 3], learnt=("27", "2, 3")),
    labelled("lists of the ids 0 and 1 of other lengths", [0, 1], [1], learnt=("0, 1", "1")),
    labelled("lists of probabilities", [0.2, 0.8], [0.9, 0.1], refused=("0.2", "a 0 or 1 for each"), where="line 1"),
    labelled("a list as Python prints it", "['heat', 'light']", "['heat']", "[]", file="rows.csv",
             learnt=("heat, light", "heat", "")),
    labelled("a list of 0 and 1 in a CSV", "[1, 0, 0]", "[0, 1, 0]", file="rows.csv", learnt=("0", "1")),
    labelled("a list as JSON in a CSV", '["heat", "light"]', '["heat"]', file="rows.csv", learnt=("heat, light",
             "heat")),
    labelled("a set as Python prints it", "{'light', 'heat'}", "{'heat'}", file="rows.csv", learnt=("heat, light",
             "heat")),
    labelled("a list as numpy prints it", "['heat' 'light']", "['heat']", file="rows.csv",
             refused=("looks like a list", "as JSON"), where="rows.csv, line 2"),
    labelled("numbers as numpy prints them", "[1 0 0]", "[0 1 0]", file="rows.csv", refused=("looks like a list",)),
    labelled("a list among names", "heat", "['heat', 'light']", file="rows.csv", refused=("earlier labels are",),
             where="line 3", settings=ONE),
    labelled("labels with pipes", "a|b", "a", "b", column="labels", file="rows.csv",
             refused=("may hold several labels per row, such as 'a|b'", "task.problem_type")),
    labelled("labels with pipes, several named", "a|b", "a", "b", file="rows.csv", learnt=("a, b", "a", "b"),
             settings=MANY, notes=("separated by '|'",)),
    labelled("labels with slashes, several named", "a/b", "b/c", "a/c", file="rows.csv",
             learnt=("a, b", "b, c", "a, c"), settings=MANY, notes=("separated by '/'",)),
    labelled("one label a row, several named", "red", "green", "red", file="rows.csv", learnt=("red", "green", "red"),
             settings=MANY, notes=("several labels; labels in a row would be separated by ','",)),
    labelled("labels with semicolons", "a;b", "a", "b", file="rows.csv", refused=("several labels", "split the")),
    labelled("labels with commas", "a, b", "a", "b", column="category", file="rows.csv", refused=("several labels",)),
    labelled("names with commas", "York, England", "Ghent, Belgium", file="rows.csv",
             learnt=("York, England", "Ghent, Belgium")),
    labelled("spaCy's cats", {"A": 1.0, "B": 0.0}, {"A": 0.0, "B": 1.0}, column="cats", learnt=("A", "B")),
    labelled("spaCy's cats, several", {"A": 1, "B": 1}, {"A": 0, "B": 0}, {"A": True, "B": False}, column="cats",
             learnt=("A, B", "", "A")),
    labelled("spaCy's cats with fractions", {"A": 0.7, "B": 0.3}, {"A": 0.0, "B": 1.0}, column="cats",
             refused=("'A' is 0.7", "write 1 for each class"), where="line 1"),
    labelled("cats in Parquet", {"A": 1.0, "B": 0.0}, {"A": 0.0, "B": 1.0}, column="cats", file="rows.parquet",
             learnt=("A", "B")),
    labelled("a label in an object", {"label": "x"}, {"label": "y"}, learnt=("x", "y")),
    labelled("a label with its score", [{"label": "x", "score": 0.9}], [{"label": "y", "score": 0.8}], learnt=("x",
             "y")),
    labelled("labels with their scores", [{"label": "x", "score": 0.9}, {"label": "y", "score": 0.1}],
             [{"label": "y", "score": 1}], refused=("'x' is 0.9",), where="line 1"),
    labelled("answers of annotators", [{"user_id": "u", "value": "x"}], [{"user_id": "v", "value": "y"}],
             refused=("an object, not a name",), settings=CLASSES),
    labelled("doccano's classes", ["x"], ["y"], learnt=("x", "y")),
    labelled("doccano's spans for a classifier", [], [[0, 3, "PER"]], settings=CLASSES,
             refused=("spans of the text", 'task.type = "token_classification"'), where="line 2"),
    labelled("doccano's texts", *([f"{SENTENCE} {n}"] for n in range(5)),
             refused=("a different text in each row", 'task.type = "seq2seq" and data.target_column = "label"')),
    labelled("text and label swapped", *(f"{SENTENCE} {n}" for n in range(3)),
             refused=("a different text in each row", "set data.text_column and data.label_column")),
    labelled("an id a row", *range(1001, 1011), refused=("10 different labels in 10 rows", "data.label_column")),
    labelled("a test split without labels", -1, -1, refused=("1 label: '-1'", "choose another split")),
    labelled("a row without a label among ids", 0, 1, 2, -1, refused=("-1, which stands for a missing label",),
             where="line 4"),
    labelled("classes of signs", -1, 0, 1, learnt=("-1", "0", "1"), notes=("-1 is used as a class",)),
    labelled("a label that is null", "x", "y", None, refused=("the label is missing",), where="line 3"),
    labelled("a label that is not a number", 0.0, 1.0, float("nan"), refused=("the label is missing",), settings=ONE),
    labelled("nan as pandas writes it", "x", "y", "nan", file="rows.csv", refused=("stands for a missing label",),
             where="line 4"),
    labelled("classes with a point in a CSV", "0.0", "1.0", file="rows.csv", learnt=("0", "1")),
    labelled("labels in two cases", "Positive", "positive ", "negative", file="rows.csv",
             learnt=("Positive", "positive", "negative"), notes=("'Positive' and 'positive' are different classes",)),
    *(labelled(f"labels that look alike, {what}", *names, file="rows.csv", learnt=names,
               notes=("are different classes; if they mean the same, use one spelling",))
      for what, names in {
          "composed": ("caf\u00e9", "cafe\u0301", "tea"), "unseen": ("pos", "pos\u200b", "neg"),
          "wide": ("a", "\uff41", "b"),
          "blanks": ("very  good", "very good", "bad"), "numbers": ("01", "0", "1"), "powers": ("1e0", "0", "1"),
      }.items()),
    labelled("labels that do not look alike", "c", "c++", "c#", "1.2.3", "1,2", "12", file="rows.csv",
             settings=ONE, learnt=("c", "c++", "c#", "1.2.3", "1,2", "12")),
    labelled("numbers with a decimal comma", "0,5", "1,25", column="score", file="rows.csv",
             refused=("numbers with a comma, such as '0,5'", 'as numbers, set task.problem_type = "regression"')),
    labelled("a regression with a decimal comma", "0,5", "1,25", column="score", file="rows.csv",
             settings={"task.problem_type": "regression"}, learnt=("0.5", "1.25")),
    labelled("half stars", "4.5", "3", column="stars", file="rows.csv", learnt=("4.5", "3"), notes=("regression",)),
    labelled("stars as words", "4 stars", "5 stars", column="rating", file="rows.csv", learnt=("4 stars", "5 stars")),
    labelled("names beside ids", 0, 1, column="label", learnt=("0", "1")),
    Wild(name="label and label_text", model="encoder", task="sequence_classification",
         content=[{"text": "a", "label": 0, "label_text": "no"}, {"text": "b", "label": 1, "label_text": "yes"}],
         learnt=("a -> 0", "b -> 1"), notes=("other candidates: label_text; set data.label_column to choose",)),
    Wild(name="label and score", model="encoder", task="sequence_classification",
         content=[{"text": "a", "label": "no", "score": 0.9}, {"text": "b", "label": "yes", "score": 0.8}],
         learnt=("a -> no", "b -> yes"), notes=("other candidates: score",)),
    Wild(name="sentiment and category", model="encoder", refused=("several columns could hold the labels",
         "category, sentiment"),
         content=[{"text": "a", "sentiment": "x", "category": "y"}, {"text": "b", "sentiment": "z", "category": "w"}]),
    Wild(name="label and labels", model="encoder", refused=("several columns could hold the labels", "label, labels"),
         content=[{"text": "a", "label": "x", "labels": "y"}, {"text": "b", "label": "z", "labels": "w"}]),
    wide("a column of 0 and 1 a class", "id,comment_text,toxic,threat,insult", "a1,you fool,1,0,1", "b9,nice day,0,0,0",
         learnt=("you fool -> insult, toxic", "nice day -> "),
         notes=("data.label_column is toxic, threat, insult instead of auto",
                "each of the columns toxic, threat, insult is a class")),
    wide("columns of classes as pandas writes them", "Unnamed: 0,text,toxic,threat", "0,you fool,True,0.0",
         "1,nice day,False,1.0", learnt=("you fool -> toxic", "nice day -> threat")),
    wide("columns of classes beside another", "title,text,toxic,threat", "a b,you fool,1,0", "c d,nice day,0,1",
         refused=("toxic, threat, which hold 0 or 1, are classes; other columns: title, text", "by commas")),
    wide("columns of classes that are named", "title,text,toxic,threat,seen", "a b,you fool,1,0,1",
         "c d,nice day,0,1,1", settings={"data.label_column": "toxic, threat", "data.text_column": "text"},
         learnt=("you fool -> toxic", "nice day -> threat"),
         notes=("other candidates: seen; set data.label_column", "candidates: seen, title")),
    wide("columns of classes beside two texts", "premise,hypothesis,toxic,threat", "you fool,no,1,0", "nice day,no,0,1",
         learnt=("you foolno -> toxic", "nice dayno -> threat")),
    wide("columns of classes with one class a row", "text,toxic,threat", "you fool,1,0", "nice day,0,1",
         settings=ONE, learnt=("you fool -> toxic", "nice day -> threat")),
    wide("columns of classes, one misspelt", "text,toxic,threat", "you fool,1,0",
         settings={"data.label_column": "toxic, treat"}, refused=("no column 'treat'; did you mean 'threat'?",)),
    wide("columns of classes with an empty field", "text,toxic,threat", "you fool,1,0", "nice day,1,",
         settings={"data.label_column": "toxic,threat"}, refused=("the class 'threat' has no value instead of 0 or 1",),
         where="rows.csv, line 3"),
    wide("columns of classes without labels in a late row", "text,toxic,threat", *["you fool,1,0"] * 100,
         "nice day,-1,-1", refused=("the class 'toxic' has '-1' instead of 0 or 1",), where="rows.csv, line 102"),
    wide("columns of classes as a regression", "text,toxic,threat", "you fool,1,0", "nice day,1,1",
         settings={"task.problem_type": "regression"}, refused=("the label is a list, not a number",)),
    Wild(name="columns of classes that differ between files", model="encoder",
         content={"a.csv": "text,toxic,threat\nyou fool,1,0\n", "b.csv": "text,toxic,insult\nnice day,0,1\n"},
         refused=("no column 'threat'",), where="b.csv"),
    Wild(name="coarse and fine labels", model="encoder", refused=("set data.label_column",
         "coarse_label, fine_label"),
         content=[{"text": "a", "coarse_label": 0, "fine_label": 3}, {"text": "b", "coarse_label": 1,
         "fine_label": 4}]),
    Wild(name="questions with choices and their key", model="encoder", refused=("questions with choices",),
         content=[{"question": "Where?", "choices": {"label": ["A"], "text": ["bank"]}, "answerKey": "A"}] * 2),
)  # fmt: skip
TEXT_PAIRS = (
    paired("premise and hypothesis", "premise", "hypothesis", "idx", labels=(2, 0)),
    paired("sentence1 and sentence2 with a score", "sentence1", "sentence2", label="score", labels=(5, 0.5)),
    paired("question1 and question2", "question1", "question2", "qid1", label="is_duplicate", labels=(0, 1)),
    paired("sentence_A and sentence_B", "sentence_A", "sentence_B", "pair_ID"),
    paired("query and passage", "query", "passage",
           notes=("the two texts are in the columns 'query' and 'passage' of rows.jsonl",)),
    paired("question and sentence", "question", "sentence"),
    paired("text and text_pair", "text", "text_pair"),
    paired("s1 and s2", "s1", "s2"),
    paired("text1 and text2", "text1", "text2"),
    paired("question and answer with a label", "question", "answer", labels=(0, 1)),
    paired("one text of a pair named", "premise", "hypothesis", settings={"data.text_column": "premise"},
           learnt=("one 1 -> x", "one 2 -> y"), notes=("other candidates: hypothesis",)),
    paired("a pair and its answers", "question", "passage", label="answer", labels=(True, False),
           settings={"data.label_column": "answer", **CLASSES}, learnt=("one 1two 1 -> true", "one 2two 2 -> false")),
    paired("a pair without a label", "sentence1", "sentence2", label="note", refused=("data.label_column",)),
    Wild(name="annotators who did not agree", model="encoder", refused=("the label is '-'",
         "remove the row"), where="line 2",
         content=[{"gold_label": one, "sentence1": "A.", "sentence2": "B.", "annotator_labels": ["x"]}
         for one in ("x", "-", "y")]),
    Wild(name="premise with two choices", model="encoder", refused=("several columns could be the text",
         "choice1, choice2"),
         content=[{"premise": "It rained.", "choice1": "Wet.", "choice2": "Dry.", "label": n} for n in (0, 1)]),
)  # fmt: skip
CONTEXT = "question: Where? context: In Paris."
ANSWERED = (
    answered("question, context and answer", {"question": "Where?", "context": "In Paris.", "answer": "Paris"},
             f"{CONTEXT} -> Paris", settings=ANSWERS),
    answered("Dolly, text to text",
             {"instruction": "Where?", "context": "In Paris.", "response": "Paris", "category": "qa"},
             "instruction: Where? context: In Paris. -> Paris", settings=ANSWERS, notes=("not read: category",)),
    answered("Dolly without a context", {"instruction": "Sing.", "context": "", "response": "La"}, "Sing. -> La"),
    answered("prompt and context", {"prompt": "Where?", "context": "In Paris.", "completion": "Paris"},
             "prompt: Where? context: In Paris. -> Paris"),
    answered("Alpaca with a context", {"instruction": "Where?", "input": "Now", "context": "In Paris.",
         "output": "Paris"},
             "instruction: Where? input: Now context: In Paris. -> Paris"),
    answered("input with a context", {"input": "Where?", "context": "In Paris.", "output": "Paris"},
             "input: Where? context: In Paris. -> Paris"),
    answered("a context and another answer", {"question": "Where?", "context": "In Paris.", "reply": "Paris"},
             f"{CONTEXT} -> Paris", settings={"data.target_column": "reply", **ANSWERS}),
    answered("turns before", {"system": "Be kind.", "history": [["Hi", "Ho"]], "instruction": "Sing.", "output": "La"},
             "Sing. -> La", settings=ANSWERS, notes=("not read: system, history",)),
    answered("SQuAD with several answers", {"question": "Where?", "context": "In Paris.",
             "answers": {"text": ["Paris", "in Paris"], "answer_start": [3, 0]}}, f"{CONTEXT} -> Paris",
             settings=ANSWERS, notes=("2 rows have several answers in 'answers'; the first one of each row is used",)),
    answered("SQuAD as pandas writes it", {"question": "Where?", "context": "In Paris.",
             "answers": "{'text': ['Paris'], 'answer_start': [3]}"}, f"{CONTEXT} -> Paris", settings=ANSWERS),
    answered("SQuAD as numpy prints it", {"question": "Where?",
             "answers": "{'text': array(['Paris'], dtype=object), 'answer_start': array([3])}"}, "Where? -> Paris",
             settings=ANSWERS),
    answered("a question without an answer", {"question": "Where?", "answers": {"text": [], "answer_start": []}},
             refused=("'answers' is empty",), where="line 1", settings=ANSWERS),
    answered("a context in parts", {"question": "Where?", "context": ["One.", "Two."], "answer": "x"},
             refused=("'context' is a list",), settings=ANSWERS),
    answered("several summaries", {"document": "Long.", "summary": ["Short.", "Brief."]}, "Long. -> Short.",
             notes=("the first one of each row is used",)),
    answered("a list that is to be written", {"input": "a b", "output": '["a", "b"]'}, 'a b -> ["a", "b"]'),
    answered("article and highlights", {"article": "Long.", "highlights": "Short.", "id": "1"}, "Long. -> Short."),
    answered("a translation", {"translation": {"de": "ja", "en": "yes"}}, "ja -> yes",
             notes=("the input is 'de' of rows.jsonl; the answer is 'en'",)),
    Wild(name="languages in another order", model="text to text", task="seq2seq", learnt=("ja -> yes", "nein -> no"),
         content=[{"translation": {"de": "ja", "en": "yes"}}, {"translation": {"en": "no", "de": "nein"}}]),
    answered("a translation as pandas writes it", {"translation": "{'de': 'ja', 'en': 'yes'}"}, "ja -> yes",
         settings=ANSWERS),
    answered("three languages", {"translation": {"de": "ja", "en": "yes", "fr": "oui"}},
             refused=("several languages: de, en, fr", "data.target_column")),
    answered("three languages, two named", {"translation": {"de": "ja", "en": "yes", "fr": "oui"}}, "oui -> yes",
             settings={"data.text_column": "fr", "data.target_column": "en"}),
    answered("languages in lists", {"translation": {"language": ["de", "en"], "translation": ["ja", "yes"]}},
             refused=("lists, not texts",)),
    answered("a column a language", {"de": "ja", "en": "yes"}, settings=ANSWERS,
             refused=('data.text_column = "de" and data.target_column = "en"',)),
    answered("a text with its title", {"text": "Many sheep.", "title": "Sheep"}, settings=ANSWERS,
             refused=("no column has a usual name for the answer to 'text'", "data.target_column")),
    answered("a title to learn", {"text": "Many sheep.", "title": "Sheep"}, "Many sheep. -> Sheep",
             settings={"data.target_column": "title", **ANSWERS}),
    answered("answers that are numbers", {"question": "1+1?", "answer": 2}, refused=("'answer' is a number",),
         where="line 1",
             settings=ANSWERS),
)  # fmt: skip


def named_tags(names: Sequence[str], tags: Sequence[Sequence[int]]) -> bytes:
    """Parquet as `datasets` writes it, with the names of the tags beside their numbers."""
    import pyarrow
    import pyarrow.parquet

    feature = {"feature": {"names": list(names), "_type": "ClassLabel"}, "_type": "Sequence"}
    about = {"huggingface": json.dumps({"info": {"features": {"ner_tags": feature}}})}
    table = pyarrow.table({"tokens": [["Ann", "sleeps"]] * len(tags), "ner_tags": [list(one) for one in tags]})
    out = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(table.replace_schema_metadata(about), out)
    return bytes(out.getvalue())


ANN, BO = "Ann/B-PER sleeps/O", "Bo/B-PER eats/O hay/O"
KAGGLE = "Sentence #,Word,POS,Tag\nSentence: 1,Ann,NNP,B-PER\n,sleeps,VBZ,O\nSentence: 2,Bo,NNP,B-PER\n,eats,VBZ,O\n"
KAGGLE += ",hay,NN,O\n"
UNIVERSAL = """# newdoc
# sent_id = 1
# text = Ann doesn't
1\tAnn\tAnn\tPROPN\tNNP\tNumber=Sing\t2\tnsubj\t_\t_
2-3\tdoesn't\t_\t_\t_\t_\t_\t_\t_\t_
2\tdoes\tdo\tAUX\tVBZ\tTense=Pres\t0\troot\t_\t_
3\tn't\tnot\tPART\tRB\t_\t2\tadvmod\t_\t_
3.1\tsleep\tsleep\tVERB\tVB\t_\t_\t_\t2:x\t_

# text = Sheep
1\tSheep\tsheep\tNOUN\tNNS\t_\t0\troot\t_\t_
"""
UNIVERSAL_LEARNT = ("Ann/PROPN does/AUX n't/PART", "Sheep/NOUN")


def tagged(name: str, content: Any, file: str = "rows.jsonl", learnt: Sequence[str] = (ANN, BO), **more: Any) -> Wild:
    task = "token_classification"
    return Wild(name=name, content=content, file=file, model="encoder", task=task, learnt=tuple(learnt), **more)


def not_tagged(name: str, content: Any, file: str, *refused: str, where: str = "", **more: Any) -> Wild:
    more.setdefault("settings", {"task.type": "token_classification"})
    return Wild(name=name, content=content, file=file, model="encoder", refused=refused, where=where, **more)


WORD_ROWS = [
    {"sentence_id": 1, "words": "Ann", "labels": "B-PER"},
    {"sentence_id": 1, "words": "sleeps", "labels": "O"},
    {"sentence_id": 2, "words": "Bo", "labels": "B-PER"},
    {"sentence_id": 2, "words": "eats", "labels": "O"},
    {"sentence_id": 2, "words": "hay", "labels": "O"},
]
SPAN_TEXT = {"text": "Ann sleeps"}
ANN_SPAN = {"start": 0, "end": 3, "label": "PER"}

WORD_TABLES = (
    Wild(
        name="a text and a tag for each of its words",
        content=[{"text": "Ann sleeps", "labels": "B-PER O"}, {"text": "It rains", "labels": "O O"}], model="encoder",
        task="token_classification", learnt=("Ann/B-PER sleeps/O", "It/O rains/O"),
    ),
    Wild(
        name="a word and its class", content=[{"word": "sheep", "label": "animal"}, {"word": "rose", "label": "plant"}],
        model="encoder",
        task="sequence_classification", learnt=("sheep -> animal", "rose -> plant"),
    ),
    tagged("Kaggle's words, with the sentence in its first row", KAGGLE, "ner.csv", notes=("POS", "form one sentence")),
    tagged(
        "Kaggle's words, with the sentence in each row",
        KAGGLE.replace("\n,", "\nSentence: 1,", 1).replace("\n,", "\nSentence: 2,"), "ner.csv",
    ),
    tagged(
        "words of simpletransformers",
        "sentence_id,words,labels\n0,Ann,B-PER\n0,sleeps,O\n1,Bo,B-PER\n1,eats,O\n1,hay,O\n", "train.csv",
    ),
    tagged("words with a sentence in JSON Lines", WORD_ROWS),
    tagged("words with a sentence in Parquet", WORD_ROWS, "rows.parquet"),
    tagged(
        "words with a document and a sentence",
        "doc_id\tsent_id\ttoken\ttag\na\t1\tAnn\tB-PER\na\t1\tsleeps\tO\n"
        "b\t1\tBo\tB-PER\nb\t1\teats\tO\nb\t1\thay\tO\n",
        "rows.tsv",
    ),
    tagged(
        "words with their parts of speech named", KAGGLE, "ner.csv", ("Ann/NNP sleeps/VBZ", "Bo/NNP eats/VBZ hay/NN"),
        settings={"data.label_column": "POS", "task.type": "token_classification"},
    ),
    tagged(
        "whole sentences with a number of their own",
        [
            {"sentence_id": 1, "words": "Ann sleeps", "labels": "B-PER O"},
            {"sentence_id": 2, "words": "Bo eats hay", "labels": "B-PER O O"},
        ],
    ),
    tagged(
        "a header in the middle of words", KAGGLE + "Sentence #,Word,POS,Tag\nSentence: 3,Cy,NNP,B-PER\n,naps,VBZ,O\n",
        "ner.csv", (ANN, BO, "Cy/B-PER naps/O"),
        notes=("line 7 repeats the header",),
    ),
    not_tagged(
        "a sentence that begins again", "sentence_id,words,labels\n1,Ann,B-PER\n1,sleeps,O\n2,Bo,B-PER\n1,eats,O\n",
        "rows.csv", "the sentence '1' already ended in an earlier row", "sort the rows",
        where="rows.csv, line 5",
    ),
    not_tagged(
        "words without a sentence", "word,tag\nAnn,B-PER\nsleeps,O\n", "rows.csv", "each row has one word",
        "sentence_id",
        where="rows.csv",
    ),
    not_tagged(
        "sentences under a number of others", "sentence_id,words,labels\n1,Ann sleeps,B-PER O\n1,Bo eats,B-PER O\n",
        "rows.csv", "but other rows have the same sentence number",
        where="rows.csv, line 2",
    ),
    not_tagged(
        "a first word without a sentence", "Sentence #,Word,Tag\n,Ann,B-PER\n,sleeps,O\n", "rows.csv",
        "the first word has no 'Sentence #'",
        where="rows.csv, line 2",
    ),
    not_tagged(
        "a word without a tag of its own in a sentence", "sentence_id,words,labels\n1,Ann,B-PER\n1,sleeps\n2,Bo,O\n",
        "rows.csv", "the row has 2 fields, but the header has 3",
        where="rows.csv, line 3",
    ),
)  # fmt: skip
CONLL_FILES = (
    tagged("CoNLL-U as .conll", UNIVERSAL, "rows.conll", UNIVERSAL_LEARNT, notes=("CoNLL-U", "UPOS")),
    tagged("CoNLL-U as .conllu", UNIVERSAL, "rows.conllu", UNIVERSAL_LEARNT),
    tagged(
        "CoNLL-U with XPOS named", UNIVERSAL, "rows.conllu", ("Ann/NNP does/VBZ n't/RB", "Sheep/NNS"),
        settings={"data.label_column": "xpos"},
    ),
    tagged(
        "CoNLL-2003",
        "-DOCSTART- -X- -X- O\n\nAnn NNP B-NP B-PER\nsleeps VBZ B-VP O\n\nBo NNP B-NP B-PER\n"
        "eats VBZ B-VP O\nhay NN B-NP O\n",
        "train.conll",
    ),
    tagged("CoNLL-2002", "Ann Np B-PER\nsleeps V O\n\nBo Np B-PER\neats V O\nhay N O\n", "train.conll"),
    tagged(
        "IOB1 with lines of blanks", "Ann\tI-PER\nsleeps\tO\n \t\nBo\tI-PER\neats\tO\nhay\tO\n", "a.iob",
        ("Ann/I-PER sleeps/O", "Bo/I-PER eats/O hay/O"),
        notes=("IOB1",),
    ),
    tagged(
        "tags before words", "B-PER\tAnn\nO\tsleeps\n\nB-PER\tBo\nO\teats\nO\thay\n", "movies.bio",
        notes=("the tag is in the first column",),
    ),
    tagged(
        "numbered words in three columns", "1 Ann B-PER\n2 sleeps O\n\n1 Bo B-PER\n2 eats O\n3 hay O\n", "a.conll",
        notes=("numbers the words",),
    ),
    tagged(
        "names of columns in CoNLL", "token\ttag\nAnn\tB-PER\nsleeps\tO\n\nBo\tB-PER\neats\tO\nhay\tO\n", "a.conll",
        notes=("is a header and is skipped",),
    ),
    not_tagged(
        "CoNLL-2012", "#begin document (a); part 000\na 0 0 Ann NNP * - - - - (PERSON) -\n", "a.conll", "CoNLL-2012"
    ),
    not_tagged(
        "CoNLL-2012 without its first line", "a 0 0 Ann NNP (S* - - - - (PERSON) -\na 0 1 naps VBZ *) - - - - * -\n",
        "a.conll", "column 3 of 12 numbers the words",
    ),
    not_tagged("tags in brackets", "Ann (PERSON*)\nsleeps *\n", "a.conll", "brackets"),
    not_tagged(
        "CoNLL-U without tags of some words", UNIVERSAL.replace("PART", "_"), "a.conllu", "no UPOS",
        where="a.conllu, line 7",
    ),
)  # fmt: skip
TAGGED_ROWS = (
    tagged(
        "doccano with a text that has no entity",
        [{**SPAN_TEXT, "label": [[0, 3, "PER"]]}, {"text": "Bo eats", "label": []}],
        learnt=(ANN, "Bo/O eats/O"),
    ),
    tagged("labels as spans", [{**SPAN_TEXT, "labels": [[0, 3, "PER"]]}] * 2, learnt=(ANN, ANN)),
    tagged("entities as objects", [{**SPAN_TEXT, "entities": [{**ANN_SPAN, "id": 7}]}] * 2, learnt=(ANN, ANN)),
    tagged(
        "Prodigy",
        [
            {
                **SPAN_TEXT,
                "tokens": [{"text": "Ann", "start": 0, "end": 3, "id": 0}],
                "spans": [ANN_SPAN],
                "answer": "accept",
            }
        ]
        * 2,
        learnt=(ANN, ANN),
    ),
    tagged(
        "Label Studio's JSON-MIN",
        [{"id": 1, **SPAN_TEXT, "annotator": 1, "label": [{"start": 0, "end": 3, "text": "Ann", "labels": ["PER"]}]}]
        * 2,
        "export.json", (ANN, ANN),
    ),
    tagged("spaCy's pairs", json.dumps([["Ann sleeps", {"entities": [[0, 3, "PER"]]}]] * 2), "train.json", (ANN, ANN)),
    tagged("spaCy's pairs, one a line", '["Ann sleeps", {"entities": [[0, 3, "PER"]]}]\n' * 2, learnt=(ANN, ANN)),
    tagged(
        "spans printed in a CSV", "text,entities\nAnn sleeps,\"[(0, 3, 'PER')]\"\nAnn sleeps,[]\n", "rows.csv",
        (ANN, "Ann/O sleeps/O"),
    ),
    tagged("tags in a string", [{"text": "Ann sleeps", "tags": "B-PER O"}] * 2, learnt=(ANN, ANN)),
    tagged(
        "words with a mark in a string", [{"words": "Ann sleeps.", "tags": "B-PER O"}] * 2,
        learnt=("Ann/B-PER sleeps./O",) * 2,
    ),
    tagged(
        "lists printed in a CSV", "tokens,ner_tags\n" + "\"['Ann', 'sleeps']\",\"['B-PER', 'O']\"\n" * 2, "rows.csv",
        (ANN, ANN),
    ),
    tagged(
        "numbers of tags with names in Parquet", named_tags(("O", "B-PER"), [[1, 0], [1, 0]]), "rows.parquet",
        (ANN, ANN),
    ),
    tagged(
        "three columns of tags",
        [
            {
                "tokens": ["Ann", "sleeps"],
                "pos_tags": ["NNP", "VBZ"],
                "chunk_tags": ["B-NP", "O"],
                "ner_tags": ["B-PER", "O"],
            }
        ]
        * 2,
        learnt=(ANN, ANN), notes=("other candidates: pos_tags",),
    ),
    tagged(
        "tags beside their numbers",
        [{"tokens": ["Ann", "sleeps"], "ner_tags_ids": [1, 0], "ner_tags": ["B-PER", "O"]}] * 2,
        learnt=(ANN, ANN),
    ),
    not_tagged(
        "a row that Prodigy's annotator rejected",
        [
            {**SPAN_TEXT, "spans": [ANN_SPAN], "answer": "reject"},
            {**SPAN_TEXT, "spans": [ANN_SPAN], "answer": "accept"},
        ],
        "rows.jsonl", "did not accept",
        where="rows.jsonl, line 1",
    ),
    not_tagged(
        "Label Studio's full JSON, annotated twice",
        [{"id": 1, "data": SPAN_TEXT, "annotations": [{"result": []}, {"result": []}]}], "export.json",
        "the row has 1 text and 2 annotations", "JSON-MIN",
    ),
    not_tagged(
        "numbers of tags without names", [{"tokens": ["Ann", "naps"], "ner_tags": [1, 0]}], "rows.jsonl",
        "numbers, which have no names",
    ),
    not_tagged(
        "numbers of tags without names in a CSV", "tokens,ner_tags\nAnn naps,1 0\n", "rows.csv",
        "numbers, which have no names",
    ),
    not_tagged(
        "arrays printed by numpy", "tokens,ner_tags\n" + "['Ann' 'naps'],['B-PER' 'O']\n" * 2, "rows.csv",
        "cannot be read as a list",
        where="rows.csv, line 2",
    ),
    not_tagged(
        "spans that overlap", [{**SPAN_TEXT, "entities": [[0, 3, "PER"], [0, 10, "S"]]}], "rows.jsonl", "overlap"
    ),
    not_tagged(
        "more words than tags", [{"tokens": ["Ann", "naps"], "ner_tags": ["O"]}], "rows.jsonl", "2 words but 1 tag"
    ),
    not_tagged(
        "a word that is empty", [{"tokens": ["Ann", ""], "ner_tags": ["O", "O"]}], "rows.jsonl", "word 2 is empty"
    ),
)  # fmt: skip


def labelled(name: str, content: Any, file: str = "rows.csv", **more: Any) -> Wild:
    learnt = ("good hay -> pos", "bad hay -> neg")
    values: dict[str, Any] = {"model": "encoder", "task": "sequence_classification", "learnt": learnt}
    return Wild(name=name, content=content, file=file, **values | more)


def not_read(name: str, content: Any, file: str, *refused: str, where: str = "", **more: Any) -> Wild:
    return Wild(name=name, content=content, file=file, refused=refused, where=where, **more)


FLAT = "text,label\ngood hay,pos\nbad hay,neg\n"
SEPARATED_FILES = (
    labelled(
        "a header in the middle", FLAT + FLAT,
        learnt=("good hay -> pos", "bad hay -> neg") * 2, notes=("line 4 repeats the header",),
    ),
    labelled(
        "a header in the middle, in capitals", FLAT + FLAT.replace("text,label", "Text,Label"),
        learnt=("good hay -> pos", "bad hay -> neg") * 2,
    ),
    labelled(
        "a header in the middle of a TSV", (FLAT + FLAT).replace(",", "\t"), "rows.tsv",
        learnt=("good hay -> pos", "bad hay -> neg") * 2,
    ),
    Wild(
        name="a header in the middle of texts", content="text\nSheep.\ntext\nHay.\n", file="rows.csv",
        task="causal_lm", learnt=("Sheep.", "Hay."), notes=("line 3 repeats the header",),
    ),
    not_read(
        "a header in the middle, in another order", FLAT + "label,text\nneg,dry hay\n", "rows.csv",
        "its columns in another order",
        where="rows.csv, line 4",
    ),
    labelled(
        "a lone quote in a TSV", 'text\tlabel\n"good hay\tpos\nbad hay\tneg\n', "rows.tsv",
        learnt=('"good hay -> pos', "bad hay -> neg"), notes=("line 2", "without quoting"),
    ),
    labelled(
        "two lone quotes in a TSV", 'text\tlabel\n"good hay\tpos\nbad hay\tneg\n"dry" hay\tneg\n', "rows.tsv",
        learnt=('"good hay -> pos', "bad hay -> neg", '"dry" hay -> neg'),
    ),
    labelled(
        "a lone quote in two rows of a TSV", 'label\ttext\npos\t"good hay\nneg\tbad hay\nneg\tdry"\n', "rows.tsv",
        learnt=('"good hay -> pos', "bad hay -> neg", 'dry" -> neg'),
    ),
    labelled(
        "lines within quotes in a TSV", 'label\ttext\npos\t"good\nhay"\nneg\tbad hay\n', "rows.tsv",
        learnt=("good\nhay -> pos", "bad hay -> neg"),
    ),
    labelled(
        "columns without a name at the end", "v1,v2,,,\npos,good hay,,,\nneg,bad hay,,,\n", "spam.csv",
        settings={"data.text_column": "v2", "data.label_column": "v1", "task.type": "sequence_classification"},
        notes=("skipped 3 empty columns without a name",),
    ),
    not_read(
        "a text that goes on in a column without a name", "v1,v2,,\npos,good,hay,\n", "spam.csv",
        "a value in a column without a name",
        where="spam.csv, line 2", settings={"data.text_column": "v2", "task.type": "causal_lm"},
    ),
    labelled("a separator at the end of each row", "text,label\ngood hay,pos,\nbad hay,neg,\n"),
    labelled("the index of pandas", ",text,label\n0,good hay,pos\n1,bad hay,neg\n"),
    labelled("a separator in Excel's first line", "sep=;\ntext;label\ngood hay;pos\nbad hay;neg\n"),
    labelled("columns separated by bars", FLAT.replace(",", "|"), notes=("separated by '|'",)),
    labelled("a .tsv with commas", FLAT, "rows.tsv"),
    labelled("blanks behind commas", 'text, label\n"good hay", pos\n"bad hay", neg\n'),
    labelled("a mark of UTF-8 and lines of Windows", b"\xef\xbb\xbf" + FLAT.replace("\n", "\r\n").encode()),
    labelled(
        "quotes escaped with a backslash", 'text,label\n"a \\"good\\" hay",pos\n"bad, hay",neg\n',
        learnt=('a "good" hay -> pos', "bad, hay -> neg"), notes=("backslash",),
    ),
    labelled("blank lines", FLAT.replace("\n", "\n\n")),
    not_read(
        "a CSV without a header", '5,"great film"\n1,"dull film"\n', "rows.csv", "the first line is not a header",
        "text,label",
        where="rows.csv, line 1",
    ),
    not_read(
        "a CSV without a header, with labels", "pos,great film\nneg,dull film\npos,fine film\n", "rows.csv",
        "not a header, because 'pos'",
    ),
    not_read("a comment above the header", "# made in May\ntext,label\na,b\n", "rows.csv", "a comment instead of"),
    not_read(
        "too few fields", "text,label\ngood hay\n", "rows.csv", "the row has 1 field, but the header has 2",
        where="rows.csv, line 2", settings={"task.type": "causal_lm"},
    ),
    not_read(
        "a lone quote in a CSV", 'text,label\n"good hay,pos\nbad hay,neg\n', "rows.csv", "is not closed", "twice",
        where="rows.csv, line 2", settings={"task.type": "causal_lm"},
    ),
    labelled("an inch in a CSV", FLAT.replace("good", '5" good'), learnt=('5" good hay -> pos', "bad hay -> neg")),
    not_read(
        "rows within two lone quotes", FLAT + '"more hay,pos\ndry hay,neg\nhay of 5",pos\nold hay,neg\nmore hay,pos\n',
        "rows.csv", "opens a text that ends on line 6, but each line in it looks like a row",
        where="rows.csv, line 4", settings={"task.type": "causal_lm"},
    ),
    not_read(
        "rows within two lone quotes, numbered", 'text;id\nhay;1\ngrass;2\n"dry hay;3\n\nhay of 5";4\n', "rows.csv",
        "each line in it looks like a row",
        where="rows.csv, line 4",
    ),
    not_read(
        "rows within two lone quotes in the last column",
        'label,text\npos,hay\nneg,grass\npos,"dry hay\nneg,hay of 5"\npos,straw\nneg,corn\n', "rows.csv",
        "each line in it looks like a row",
        where="rows.csv, line 4",
    ),
    labelled(
        "rows of new classes within two lone quotes", FLAT + '"more hay,none\nhay of 5",pos\n',
        learnt=("good hay -> pos", "bad hay -> neg", "more hay,none\nhay of 5 -> pos"),
        notes=("line 4: a text in double quotes ends on line 5; without the quotes, each of its lines would",),
    ),
    labelled(
        "texts of several lines with commas", FLAT + '"more, dry\nhay",pos\n"more\nhay",pos\n',
        learnt=("good hay -> pos", "bad hay -> neg", "more, dry\nhay -> pos", "more\nhay -> pos"),
    ),
    labelled(
        "numbers in texts of several lines", 'text,label\nhay,1\ngrass,2\ncorn,1\nstraw,2\n"hay for 5,000\nsheep",2\n',
        learnt=("hay -> 1", "grass -> 2", "corn -> 1", "straw -> 2", "hay for 5,000\nsheep -> 2"),
    ),
    not_read(
        "a NUL in a row of a CSV", FLAT.replace("bad", "b\0d"), "rows.csv", "NUL byte at byte offset 25", where="line 3"
    ),
    not_read("names in single quotes", "'text','label'\n'good, hay','pos'\n", "rows.csv", "single quotes"),
    not_read("UTF-16", "text\nsheep\n".encode("utf-16"), "rows.csv", "UTF-16", "iconv"),
    not_read("Latin-1", "text\ncaf\xe9\n".encode("latin-1"), "rows.csv", "Latin-1", "iconv", where="rows.csv, line 2"),
    not_read("Excel under the name .csv", b"PK\x03\x04 and more", "rows.csv", "an Excel or a ZIP", "save the table"),
    not_read("a web page under the name .csv", "<!DOCTYPE html>\n<html>\n", "rows.csv", "a web page"),
    not_read(
        "a pointer of Git LFS", "version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 9\n", "rows.csv",
        "Git LFS", "git lfs pull",
    ),
    not_read(
        "a pointer of Git LFS for a text", "version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 9\n",
        "book.txt", "Git LFS",
    ),
    not_read("JSON under the name .csv", '[{"text": "a"}]', "rows.csv", "this is JSON"),
)  # fmt: skip
ROWS = [{"text": "good hay", "label": "pos"}, {"text": "bad hay", "label": "neg"}]
BY_NUMBER = {"0": "good hay", "1": "bad hay"}
JSON_FILES = (
    labelled("a list under the name .jsonl", json.dumps(ROWS), "rows.jsonl"),
    labelled("an indented list under the name .jsonl", json.dumps(ROWS, indent=1), "rows.jsonl"),
    labelled(
        "indented objects under the name .jsonl", "\n".join(json.dumps(row, indent=1) for row in ROWS), "rows.jsonl"
    ),
    labelled("a list with an object a line", "[" + ",\n".join(map(json.dumps, ROWS)) + "]", "rows.jsonl"),
    labelled("commas at the ends of lines", ",\n".join(map(json.dumps, ROWS)), "rows.ndjson"),
    labelled("objects one behind the other", "".join(map(json.dumps, ROWS)), "rows.json"),
    labelled("pandas' columns", json.dumps({"text": BY_NUMBER, "label": {"0": "pos", "1": "neg"}}), "rows.json"),
    labelled("pandas' index", json.dumps({str(place): row for place, row in enumerate(ROWS)}), "rows.json"),
    labelled("columns as lists", json.dumps({"text": ["good hay", "bad hay"], "label": ["pos", "neg"]}), "rows.json"),
    labelled(
        "pandas' split",
        json.dumps({"columns": ["text", "label"], "index": [0, 1], "data": [["good hay", "pos"], ["bad hay", "neg"]]}),
        "rows.json",
    ),
    labelled("a list in an object", json.dumps({"version": "1", "data": ROWS}), "rows.json"),
    Wild(
        name="one indented conversation a row",
        content="\n".join(json.dumps({"messages": TURNS}, indent=1) for _ in "ab"), file="rows.json",
        task="chat", learnt=("None.",) * 2,
    ),
    not_read(
        "columns of different lengths", json.dumps({"text": ["a", "b"], "label": ["x"]}), "rows.json",
        "different lengths",
    ),
    not_read("two lists of objects", json.dumps({"train": ROWS, "test": ROWS}), "rows.json", "a second list"),
    not_read(
        "a name that is in an object twice", '{"text": "a", "text": "b"}\n' * 2, "rows.jsonl", "'text'", "twice",
        where="rows.jsonl, line 1", settings={"task.type": "causal_lm"},
    ),
    *(
        not_read(
            f"a name that is in an object twice, far into {file}",
            rows.format(*[json.dumps(TURNS)] * 120, '{"role": "user", "content": "a \\"b\\": c", "role": "system"}'),
            file,
            "an object has the key 'role' twice",
            where=where,
        )
        for file, rows, where in (
            ("rows.jsonl", '{{"messages": {}}}\n' * 120 + '{{"messages": [{}]}}\n', "rows.jsonl, line 121"),
            ("rows.json", "[" + '{{"messages": {}}},\n' * 120 + '{{"messages": [{}]}}]', "rows.json, line 121"),
        )
    ),
    not_read(
        "a name that is in an object of a list twice", '[{"text": "a", "text": "b"}]', "rows.json", "'text'", "twice"
    ),
    not_read("comments in JSON", '[{"text": "a"}, // first\n{"text": "b"}]', "rows.json", "broken JSON"),
    not_read(
        "NaN for a text", '{"text": NaN}\n', "rows.jsonl", "a number, not a string",
        where="rows.jsonl, line 1", settings={"task.type": "causal_lm"},
    ),
)  # fmt: skip

ALPACA = {"instruction": "Count them.", "input": "sheep", "output": "None.", "text": "Below is an instruction: Count."}
SHAREGPT = [{"from": "human", "value": "Sheep?"}, {"from": "gpt", "value": "None."}]
CALL = '<tool_call>\n{"name": "count", "arguments": {"what": "sheep"}}\n</tool_call>'
SPAN = {"start": 0, "end": 3, "text": "Ann", "labels": ["PER"]}
ANN = "Ann/B-PER sleeps/O"
KNOWN = (
    Wild(
        name="tatsu-lab/alpaca", content=[ALPACA, {**ALPACA, "input": "", "output": "Many."}],
        task="chat", learnt=("None.", "Many."), reads=("Count them.", "sheep"), notes=("text",),
    ),
    Wild(
        name="databricks-dolly-15k",
        content=[{"instruction": "How many?", "context": "No sheep.", "response": "None.", "category": "closed_qa"}]
        * 2,
        task="chat", learnt=("None.",) * 2, reads=("No sheep.",), notes=("category",),
    ),
    Wild(
        name="oasst flat messages",
        content=[
            {"message_id": "a", "parent_id": None, "text": "How many sheep are there?", "role": "prompter"},
            {"message_id": "b", "parent_id": "a", "text": "None of them are here.", "role": "assistant"},
        ],
        refused=("role",),
    ),
    Wild(
        name="ultrachat_200k", content=[{"prompt": "Sheep?", "prompt_id": "f0e3", "messages": TURNS}] * 2,
        task="chat", learnt=("None.",) * 2, notes=("prompt",),
    ),
    Wild(
        name="OpenOrca",
        content=[{"id": "flan.1", "system_prompt": "Be terse.", "question": "Sheep?", "response": "None."}] * 2,
        task="chat", learnt=("None.",) * 2, notes=("the questions are in 'question'",),
    ),
    Wild(
        name="ShareGPT", file="rows.json", settings={"data.max_length": 256},
        content=[{"id": "x_0", "conversations": [*SHAREGPT, {"from": "human", "value": "Now?"}, SHAREGPT[1]]}] * 2,
        task="chat", learnt=("None. | None.",) * 2, reads=("Sheep?", "Now?"),
    ),
    Wild(
        name="hermes function calling",
        content=[
            {
                "id": "1",
                "conversations": [
                    {"from": "system", "value": "You can call <tools>count</tools>."},
                    {"from": "human", "value": "Sheep?"},
                    {"from": "gpt", "value": CALL},
                    {"from": "tool", "value": "<tool_response>0</tool_response>"},
                    {"from": "gpt", "value": "None."},
                ],
                "category": "counting",
            }
        ],
        task="chat", settings={"data.max_length": 512}, learnt=(f"{CALL} | None.",), reads=("<tools>count</tools>",),
        notes=("category",),
    ),
    Wild(
        name="glaive-function-calling-v2",
        content=[{"system": "SYSTEM: You can count.", "chat": "USER: Sheep? ASSISTANT: None. <|endoftext|>"}] * 2,
        settings={"data.text_column": "chat", "task.type": "causal_lm"},
        task="causal_lm", learnt=("USER: Sheep? ASSISTANT: None. <|endoftext|>",) * 2, notes=("candidates: system",),
    ),
    Wild(
        name="xlam-function-calling-60k",
        content=[
            {"id": 0, "query": "How many sheep?", "answers": '[{"name": "count"}]', "tools": '[{"name": "count"}]'}
        ],
        settings={"data.max_length": 1024}, notes=("the tools in 'tools'",),
        task="chat", learnt=('<tool_call>\n{"name": "count", "arguments": {}}\n</tool_call>',),
    ),
    Wild(
        name="mmlu",
        content=[{"question": "How many sheep?", "subject": "sheep", "choices": ["0", "1", "2", "3"], "answer": 0}],
        refused=("choices",),
    ),
    Wild(
        name="gsm8k", content=[{"question": "Two sheep and two?", "answer": "2 + 2 = <<2+2=4>>4\n#### 4"}] * 2,
        task="chat", learnt=("2 + 2 = <<2+2=4>>4\n#### 4",) * 2,
    ),
    Wild(
        name="competition math",
        content=[
            {"problem": "Two sheep and two?", "level": "Level 1", "type": "Sheep", "solution": "They are 4 sheep."}
        ],
        task="chat", learnt=("They are 4 sheep.",), notes=("not read: level, type",),
    ),
    Wild(
        name="competition math with its columns named",
        content=[{"problem": "Two sheep and two?", "level": "Level 1", "solution": "They are 4."}] * 2,
        settings={"data.text_column": "problem", "data.target_column": "solution"},
        task="chat", learnt=("They are 4.",) * 2, reads=("Two sheep and two?",), notes=("level",),
    ),
    Wild(
        name="CodeAlpaca-20k",
        content=[{"instruction": "Write it.", "input": "", "output": "def f():\n    return 1\n"}] * 2,
        task="chat", learnt=("def f():\n    return 1\n",) * 2,
    ),
    Wild(
        name="OpenAI fine-tuning with a turn that is not learnt",
        content=[
            {"messages": [TURNS[0], {**TURNS[1], "content": "No.", "weight": 0}, TURNS[0], {**TURNS[1], "weight": 1}]}
        ],
        settings={"data.max_length": 256},
        task="chat", learnt=("None.",),
    ),
    Wild(
        name="OpenAI legacy fine-tuning", content=[{"prompt": "Sheep? ->", "completion": " None."}] * 2,
        task="chat", learnt=("None.",) * 2, reads=("Sheep? ->",),
    ),
    Wild(
        name="anthropic hh-rlhf",
        content=[
            {"chosen": "\n\nHuman: Sheep?\n\nAssistant: None.", "rejected": "\n\nHuman: Sheep?\n\nAssistant: Go."}
        ],
        refused=("chosen", "preference"),
    ),
    Wild(
        name="ultrafeedback_binarized",
        content=[
            {
                "prompt": "Sheep?",
                "prompt_id": "1",
                "chosen": TURNS,
                "rejected": OTHER_TURNS,
                "messages": TURNS,
                "score_chosen": 8.0,
                "score_rejected": 2.0,
            }
        ],
        task="preference", learnt=("None. | Go.",), reads=("Sheep?",), notes=("score_chosen, score_rejected",),
    ),
    Wild(
        name="argilla dpo-mix-7k",
        content=[
            {"dataset": "mix", "chosen": TURNS, "rejected": OTHER_TURNS, "chosen_rating": 5.0, "rejected_rating": 1.0}
        ],
        task="preference", learnt=("None. | Go.",), notes=("not read: dataset, chosen_rating, rejected_rating",),
    ),
    Wild(
        name="argilla distilabel-intel-orca-dpo-pairs",
        content=[
            {"system": "", "input": "Sheep?", "chosen": "None.", "rejected": "Go.", "generations": ["None.", "Go."]}
        ],
        task="preference", learnt=("None. | Go.",), reads=("Sheep?",), notes=("not read: generations",),
    ),
    Wild(
        name="trl kto-mix",
        content=[
            {"prompt": turns[:1], "completion": turns[1:], "label": turns is TURNS} for turns in (TURNS, GOAT_TURNS)
        ],
        task="kto", learnt=("None. | Go.", "Go. | None."), reads=("Sheep?",),
    ),
    Wild(
        name="orpo-dpo-mix-40k",
        content=[{"source": "mix", "prompt": "Sheep?", "question": "Sheep?", "chosen": TURNS, "rejected": OTHER_TURNS}],
        task="preference", learnt=("None. | Go.",), notes=("not read: source, question",),
    ),
    Wild(
        name="rewards with a margin",
        content=[{"prompt": "Sheep?", "chosen": "None.", "rejected": "Go.", "margin": 0.5}], model="encoder",
        refused=("rejected", "preference"),
    ),
    Wild(
        name="trl steps with a reward each",
        content=[{"prompt": "Two sheep and two?", "completions": ["2 + 2", "4"], "labels": [True, True]}] * 2,
        refused=("completions",),
    ),
    Wild(
        name="wikitext with empty rows",
        content=[{"text": text} for text in ("", " = Sheep = \n", "", " Many sheep . \n")],
        task="causal_lm", learnt=("= Sheep = \n", "Many sheep . \n"), notes=("2 documents contain only white space",),
    ),
    Wild(
        name="c4",
        content=[{"text": "Many sheep.\nOne sang.", "timestamp": "2019-04-25T12:57:54Z", "url": "https://a.example/1"}],
        task="causal_lm", learnt=("Many sheep.\nOne sang.",), notes=("timestamp, url",),
    ),
    Wild(
        name="the-stack", file="rows.parquet",
        content=[{"hexsha": "1f", "size": 12, "ext": "py", "path": "a/b.py", "content": "def f():\n\treturn 1\n"}] * 2,
        task="causal_lm", learnt=("def f():\n\treturn 1\n",) * 2, notes=("path",),
    ),
    Wild(
        name="TinyStories in one text", file="stories.txt", content="One sheep sang.\n<|endoftext|>\nOne slept.\n",
        task="causal_lm", learnt=("One sheep sang.\n<|endoftext|>\nOne slept.\n",),
    ),
    Wild(
        name="bookcorpus in two shards of Parquet",
        content={f"data/train-0000{n}-of-00002.parquet": [{"text": f"sheep {n} sang ."}] * 2 for n in range(2)},
        task="causal_lm", learnt=("sheep 0 sang .",) * 2 + ("sheep 1 sang .",) * 2,
    ),
    Wild(
        name="a folder of texts", content={"one.txt": "One sheep.\n", "two/two.txt": "Two sheep.\n"},
        task="causal_lm", learnt=("One sheep.\n", "Two sheep.\n"),
    ),
    Wild(
        name="arxiv abstracts",
        content=[{"id": "0704.0001", "title": "Many sheep", "abstract": f"We count sheep. {STORY}"}] * 2,
        task="causal_lm", learnt=(f"We count sheep. {STORY}",) * 2, notes=("title",),
    ),
    Wild(
        name="SQuAD as it is downloaded", file="train-v1.1.json",
        content=json.dumps(
            {
                "data": [
                    {
                        "title": "Sheep",
                        "paragraphs": [
                            {
                                "context": "None.",
                                "qas": [
                                    {"id": "1", "question": "Sheep?", "answers": [{"text": "None", "answer_start": 0}]}
                                ],
                            }
                        ],
                    }
                ],
                "version": "1.1",
            }
        ),
        task="chat", learnt=("None",),
    ),
    Wild(
        name="SQuAD of datasets",
        content=[
            {
                "id": "5",
                "title": "Sheep",
                "context": "There are none.",
                "question": "Sheep?",
                "answers": {"text": ["none"], "answer_start": [10]},
            }
        ]
        * 2,
        task="chat", learnt=("none",) * 2, reads=("There are none.", "Sheep?"), notes=("title",),
    ),
    Wild(
        name="SQuAD 2 with a question that has no answer",
        content=[
            {
                "id": f"{n}",
                "context": "Sheep.",
                "question": "Who?",
                "answers": {"text": ["Ann"][:n], "answer_start": [0][:n]},
            }
            for n in range(2)
        ],
        refused=("answers",), where="line 1",
    ),
    Wild(
        name="SQuAD under an encoder",
        content=[{"context": "None.", "question": "Sheep?", "answers": {"text": ["None"], "answer_start": [0]}}],
        model="encoder",
        task="question_answering", learnt=("Sheep?None. -> None",),
    ),
    Wild(
        name="natural questions with several answers",
        content=[{"question": "when were sheep", "answer": ["in 1972", "December 1972"]}] * 2,
        refused=("answer",), where="line 1",
    ),
    Wild(
        name="ms marco",
        content=[
            {
                "query": "how many sheep are there",
                "query_id": 7,
                "query_type": "NUMERIC",
                "answers": ["None."],
                "passages": {"is_selected": [1], "passage_text": ["None."], "url": ["a.example"]},
            }
        ]
        * 2,
        task="chat", learnt=("None.",) * 2, notes=("not read: query_id, query_type, passages",),
    ),
    Wild(
        name="xsum", content=[{"document": "Many sheep.", "summary": "Sheep.", "id": "3"}] * 2, model="text to text",
        task="seq2seq", learnt=("Many sheep. -> Sheep.",) * 2,
    ),
    Wild(
        name="cnn_dailymail as CSV", file="train.csv",
        content='id,article,highlights\n1,"Many sheep, all white.\nOne sang.",One sheep sang.\n', model="text to text",
        task="seq2seq", learnt=("Many sheep, all white.\nOne sang. -> One sheep sang.",),
    ),
    Wild(
        name="samsum", content=[{"id": "13", "dialogue": "Ann: Sheep?\r\nBo: None.", "summary": "No sheep."}] * 2,
        model="text to text",
        task="seq2seq", learnt=("Ann: Sheep?\nBo: None. -> No sheep.",) * 2,
    ),
    Wild(
        name="opus_books", content=[{"id": "1", "translation": {"de": "Viele Schafe.", "en": "Many sheep."}}] * 2,
        model="text to text",
        task="seq2seq", learnt=("Viele Schafe. -> Many sheep.",) * 2,
    ),
    Wild(
        name="imdb", content=[{"text": "good sheep<br />", "label": 1}, {"text": "bad sheep", "label": 0}],
        model="encoder",
        task="sequence_classification", learnt=("good sheep<br /> -> 1", "bad sheep -> 0"),
    ),
    Wild(
        name="ag_news as Parquet", file="rows.parquet",
        content=[{"text": "Sheep win cup", "label": 1}, {"text": "Wool is dear", "label": 2}], model="encoder",
        task="sequence_classification", learnt=("Sheep win cup -> 1", "Wool is dear -> 2"),
    ),
    Wild(
        name="amazon_polarity",
        content=[
            {"label": 1, "title": "Great", "content": "It sings well."},
            {"label": 0, "title": "Bad", "content": "It ran."},
        ],
        model="encoder",
        task="sequence_classification", learnt=("It sings well. -> 1", "It ran. -> 0"), notes=("title",),
    ),
    Wild(
        name="go_emotions with names",
        content=[
            {"text": "oh sheep", "labels": ["joy", "love"], "id": "e"},
            {"text": "no", "labels": ["anger"], "id": "f"},
        ],
        model="encoder",
        task="sequence_classification", learnt=("oh sheep -> joy, love", "no -> anger"),
    ),
    Wild(
        name="jigsaw's column for each label", file="train.csv",
        content='id,comment_text,toxic,severe_toxic,insult\na1,"Sheep, again!",1,0,1\na2,Thank you.,0,0,0\n',
        model="encoder",
        task="sequence_classification", learnt=("Sheep, again! -> insult, toxic", "Thank you. -> "),
        notes=("other candidates: id", "3 classes: toxic: 1 rows, insult: 1, severe_toxic: 0"),
    ),
    Wild(
        name="multi_nli under a decoder",
        content=[{"premise": "Sheep sing now.", "hypothesis": "Sheep sleep now.", "label": 2, "genre": "farm"}] * 2,
        refused=("premise", "hypothesis"),
    ),
    Wild(
        name="multi_nli with its columns named",
        content=[{"premise": f"Sheep {n}.", "hypothesis": "They sing.", "label": n} for n in range(2)], model="encoder",
        settings={"data.text_column": "premise", "data.text_pair_column": "hypothesis"},
        task="sequence_classification", learnt=("Sheep 0.They sing. -> 0", "Sheep 1.They sing. -> 1"),
    ),
    Wild(
        name="stsb with its columns named",
        content=[{"sentence1": f"Sheep {n}.", "sentence2": "It sings.", "score": n + 0.5} for n in range(2)],
        model="encoder", settings={"data.text_column": "sentence1", "data.text_pair_column": "sentence2"},
        task="sequence_classification", learnt=("Sheep 0.It sings. -> 0.5", "Sheep 1.It sings. -> 1.5"),
    ),
    Wild(
        name="conll2003 of datasets as JSON",
        content=[
            {"id": "0", "tokens": ["Ann", "sleeps"], "pos_tags": [22, 42], "chunk_tags": [11, 21], "ner_tags": [1, 0]}
        ],
        model="encoder",
        refused=("ner_tags", "numbers"),
    ),
    Wild(
        name="wnut_17 with names",
        content=[{"id": "0", "tokens": ["Ann", "sleeps"], "ner_tags": ["B-person", "O"]}] * 2, model="encoder",
        task="token_classification", learnt=("Ann/B-person sleeps/O",) * 2,
    ),
    Wild(
        name="ontonotes documents of sentences",
        content=[
            {"document_id": "a", "sentences": [{"words": ["Ann", "sleeps"], "named_entities": ["B-PERSON", "O"]}]}
        ],
        model="encoder",
        refused=("sentences",),
    ),
    Wild(
        name="doccano sequence labelling",
        content=[{"id": 1, "text": "Ann sleeps", "label": [[0, 3, "PER"]], "Comments": []}] * 2, model="encoder",
        task="token_classification", learnt=(ANN,) * 2,
    ),
    Wild(
        name="doccano entities with relations",
        content=[
            {
                "id": 1,
                "text": "Ann sleeps",
                "relations": [],
                "entities": [{"id": 0, "label": "PER", "start_offset": 0, "end_offset": 3}],
            }
        ]
        * 2,
        model="encoder",
        task="token_classification", learnt=(ANN,) * 2,
    ),
    Wild(
        name="doccano text classification",
        content=[{"id": 1, "text": "a sheep", "label": ["animal"]}, {"id": 2, "text": "a rose", "label": ["plant"]}],
        model="encoder",
        task="sequence_classification", learnt=("a sheep -> animal", "a rose -> plant"),
    ),
    Wild(
        name="doccano sequence to sequence under an encoder",
        content=[{"id": n, "text": f"sheep {n}", "label": [f"There are {n} of the sheep."]} for n in range(12)],
        model="encoder",
        refused=("label",),
    ),
    Wild(
        name="Label Studio JSON", file="project-1.json",
        content=[
            {
                "id": 1,
                "data": {"text": "Ann sleeps"},
                "annotations": [{"result": [{"from_name": "label", "type": "labels", "value": SPAN}]}],
            }
        ],
        model="encoder",
        task="token_classification", learnt=(ANN,),
    ),
    Wild(
        name="Label Studio JSON-MIN", file="project-1.json",
        content=[{"id": 1, "text": "Ann sleeps", "label": [SPAN], "annotator": 1, "lead_time": 2.5}] * 2,
        model="encoder",
        task="token_classification", learnt=(ANN,) * 2,
    ),
    Wild(
        name="Label Studio CSV of choices", file="project-1.csv",
        content="annotation_id,annotator,id,sentiment,text\n1,1,1,Positive,a good sheep\n2,1,2,Negative,a bad sheep\n",
        model="encoder",
        task="sequence_classification", learnt=("a good sheep -> Positive", "a bad sheep -> Negative"),
    ),
    Wild(
        name="Label Studio CoNLL", file="result.conll",
        content="-DOCSTART- -X- O\nAnn -X- _ B-PER\nsleeps -X- _ O\n\nRio -X- _ B-LOC\n", model="encoder",
        task="token_classification", learnt=(ANN, "Rio/B-LOC"),
    ),
    Wild(
        name="Prodigy spans",
        content=[
            {
                "text": "Ann sleeps",
                "_input_hash": 1,
                "tokens": [
                    {"text": "Ann", "start": 0, "end": 3, "id": 0},
                    {"text": "sleeps", "start": 4, "end": 10, "id": 1},
                ],
                "spans": [{"start": 0, "end": 3, "label": "PER", "token_start": 0, "token_end": 0}],
                "answer": "accept",
            }
        ]
        * 2,
        model="encoder",
        task="token_classification", learnt=(ANN,) * 2,
    ),
    Wild(
        name="Prodigy classes with one that was rejected",
        content=[
            {"text": "a sheep", "label": "ANIMAL", "answer": "accept"},
            {"text": "a sheep", "label": "PLANT", "answer": "reject"},
        ],
        model="encoder",
        refused=("answer",),
    ),
    Wild(
        name="Argilla records with responses",
        content=[{"id": "1", "text": "a sheep", "label.responses": ["animal"], "label.suggestion": "animal"}] * 2,
        model="encoder",
        refused=("label.responses",),
    ),
    Wild(
        name="LangSmith examples",
        content=[{"id": "1", "inputs": {"question": "Sheep?"}, "outputs": {"answer": "None."}, "metadata": {}}] * 2,
        refused=("inputs",),
    ),
    Wild(
        name="LLaVA", file="llava.json",
        content=[
            {
                "id": "1",
                "image": "coco/1.jpg",
                "conversations": [{"from": "human", "value": "<image>\nSheep?"}, {"from": "gpt", "value": "None."}],
            }
        ],
        refused=("image",),
    ),
    Wild(
        name="COCO captions", content=[{"image": "1.jpg", "caption": "A sheep sings on the hill."}] * 2,
        refused=("image",),
    ),
    Wild(
        name="common voice",
        content=[{"audio": "clips/1.mp3", "sentence": "Many sheep.", "age": "", "locale": "en"}] * 2,
        refused=("audio",),
    ),
    Wild(
        name="all-nli triplets", content=[{"anchor": "a sheep", "positive": "a lamb", "negative": "a rose"}] * 2,
        refused=("anchor",),
    ),
    Wild(
        name="pandas records", file="rows.json",
        content='[{"text":"a sheep","label":"animal"},\n{"text":"a rose","label":"plant"}]', model="encoder",
        task="sequence_classification", learnt=("a sheep -> animal", "a rose -> plant"),
    ),
    Wild(
        name="pandas columns", file="rows.json",
        content='{"text":{"0":"a sheep","1":"a rose"},"label":{"0":"animal","1":"plant"}}', model="encoder",
        task="sequence_classification", learnt=("a sheep -> animal", "a rose -> plant"),
    ),
    Wild(
        name="pandas split", file="rows.json",
        content='{"columns":["text","label"],"index":[0,1],"data":[["a sheep","animal"],["a rose","plant"]]}',
        model="encoder",
        task="sequence_classification", learnt=("a sheep -> animal", "a rose -> plant"),
    ),
    Wild(
        name="CSV with an index of pandas", file="rows.csv", content=",text,label\n0,a sheep,animal\n1,a rose,plant\n",
        model="encoder",
        task="sequence_classification", learnt=("a sheep -> animal", "a rose -> plant"),
    ),
    Wild(
        name="Kaggle's spam.csv with its columns named", file="spam.csv",
        content='v1,v2,,,\nham,"Sheep, at ten",,,\nspam,Free wool,,,\n',
        settings={"data.text_column": "v2", "data.label_column": "v1"}, model="encoder",
        task="sequence_classification", learnt=("Sheep, at ten -> ham", "Free wool -> spam"),
    ),
    Wild(
        name="Kaggle's IMDB Dataset.csv", file="IMDB Dataset.csv",
        content='review,sentiment\n"A ""good"" sheep.<br />",positive\nA bad sheep.,negative\n', model="encoder",
        task="sequence_classification", learnt=('A "good" sheep.<br /> -> positive', "A bad sheep. -> negative"),
    ),
    Wild(
        name="Kaggle's disaster tweets", file="train.csv",
        content="id,keyword,location,text,target\n1,,,Fire on the hill,1\n4,sheep,UK,I love wool,0\n", model="encoder",
        task="sequence_classification", learnt=("Fire on the hill -> 1", "I love wool -> 0"), notes=("keyword",),
    ),
    Wild(
        name="sentiment140 without a header", file="tweets.csv",
        content='"0","1467","Mon Apr 06","NO_QUERY","ann","no sheep"\n"4","1468","Mon Apr 06","NO_QUERY","bo","a"\n',
        model="encoder",
        refused=("the first line is not a header",),
    ),
)  # fmt: skip

USER, ANSWER = {"role": "user", "content": "Sheep?"}, {"role": "assistant", "content": "None."}
ASKED, NONE = ("Sheep?",), ("None.", "None.")
COUNT_CALL = {"type": "function", "function": {"name": "count", "arguments": {"of": "sheep"}}}
TOOL = {"type": "function", "function": {"name": "count", "parameters": {"type": "object"}}}


def _chat(name: str, row: Mapping[str, Any], *, learnt: str = "None.", **more: Any) -> Wild:
    """Two rows that learn the same."""
    usual = {"reads": ("Sheep?",), "settings": {"data.max_length": 1024}}
    return Wild(name=name, content=[row] * 2, task="chat", learnt=(learnt,) * 2, **{**usual, **more})


def _no_chat(
    name: str, row: Mapping[str, Any], *refused: str, where: str = "rows.jsonl, line 1 (all 2 rows)", **more: Any
) -> Wild:
    """A file of which the second row is refused."""
    return Wild(name=name, content=[row] * 2, refused=refused, where=where, **more)


def _turn(role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def _csv(column: str, text: str) -> str:
    quoted = text.replace('"', '""')
    return f'id,{column}\n1,"{quoted}"\n2,"{quoted}"\n'


FORMS_OF_CONVERSATIONS = (
    # Roles and contents by other names
    _chat(
        "LangChain's types",
        {"id": "a", "messages": [{"type": "human", "content": "Sheep?"}, {"type": "ai", "content": "None."}]},
    ),
    _chat(
        "LangChain's types with data",
        {
            "id": "a",
            "messages": [
                {
                    "type": "human",
                    "data": {"content": "Sheep?", "additional_kwargs": {}, "name": None, "example": False},
                },
                {"type": "ai", "data": {"content": "None.", "id": "r1"}},
            ],
        },
        notes=("turn keys that the chat template ignores: example, id",),
    ),
    _chat(
        "text for content",
        {"id": "a", "messages": [{"role": "user", "text": "Sheep?"}, {"role": "assistant", "text": "None."}]},
    ),
    _chat(
        "speaker and text",
        {"id": "a", "dialog": [{"speaker": "USER", "text": "Sheep?"}, {"speaker": "Assistant ", "text": "None."}]},
    ),
    _chat(
        "author and message",
        {"id": "a", "conversation": [{"author": "user", "message": "Sheep?"}, {"author": "bot", "message": "None."}]},
    ),
    _chat(
        "roles in capitals and from beside role",
        {"messages": [{"role": " User ", "content": "Sheep?"}, {"from": "GPT", "value": "None."}]},
    ),
    _chat(
        "OpenAssistant's prompter",
        {"messages": [{"role": "prompter", "text": "Sheep?"}, {"role": "assistant", "text": "None."}]},
    ),
    _chat(
        "Gemini's contents and parts",
        {
            "systemInstruction": {"role": "system", "parts": [{"text": "Be brief."}]},
            "contents": [
                {"role": "user", "parts": [{"text": "Sheep?"}]},
                {"role": "model", "parts": [{"text": "None."}]},
            ],
        },
        reads=("Be brief.", "Sheep?"), notes=("the system prompt in 'systemInstruction'",),
    ),
    _chat("pairs of role and text", {"id": "a", "messages": [["user", "Sheep?"], ["assistant", "None."]]}),
    _chat(
        "Firefly's turns by role", {"conversation": [{"human": "Sheep?", "assistant": "None."}], "category": "x"},
        notes=("(not read: category)",),
    ),
    _chat(
        "XTuner's turns",
        {
            "conversation": [
                {"system": "Be brief.", "input": "Sheep?", "output": "None."},
                {"input": "Goats?", "output": "Two."},
            ]
        },
        learnt="None. | Two.", reads=("Be brief.", "Goats?"),
    ),
    _chat(
        "ShareGPT's items",
        {"id": "a", "items": [{"from": "human", "value": "Sheep?"}, {"from": "gpt", "value": "None."}]},
    ),
    _chat(
        "ShareGPT with system and tools",
        {
            "conversations": [{"from": "human", "value": "Sheep?"}, {"from": "gpt", "value": "None."}],
            "system": "Be brief.",
            "tools": json.dumps([TOOL]),
        },
        reads=("Be brief.", '"name": "count"'),
    ),
    _chat(
        "content as an object",
        {"messages": [_turn("user", {"type": "text", "text": "Sheep?"}), _turn("assistant", {"parts": ["None."]})]},
    ),
    _chat("two users in a row", {"messages": [_turn("user", "Hello."), USER, ANSWER]}, reads=("Hello.", "Sheep?")),
    _chat(
        "system column beside turns with one",
        {"system": "Be brief.", "messages": [_turn("system", "Be brief."), USER, ANSWER]},
        reads=("Be brief.", "Sheep?"),
    ),
    # Lists in strings, and the shapes of Parquet
    Wild(
        name="Python repr in a CSV", file="rows.csv", content=_csv("messages", str([USER, ANSWER])),
        task="chat", learnt=NONE, reads=ASKED,
    ),
    Wild(
        name="JSON in a CSV", file="rows.csv", content=_csv("messages", json.dumps([USER, ANSWER])),
        task="chat", learnt=NONE, reads=ASKED,
    ),
    Wild(
        name="prompt and completion as Python reprs", file="rows.csv",
        content=f'prompt,completion\n"{[USER]}","{[ANSWER]}"\n"{[USER]}","{[ANSWER]}"\n',
        task="chat", learnt=NONE, reads=ASKED,
    ),
    Wild(
        name="Parquet struct of lists", file="rows.parquet",
        task="chat", learnt=NONE, reads=ASKED,
        content=[{"id": "a", "messages": {"role": ["user", "assistant"], "content": ["Sheep?", "None."]}}] * 2,
    ),
    Wild(
        name="Parquet struct of ShareGPT's lists", file="rows.parquet",
        task="chat", learnt=NONE, reads=ASKED,
        content=[{"id": "a", "conversations": {"from": ["human", "gpt"], "value": ["Sheep?", "None."]}}] * 2,
    ),
    Wild(
        name="Parquet structs filled with nulls", settings={"data.max_length": 512}, file="rows.parquet",
        task="chat", reads=ASKED,
        learnt=("None.", '<tool_call>\n{"name": "count", "arguments": {"of": "sheep"}}\n</tool_call>'),
        content=[{"messages": [USER, ANSWER]}, {"messages": [USER, _turn("assistant", None, tool_calls=[COUNT_CALL])]}],
    ),
    _chat(
        "a conversation in an object", {"id": "a", "data": {"messages": [USER, ANSWER], "tools": [TOOL]}},
        reads=("Sheep?", '"name": "count"'),
    ),
    _chat("a conversation in an object in a string", {"id": "a", "json": json.dumps({"messages": [USER, ANSWER]})}),
    _chat(
        "OpenAI's batch with an answer",
        {"custom_id": "a", "method": "POST", "url": "/v1/chat", "body": {"model": "m", "messages": [USER, ANSWER]}},
        notes=("(not read: custom_id, method, url, model)",),
    ),
    _chat(
        "tools as strings of JSON", {"messages": [USER, ANSWER], "tools": [json.dumps(TOOL)]},
        reads=('"name": "count"',),
    ),
    _chat("tools as a Python repr", {"messages": [USER, ANSWER], "tools": str([TOOL])}, reads=('"name": "count"',)),
    _chat(
        "LangChain's tool calls",
        {
            "messages": [
                USER,
                _turn(
                    "assistant",
                    "",
                    tool_calls=[{"name": "count", "args": {"of": "sheep"}, "id": "c1", "type": "tool_call"}],
                ),
            ]
        },
        learnt='<tool_call>\n{"name": "count", "arguments": {"of": "sheep"}}\n</tool_call>',
    ),
    # Questions and answers in columns
    _chat(
        "Alpaca with history",
        {"instruction": "Sheep?", "input": "", "output": "None.", "history": [["Goats?", "Two."]]},
        learnt="Two. | None.", reads=("Goats?", "Sheep?"), notes=("the history in 'history'",),
    ),
    Wild(
        name="Alpaca with an empty history",
        task="chat", learnt=NONE, reads=ASKED,
        content=[
            {"instruction": "Sheep?", "input": None, "output": "None.", "history": history} for history in ([], None)
        ],
    ),
    Wild(
        name="history in a CSV", settings={"data.max_length": 512}, file="rows.csv",
        task="chat", learnt=("Two. | None.", "None."), reads=ASKED,
        content='instruction,output,history\nSheep?,None.,"[[""Goats?"", ""Two.""]]"\nSheep?,None.,[]\n',
    ),
    _chat(
        "query and response", {"query": "Sheep?", "response": "None.", "system": "Be brief.", "history": []},
        reads=("Sheep?", "Be brief."),
    ),
    _chat("input and output", {"input": "Sheep?", "output": "None."}),
    _chat("problem and solution", {"problem": "Sheep?", "solution": "None.", "source": "farm"}),
    _chat("user and assistant", {"user": "Sheep?", "assistant": "None."}),
    _chat(
        "Dolly", {"instruction": "Sheep?", "context": "A farm.", "response": "None.", "category": "qa"},
        reads=("Sheep?\n\nA farm.",), notes=("(not read: category)",),
    ),
    _chat(
        "system_prompt beside a question", {"system_prompt": "Be brief.", "question": "Sheep?", "response": "None."},
        reads=("Be brief.", "Sheep?"), notes=("the system prompt in 'system_prompt'",),
    ),
    _chat(
        "reasoning beside an answer", {"question": "Sheep?", "reasoning": "I look.", "answer": "None."},
        notes=("(not read: reasoning)",),
    ),
    _chat(
        "SQuAD's answers",
        {
            "question": "Sheep?",
            "context": "A farm.",
            "answers": {"text": ["None.", "No sheep."], "answer_start": [0, 1]},
        },
        reads=("A farm.\n\nSheep?",), notes=("the answers in 'answers' (the first answer of each row)",),
    ),
    _chat("a completion as a list of one", {"prompt": "Sheep?", "completion": ["None."]}),
    Wild(
        name="a system column that comes late",
        task="chat", learnt=("None.",) * 102, reads=("Be brief.",),
        content=[*[{"messages": [USER, ANSWER]}] * 101, {"messages": [USER, ANSWER], "system": "Be brief.", "note": 1}],
        notes=("the system prompt in 'system' (not read: note)",),
    ),
    # Marks
    *(
        _chat(
            f"turns marked by {mark}", {"messages": [USER, _turn("assistant", "Wrong.", **{mark: value}), USER, ANSWER]}
        )
        for mark, value in (
            ("loss", False),
            ("loss_scale", 0),
            ("training", "false"),
            ("loss_weight", 0.0),
            ("weight", "0"),
            ("masked", True),
            ("trainable", False),
        )
    ),
    _chat("a mark that is null", {"messages": [USER, {**ANSWER, "train": None, "weight": 1}]}),
    _chat(
        "marks on all turns",
        {
            "conversations": [
                {"from": "human", "value": "Sheep?", "weight": 0},
                {"from": "gpt", "value": "None.", "weight": 1.0},
            ]
        },
    ),
    _chat("an empty answer that is not learnt", {"messages": [USER, _turn("assistant", "", weight=0), USER, ANSWER]}),
    _chat(
        "keys that no template reads", {"messages": [{**USER, "id": 1, "name": "Ann"}, {**ANSWER, "timestamp": "now"}]},
        notes=("turn keys that the chat template ignores: id, name, timestamp",),
    ),
)  # fmt: skip
UNREADABLE_CONVERSATIONS = (
    _no_chat(
        "image parts",
        {
            "id": "a",
            "messages": [
                _turn("user", [{"type": "image_url", "image_url": {"url": "x"}}, {"type": "text", "text": "Sheep?"}]),
                ANSWER,
            ],
        },
        "not text (image_url)", "images are not supported",
    ),
    _no_chat(
        "image parts with an empty text",
        {
            "id": "a",
            "messages": [_turn("user", [{"type": "image", "text": ""}, {"type": "text", "text": "Sheep?"}]), ANSWER],
        },
        "not text (image)",
    ),
    _no_chat(
        "image parts without a type",
        {"id": "a", "messages": [_turn("user", [{"image": "x.png", "text": "Sheep?"}]), ANSWER]}, "not text (image)",
    ),
    _no_chat(
        "unknown roles", {"id": "a", "messages": [_turn("narrator", "Sheep."), ANSWER]},
        "the role 'narrator' of message 1", "known roles: system, user, assistant, tool",
    ),
    _no_chat(
        "speakers by name", {"id": "a", "conversation": [{"speaker": "Ann", "text": "Sheep?"}]},
        "the role 'Ann' of message 1",
    ),
    _no_chat(
        "a number as content",
        {"id": "a", "conversations": [{"from": "human", "value": "Sheep?"}, {"from": "gpt", "value": 0}]},
        "the content of message 2 is a number", "write the value as a string",
    ),
    Wild(
        name="numpy's list in a CSV", file="rows.csv", content=_csv("messages", f"[{USER}\n {ANSWER}]"),
        refused=("a list that numpy printed without commas", "json.dumps"), where="rows.csv, line 2",
    ),
    Wild(
        name="numpy's list as a prompt", file="rows.csv",
        refused=("that numpy printed",), where="rows.csv, line 2",
        content=f'prompt,completion\n"[{USER}\n {USER}]",None.\n',
    ),
    Wild(
        name="JSON that Excel cut", file="rows.csv", content=_csv("messages", '[{"role": "user", "content": "She'),
        refused=("the conversation is a string that is not valid JSON",), where="rows.csv, line 2",
    ),
    _no_chat(
        "messages as plain text", {"id": "a", "messages": "User: Sheep?\nAssistant: None."},
        "a single text with names of speakers", '{"role": "user", "content": "Sheep?"}',
    ),
    Wild(
        name="messages that are null", content=[{"messages": [USER, ANSWER]}, {"id": "a", "messages": None}],
        refused=("the conversation is null",), where="rows.jsonl, line 2",
    ),
    _no_chat(
        "broken JSON in tools", {"id": "a", "messages": [USER, ANSWER], "tools": '[{"name": '},
        "the column 'tools' is a string that is not valid JSON",
    ),
    _no_chat(
        "broken JSON in one of the tools", {"id": "a", "messages": [USER, ANSWER], "tools": ['{"name": ']},
        "a tool of the column 'tools' is a string that is not valid JSON",
    ),
    _no_chat(
        "broken arguments of a call",
        {
            "messages": [
                USER,
                _turn("assistant", "", tool_calls=[{"function": {"name": "count", "arguments": '{"of": '}}]),
            ]
        },
        "the arguments of a tool call of message 2",
    ),
    _no_chat(
        "requests without answers", {"custom_id": "a", "method": "POST", "body": {"messages": [USER]}},
        "no assistant turn to train on",
    ),
    _no_chat("only a user", {"messages": [USER]}, "no assistant turn to train on", "data.target_column"),
    _no_chat("only a system", {"messages": [_turn("system", "Be brief.")]}, "no assistant turn to train on"),
    _no_chat(
        "two systems", {"system": "Be long.", "messages": [_turn("system", "Be brief."), USER, ANSWER]},
        "have different system turns",
    ),
    _no_chat(
        "a history that is no pairs", {"instruction": "Sheep?", "output": "None.", "history": [["Goats?"]]},
        "entry 1 of the column 'history' is not a question with its answer",
    ),
    Wild(
        name="one turn a row",
        content=[
            {"message_id": "a", "parent_id": None, "role": "prompter", "text": "Sheep?"},
            {"message_id": "b", "parent_id": "a", "role": "assistant", "text": "None."},
        ],
        refused=("each row is one turn of a conversation (role, text)", "in a column named messages"),
    ),
    Wild(
        name="one turn a row of a CSV", file="rows.csv",
        content="conversation_id,role,content\n1,user,Sheep?\n1,assistant,None.\n",
        refused=("each row is one turn of a conversation (role, content)",),
    ),
    Wild(
        name="OpenAssistant's trees",
        content=[
            {
                "message_tree_id": "a long name of a tree",
                "prompt": {
                    "text": "Sheep?",
                    "role": "prompter",
                    "replies": [{"text": "None.", "role": "assistant", "replies": []}],
                },
            }
        ],
        refused=("the column 'prompt' holds trees of turns",),
    ),
    Wild(
        name="ChatGPT's export",
        content=[
            {
                "title": "a long title of sheep",
                "mapping": {
                    "a": {"id": "a", "message": None, "parent": None, "children": ["b"]},
                    "b": {
                        "id": "b",
                        "message": {
                            "author": {"role": "user"},
                            "content": {"content_type": "text", "parts": ["Sheep?"]},
                        },
                        "parent": "a",
                        "children": [],
                    },
                },
            }
        ],
        refused=("the column 'mapping' holds trees of turns",),
    ),
    Wild(
        name="requests beside responses",
        content=[{"id": "a", "request": {"messages": [USER]}, "response": {"choices": [{"message": ANSWER}]}}],
        refused=("requests in 'request' and answers in 'response'", "in a column named messages"),
    ),
    Wild(
        name="two columns of conversations", content=[{"id": "a", "first": [USER, ANSWER], "second": [USER, ANSWER]}],
        refused=("several columns hold conversations", "set data.text_column to one of first, second"),
    ),
    # Answers
    *(
        _no_chat(f"an answer that is {what}", {"messages": [USER, ANSWER, USER, _turn("assistant", content)]}, reason)
        for what, content, reason in (
            ("empty", "", "message 4, an assistant turn, is empty"),
            ("blank", " \n", "message 4, an assistant turn, is empty"),
            ("null", None, "the content of message 4 is null"),
            ("a list of no parts", [], "message 4, an assistant turn, is empty"),
            ("a list of empty parts", [{"type": "text", "text": ""}], "message 4, an assistant turn, is empty"),
        )
    ),
    _no_chat(
        "an empty answer of ShareGPT",
        {"conversations": [{"from": "human", "value": "Sheep?"}, {"from": "gpt", "value": ""}]},
        "message 2, an assistant turn, is empty",
    ),
    _no_chat(
        "an empty answer in messages of a completion", {"prompt": [USER], "completion": [_turn("assistant", "")]},
        "message 2, an assistant turn, is empty",
    ),
    _no_chat("empty calls and no answer", {"messages": [USER, _turn("assistant", "", tool_calls=[])]}, "is empty"),
    _no_chat(
        "an empty answer in history", {"instruction": "Sheep?", "output": "None.", "history": [["Goats?", ""]]},
        "message 2, an assistant turn, is empty",
    ),
    _no_chat("an empty question", {"prompt": "", "completion": "None."}, "the user turns are empty"),
    _no_chat("an empty question in messages", {"messages": [_turn("user", " "), ANSWER]}, "the user turns are empty"),
    _no_chat(
        "SQuAD without an answer", {"question": "Sheep?", "answers": {"text": [], "answer_start": []}},
        "the column 'answers' is empty",
    ),
    _no_chat(
        "a good and a bad output", {"instruction": "Sheep?", "input": "", "output": ["None.", "Many."]},
        "the column 'output' has 2 answers",
    ),
    _no_chat(
        "completions to choose from", {"prompt": "Sheep?", "completion": ["None.", "Many."]},
        "the column 'completion' has 2 answers",
    ),
    # Marks
    *(
        _no_chat(f"a mark {mark} of {value}", {"messages": [USER, {**ANSWER, mark: value}]}, mark, "message 2")
        for mark, value in (("weight", 0.5), ("loss", 2.3), ("train", "maybe"), ("mask", True), ("train_detail", [1]))
    ),
    _no_chat("marks that contradict", {"messages": [USER, {**ANSWER, "weight": 1, "train": False}]}, "contradict"),
    _no_chat(
        "a user's turn that is marked as learnt", {"messages": [{**USER, "train": True}, ANSWER]},
        "message 1 (user) is marked for training", 'task.loss_on = "all"',
    ),
    _no_chat(
        "a mark where all is learnt", {"messages": [USER, {**ANSWER, "weight": 0}]},
        "message 2 is excluded from training", settings={"task.loss_on": "all"},
    ),
    _no_chat(
        "a row that is marked as not learnt", {"messages": [USER, ANSWER], "train": False},
        "the column 'train' is False, which excludes the row from training",
    ),
    _no_chat("a row of half a weight", {"messages": [USER, ANSWER], "weight": 0.5}, "the column 'weight' is 0.5"),
    _no_chat(
        "LLaMA-Factory's mask_history", {"messages": [USER, ANSWER], "mask_history": True},
        'set task.loss_on = "completion"',
    ),
    Wild(
        name="KTO in a CSV", file="rows.csv",
        refused=("the column 'label' is false, which marks the answer as bad",), where="rows.csv, line 3",
        content="question,answer,label\nSheep?,None.,True\nSheep?,Many.,False\n",
    ),
    Wild(
        name="KTO's label that comes late",
        refused=("the column 'label' is false",), where="rows.jsonl, line 103",
        content=[{"messages": [USER, ANSWER], "label": True}] * 102 + [{"messages": [USER, ANSWER], "label": False}],
    ),
)  # fmt: skip


def _rendered(*turns: Mapping[str, Any], tools: Sequence[Any] = ()) -> list[dict[str, Any]]:
    return [{"messages": list(turns), **({"tools": tools} if tools else {})}] * 2


def _says(role: str, content: str, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def _calls(name: str, **arguments: Any) -> dict[str, Any]:
    return {"tool_calls": [{"type": "function", "function": {"name": name, "arguments": arguments}}]}


ASKS, TELLS = _says("user", "Sheep?"), _says("assistant", "None.")
FIND_TOOL = {"type": "function", "function": {"name": "find_sheep", "description": "Finds.", "parameters": {}}}
# Every turn by its role and what the braces give.
PLAIN = (
    "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}"
)


def _each(content: str) -> str:
    return PLAIN.replace("{{ m.content }}", content)


STRIPPED = _each("{{ m.content | trim }}")
FIRST_WORDS = _each("{{ m.content[:3] }}")
NO_SYSTEM = PLAIN.replace("{% for m in messages %}", "{% for m in messages if m.role != 'system' %}")
SYSTEM_LAST = (
    "{% for m in messages if m.role != 'system' %}[{{ m.role }}] {% if loop.last or loop.index == 1 %}"
    "{% if m.role == 'user' and messages[0].role == 'system' %}{{ messages[0].content }} {% endif %}{% endif %}"
    "{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}[assistant] {% endif %}"
)
NAMED_CALLS = _each("{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.name }}(){% endfor %}")
XML_CALLS = _each(
    "{{ m.content }}{% for c in m.tool_calls or [] %}<{{ c.function.name }}>"
    "{% for k, v in c.function.arguments.items() %}"
    "<{{ k }}>{{ v if v is string else v | tojson }}</{{ k }}>{% endfor %}</{{ c.function.name }}>{% endfor %}"
)
TEXT_CALLS = _each(
    "{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.name }} {{ c.function.arguments | tojson | tojson }}"
    "{% endfor %}"
)
RESULTS_AS_JSON = _each("{{ (m.content | tojson) if m.role == 'tool' else m.content }}")
THINKS = _each("{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}")
CUTS_ALL = _each("{{ m.content.split('</think>')[-1] }}")
CUTS_EARLIER = _each("{{ m.content if loop.last else m.content.split('</think>')[-1] }}")
NO_CONTENT_BESIDE_CALLS = _each(
    "{% if m.tool_calls %}{% for c in m.tool_calls %}{{ c.function | tojson }}{% endfor %}"
    "{% else %}{{ m.content }}{% endif %}"
)
_THOUGHT = "<think>One, two.</think>None."
_NO_WRITE = "omits"
_ONCE = "special tokens of the tokenizer at the beginning or end; these tokens are not added again"

TEMPLATES = (
    # What a template has no place for.
    Wild(
        name="template without calls",
        content=_rendered(ASKS, _says("assistant", "", **_calls("find_sheep", hill="far"))), template=PLAIN,
        refused=(_NO_WRITE, "the tool call 'find_sheep' of message 2", "chatml"), where="rows.jsonl, line 1",
    ),
    Wild(
        name="template without arguments of calls",
        content=_rendered(ASKS, _says("assistant", "", **_calls("find_sheep", hill="far"))), template=NAMED_CALLS,
        refused=(_NO_WRITE, "'hill' in the tool call 'find_sheep' of message 2"), where="line 1",
    ),
    Wild(
        name="template without tools", content=_rendered(ASKS, TELLS, tools=[FIND_TOOL]), template=PLAIN,
        refused=(_NO_WRITE, "the tool 'find_sheep'"), where="line 1",
    ),
    Wild(
        name="template without a system turn", content=_rendered(_says("system", "Be brief."), ASKS, TELLS),
        template=NO_SYSTEM,
        refused=(_NO_WRITE, "the content of message 1 (system)"), where="line 1",
    ),
    Wild(
        name="template without a system turn, from a column",
        content=[{"system": "Be brief.", "prompt": "Sheep?", "completion": "None."}] * 2, template=NO_SYSTEM,
        refused=(_NO_WRITE, "the content of message 1 (system)"),
    ),
    Wild(
        name="template that cuts what is said", content=_rendered(ASKS, TELLS), template=FIRST_WORDS,
        refused=("omits the text of the assistant",),
    ),
    Wild(
        name="template without content beside calls",
        content=_rendered(ASKS, _says("assistant", "I look.", **_calls("find_sheep", hill="far"))),
        template=NO_CONTENT_BESIDE_CALLS,
        refused=(_NO_WRITE, "the content of message 2 (assistant)"),
    ),
    Wild(
        name="template that drops a tool's result",
        content=_rendered(
            ASKS, _says("assistant", "", **_calls("find_sheep", hill="far")), _says("tool", "Sixteen."), TELLS
        ),
        template=XML_CALLS.replace("{{ m.content }}", "{{ m.content if m.role != 'tool' }}"),
        refused=(_NO_WRITE, "the content of message 3 (tool)"),
    ),
    Wild(
        name="an answer that is reasoning alone",
        content=_rendered(ASKS, _says("assistant", "", reasoning_content="One, two.")),
        refused=("message 2, an assistant turn, is empty",),
    ),
    Wild(
        name="an answer that is reasoning alone, in its text",
        content=_rendered(ASKS, _says("assistant", "<think>One, two.</think>")), template=CUTS_ALL,
        refused=("the reasoning of message 2", "no other content"),
    ),
    Wild(
        name="earlier reasoning cut by the template",
        content=_rendered(ASKS, _says("assistant", _THOUGHT), ASKS, _says("assistant", _THOUGHT)),
        template=CUTS_EARLIER,
        refused=("changes assistant turn 1 when the conversation continues", 'task.loss_on = "completion"'),
    ),
    Wild(
        name="rows that the template does not write, left out",
        content=[*_rendered(_says("system", "Be brief."), ASKS, TELLS)[:1], {"messages": [ASKS, TELLS]}],
        template=NO_SYSTEM, settings={"data.on_bad_rows": "skip"},
        task="chat", learnt=("None.",),
    ),
    # What is left out and named.
    Wild(
        name="reasoning under chatml",
        content=_rendered(ASKS, _says("assistant", "None.", reasoning_content="One, two.")),
        task="chat", learnt=("None.",) * 2, notes=("omits the reasoning in 2 turns of 2 rows",),
    ),
    Wild(
        name="thinking under chatml",
        content=_rendered(
            ASKS, _says("assistant", "None.", thinking="One, two."), ASKS, _says("assistant", "No.", thinking="Hm")
        ),
        settings={"data.max_length": 256},
        task="chat", learnt=("None. | No.",) * 2, notes=("the reasoning in 4 turns of 2 rows",),
    ),
    Wild(
        name="reasoning cut out of every answer",
        content=_rendered(ASKS, _says("assistant", _THOUGHT), ASKS, _says("assistant", "No.")), template=CUTS_ALL,
        task="chat", learnt=("None. | No.",) * 2, notes=("the reasoning in 2 turns of 2 rows",),
    ),
    Wild(
        name="earlier reasoning cut, the last answer learnt",
        content=_rendered(ASKS, _says("assistant", _THOUGHT), ASKS, _says("assistant", _THOUGHT)),
        template=CUTS_EARLIER, settings={"task.loss_on": "completion"},
        task="chat", learnt=(_THOUGHT,) * 2, notes=("the reasoning in 2 turns of 2 rows",),
    ),
    Wild(
        name="names of speakers under chatml", content=_rendered(_says("user", "Sheep?", name="Ann"), TELLS),
        task="chat", learnt=("None.",) * 2, notes=("omits the speaker's name in 2 turns of 2 rows",),
    ),
    # What templates may do.
    Wild(
        name="reasoning that the template writes",
        content=_rendered(ASKS, _says("assistant", "None.", reasoning_content="One, two.")), template=THINKS,
        task="chat", learnt=(_THOUGHT,) * 2,
    ),
    Wild(
        name="reasoning under another name than the template's",
        content=_rendered(ASKS, _says("assistant", "None.", reasoning="One, two.")), template=THINKS,
        task="chat", learnt=(_THOUGHT,) * 2,
    ),
    Wild(
        name="contents stripped by the template",
        content=_rendered(_says("user", " Sheep?\n"), _says("assistant", "None.\n\n")), template=STRIPPED,
        task="chat", learnt=("None.",) * 2, reads=("[user] Sheep?\n",),
    ),
    Wild(
        name="system turn within a question", content=_rendered(_says("system", "Be brief."), ASKS, TELLS),
        template=SYSTEM_LAST,
        task="chat", learnt=("None.",) * 2, reads=("[user] Be brief. Sheep?",),
    ),
    Wild(
        name="calls as tags",
        content=_rendered(ASKS, _says("assistant", "", **_calls("find_sheep", hill='so "far"', most=3, near=False))),
        template=XML_CALLS,
        task="chat", learnt=('<find_sheep><hill>so "far"</hill><most>3</most><near>false</near></find_sheep>',) * 2,
    ),
    Wild(
        name="calls as JSON in a string",
        content=_rendered(ASKS, _says("assistant", "", **_calls("find_sheep", hill='a "far"\none'))),
        template=TEXT_CALLS,
        task="chat", learnt=('find_sheep "{\\"hill\\": \\"a \\\\\\"far\\\\\\"\\\\none\\"}"',) * 2,
    ),
    Wild(
        name="results as JSON", content=_rendered(ASKS, TELLS, _says("tool", '{"sheep": "a\nb"}'), TELLS),
        template=RESULTS_AS_JSON,
        task="chat", learnt=("None. | None.",) * 2, reads=('"{\\"sheep\\": \\"a\\nb\\"}"',),
    ),
    Wild(
        name="tools and calls under chatml",
        content=_rendered(
            ASKS,
            _says("assistant", "", **_calls("find_sheep", hill="far")),
            _says("tool", "0"),
            TELLS,
            tools=[FIND_TOOL],
        ),
        task="chat", settings={"data.max_length": 800},
        learnt=('<tool_call>\n{"name": "find_sheep", "arguments": {"hill": "far"}}\n</tool_call> | None.',) * 2,
        reads=("<tools>\n",),
    ),
    # Special tokens that texts spell.
    Wild(
        name="text that begins as the tokenizer begins it", content=[{"text": "<bos>A sheep."}, {"text": "A goat."}],
        task="causal_lm", learnt=("A sheep.", "A goat."), whole=("<bos>A sheep.<eos>", "<bos>A goat.<eos>"),
        notes=(f"1 document has {_ONCE}",),
    ),
    Wild(
        name="text with several beginnings and ends", content=[{"text": "\n<bos><bos>A sheep.<eos>\n<eos> \n"}] * 2,
        task="causal_lm", learnt=("A sheep.",) * 2, whole=("<bos>A sheep.<eos>",) * 2,
        notes=(f"2 documents have {_ONCE}",),
    ),
    Wild(
        name="text whose end is followed by a newline", content=[{"text": "A sheep.<eos>\n"}] * 2,
        task="causal_lm", learnt=("A sheep.",) * 2, whole=("<bos>A sheep.<eos>",) * 2,
    ),
    Wild(
        name="text that ends once", content=[{"text": "<bos>A sheep. <eos>"}] * 2,
        task="causal_lm", learnt=("A sheep.",) * 2, whole=("<bos>A sheep. <eos>",) * 2,
    ),
    Wild(
        name="text with an end within it", content=[{"text": "A sheep.<eos>A goat."}] * 2,
        task="causal_lm", learnt=("A sheep.A goat.",) * 2, whole=("<bos>A sheep.<eos>A goat.<eos>",) * 2,
    ),
    Wild(
        name="classified text that spells its frame",
        content=[{"text": "<s>a sheep</s>", "label": "animal"}, {"text": "a rose</s>\n", "label": "plant"}],
        model="encoder",
        task="sequence_classification", learnt=("a sheep -> animal", "a rose -> plant"),
        whole=("<s>a sheep</s>", "<s>a rose</s>"), notes=(f"2 rows have {_ONCE}",),
    ),
    Wild(
        name="answer that spells its end", content=[{"document": "Many sheep.</s>", "summary": "<s>Sheep.</s>"}] * 2,
        model="text to text",
        task="seq2seq", learnt=("Many sheep. -> Sheep.",) * 2, whole=("<s>Many sheep.</s>",) * 2,
        notes=(f"2 rows have {_ONCE}",),
    ),
    Wild(
        name="answer of T5 that spells its end", content=[{"document": "the sheep </s>", "summary": "sheep </s>"}] * 2,
        model="text to text of T5's kind",
        task="seq2seq", learnt=("the sheep -> sheep",) * 2, notes=(f"2 rows have {_ONCE}",),
    ),
    Wild(
        name="conversation that spells the tokens of its template",
        content=_rendered(_says("user", "<bos>Sheep?<eos>"), _says("assistant", "None.<eos>")),
        template="{{ bos_token }}" + PLAIN.replace("{{ m.content }}", "{{ m.content }}{{ eos_token }}"),
        task="chat", learnt=("None.<eos>",) * 2, notes=("2 rows contain names of special tokens",),
    ),
)  # fmt: skip

JSON_LINES = "".join(json.dumps({"messages": TURNS}) + "\n" for _ in range(2))
ALTERNATIVES = [{"text": "A.", "score": 3}, {"text": "B."}]
PLACED = [{"text": "A.", "answer_start": 3}, {"text": "B.", "answer_start": 9}]
ANSWERS_OF_SEVERAL_BYTES = ("π", "😀", "é")
SPANS_UTF16 = [{"start": 5, "end": 8, "text": "Ann", "labels": ["PER"]}]
FILES_AND_VALUES = (
    *(
        Wild(name=f"conversations in {file}", content=JSON_LINES, file=file, task="chat", learnt=("None.",) * 2)
        for file in ("chat.txt", "chat.jsonl.txt", "train.data", "rows")
    ),
    Wild(
        name="CoNLL in a text file", content="Ann B-PER\nlives O\n\n-DOCSTART- O\nPaul B-PER\nsings O\n\n" * 2,
        file="train.txt", model="encoder", task="token_classification",
        learnt=("Ann/B-PER lives/O", "Paul/B-PER sings/O") * 2,
    ),
    Wild(
        name="CoNLL with a comment of two words and -DOCSTART- as a word", file="a.conll", model="encoder",
        content="# 12\nAnn B-PER\nwrote O\n-DOCSTART- O\n\n" * 2, task="token_classification",
        learnt=("Ann/B-PER wrote/O -DOCSTART-/O",) * 2, notes=("the tags mark entities",),
    ),
    Wild(
        name="a table in a text file", content="text,label\ngood day,pos\nbad day,neg\n", file="a.txt",
        model="encoder",
        task="sequence_classification", learnt=("good day -> pos", "bad day -> neg"),
    ),
    Wild(
        name="prose with commas", file="a.txt",
        content="Dear Sir, I write, with joy, to you.\nYours, Ann, and others\n",
        task="causal_lm", learnt=("Dear Sir, I write, with joy, to you.\nYours, Ann, and others\n",),
    ),
    Wild(
        name="documentation and code beside rows",
        content={"a.jsonl": [{"text": STORY}] * 2, "README.md": "# Sheep", "LICENSE": "MIT", "make.py": "x = 1"},
        task="causal_lm", learnt=(STORY,) * 2, notes=("not read: LICENSE, README.md, make.py",),
    ),
    Wild(
        name="a file of another compression beside rows", content={"a.jsonl": [{"text": STORY}], "b.jsonl.zst": "x"},
        refused=(".zst files are not supported", "b.jsonl.zst"),
    ),
    Wild(
        name="answers with scores", content=[{"question": "Why?", "answers": ALTERNATIVES}],
        refused=("the column 'answers' has 2 answers", "keep only the right answer"),
    ),
    Wild(
        name="answers with scores for T5", model="text to text",
        content=[{"question": "Why?", "answers": ALTERNATIVES}],
        refused=("the column 'answers' has 2 answers",),
    ),
    Wild(
        name="answers with their places",
        content=[{"question": "Why?", "answers": PLACED}] * 2,
        task="chat", learnt=("A.",) * 2, notes=("the first answer of each row",),
    ),
    *(
        Wild(
            name=f"context and input beside {question}", task="chat", learnt=("Denver",) * 2,
            reads=("It won.", "Shortly."),
            content=[{question: "Who?", "context": "It won.", "input": "Shortly.", answer: "Denver"}] * 2,
        )
        for question, answer in (
            ("prompt", "response"), ("query", "response"), ("user", "assistant"), ("problem", "solution"),
            ("question", "solution"),
        )
    ),
    Wild(
        name="spans that count UTF-16 units", content=[{"text": "😀😀 Ann lives", "label": SPANS_UTF16}] * 2,
        settings={"task.type": "token_classification"}, model="encoder", task="token_classification",
        learnt=("\ufffd" * 4 + "/O " + "\ufffd" * 4 + "/O Ann/B-PER lives/O",) * 2, notes=("UTF-16",),
    ),
    Wild(
        name="a span that marks another text than its own",
        content=[{"text": "Bob met Ann", "label": [{"start": 0, "end": 3, "text": "Ann", "labels": ["PER"]}]}],
        settings={"task.type": "token_classification"}, model="encoder",
        refused=("the span 0-3 (PER) covers 'Bob', but its text is 'Ann'",), where="line 1",
    ),
    Wild(
        name="answers of many rows that are not in their contexts", model="encoder",
        content=[{"question": "?", "context": "A sheep.", "answers": f"hen {name}"} for name in "abcdefgh"],
        settings={"task.type": "question_answering"},
        refused=("the answer 'hen a' is not in the context", "all 8 rows"),
    ),
    Wild(
        name="more tags than words, in a row that is shown in part", model="encoder",
        content=[{"tokens": ["a", "b"], "ner_tags": ["O"] * 5}] * 2, refused=("2 words but 5 tags", '"O", "\u2026"]'),
    ),
    Wild(
        name="the ignored index as a label", content=[{"text": "A sheep.", "label": label} for label in (-100, 0, 1)],
        model="encoder", refused=("the label is -100",), where="line 1",
    ),
    Wild(
        name="labels between blanks", settings={"task.problem_type": "multi_label_classification"}, model="encoder",
        content=[{"text": "A.", "labels": labels} for labels in ("a.b c.d", "a.b", "c.d e.f", "e.f a.b")],
        task="sequence_classification", notes=("separated by spaces",),
        learnt=("A. -> a.b, c.d", "A. -> a.b", "A. -> c.d, e.f", "A. -> a.b, e.f"),
    ),
    *(
        Wild(
            name=f"the answer {answer!a} of several bytes", model="encoder",
            settings={"task.type": "question_answering"},
            content=[
                {"question": "?", "context": f"café {answer} end", "answers": {"text": [answer], "answer_start": [5]}}
            ] * 2,
            task="question_answering", learnt=(f"?café {answer} end -> {answer}",) * 2,
        )
        for answer in ANSWERS_OF_SEVERAL_BYTES
    ),
)  # fmt: skip

ANN_SINGS, PAUL_SINGS = "Ann/B-PER sings/O", "Paul/B-PER sings/O"
LFS_POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 12\n"
OF_CLASSES = {"neg/1.txt": "Bad day.", "neg/2.txt": "Sad day.", "pos/1.txt": "Good day.", "pos/2.txt": "Glad day."}
CLASSES_LEARNT = ("Bad day. -> neg", "Sad day. -> neg", "Good day. -> pos", "Glad day. -> pos")
LABELLED = [{"text": "A sheep.", "label": "x"}, {"text": "A rose.", "label": "y"}]
LONG_ASKED = [{"role": "user", "content": "Sheep? " * 30}, TURNS[1]]
SQUAD = {
    "version": "1.1",
    "data": [
        {"title": "Sheep", "paragraphs": [{"context": "Ann won.", "qas": [{"question": "Who?", "answers": PLACED}]}]}
    ],
}
SHEEP_IN_RUSSIAN = "\u041e\u0432\u0446\u044b \u043f\u043e\u044e\u0442"
FILES_AND_FOLDERS = (
    # Text that the tokenizer does not know.
    Wild(
        name="a target of unknown characters", model="text to text of T5's kind",
        content=[{"source": "the sheep", "target": "{}[]"}] * 3,
        refused=("3 of 6 tokens to train on (50.00%) are unknown to the tokenizer: {, }, [, ]", "model.add_tokens"),
    ),
    Wild(
        name="a target with unknown characters, and an input", model="text to text of T5's kind",
        content=[
            {"source": "the {sheep}", "target": "the sheep agreed said ["}, {"source": "the", "target": "the hen"},
        ],
        task="seq2seq", learnt=("the sheep -> the sheep agreed said", "the -> the hen"),
        notes=("1 of ", "tokens to train on (", ") and 2 of ", "are unknown to the tokenizer: {, }, [",),
    ),
    # What is not read as rows.
    Wild(
        name="rows in YAML", file="a.yaml", content="# rows\n- text: good hay\n  label: pos\n", model="decoder",
        refused=("this is a list of rows in YAML", "to JSONL"),
    ),
    Wild(
        name="answers in a list of objects", model="decoder",
        content=[{"prompt": "Why?", "responses": [{"response": "So.", "score": 1}, {"response": "No.", "score": 0}]}],
        refused=("write one row per answer, such as", '{"prompt": "Why?", "responses": "So."}'),
    ),
    Wild(
        name="a context of titles and sentences", model="decoder", template=PLAIN,
        content=[{"question": "Who?", "answer": "Ann", "context": {"title": ["T"], "sentences": [["One.", "Two."]]}}],
        refused=("a part that is not text", 'write one text: "T One. Two."'),
    ),
    # CoNLL under other names, with other separators, numbers and no blank lines.
    Wild(
        name="CoNLL between bars", file="a.conll", model="encoder",
        content="Ann|B-PER\nsings|O\n||O\n\nPaul|B-PER\nsings|O\n",
        task="token_classification", learnt=(f"{ANN_SINGS} |/O", PAUL_SINGS),
    ),
    Wild(
        name="CoNLL in a .tsv without a header", file="train.tsv", model="encoder",
        content="Ann\tB-PER\nsings\tO\n\nPaul\tB-PER\nsings\tO\n",
        task="token_classification", learnt=(ANN_SINGS, PAUL_SINGS),
    ),
    Wild(
        name="numbered words with two levels of entities", file="train.tsv", model="encoder",
        content="#\thttp://a [1]\n1\tAnn\tB-PER\tO\n2\tsings\tO\tO\n\n#\tb\n1\tPaul\tB-PER\tB-OTH\n2\tsings\tO\tO\n",
        task="token_classification", learnt=(ANN_SINGS, PAUL_SINGS), notes=("columns that are not read: 1, 4",),
    ),
    Wild(
        name="numbered words with parts of speech", file="a.conll", model="encoder",
        content="1 Ann NN B-PER\n2 sings VB O\n\n1 Paul NN B-PER\n2 sings VB O\n",
        task="token_classification", learnt=(ANN_SINGS, PAUL_SINGS), notes=("columns that are not read: 1, 3",),
    ),
    Wild(
        name="a word with a blank", file="a.conll", model="encoder", content="Ann B-PER\nsings O\nNew York B-LOC\n",
        refused=("the line has 3 columns", "after a tab if words contain spaces"), where="line 3",
    ),
    Wild(
        name="CoNLL without blank lines", file="a.conll", model="encoder", content="Ann B-PER\nsings O\n" * 100,
        settings={"data.max_length": 8}, task="token_classification", learnt=("Ann/B-PER",),
        notes=("no blank line between its 200 words", "1 of 1 rows are longer than 8 tokens"),
    ),
    # What is inside.
    *(
        Wild(
            name=f"a pointer of Git LFS, {file}", file=file, content=LFS_POINTER, refused=("git lfs pull",), where=file
        )
        for file in ("a.parquet", "a.jsonl.gz", "a.jsonl", "a.txt", "a.arrow", "a")
    ),
    *(
        Wild(name=f"{what} inside", file=file, content=content, model="encoder", refused=(what, *more))
        for file, content, what, *more in (
            ("a.sqlite", b"SQLite format 3\0" + bytes(100), "an SQLite database", "CSV"),
            ("a.pkl", b"\x80\x04\x95a\0", "a Python pickle", "never opened"),
            ("a.spacy", b"x\x9cabc\0", "spaCy's", "JSONL"),
            ("a.txt", b"PK\x03\x04\0", "an Excel or a ZIP file", "CSV"),
            ("a.xml", "<?xml version='1.0'?><a/>", "this is XML without columns"),
            ("a.yaml", "---\na: 1\n", "this is YAML without columns"),
        )
    ),
    *(
        Wild(
            name=f"rows in {encoding}", file="my rows.csv", content=f"text,label\n{text},a\n".encode(encoding),
            model="encoder", where="line 2",
            refused=(f"iconv -f {encoding.upper()} -t UTF-8", "'my rows.csv' > 'utf8-my rows.csv'"),
        )
        for encoding, text in (
            ("windows-1252", "caf\u00e9"), ("windows-1251", SHEEP_IN_RUSSIAN), ("koi8-r", SHEEP_IN_RUSSIAN),
            ("gb18030", "\u5c71\u4e0a\u6709\u8bb8\u591a\u7f8a"), ("shift_jis", "\u3053\u308c\u306f\u7f8a\u3067\u3059"),
        )
    ),
    # Folders.
    Wild(
        name="a folder for each class", content=OF_CLASSES, model="encoder",
        task="sequence_classification", learnt=CLASSES_LEARNT,
    ),
    Wild(
        name="a folder for each class, in splits and with a README", model="encoder",
        content={"README.md": "# Days", "test/neg/1.txt": "No."}
        | {f"train/{name}": text for name, text in OF_CLASSES.items()},
        task="sequence_classification", learnt=CLASSES_LEARNT,
    ),
    Wild(
        name="folders of texts for a decoder", content=OF_CLASSES, task="causal_lm",
        learnt=("Bad day.", "Sad day.", "Good day.", "Glad day."),
    ),
    Wild(
        name="lines of two languages", content={"train.de": "Schafe\n", "train.en": "sheep\n"}, model="text to text",
        refused=("paste train.de train.en) > train.tsv", "data.text_column to de and data.target_column to en"),
    ),
    *(
        Wild(
            name=f"config.json beside {rows}", content={rows: LABELLED, "config.json": '{"model_type": "bert"}'},
            model="encoder", task="sequence_classification", learnt=("A sheep. -> x", "A rose. -> y"),
            notes=("not read: config.json",),
        )
        for rows in ("train.jsonl", "rows.json")
    ),
    # What the chosen task is blamed for, and which length would do.
    *(
        Wild(
            name=f"SQuAD's own JSON for a model that writes, {model}", file="squad.json", model=model,
            content=json.dumps(SQUAD), task=task, learnt=learnt, reads=("Ann won.",),
        )
        for model, task, learnt in (
            ("text to text", "seq2seq", ("question: Who? context: Ann won. -> A.",)), ("decoder", "chat", ("A.",)),
        )
    ),
    Wild(
        name="questions beyond the length", content=[{"messages": LONG_ASKED}] * 3,
        settings={"data.max_length": 64},
        refused=("3 training rows has a label", "the shortest prompt has", "with 256 tokens, 3 of 3 rows are kept"),
    ),
    Wild(
        name="one question beyond the length, and one turn without weight",
        content=[{"messages": LONG_ASKED}, {"messages": [TURNS[0], TURNS[1] | {"weight": 0}]}, {"messages": TURNS}],
        task="chat", learnt=("None.",),
        notes=("1 row is skipped, because no token to train on is within the first 128", "with 256 tokens, 1 of 1 rows",
               "1 row is skipped, because no token is trained on"),
    ),
)  # fmt: skip


LATE = [{"instruction": "Say.", "output": "Yes."}] * 100
LATE_ROW = {"instruction": "Translate", "input": "DAS HAUS", "output": "the house"}
FEW = [{"text": f"a {n}", "label": str(n % 2)} for n in range(100)]
LONG = "Count all of the sheep on the hill and in the valley, and say how many there are when it is evening."
THREE = ["Ann", "Lee", "sleeps"]
ANN_LEE = ("Ann/B-PER Lee/I-PER sleeps/O",) * 2
_TOOLS = [{"name": "count", "description": "Counts.", "parameters": {"of": {"type": "str"}}}]
_CALLED = '<tool_call>\n{"name": "count", "arguments": {"of": "sheep"}}\n</tool_call>'
_IN_TURN = "whose texts alternate between user and assistant"
_BETTER = " to train on the better answers only"
_LONGER = {"data.max_length": 1024}


def _pair(name: str, row: Mapping[str, Any], question: str, answer: str, **more: Any) -> Iterator[Wild]:
    """A pair that a decoder answers, and a model that is made for it."""
    yield Wild(
        name=name, content=[row] * 2, settings=_LONGER, task="chat", learnt=(answer,) * 2, reads=(question,), **more
    )
    yield Wild(name=f"{name}, text to text", content=[row] * 2, model="text to text", settings={"task.type": "seq2seq"},
               task="seq2seq", learnt=(f"{question} -> {answer}",) * 2)  # fmt: skip


def _not(name: str, row: Any, *refused: str, file: str = "rows.jsonl", **more: Any) -> Wild:
    """Two rows alike, or a table, for an encoder unless a model is named."""
    content = row if isinstance(row, str | list) else [row] * 2
    return Wild(name=name, content=content, file=file, refused=refused, **{"model": "encoder", **more})


ROWS_AND_COLUMNS = (
    # Columns that come late.
    Wild(
        name="an input in row 101, text to text", content=[*LATE, LATE_ROW], model="text to text", task="seq2seq",
        learnt=("Say. -> Yes.",) * 100 + ("instruction: Translate input: DAS HAUS -> the house",),
    ),
    Wild(
        name="an input in row 101", content=[*LATE, LATE_ROW], task="chat", learnt=("Yes.",) * 100 + ("the house",),
        reads=("Translate\n\nDAS HAUS",), notes=("the questions are in 'instruction' and 'input'",),
    ),
    Wild(
        name="an input that the first file lacks", content={"a.jsonl": LATE, "b.jsonl": [LATE_ROW]}, task="chat",
        learnt=("Yes.",) * 100 + ("the house",), reads=("Translate\n\nDAS HAUS",),
    ),
    Wild(
        name="a context that the first file of Parquet lacks", task="chat", learnt=("A.",) * 100 + ("B.",),
        content={
            "a.parquet": [{"question": "Q?", "answer": "A."}] * 100,
            "b.parquet": [{"question": "Q?", "answer": "B.", "context": "It rains."}],
        },
        reads=("It rains.\n\nQ?",),
    ),
    *(
        _not(f"the column {column} in row 101", [*FEW, {"text": "b", "label": "1", **dict.fromkeys([column], "c")}],
             f"no earlier row has the column {column}", reason, where="line 101", settings=settings)
        for column, reason, settings in (
            ("text_pair", "data.text_pair_column", {}), ("labels", "several columns could hold the labels", {}),
        )
    ),
    _not(
        "another text in row 101", [{"review": "a", "label": str(n % 2)} for n in range(100)]
        + [{"review": "b", "text": "c", "label": "1"}] * 2, "'text' would be data.text_column",
        where="line 101 (also 102)",
    ),
    _not(
        "other tags in row 101", [{"tokens": ["a", "b"], "pos_tags": ["X", "Y"]}] * 100
        + [{"tokens": ["a", "b"], "pos_tags": ["X", "Y"], "ner_tags": ["O", "O"]}], "'ner_tags' would be data.",
        where="line 101",
    ),
    _not(
        "an answer in row 101 of texts", [{"prompt": STORY}] * 100 + [{"prompt": STORY, "response": "None."}],
        "no earlier row has the column response", "pairs of input and answer", where="line 101", model="decoder",
    ),
    _not(
        "another text in row 101 of texts", [{"content": "A."}] * 100 + [{"content": "A.", "text": "B."}],
        "from this row on, the text would be read from the column", where="line 101", model="decoder",
    ),
    Wild(
        name="a column in row 101 that is not read", content=[*FEW, {"text": "b", "label": "1", "note": "hi"}],
        model="encoder", task="sequence_classification", notes=("other candidates: note",),
        learnt=(*(f"a {n} -> {n % 2}" for n in range(100)), "b -> 1"),
    ),
    # Inputs with their answers.
    *_pair("inputs and targets", {"inputs": LONG, "targets": "Three."}, LONG, "Three."),
    *_pair("source and target", {"source": LONG, "target": "Three."}, LONG, "Three."),
    *_pair("article and abstract", {"article": LONG, "abstract": "Three."}, LONG, "Three."),
    *_pair("Frage and Antwort", {"Frage": LONG, "Antwort": "Drei."}, LONG, "Drei."),
    *_pair("question and solution", {"question": LONG, "solution": "Three."}, LONG, "Three."),
    *_pair("question and query", {"db_id": "a", "query": "SELECT 1", "question": "How many?"}, "How many?", "SELECT 1"),
    *_pair(
        "HumanEval", {"task_id": "a/0", "prompt": "def f():", "canonical_solution": "return 1", "test": "f()",
                      "entry_point": "f"}, "def f():", "return 1", notes=("not read: task_id, test, entry_point",),
    ),
    *_pair(
        "P3", {"inputs": [1, 2], "inputs_pretokenized": "Sheep?", "targets": [3], "targets_pretokenized": "None."},
        "Sheep?", "None.",
    ),
    *_pair("a translation", {"translation": {"de": "ja", "en": "yes"}}, "ja", "yes"),
    _chat("Super-NaturalInstructions", {"id": "1", "definition": "Answer.", "inputs": "Sheep?", "targets": "None."},
          reads=("Answer.\n\nSheep?",)),
    _chat("ELI5 with one answer", {"title": "Sheep?", "selftext": "", "answers": {"text": ["None."], "score": [3]}}),
    *(
        _not(f"ELI5 with several answers, {model}", {"title": "Sheep?", "answers": {"text": ["A.", "B."],
             "score": [3, 4]}}, "the column 'answers' has 2 answers", model=model)
        for model in ("decoder", "text to text")
    ),
    *(
        _not(f"an unknown pair, {what}", {"nr": 7, "aufgabe": LONG, "ergebnis": answer},
             'data.text_column = "aufgabe" and data.target_column = "ergebnis"', model=model)
        for what, answer, model in (
            ("one far longer", "Es sind drei.", "decoder"), ("of one length", LONG, "decoder"),
            ("text to text", "Es sind drei.", "text to text"),
        )
    ),
    _not("a question beside a passage", {"passage": LONG * 3, "question": "Sheep, how many?"}, "data.target_column",
         model="decoder"),
    # Conversations.
    *(
        _chat(f"{name} of plain texts", row, learnt="None. | Two.", notes=notes)
        for name, row, notes in (
            ("LIMA", {"conversations": ["Sheep?", "None.", "Goats?", "Two."]}, (_IN_TURN,)),
            ("DailyDialog", {"dialog": ["Sheep?", "None.", "Goats?", "Two."], "act": [1, 1, 1, 1]}, (_IN_TURN,)),
            ("UltraChat", {"id": "0", "data": ["Sheep?", "None.", "Goats?", "Two."]}, (_IN_TURN,)),
            ("turns", {"turns": ["Sheep?", "None.", "Goats?", "Two."], "category": "a text about sheep"}, (_IN_TURN,)),
            ("pairs", {"conversations": [["Sheep?", "None."], ["Goats?", "Two."]]}, ()),
        )
    ),
    *(
        Wild(name=f"a conversation in a cell, {name}", file="rows.csv", content=_csv(column, text), task="chat",
             learnt=("None.",) * 2, reads=("Sheep?",))
        for name, column, text in (
            ("ShareGPT", "conversation", json.dumps(SHAREGPT)), ("plain texts", "dialogue", '["Sheep?", "None."]'),
            ("numpy's array", "messages", f"array({[USER, ANSWER]}, dtype=object)"),
        )
    ),
    *(
        _not(f"a conversation in one text, {column}", {column: text}, "a single text with names of speakers",
             '{"role": "user", "content": "Sheep?"}, {"role": "assistant", "content": "None."}', model="decoder")
        for column, text in (
            ("chat", "USER: Sheep?\n\n\nASSISTANT: None."), ("conversation", "\n\nHuman: Sheep?\n\nAssistant: None."),
        )
    ),
    _not("MOSS", {"chat": {"turn_1": {"Human": "Sheep?", "MOSS": "None."}}}, '{"messages": [{"role": "user"',
         model="decoder"),
    _not("conversations, text to text", {"messages": TURNS}, "the rows are conversations (messages)",
         '{"input": "...", "output": "..."}', model="text to text"),
    _not("a prompt of several texts", {"prompt": ["Sheep?", "Goats?"], "completion": "None."}, "a list of 2 texts",
         '"Sheep? Goats?"', model="decoder"),
    _not("a turn without a role", {"messages": [{"content": "Sheep?"}, ANSWER]}, "message 1 has no role",
         "add one of the roles system, user", model="decoder"),
    # Tools.
    _chat("Anthropic's parts", {"messages": [
        USER, _turn("assistant", [{"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "I look."},
                                  {"type": "tool_use", "id": "t", "name": "count", "input": {"of": "sheep"}}]),
        _turn("user", [{"type": "tool_result", "tool_use_id": "t", "content": "0"}, {"type": "text", "text": "So?"}]),
        ANSWER]},
        learnt=f"I look.\n{_CALLED} | None.", reads=("<tool_response>\n0\n</tool_response>", "So?"),
        notes=("omits the reasoning in 2 turns",)),
    *(
        _chat(f"xLAM, {what}", {"query": "Sheep?", "answers": write([{"name": "count", "arguments": {"of": "sheep"}}]),
              "tools": write(_TOOLS)}, learnt=_CALLED, reads=('"description": "Counts."',))
        for what, write in (("as JSON", json.dumps), ("as lists", list))
    ),
    _chat("Hermes with tools in both places", {"conversations": [
        {"from": "system", "value": "Call <tools>[count]</tools>."}, {"from": "human", "value": "Sheep?"},
        {"from": "gpt", "value": _CALLED}, {"from": "tool", "value": '<tool_response>\n{"n": 0}\n</tool_response>\n'},
        {"from": "gpt", "value": "None."}], "tools": json.dumps(_TOOLS)},
        learnt=f"{_CALLED} | None.",
        reads=('<|im_start|>system\nCall <tools>[count]</tools>.<|im_end|>', 'user\n<tool_response>\n{"n": 0}\n</tool'),
        notes=("2 rows have tools in the system turn already",)),
    _not("arguments that are code", {"messages": [USER, _turn("assistant", "", tool_calls=[
         {"function": {"name": "python", "arguments": "print(1)"}}])]}, "are not a JSON object: 'print(1)'",
         '{"code": "1 + 1"}', model="decoder"),
    # Preferences.
    _not("preferences, scored messages", {"messages": TURNS, "score_chosen": 8.0, "score_rejected": 2.0},
         'set data.text_column = "messages"' + _BETTER, model="decoder"),
    *(
        _not(f"preferences for chat, {name}", row, 'set task.type = "preference", or set ' + hint + _BETTER,
             model="decoder", settings={"task.type": "chat"})
        for name, row, hint in (
            ("messages beside them", {"prompt": "Sheep?", "messages": TURNS, "chosen": TURNS, "rejected": OTHER_TURNS},
             'data.text_column = "messages"'),
            ("whole conversations", {"prompt": "Sheep?", "chosen": TURNS, "rejected": OTHER_TURNS},
             'data.text_column = "chosen"'),
            ("answers as messages", {"prompt": TURNS[:1], "chosen": TURNS[1:], "rejected": OTHER_TURNS[1:]},
             'data.text_column = "prompt" and data.target_column = "chosen"'),
        )
    ),
    # Questions about a text.
    *(
        Wild(name=f"answers in a text, {name}", content=content, file=file, model="encoder", task="question_answering",
             learnt=("Who?It is Ann. -> Ann",) * 2)
        for name, file, content in (
            ("a column each", "a.csv", "question,context,answer,answer_start\n" + "Who?,It is Ann.,Ann,6\n" * 2),
            ("as pandas writes them", "a.csv", "question,context,answers\n" + 2 * (
             "Who?,It is Ann.,\"{'text': array(['Ann'], dtype=object), 'answer_start': array([6], dtype=int32)}\"\n")),
            ("DROP", "a.jsonl", [{"passage": "It is Ann.", "question": "Who?", "answers_spans": {"spans": ["Ann"],
             "types": ["span"]}}] * 2),
            ("TriviaQA with a context", "a.jsonl", [{"question": "Who?", "context": "It is Ann.", "answer": {
             "value": "Anna", "aliases": ["Ann"]}}] * 2),
        )
    ),
    _chat("TriviaQA", {"question": "Sheep?", "answer": {"value": "None.", "aliases": ["No."]}, "search_results": []}),
    _chat("DROP", {"passage": "It is Ann.", "question": "Sheep?", "answers_spans": {"spans": ["None."], "types": []}}),
    *(
        _not(f"CoQA, {model}", {"story": "It is Ann.", "questions": ["Who?"], "answers": {"input_text": ["Ann"],
             "answer_start": [6]}}, "lists of questions", 'one row per question: {"question": "Who?"',
             model=model)
        for model in ("encoder", "decoder", "text to text")
    ),
    *(
        _not(f"HotpotQA, {model}", {"question": "Who?", "answer": "Ann", "context": {"title": ["It"],
             "sentences": [["It is Ann."]]}}, "the column 'context'", reason, model=model)
        for model, reason in (("encoder", '"It It is Ann."'), ("text to text", '"It It is Ann."'),
                              ("decoder", "an object with title, sentences"))
    ),
    _not("an answer that is blank", {"question": "Who?", "context": "It is Ann.", "answers": {"text": [""],
         "answer_start": [0]}}, "an answer in the column 'answers' is blank", "an empty list []"),
    _not("TriviaQA as the hub has it", {"question": "Who?", "entity_pages": {"wiki_context": ["It is Ann."]},
         "answer": {"value": "Ann", "aliases": []}}, "no column holds the context", "data.text_pair_column"),
    # Spans.
    *(
        tagged(f"spans, {name}", [{"text": "Ann sleeps", **row}] * 2, learnt=(ANN, ANN))
        for name, row in (
            ("an object of lists", {"entities": {"start": [0], "end": [3], "label": ["PER"]}}),
            ("spaCy's documents", {"ents": [{"start": 0, "end": 3, "label": "PER"}], "tokens": [{"id": 0}]}),
            ("BigBio's offsets", {"entities": [{"type": "PER", "text": ["Ann"], "offsets": [[0, 3]]}]}),
            ("an offset and a length", {"entities": [{"category": "PER", "offset": 0, "length": 3}]}),
            ("places in a list", {"entities": [{"type": "PER", "span": [0, 3]}]}),
        )
    ),
    *(
        tagged(f"spans of words, {name}", [row] * 2, learnt=ANN_LEE, notes=(note,))
        for name, row, note in (
            ("GLiNER", {"tokenized_text": THREE, "ner": [[0, 1, "PER"]]}, "count words from 0, with an inclusive end"),
            ("SpERT", {"tokens": THREE, "entities": [{"type": "PER", "start": 0, "end": 2}], "relations": []},
             "with an exclusive end"),
        )
    ),
    _not("spans of words that may end in two ways", {"tokens": THREE, "spans": [[0, 1, "PER"]]},
         "it is unclear whether their end is inclusive", '{"tokens": ["Ann", "sleeps"], "ner_tags"'),
    _not("DyGIE's sentences", {"doc_key": "a", "sentences": [THREE, THREE], "ner": [[[0, 1, "PER"]], []]},
         "several sentences in 'sentences'", 'one row per sentence: write {"tokens"'),
    _not("spans with numbers of classes", {"text": "Ann sleeps", "spans": [{"start": 0, "end": 3, "label": 1}]},
         "the label of span 1 is the number 1, which has no name"),
    # Labels.
    *(
        _not(f"labels that may be numbers or names, {name}", f"text,label\na,{one}\nb,{other}\nc,{one}\n",
             "may be a number or a name", 'set task.problem_type to "single_label_classification"', file="a.csv")
        for name, one, other in (("versions", "1.2", "1.10"), ("codes", "250.01", "401.9"))
    ),
    Wild(
        name="versions as classes", content="text,label\na,1.2\nb,1.10\nc,2.0\n", file="a.csv", model="encoder",
        settings=ONE, task="sequence_classification", learnt=("a -> 1.2", "b -> 1.10", "c -> 2.0"),
    ),
    Wild(
        name="rows that contradict each other", content="text,label\na,x\na,y\nb,x\nb,x\n", file="a.csv",
        model="encoder", task="sequence_classification", learnt=("a -> x", "a -> y", "b -> x", "b -> x"),
        notes=("1 row duplicates earlier rows, but with another label",),
    ),
    _not("XNLI with all languages", [{"premise": {"en": "A sheep.", "de": "B"}, "hypothesis": {
         "language": ["en"], "translation": ["An animal."]}, "label": n} for n in (0, 1)], "no column holds text",
         '{"premise": "A sheep.", "hypothesis": "An animal."}'),
    _not("a hypothesis that is empty", [{"premise": "A.", "hypothesis": "", "label": n} for n in (0, 1)],
         "the column 'hypothesis' is empty", where="line 1"),
)  # fmt: skip

FILM = {"plot": "It is Ann.", "title": "It", "question_id": "2", "question": "Who?", "answers": ["Ann"]}
ASKED_ANN = {"question": "Who?", "context": "It is Ann."}
ANN_AT_6 = {"text": ["Ann"], "answer_start": [6]}


def _characters(name: str, row: Mapping[str, Any], learnt: str) -> Wild:
    settings = {"task.type": "char_lm", "data.max_length": len(learnt)}
    return Wild(name=name, content=[row], model="from scratch", settings=settings, task="char_lm", learnt=(learnt,))


def _learns(name: str, row: Any, task: str, *learnt: str, **more: Any) -> Wild:
    content = row if isinstance(row, list) else [row] * 2
    several = learnt if isinstance(row, list) else learnt * 2
    models: Mapping[str, Model] = {"causal_lm": "decoder", "chat": "decoder", "seq2seq": "text to text"}
    model = models.get(task, "encoder")
    return Wild(name=name, content=content, task=task, learnt=several, model=model, settings=more.pop("settings", {}),
                **more)  # fmt: skip


PUBLISHED = (
    _characters("tiny_shakespeare", {"text": "Many sheep."}, "Many sheep."),
    _characters("ptb_text_only", {"sentence": "no sheep was <unk>"}, "no sheep was <unk>"),
    _characters("lambada", {"text": "Many sheep sang .", "domain": "fiction"}, "Many sheep sang ."),
    _characters("pg19", {"short_book_title": "Sheep of the World by Ann", "publication_date": 1901,
                         "url": "http://a.example", "text": "Many sheep."}, "Many sheep."),
    _characters("enwik8", {"text": "<page>Sheep</page>"}, "<page>Sheep</page>"),
    _learns("fineweb", {"text": "Many sheep.", "id": "<urn:1>", "dump": "CC", "url": "u", "date": "d", "file_path": "s",
            "language": "en", "language_score": 0.9, "token_count": 3}, "causal_lm", "Many sheep.", notes=("dump",)),
    _learns("wikipedia", {"id": "1", "url": "u", "title": "Many Sheep", "text": "Sheep are many."}, "causal_lm",
            "Sheep are many.", notes=("title",)),
    _learns("cosmopedia", {"prompt": "Write about sheep.", "text_token_length": 3, "text": "Many sheep.",
            "seed_data": "a", "format": "b", "audience": "c"}, "causal_lm", "Many sheep.", notes=("prompt",)),
    _not("github-code", {"code": "def f():\n    return 1\n", "repo_name": "a/b", "path": "f.py", "language": "Python",
         "license": "mit", "size": 20}, "set data.text_column to one of code", model="decoder"),
    _learns("cc_news", {"title": "Many sheep", "text": "There are sheep.", "domain": "d", "date": "x",
            "description": "About many sheep", "url": "u"}, "causal_lm", "There are sheep.", notes=("description",)),
    _learns("OpenHermes-2.5", {"custom_instruction": None, "conversations": SHAREGPT, "source": "x", "category": "y"},
            "chat", "None.", notes=("not read: custom_instruction",)),
    _learns("tulu-3-sft-mixture", {"id": "1", "messages": TURNS, "source": "x"}, "chat", "None."),
    _learns("Capybara", {"source": "x", "conversation": [{"input": "Sheep?", "output": "None."}]}, "chat", "None."),
    _learns("lmsys-chat-1m", {"conversation_id": "1", "model": "m", "conversation": TURNS, "turn": 1, "language": "en",
            "openai_moderation": [{"flagged": False}], "redacted": False}, "chat", "None."),
    _learns("HelpSteer2", {"prompt": "Sheep?", "response": "None.", "helpfulness": 3, "correctness": 4}, "chat",
            "None.", notes=("not read: helpfulness, correctness",)),
    _learns("dbpedia_14", [{"label": n, "title": "Ann", "content": f"Ann {n} is many."} for n in (0, 1)],
            "sequence_classification", "Ann 0 is many. -> 0", "Ann 1 is many. -> 1", notes=("title",)),
    _not("trec", [{"text": f"Who {n}?", "coarse_label": n, "fine_label": n + 3} for n in (0, 1)],
         "set data.label_column", "coarse_label, fine_label"),
    _not("civil_comments", [{"text": f"a {n}", "toxicity": 0.1, "severe_toxicity": 0.2} for n in (0, 1)],
         "set data.label_column", "toxicity"),
    _learns("clinc_oos", [{"text": f"a {n}", "intent": n} for n in (0, 1)], "sequence_classification", "a 0 -> 0",
            "a 1 -> 1"),
    _learns("anli", [{"uid": "a", "premise": "A b.", "hypothesis": f"B c {n}.", "label": n, "reason": "So."}
            for n in (0, 1)], "sequence_classification", "A b.B c 0. -> 0", "A b.B c 1. -> 1", notes=("reason",)),
    _not("multinerd", {"tokens": THREE, "ner_tags": [1, 2, 0], "lang": "en"}, "numbers, which have no names",
         "write the names"),
    _learns("few-nerd", {"id": "0", "tokens": THREE, "ner_tags": ["B-PER", "I-PER", "O"], "fine_ner_tags": ["O"] * 3},
            "token_classification", ANN_LEE[0]),
    _learns("wikiann", {"tokens": THREE, "ner_tags": ["B-PER", "I-PER", "O"], "langs": ["en"] * 3,
            "spans": ["PER: Ann Lee"]}, "token_classification", ANN_LEE[0]),
    _learns("universal_dependencies", {"idx": "1", "text": "Ann Lee sleeps", "tokens": THREE, "lemmas": THREE,
            "upos": ["PROPN", "PROPN", "VERB"], "xpos": ["NNP", "NNP", "VBZ"], "head": ["3", "1", "0"]},
            "token_classification", "Ann/PROPN Lee/PROPN sleeps/VERB", notes=("other candidates: xpos",)),
    _learns("SourceData", {"words": THREE, "labels": ["B-PER", "I-PER", "O"], "tag_mask": [1, 1, 0],
            "text": "Ann Lee sleeps"}, "token_classification", ANN_LEE[0]),
    _learns("adversarial_qa", {"id": "1", "title": "T", **ASKED_ANN, "answers": ANN_AT_6, "metadata": {"split": "a"}},
            "question_answering", "Who?It is Ann. -> Ann"),
    _learns("subjqa", {"domain": "books", **ASKED_ANN, "answers": {**ANN_AT_6, "answer_subj_level": [1]}},
            "question_answering", "Who?It is Ann. -> Ann"),
    _not("quac", {"context": "It is Ann.", "questions": ["Who?"], "answers": {"texts": [["Ann"]],
         "answer_starts": [[6]]}}, "lists of questions", '{"question": "Who?"'),
    _learns("covid_qa_deepset", {"document_id": 1, **ASKED_ANN, "is_impossible": False, "id": 1, "answers": ANN_AT_6},
            "question_answering", "Who?It is Ann. -> Ann"),
    _not("duorc", FILM, "no column holds the context", "plot", "data.text_pair_column"),
    _learns("billsum", {"text": "Many sheep.", "summary": "Sheep.", "title": "A bill"}, "seq2seq",
            "Many sheep. -> Sheep.", notes=("not read: title",)),
    _not("reddit_tifu", {"ups": 1.0, "documents": "I had sheep and lost them.", "tldr": "lost the sheep",
         "title": "losing sheep"}, 'data.text_column = "documents" and data.target_column = "tldr"',
         model="text to text"),
    _not("big_patent", {"description": "A device for many sheep.", "abstract": "A sheep device."},
         'data.text_column = "description" and data.target_column = "abstract"', model="text to text"),
    _not("e2e_nlg", {"meaning_representation": "name[Ann], eats[hay]", "human_reference": "Ann eats hay."},
         'data.text_column = "meaning_representation" and data.target_column = "human_reference"',
         model="text to text"),
    _learns("coedit", {"_id": "1", "task": "gec", "src": "Fix: many sheeps", "tgt": "many sheep"}, "seq2seq",
            "Fix: many sheeps -> many sheep"),
    _learns("duorc, its plot named", FILM, "question_answering", "Who?It is Ann. -> Ann",
            settings={"data.text_pair_column": "plot"}),
    _learns("big_patent, its columns named", {"description": "Many sheep.", "abstract": "Sheep."}, "seq2seq",
            "Many sheep. -> Sheep.", settings={"data.text_column": "description", "data.target_column": "abstract"}),
)  # fmt: skip

GROUPS: Mapping[str, tuple[Wild, ...]] = {
    "texts": (*TEXTS, *PREFERENCES, *MEDIA),
    "conversations": (*CONVERSATIONS, *FORMS_OF_CONVERSATIONS),
    "unreadable conversations": UNREADABLE_CONVERSATIONS,
    "chat templates": TEMPLATES,
    "labels": (*LABELS, *LABEL_FORMS),
    "pairs and answers": (*TEXT_PAIRS, *PAIRS, *ANSWERED),
    "tags": (*TAGS, *WORD_TABLES, *CONLL_FILES, *TAGGED_ROWS),
    "separated files and JSON": (*SEPARATED_FILES, *JSON_FILES),
    "published data sets": KNOWN,
    "files and values that were misread": FILES_AND_VALUES,
    "files and folders": FILES_AND_FOLDERS,
    "rows and columns": ROWS_AND_COLUMNS,
    "five public data sets for each task": PUBLISHED,
}
