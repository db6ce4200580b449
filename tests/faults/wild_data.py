"""Data files in the shapes that people have, all made up, each with its right outcome: what is learnt of every row, or
why the file is refused. `test_wild_data.py` tries them all.

A new shape is a new line here, and not a test of its own.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Model = Literal["decoder", "encoder", "text to text"]


@dataclass(frozen=True, kw_only=True)
class Wild:
    """One file, and what becomes of it under a model where nobody names a task.

    `content`: rows, or the text or the bytes of the file. Either `refused` stands in the refusal, with `where` it
    stands; or `task` is what is learnt, `learnt` of each row as `test_wild_data.learnt_of` writes it, with all of
    `reads` in what the model reads, and all of `notes` in what is said.
    """

    name: str
    content: Sequence[Mapping[str, Any]] | str | bytes
    file: str = "rows.jsonl"
    model: Model = "decoder"
    settings: Mapping[str, Any] = field(default_factory=dict)
    refused: tuple[str, ...] = ()
    where: str = ""
    task: str = ""
    learnt: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def write(self, folder: Path) -> Path:
        path, content = folder / self.file, self.content
        if path.suffix == ".parquet":
            import pyarrow
            import pyarrow.parquet

            assert not isinstance(content, str | bytes)
            pyarrow.parquet.write_table(pyarrow.Table.from_pylist([dict(row) for row in content]), path)
        elif isinstance(content, bytes):
            path.write_bytes(content)
        elif isinstance(content, str):
            path.write_text(content, encoding="utf-8")
        elif path.suffix == ".json":
            path.write_text(json.dumps(list(content)), encoding="utf-8")
        else:
            path.write_text("".join(json.dumps(row) + "\n" for row in content), encoding="utf-8")
        return path


TURNS = [{"role": "user", "content": "Sheep?"}, {"role": "assistant", "content": "None."}]

STORY = "There were many sheep on the hill, and one of them sang."
TEXTS = (
    Wild(name="plain text", content="Many sheep.\n", file="sheep.txt", task="causal_lm", learnt=("Many sheep.\n",)),
    Wild(name="one text column", content=[{"text": "A sheep."}] * 2, task="causal_lm", learnt=("A sheep.",) * 2),
    Wild(
        name="text beside numbers and names",
        content=[{"id": "a1", "stars": 5, "notes": STORY, "author": "Ann Lee"}] * 2,
        task="causal_lm",
        learnt=(STORY,) * 2,
        notes=("the text is in the column 'notes'", "author, id, stars"),
    ),
    Wild(
        name="text beside lists",
        content=[{"url": "a.example/1", "story": STORY * 2, "tags": ["sheep", "song"]}] * 2,
        task="causal_lm",
        learnt=(STORY * 2,) * 2,
        notes=("(also there: tags, url)",),
    ),
    Wild(
        name="writing without blanks",
        content=[{"id": "a1", "zh": "山上有许多羊其中一只在唱歌人们都停下来听。"}] * 2,
        task="causal_lm",
        learnt=("山上有许多羊其中一只在唱歌人们都停下来听。",) * 2,
    ),
    Wild(
        name="text beside columns of nulls",
        content=[{"text": "A sheep.", "messages": None, "chosen": None, "rejected": None}] * 2,
        task="causal_lm",
        learnt=("A sheep.",) * 2,
    ),
    Wild(
        name="conversations in a column that is named",
        content=[{"id": STORY, "talk_1": TURNS}] * 2,
        settings={"data.text_column": "talk_1"},
        task="chat",
        learnt=("None.",) * 2,
        notes=("the column 'talk_1' holds no text",),
    ),
    Wild(
        name="a word and what it means",
        content=[{"english": "a sheep", "translation": "Many sheep sing a song on the hill in the morning."}] * 2,
        task="causal_lm",
        learnt=("Many sheep sing a song on the hill in the morning.",) * 2,
        notes=("also there: english",),
    ),
    Wild(
        name="text named among two",
        content=[{"title": "Two words", "notes": "A sheep sang."}] * 2,
        settings={"data.text_column": "notes"},
        task="causal_lm",
        learnt=("A sheep sang.",) * 2,
        notes=("(also there: title)",),
    ),
    Wild(
        name="text named beside messages",
        content=[{"messages": TURNS, "plain": "A sheep sang."}] * 2,
        settings={"data.text_column": "plain", "task.type": "causal_lm"},
        task="causal_lm",
        learnt=("A sheep sang.",) * 2,
        notes=("(also there: messages)",),
    ),
    Wild(
        name="two texts, neither the longer",
        content=[{"title": "Many sheep", "notes": "One sang."}],
        refused=("several columns could hold the text", "data.text_column: title, notes"),
    ),
    Wild(
        name="an id beside an unknown list",
        content=[{"id": "a1", "talk": [["Sheep?", "None."]]}],
        refused=("several columns could hold the text", "id, talk"),
    ),
    Wild(
        name="a category beside turns",
        content=[{"category": "small talk about sheep", "turns": [{"who": "me", "says": "Sheep?"}]}],
        refused=("message 1",),
        where="line 1",
    ),
    Wild(name="an id alone", content=[{"id": "a1", "n": 3}], refused=("no column is clearly the text",)),
    Wild(
        name="a table of numbers", content=[{"n": 3, "m": 4}], refused=("no column holds text", "columns found: n, m")
    ),
    Wild(
        name="messages that causal_lm is asked to learn",
        content=[{"messages": TURNS, "id": STORY}],
        settings={"task.type": "causal_lm"},
        refused=("the rows are conversations (messages), not texts", 'task.type = "chat"'),
    ),
    Wild(
        name="alpaca that causal_lm is asked to learn",
        content=[{"instruction": "Count.", "output": STORY}],
        settings={"task.type": "causal_lm"},
        refused=("questions with their answers (instruction, output), not texts",),
    ),
    Wild(
        name="summaries for a decoder",
        content=[{"document": STORY, "summary": "Sheep."}],
        refused=("inputs with their answers (document, summary)", "data.text_column and data.target_column"),
    ),
    Wild(
        name="summaries for a decoder, columns named",
        content=[{"document": STORY, "summary": "Sheep."}] * 2,
        settings={"data.text_column": "document", "data.target_column": "summary"},
        task="chat",
        learnt=("Sheep.",) * 2,
        reads=(STORY,),
        notes=("it does not read data.target_column",),
    ),
    Wild(
        name="unusual columns named",
        content=[{"frage": "Sheep?", "antwort": "None.", "nr": 1}] * 2,
        settings={"data.text_column": "frage", "data.target_column": "antwort"},
        task="chat",
        learnt=("None.",) * 2,
        reads=("Sheep?",),
    ),
    Wild(
        name="a target that causal_lm does not read",
        content=[{"frage": "Sheep?", "antwort": "None."}],
        settings={"data.text_column": "frage", "data.target_column": "antwort", "task.type": "causal_lm"},
        refused=("data.target_column", "'antwort'", "the task causal_lm does not read it"),
    ),
    Wild(
        name="a label column named for a decoder",
        content=[{"text": "a sheep", "mood": "good"}, {"text": "a rose", "mood": "bad"}],
        settings={"data.label_column": "mood"},
        task="sequence_classification",
        learnt=("a sheep -> good", "a rose -> bad"),
    ),
    Wild(
        name="CSV with a text and an index",
        file="rows.csv",
        content="nr,quote\n1,A sheep sang.\n2,It sang again.\n",
        task="causal_lm",
        learnt=("A sheep sang.", "It sang again."),
    ),
    Wild(name="plain text for an encoder", file="a.txt", content=STORY, model="encoder", refused=("has no columns",)),
    Wild(
        name="conversations for an encoder",
        content=[{"messages": TURNS}],
        model="encoder",
        refused=("no column has a usual name of labels",),
    ),
    Wild(
        name="labelled conversations for an encoder",
        content=[{"messages": TURNS, "label": "good", "id": STORY}],
        model="encoder",
        refused=("the rows are conversations (messages), not texts",),
    ),
    Wild(
        name="texts without labels for an encoder",
        content=[{"text": "a sheep"}],
        model="encoder",
        refused=("no column has a usual name of labels", "columns found: text", "RobertaForMaskedLM is an encoder"),
    ),
    Wild(
        name="the words of a tagged table for a decoder",
        file="rows.csv",
        content="sentence,words,ner_tags\n1,Ann sleeps,B-PER O\n",
        settings={"task.type": "causal_lm"},
        refused=("words with their tags (words, ner_tags)", 'task.type = "token_classification"'),
    ),
)
CONVERSATIONS = (
    Wild(name="messages", content=[{"messages": TURNS}] * 2, task="chat", learnt=("None.",) * 2, reads=("Sheep?",)),
)
PREFERENCES = (
    Wild(
        name="prompt, chosen, rejected",
        content=[{"prompt": "Sheep?", "chosen": "None.", "rejected": "Many."}],
        refused=("preferences", "chosen, rejected", "data.target_column"),
    ),
    Wild(
        name="the chosen answers, named",
        content=[{"prompt": "Sheep?", "chosen": "None.", "rejected": "Many."}] * 2,
        settings={"data.text_column": "prompt", "data.target_column": "chosen"},
        task="chat",
        learnt=("None.",) * 2,
        notes=("not read: rejected",),
    ),
    Wild(
        name="chosen and rejected conversations",
        content=[{"chosen": TURNS, "rejected": TURNS, "id": STORY}],
        refused=("preferences", "chosen, rejected"),
    ),
    Wild(
        name="chosen and rejected, as texts of dialogues",
        content=[{"chosen": "Human: Sheep?\n\nAssistant: None.", "rejected": "Human: Sheep?\n\nAssistant: Many."}],
        refused=("preferences",),
    ),
    Wild(
        name="conversations with chosen and rejected",
        content=[{"conversations": TURNS[:1], "chosen": TURNS[1], "rejected": TURNS[1]}],
        refused=("preferences",),
    ),
    Wild(
        name="preferences for text to text",
        content=[{"prompt": "Sheep?", "chosen": "None.", "rejected": "Many."}],
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
        name="KTO with messages",
        content=[{"messages": TURNS, "label": True}, {"messages": TURNS, "label": False}],
        refused=("preferences, answers marked good or bad", "messages, label"),
    ),
    Wild(
        name="KTO with prompt and completion",
        content=[{"prompt": "Sheep?", "completion": "None.", "label": good} for good in (True, False)],
        refused=("preferences, answers marked good or bad",),
    ),
    Wild(
        name="KTO with a tag of its own",
        content=[{"instruction": "Sheep?", "output": "None.", "kto_tag": good} for good in (False, True)],
        refused=("preferences", "kto_tag"),
    ),
    Wild(
        name="good answers alone",
        content=[{"prompt": "Sheep?", "completion": "None.", "label": True}] * 2,
        task="chat",
        learnt=("None.",) * 2,
        notes=("not read: label",),
    ),
    Wild(
        name="triplets for embeddings",
        content=[{"anchor": STORY, "positive": "sheep", "negative": "rose"}],
        refused=("for embeddings", "anchor, positive, negative"),
    ),
    Wild(
        name="questions with choices",
        content=[{"question": "How many?", "choices": ["one", "two"], "answer": "A"}],
        refused=("questions with choices", "question, choices"),
    ),
    Wild(
        name="SQuAD's own JSON",
        file="squad.json",
        content=json.dumps({"data": [{"title": "Sheep of the world", "paragraphs": [{"context": STORY, "qas": []}]}]}),
        refused=("SQuAD", "paragraphs", "question, context and answers"),
    ),
)
MEDIA = (
    Wild(
        name="LLaVA: an image beside a conversation",
        content=[{"image": "a.jpg", "conversations": [{"from": "human", "value": "<image>\nSheep?"}, *TURNS[1:]]}],
        refused=("images with their texts", "image"),
    ),
    Wild(
        name="images of LLaMA-Factory",
        content=[{"messages": TURNS, "images": ["a.jpg"]}],
        refused=("images with their texts (images)",),
    ),
    Wild(name="captions", content=[{"image": "a.jpg", "text": "A sheep."}], refused=("images with their texts",)),
    Wild(
        name="sounds and what is said",
        content=[{"audio": {"path": "a.wav"}, "sentence": "A sheep."}],
        refused=("sounds with their texts (audio)",),
    ),
    Wild(name="videos", content=[{"videos": ["a.mp4"], "messages": TURNS}], refused=("videos with their texts",)),
    Wild(
        name="the mark of an image alone",
        content=[{"messages": TURNS}, {"messages": [{"role": "user", "content": "<image>Sheep?"}, TURNS[1]]}],
        refused=("the text holds <image>",),
        where="line 2",
    ),
    Wild(
        name="an image in a late row",
        content=[*[{"messages": TURNS}] * 100, {"messages": TURNS, "images": ["a.jpg"]}],
        refused=("the row has images ('images')",),
        where="line 101",
    ),
    Wild(
        name="a column of images without one",
        content=[{"messages": TURNS, "images": []}, {"messages": TURNS, "images": None}],
        task="chat",
        learnt=("None.",) * 2,
        notes=("not read: images",),
    ),
    Wild(
        name="XML with an image",
        content=[{"prompt": "Write RSS.", "completion": "<image><url>a</url></image>"}] * 2,
        task="chat",
        learnt=("<image><url>a</url></image>",) * 2,
    ),
    Wild(
        name="labelled images, text named",
        content=[
            {"image": "a.jpg", "text": "a sheep", "label": "x"},
            {"image": "b.jpg", "text": "a rose", "label": "y"},
        ],
        model="encoder",
        settings={"data.text_column": "text"},
        task="sequence_classification",
        learnt=("a sheep -> x", "a rose -> y"),
        notes=("also there: image",),
    ),
)
LABELS = (
    Wild(
        name="text and label",
        content=[{"text": "a sheep", "label": "animal"}, {"text": "a rose", "label": "plant"}],
        model="encoder",
        task="sequence_classification",
        learnt=("a sheep -> animal", "a rose -> plant"),
    ),
)
PAIRS = (
    Wild(
        name="document and summary",
        content=[{"document": "Many sheep.", "summary": "Sheep."}] * 2,
        model="text to text",
        task="seq2seq",
        learnt=("Many sheep. -> Sheep.",) * 2,
    ),
)
TAGS = (
    Wild(
        name="words and tags",
        content=[{"tokens": ["Ann", "sleeps"], "ner_tags": ["B-PER", "O"]}] * 2,
        model="encoder",
        task="token_classification",
        learnt=("Ann/B-PER sleeps/O",) * 2,
    ),
)
TABLES: tuple[Wild, ...] = ()


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
    told = ("data.text_pair_column is", f"rows with {columns[0]} and {columns[1]} are pairs")
    task = {"task": "sequence_classification", "learnt": tuple(f"one {n}two {n} -> {labels[n - 1]}" for n in (1, 2))}
    outcome = {} if "refused" in more else {**task, "notes": told}
    return Wild(name=name, content=content, model="encoder", **{**outcome, **more})


def answered(name: str, row: Mapping[str, Any], learnt: str = "", **more: Any) -> Wild:
    """Two rows alike of an input and its answer."""
    task = {"task": "seq2seq", "learnt": (learnt,) * 2} if learnt else {}
    return Wild(name=name, content=[row] * 2, model="text to text", **task, **more)


CLASSES, MANY = {"task.type": "sequence_classification"}, {"task.problem_type": "multi_label_classification"}
ONE = {"task.problem_type": "single_label_classification"}
ANSWERS = {"task.type": "seq2seq"}
SENTENCE = "a long answer of many words, number"
LABEL_FORMS = (
    labelled("one-hot lists", [0, 1], [1, 0], learnt=("1", "0"), notes=("0 or 1 for each of 2 classes",)),
    labelled("one-hot lists as single labels", [0, 1], [1, 0], learnt=("1", "0"), settings=ONE),
    labelled("multi-hot lists", [0, 1, 1], [0, 0, 0], learnt=("1, 2", ""),
             notes=("3 classes, which are named 0 to 2",)),
    labelled("multi-hot floats", [0.0, 1.0], [1.0, 1.0], learnt=("1", "0, 1")),
    labelled("multi-hot of true and false", [True, False], [False, True], learnt=("0", "1")),
    labelled("a multi-hot list that is shorter", [0, 1, 1], [1, 0, 0], [1, 0], refused=("'1' stands there twice",
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
    labelled("a list among names", "heat", "['heat', 'light']", file="rows.csv", refused=("those before them",),
             where="line 3", settings=ONE),
    labelled("labels with pipes", "a|b", "a", "b", column="labels", file="rows.csv",
             refused=("may hold several labels a row, such as 'a|b'", "task.problem_type")),
    labelled("labels with pipes, several named", "a|b", "a", "b", file="rows.csv", learnt=("a, b", "a", "b"),
             settings=MANY, notes=("separated by '|'",)),
    labelled("labels with semicolons", "a;b", "a", "b", file="rows.csv", refused=("several labels", "separates them")),
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
             refused=("a text of its own in each row", 'task.type = "seq2seq" with data.target_column = "label"')),
    labelled("text and label swapped", *(f"{SENTENCE} {n}" for n in range(3)),
             refused=("a text of its own in each row", "name both in data.text_column and data.label_column")),
    labelled("an id a row", *range(1001, 1011), refused=("10 different labels in 10 rows", "data.label_column")),
    labelled("a test split without labels", -1, -1, refused=("1 label: '-1'", "take another split")),
    labelled("a row without a label among ids", 0, 1, 2, -1, refused=("-1, which says that there is none",),
             where="line 4"),
    labelled("classes of signs", -1, 0, 1, learnt=("-1", "0", "1"), notes=("-1 is a class here",)),
    labelled("a label that is null", "x", "y", None, refused=("the label is missing",), where="line 3"),
    labelled("a label that is not a number", 0.0, 1.0, float("nan"), refused=("the label is missing",), settings=ONE),
    labelled("nan as pandas writes it", "x", "y", "nan", file="rows.csv", refused=("says that there is none",),
             where="line 4"),
    labelled("classes with a point in a CSV", "0.0", "1.0", file="rows.csv", learnt=("0", "1")),
    labelled("labels in two cases", "Positive", "positive ", "negative", file="rows.csv",
             learnt=("Positive", "positive", "negative"), notes=("'Positive' and 'positive' are different classes",)),
    labelled("numbers with a decimal comma", "0,5", "1,25", column="score", file="rows.csv",
             refused=("numbers with a comma, such as '0,5'", "write a point")),
    labelled("half stars", "4.5", "3", column="stars", file="rows.csv", learnt=("4.5", "3"), notes=("regression",)),
    labelled("stars as words", "4 stars", "5 stars", column="rating", file="rows.csv", learnt=("4 stars", "5 stars")),
    labelled("names beside ids", 0, 1, column="label", learnt=("0", "1")),
    Wild(name="label and label_text", model="encoder", task="sequence_classification",
         content=[{"text": "a", "label": 0, "label_text": "no"}, {"text": "b", "label": 1, "label_text": "yes"}],
         learnt=("a -> 0", "b -> 1"), notes=("not learnt: label_text; data.label_column names the one to learn",)),
    Wild(name="label and score", model="encoder", task="sequence_classification",
         content=[{"text": "a", "label": "no", "score": 0.9}, {"text": "b", "label": "yes", "score": 0.8}],
         learnt=("a -> no", "b -> yes"), notes=("not learnt: score",)),
    Wild(name="sentiment and category", model="encoder", refused=("several columns could hold the labels",
         "category, sentiment"),
         content=[{"text": "a", "sentiment": "x", "category": "y"}, {"text": "b", "sentiment": "z", "category": "w"}]),
    Wild(name="label and labels", model="encoder", refused=("several columns could hold the labels", "label, labels"),
         content=[{"text": "a", "label": "x", "labels": "y"}, {"text": "b", "label": "z", "labels": "w"}]),
    Wild(name="a column of 0 and 1 a class", model="encoder", file="rows.csv",
         content="id,comment_text,toxic,threat\n1,you fool,1,0\n2,nice day,0,0\n",
         refused=("each of the columns toxic, threat holds a 0 or 1", 'labels: ["toxic"]')),
    Wild(name="coarse and fine labels", model="encoder", refused=("name it in data.label_column",
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
    paired("query and passage", "query", "passage"),
    paired("question and sentence", "question", "sentence"),
    paired("text and text_pair", "text", "text_pair"),
    paired("s1 and s2", "s1", "s2"),
    paired("text1 and text2", "text1", "text2"),
    paired("question and answer with a label", "question", "answer", labels=(0, 1)),
    paired("one text of a pair named", "premise", "hypothesis", settings={"data.text_column": "premise"},
           learnt=("one 1 -> x", "one 2 -> y"), notes=("also there: hypothesis",)),
    paired("a pair and its answers", "question", "passage", label="answer", labels=(True, False),
           settings={"data.label_column": "answer", **CLASSES}, learnt=("one 1two 1 -> true", "one 2two 2 -> false")),
    paired("a pair without a label", "sentence1", "sentence2", label="note", refused=("data.label_column",)),
    Wild(name="annotators who did not agree", model="encoder", refused=("the label is '-'",
         "leave the row out"), where="line 2",
         content=[{"gold_label": one, "sentence1": "A.", "sentence2": "B.", "annotator_labels": ["x"]}
         for one in ("x", "-", "y")]),
    Wild(name="premise with two choices", model="encoder", refused=("several columns could hold the text",
         "choice1, choice2"),
         content=[{"premise": "It rained.", "choice1": "Wet.", "choice2": "Dry.", "label": n} for n in (0, 1)]),
)  # fmt: skip
CONTEXT = "question: Where? context: In Paris."
ANSWERED = (
    answered("question, context and answer", {"question": "Where?", "context": "In Paris.", "answer": "Paris"},
             f"{CONTEXT} -> Paris", settings=ANSWERS),
    answered("Dolly", {"instruction": "Where?", "context": "In Paris.", "response": "Paris", "category": "qa"},
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
             settings=ANSWERS, notes=("2 rows have several answers in 'answers': the first is learnt",)),
    answered("SQuAD as pandas writes it", {"question": "Where?", "context": "In Paris.",
             "answers": "{'text': ['Paris'], 'answer_start': [3]}"}, f"{CONTEXT} -> Paris", settings=ANSWERS),
    answered("SQuAD as numpy prints it", {"question": "Where?",
             "answers": "{'text': array(['Paris'], dtype=object), 'answer_start': array([3])}"},
             refused=("a list of answers that cannot be read",), where="line 1", settings=ANSWERS),
    answered("a question without an answer", {"question": "Where?", "answers": {"text": [], "answer_start": []}},
             refused=("'answers' is empty",), where="line 1", settings=ANSWERS),
    answered("a context in parts", {"question": "Where?", "context": ["One.", "Two."], "answer": "x"},
             refused=("'context' is a list",), settings=ANSWERS),
    answered("several summaries", {"document": "Long.", "summary": ["Short.", "Brief."]}, "Long. -> Short.",
             notes=("the first is learnt",)),
    answered("a list that is to be written", {"input": "a b", "output": '["a", "b"]'}, 'a b -> ["a", "b"]'),
    answered("article and highlights", {"article": "Long.", "highlights": "Short.", "id": "1"}, "Long. -> Short."),
    answered("a translation", {"translation": {"de": "ja", "en": "yes"}}, "ja -> yes",
             notes=("the input is 'de' of rows.jsonl, the answer 'en'",)),
    Wild(name="languages in another order", model="text to text", task="seq2seq", learnt=("ja -> yes", "nein -> no"),
         content=[{"translation": {"de": "ja", "en": "yes"}}, {"translation": {"en": "no", "de": "nein"}}]),
    answered("a translation as pandas writes it", {"translation": "{'de': 'ja', 'en': 'yes'}"}, "ja -> yes",
         settings=ANSWERS),
    answered("three languages", {"translation": {"de": "ja", "en": "yes", "fr": "oui"}},
             refused=("several languages: de, en, fr", "data.target_column")),
    answered("three languages, two named", {"translation": {"de": "ja", "en": "yes", "fr": "oui"}}, "oui -> yes",
             settings={"data.text_column": "fr", "data.target_column": "en"}),
    answered("languages in lists", {"translation": {"language": ["de", "en"], "translation": ["ja", "yes"]}},
             refused=("stand in lists",)),
    answered("a column a language", {"de": "ja", "en": "yes"}, refused=("data.text_column and data.target_column",),
             settings=ANSWERS),
    answered("a text with its title", {"text": "Many sheep.", "title": "Sheep"}, settings=ANSWERS,
             refused=("no column has a usual name for the answer to 'text'", "data.target_column")),
    answered("a title to learn", {"text": "Many sheep.", "title": "Sheep"}, "Many sheep. -> Sheep",
             settings={"data.target_column": "title", **ANSWERS}),
    answered("answers that are numbers", {"question": "1+1?", "answer": 2}, refused=("'answer' is a number",),
         where="line 1",
             settings=ANSWERS),
)  # fmt: skip

CASES = (
    *TEXTS,
    *CONVERSATIONS,
    *PREFERENCES,
    *MEDIA,
    *LABELS,
    *LABEL_FORMS,
    *TEXT_PAIRS,
    *PAIRS,
    *ANSWERED,
    *TAGS,
    *TABLES,
)
