"""Data files in the shapes that people have, all made up, each with its right outcome: what is learnt of every row, or
why the file is refused. `test_wild_data.py` tries them all.

A new shape is a new line here, and not a test of its own.
"""

from __future__ import annotations

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

CASES = (*TEXTS, *CONVERSATIONS, *PREFERENCES, *MEDIA, *LABELS, *PAIRS, *TAGS, *TABLES)
