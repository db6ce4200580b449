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

Rows = Sequence[Mapping[str, Any]]
Model = Literal["decoder", "encoder", "text to text"]


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

ALPACA = {"instruction": "Count them.", "input": "sheep", "output": "None.", "text": "Below is an instruction: Count."}
SHAREGPT = [{"from": "human", "value": "Sheep?"}, {"from": "gpt", "value": "None."}]
CALL = '<tool_call>\n{"name": "count", "arguments": {"what": "sheep"}}\n</tool_call>'
SPAN = {"start": 0, "end": 3, "text": "Ann", "labels": ["PER"]}
ANN = "Ann/B-PER sleeps/O"
KNOWN = (
    Wild(
        name="tatsu-lab/alpaca",
        content=[ALPACA, {**ALPACA, "input": "", "output": "Many."}],
        task="chat",
        learnt=("None.", "Many."),
        reads=("Count them.", "sheep"),
        notes=("text",),
    ),
    Wild(
        name="databricks-dolly-15k",
        content=[{"instruction": "How many?", "context": "No sheep.", "response": "None.", "category": "closed_qa"}]
        * 2,
        task="chat",
        learnt=("None.",) * 2,
        reads=("No sheep.",),
        notes=("category",),
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
        name="ultrachat_200k",
        content=[{"prompt": "Sheep?", "prompt_id": "f0e3", "messages": TURNS}] * 2,
        task="chat",
        learnt=("None.",) * 2,
        notes=("prompt",),
    ),
    Wild(
        name="OpenOrca",
        content=[{"id": "flan.1", "system_prompt": "Be terse.", "question": "Sheep?", "response": "None."}] * 2,
        task="chat",
        learnt=("None.",) * 2,
        notes=("the questions are in 'question'",),
    ),
    Wild(
        name="ShareGPT",
        file="rows.json",
        settings={"data.max_length": 256},
        content=[{"id": "x_0", "conversations": [*SHAREGPT, {"from": "human", "value": "Now?"}, SHAREGPT[1]]}] * 2,
        task="chat",
        learnt=("None. | None.",) * 2,
        reads=("Sheep?", "Now?"),
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
        task="chat",
        settings={"data.max_length": 512},
        learnt=(f"{CALL} | None.",),
        reads=("<tools>count</tools>",),
        notes=("category",),
    ),
    Wild(
        name="glaive-function-calling-v2",
        content=[{"system": "SYSTEM: You can count.", "chat": "USER: Sheep? ASSISTANT: None. <|endoftext|>"}] * 2,
        settings={"data.text_column": "chat", "task.type": "causal_lm"},
        task="causal_lm",
        learnt=("USER: Sheep? ASSISTANT: None. <|endoftext|>",) * 2,
        notes=("also there: system",),
    ),
    Wild(
        name="xlam-function-calling-60k",
        content=[
            {"id": 0, "query": "How many sheep?", "answers": '[{"name": "count"}]', "tools": '[{"name": "count"}]'}
        ],
        refused=("answers",),
    ),
    Wild(
        name="mmlu",
        content=[{"question": "How many sheep?", "subject": "sheep", "choices": ["0", "1", "2", "3"], "answer": 0}],
        refused=("choices",),
    ),
    Wild(
        name="gsm8k",
        content=[{"question": "Two sheep and two?", "answer": "2 + 2 = <<2+2=4>>4\n#### 4"}] * 2,
        task="chat",
        learnt=("2 + 2 = <<2+2=4>>4\n#### 4",) * 2,
    ),
    Wild(
        name="competition math",
        content=[
            {"problem": "Two sheep and two?", "level": "Level 1", "type": "Sheep", "solution": "They are 4 sheep."}
        ],
        refused=("solution",),
    ),
    Wild(
        name="competition math with its columns named",
        content=[{"problem": "Two sheep and two?", "level": "Level 1", "solution": "They are 4."}] * 2,
        settings={"data.text_column": "problem", "data.target_column": "solution"},
        task="chat",
        learnt=("They are 4.",) * 2,
        reads=("Two sheep and two?",),
        notes=("level",),
    ),
    Wild(
        name="CodeAlpaca-20k",
        content=[{"instruction": "Write it.", "input": "", "output": "def f():\n    return 1\n"}] * 2,
        task="chat",
        learnt=("def f():\n    return 1\n",) * 2,
    ),
    Wild(
        name="OpenAI fine-tuning with a turn that is not learnt",
        content=[
            {"messages": [TURNS[0], {**TURNS[1], "content": "No.", "weight": 0}, TURNS[0], {**TURNS[1], "weight": 1}]}
        ],
        settings={"data.max_length": 256},
        task="chat",
        learnt=("None.",),
    ),
    Wild(
        name="OpenAI legacy fine-tuning",
        content=[{"prompt": "Sheep? ->", "completion": " None."}] * 2,
        task="chat",
        learnt=("None.",) * 2,
        reads=("Sheep? ->",),
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
                "rejected": TURNS,
                "messages": TURNS,
                "score_chosen": 8.0,
                "score_rejected": 2.0,
            }
        ],
        refused=("rejected", "preference"),
    ),
    Wild(
        name="argilla dpo-mix-7k",
        content=[{"dataset": "mix", "chosen": TURNS, "rejected": TURNS, "chosen_rating": 5.0, "rejected_rating": 1.0}],
        refused=("rejected", "preference"),
    ),
    Wild(
        name="argilla distilabel-intel-orca-dpo-pairs",
        content=[
            {"system": "", "input": "Sheep?", "chosen": "None.", "rejected": "Go.", "generations": ["None.", "Go."]}
        ],
        refused=("rejected", "preference"),
    ),
    Wild(
        name="trl kto-mix",
        content=[{"prompt": TURNS[:1], "completion": TURNS[1:], "label": n == 0} for n in range(2)],
        refused=("label",),
    ),
    Wild(
        name="orpo-dpo-mix-40k",
        content=[{"source": "mix", "prompt": "Sheep?", "question": "Sheep?", "chosen": TURNS, "rejected": TURNS}],
        refused=("rejected", "preference"),
    ),
    Wild(
        name="rewards with a margin",
        content=[{"prompt": "Sheep?", "chosen": "None.", "rejected": "Go.", "margin": 0.5}],
        model="encoder",
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
        task="causal_lm",
        learnt=("= Sheep = \n", "Many sheep . \n"),
        notes=("2 documents hold only white space",),
    ),
    Wild(
        name="c4",
        content=[{"text": "Many sheep.\nOne sang.", "timestamp": "2019-04-25T12:57:54Z", "url": "https://a.example/1"}],
        task="causal_lm",
        learnt=("Many sheep.\nOne sang.",),
        notes=("timestamp, url",),
    ),
    Wild(
        name="the-stack",
        file="rows.parquet",
        content=[{"hexsha": "1f", "size": 12, "ext": "py", "path": "a/b.py", "content": "def f():\n\treturn 1\n"}] * 2,
        task="causal_lm",
        learnt=("def f():\n\treturn 1\n",) * 2,
        notes=("path",),
    ),
    Wild(
        name="TinyStories in one text",
        file="stories.txt",
        content="One sheep sang.\n<|endoftext|>\nOne slept.\n",
        task="causal_lm",
        learnt=("One sheep sang.\n<|endoftext|>\nOne slept.\n",),
    ),
    Wild(
        name="bookcorpus in two shards of Parquet",
        content={f"data/train-0000{n}-of-00002.parquet": [{"text": f"sheep {n} sang ."}] * 2 for n in range(2)},
        task="causal_lm",
        learnt=("sheep 0 sang .",) * 2 + ("sheep 1 sang .",) * 2,
    ),
    Wild(
        name="a folder of texts",
        content={"one.txt": "One sheep.\n", "two/two.txt": "Two sheep.\n"},
        task="causal_lm",
        learnt=("One sheep.\n", "Two sheep.\n"),
    ),
    Wild(
        name="arxiv abstracts",
        content=[{"id": "0704.0001", "title": "Many sheep", "abstract": f"We count sheep. {STORY}"}] * 2,
        task="causal_lm",
        learnt=(f"We count sheep. {STORY}",) * 2,
        notes=("title",),
    ),
    Wild(
        name="SQuAD as it is downloaded",
        file="train-v1.1.json",
        content=json.dumps(
            {
                "data": [
                    {
                        "title": "Sheep",
                        "paragraphs": [
                            {
                                "context": "None.",
                                "qas": [
                                    {
                                        "id": "1",
                                        "question": "Sheep?",
                                        "answers": [{"text": "None", "answer_start": 0}],
                                    }
                                ],
                            }
                        ],
                    }
                ],
                "version": "1.1",
            }
        ),
        refused=("SQuAD", "paragraphs"),
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
        task="chat",
        learnt=("none",) * 2,
        reads=("There are none.", "Sheep?"),
        notes=("title",),
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
        refused=("answers",),
        where="line 1",
    ),
    Wild(
        name="SQuAD under an encoder",
        content=[{"context": "None.", "question": "Sheep?", "answers": {"text": ["None"], "answer_start": [0]}}],
        model="encoder",
        refused=("answers",),
    ),
    Wild(
        name="natural questions with several answers",
        content=[{"question": "when were sheep", "answer": ["in 1972", "December 1972"]}] * 2,
        refused=("answer",),
        where="line 1",
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
        refused=("query",),
    ),
    Wild(
        name="xsum",
        content=[{"document": "Many sheep.", "summary": "Sheep.", "id": "3"}] * 2,
        model="text to text",
        task="seq2seq",
        learnt=("Many sheep. -> Sheep.",) * 2,
    ),
    Wild(
        name="cnn_dailymail as CSV",
        file="train.csv",
        content='id,article,highlights\n1,"Many sheep, all white.\nOne sang.",One sheep sang.\n',
        model="text to text",
        task="seq2seq",
        learnt=("Many sheep, all white.\nOne sang. -> One sheep sang.",),
    ),
    Wild(
        name="samsum",
        content=[{"id": "13", "dialogue": "Ann: Sheep?\r\nBo: None.", "summary": "No sheep."}] * 2,
        model="text to text",
        task="seq2seq",
        learnt=("Ann: Sheep?\nBo: None. -> No sheep.",) * 2,
    ),
    Wild(
        name="opus_books",
        content=[{"id": "1", "translation": {"de": "Viele Schafe.", "en": "Many sheep."}}] * 2,
        model="text to text",
        task="seq2seq",
        learnt=("Viele Schafe. -> Many sheep.",) * 2,
    ),
    Wild(
        name="imdb",
        content=[{"text": "good sheep<br />", "label": 1}, {"text": "bad sheep", "label": 0}],
        model="encoder",
        task="sequence_classification",
        learnt=("good sheep<br /> -> 1", "bad sheep -> 0"),
    ),
    Wild(
        name="ag_news as Parquet",
        file="rows.parquet",
        content=[{"text": "Sheep win cup", "label": 1}, {"text": "Wool is dear", "label": 2}],
        model="encoder",
        task="sequence_classification",
        learnt=("Sheep win cup -> 1", "Wool is dear -> 2"),
    ),
    Wild(
        name="amazon_polarity",
        content=[
            {"label": 1, "title": "Great", "content": "It sings well."},
            {"label": 0, "title": "Bad", "content": "It ran."},
        ],
        model="encoder",
        task="sequence_classification",
        learnt=("It sings well. -> 1", "It ran. -> 0"),
        notes=("title",),
    ),
    Wild(
        name="go_emotions with names",
        content=[
            {"text": "oh sheep", "labels": ["joy", "love"], "id": "e"},
            {"text": "no", "labels": ["anger"], "id": "f"},
        ],
        model="encoder",
        task="sequence_classification",
        learnt=("oh sheep -> joy, love", "no -> anger"),
    ),
    Wild(
        name="jigsaw's column for each label",
        file="train.csv",
        content='id,comment_text,toxic,severe_toxic,insult\na1,"Sheep, again!",1,0,1\na2,Thank you.,0,0,0\n',
        model="encoder",
        refused=("toxic",),
    ),
    Wild(
        name="multi_nli under a decoder",
        content=[{"premise": "Sheep sing now.", "hypothesis": "Sheep sleep now.", "label": 2, "genre": "farm"}] * 2,
        refused=("premise", "hypothesis"),
    ),
    Wild(
        name="multi_nli with its columns named",
        content=[{"premise": f"Sheep {n}.", "hypothesis": "They sing.", "label": n} for n in range(2)],
        model="encoder",
        settings={"data.text_column": "premise", "data.text_pair_column": "hypothesis"},
        task="sequence_classification",
        learnt=("Sheep 0.They sing. -> 0", "Sheep 1.They sing. -> 1"),
    ),
    Wild(
        name="stsb with its columns named",
        content=[{"sentence1": f"Sheep {n}.", "sentence2": "It sings.", "score": n + 0.5} for n in range(2)],
        model="encoder",
        settings={"data.text_column": "sentence1", "data.text_pair_column": "sentence2"},
        task="sequence_classification",
        learnt=("Sheep 0.It sings. -> 0.5", "Sheep 1.It sings. -> 1.5"),
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
        content=[{"id": "0", "tokens": ["Ann", "sleeps"], "ner_tags": ["B-person", "O"]}] * 2,
        model="encoder",
        task="token_classification",
        learnt=("Ann/B-person sleeps/O",) * 2,
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
        content=[{"id": 1, "text": "Ann sleeps", "label": [[0, 3, "PER"]], "Comments": []}] * 2,
        model="encoder",
        task="token_classification",
        learnt=(ANN,) * 2,
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
        task="token_classification",
        learnt=(ANN,) * 2,
    ),
    Wild(
        name="doccano text classification",
        content=[{"id": 1, "text": "a sheep", "label": ["animal"]}, {"id": 2, "text": "a rose", "label": ["plant"]}],
        model="encoder",
        task="sequence_classification",
        learnt=("a sheep -> animal", "a rose -> plant"),
    ),
    Wild(
        name="doccano sequence to sequence under an encoder",
        content=[{"id": n, "text": f"sheep {n}", "label": [f"There are {n} of the sheep."]} for n in range(12)],
        model="encoder",
        refused=("label",),
    ),
    Wild(
        name="Label Studio JSON",
        file="project-1.json",
        content=[
            {
                "id": 1,
                "data": {"text": "Ann sleeps"},
                "annotations": [{"result": [{"from_name": "label", "type": "labels", "value": SPAN}]}],
            }
        ],
        model="encoder",
        refused=("annotations",),
    ),
    Wild(
        name="Label Studio JSON-MIN",
        file="project-1.json",
        content=[{"id": 1, "text": "Ann sleeps", "label": [SPAN], "annotator": 1, "lead_time": 2.5}] * 2,
        model="encoder",
        task="token_classification",
        learnt=(ANN,) * 2,
    ),
    Wild(
        name="Label Studio CSV of choices",
        file="project-1.csv",
        content="annotation_id,annotator,id,sentiment,text\n1,1,1,Positive,a good sheep\n2,1,2,Negative,a bad sheep\n",
        model="encoder",
        task="sequence_classification",
        learnt=("a good sheep -> Positive", "a bad sheep -> Negative"),
    ),
    Wild(
        name="Label Studio CoNLL",
        file="result.conll",
        content="-DOCSTART- -X- O\nAnn -X- _ B-PER\nsleeps -X- _ O\n\nRio -X- _ B-LOC\n",
        model="encoder",
        task="token_classification",
        learnt=(ANN, "Rio/B-LOC"),
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
        task="token_classification",
        learnt=(ANN,) * 2,
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
        name="LLaVA",
        file="llava.json",
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
        name="COCO captions",
        content=[{"image": "1.jpg", "caption": "A sheep sings on the hill."}] * 2,
        refused=("image",),
    ),
    Wild(
        name="common voice",
        content=[{"audio": "clips/1.mp3", "sentence": "Many sheep.", "age": "", "locale": "en"}] * 2,
        refused=("audio",),
    ),
    Wild(
        name="all-nli triplets",
        content=[{"anchor": "a sheep", "positive": "a lamb", "negative": "a rose"}] * 2,
        refused=("anchor",),
    ),
    Wild(
        name="pandas records",
        file="rows.json",
        content='[{"text":"a sheep","label":"animal"},\n{"text":"a rose","label":"plant"}]',
        model="encoder",
        task="sequence_classification",
        learnt=("a sheep -> animal", "a rose -> plant"),
    ),
    Wild(
        name="pandas columns",
        file="rows.json",
        content='{"text":{"0":"a sheep","1":"a rose"},"label":{"0":"animal","1":"plant"}}',
        model="encoder",
        refused=("text",),
    ),
    Wild(
        name="pandas split",
        file="rows.json",
        content='{"columns":["text","label"],"index":[0,1],"data":[["a sheep","animal"],["a rose","plant"]]}',
        model="encoder",
        refused=("list",),
    ),
    Wild(
        name="CSV with an index of pandas",
        file="rows.csv",
        content=",text,label\n0,a sheep,animal\n1,a rose,plant\n",
        model="encoder",
        task="sequence_classification",
        learnt=("a sheep -> animal", "a rose -> plant"),
    ),
    Wild(
        name="Kaggle's spam.csv with its columns named",
        file="spam.csv",
        content='v1,v2,,,\nham,"Sheep, at ten",,,\nspam,Free wool,,,\n',
        settings={"data.text_column": "v2", "data.label_column": "v1"},
        model="encoder",
        task="sequence_classification",
        learnt=("Sheep, at ten -> ham", "Free wool -> spam"),
    ),
    Wild(
        name="Kaggle's IMDB Dataset.csv",
        file="IMDB Dataset.csv",
        content='review,sentiment\n"A ""good"" sheep.<br />",positive\nA bad sheep.,negative\n',
        model="encoder",
        task="sequence_classification",
        learnt=('A "good" sheep.<br /> -> positive', "A bad sheep. -> negative"),
    ),
    Wild(
        name="Kaggle's disaster tweets",
        file="train.csv",
        content="id,keyword,location,text,target\n1,,,Fire on the hill,1\n4,sheep,UK,I love wool,0\n",
        model="encoder",
        task="sequence_classification",
        learnt=("Fire on the hill -> 1", "I love wool -> 0"),
        notes=("keyword",),
    ),
    Wild(
        name="sentiment140 without a header",
        file="tweets.csv",
        content='"0","1467","Mon Apr 06","NO_QUERY","ann","no sheep"\n"4","1468","Mon Apr 06","NO_QUERY","bo","a"\n',
        model="encoder",
        refused=("columns found",),
    ),
)

CASES = (*TEXTS, *CONVERSATIONS, *PREFERENCES, *MEDIA, *LABELS, *PAIRS, *TAGS, *TABLES, *KNOWN)
