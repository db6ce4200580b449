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

TEXTS = (
    Wild(name="plain text", file="sheep.txt", content="Many sheep.\n", task="causal_lm", learnt=("Many sheep.\n",)),
    Wild(name="one text column", content=[{"text": "A sheep."}] * 2, task="causal_lm", learnt=("A sheep.",) * 2),
)
CONVERSATIONS = (
    Wild(name="messages", content=[{"messages": TURNS}] * 2, task="chat", learnt=("None.",) * 2, reads=("Sheep?",)),
)
PREFERENCES: tuple[Wild, ...] = ()
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

USER, ANSWER = {"role": "user", "content": "Sheep?"}, {"role": "assistant", "content": "None."}
ASKED, NONE = ("Sheep?",), ("None.", "None.")
CALL = {"type": "function", "function": {"name": "count", "arguments": {"of": "sheep"}}}
TOOL = {"type": "function", "function": {"name": "count", "parameters": {"type": "object"}}}


def _chat(name: str, row: Mapping[str, Any], *, learnt: str = "None.", **more: Any) -> Wild:
    """Two rows that learn the same."""
    usual = {"reads": ("Sheep?",), "settings": {"data.max_length": 1024}}
    return Wild(name=name, content=[row] * 2, task="chat", learnt=(learnt,) * 2, **{**usual, **more})


def _no_chat(name: str, row: Mapping[str, Any], *refused: str, where: str = "rows.jsonl, line 2", **more: Any) -> Wild:
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
        notes=("keys of turns that the chat template does not read: example, id",),
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
        reads=("Be brief.", "Sheep?"),
        notes=("what the system says in 'systemInstruction'",),
    ),
    _chat("pairs of role and text", {"id": "a", "messages": [["user", "Sheep?"], ["assistant", "None."]]}),
    _chat(
        "Firefly's turns by role",
        {"conversation": [{"human": "Sheep?", "assistant": "None."}], "category": "x"},
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
        learnt="None. | Two.",
        reads=("Be brief.", "Goats?"),
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
        name="Python repr in a CSV",
        file="rows.csv",
        content=_csv("messages", str([USER, ANSWER])),
        task="chat",
        learnt=NONE,
        reads=ASKED,
    ),
    Wild(
        name="JSON in a CSV",
        file="rows.csv",
        content=_csv("messages", json.dumps([USER, ANSWER])),
        task="chat",
        learnt=NONE,
        reads=ASKED,
    ),
    Wild(
        name="prompt and completion as Python reprs",
        file="rows.csv",
        content=f'prompt,completion\n"{[USER]}","{[ANSWER]}"\n"{[USER]}","{[ANSWER]}"\n',
        task="chat",
        learnt=NONE,
        reads=ASKED,
    ),
    Wild(
        name="Parquet struct of lists",
        file="rows.parquet",
        task="chat",
        learnt=NONE,
        reads=ASKED,
        content=[{"id": "a", "messages": {"role": ["user", "assistant"], "content": ["Sheep?", "None."]}}] * 2,
    ),
    Wild(
        name="Parquet struct of ShareGPT's lists",
        file="rows.parquet",
        task="chat",
        learnt=NONE,
        reads=ASKED,
        content=[{"id": "a", "conversations": {"from": ["human", "gpt"], "value": ["Sheep?", "None."]}}] * 2,
    ),
    Wild(
        name="Parquet structs filled with nulls",
        settings={"data.max_length": 512},
        file="rows.parquet",
        task="chat",
        reads=ASKED,
        learnt=("None.", '<tool_call>\n{"name": "count", "arguments": {"of": "sheep"}}\n</tool_call>'),
        content=[{"messages": [USER, ANSWER]}, {"messages": [USER, _turn("assistant", None, tool_calls=[CALL])]}],
    ),
    _chat(
        "a conversation in an object",
        {"id": "a", "data": {"messages": [USER, ANSWER], "tools": [TOOL]}},
        reads=("Sheep?", '"name": "count"'),
    ),
    _chat("a conversation in an object in a string", {"id": "a", "json": json.dumps({"messages": [USER, ANSWER]})}),
    _chat(
        "OpenAI's batch with an answer",
        {"custom_id": "a", "method": "POST", "url": "/v1/chat", "body": {"model": "m", "messages": [USER, ANSWER]}},
        notes=("(not read: custom_id, method, url, model)",),
    ),
    _chat(
        "tools as strings of JSON",
        {"messages": [USER, ANSWER], "tools": [json.dumps(TOOL)]},
        reads=('"name": "count"',),
    ),
    _chat(
        "tools as a Python repr",
        {"messages": [USER, ANSWER], "tools": str([TOOL])},
        reads=('"name": "count"',),
    ),
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
        learnt="Two. | None.",
        reads=("Goats?", "Sheep?"),
        notes=("what came before in 'history'",),
    ),
    Wild(
        name="Alpaca with an empty history",
        task="chat",
        learnt=NONE,
        reads=ASKED,
        content=[
            {"instruction": "Sheep?", "input": None, "output": "None.", "history": history} for history in ([], None)
        ],
    ),
    Wild(
        name="history in a CSV",
        settings={"data.max_length": 512},
        file="rows.csv",
        task="chat",
        learnt=("Two. | None.", "None."),
        reads=ASKED,
        content=('instruction,output,history\nSheep?,None.,"[[""Goats?"", ""Two.""]]"\nSheep?,None.,[]\n'),
    ),
    _chat(
        "query and response",
        {"query": "Sheep?", "response": "None.", "system": "Be brief.", "history": []},
        reads=("Sheep?", "Be brief."),
    ),
    _chat("input and output", {"input": "Sheep?", "output": "None."}),
    _chat("problem and solution", {"problem": "Sheep?", "solution": "None.", "source": "farm"}),
    _chat("user and assistant", {"user": "Sheep?", "assistant": "None."}),
    _chat(
        "Dolly",
        {"instruction": "Sheep?", "context": "A farm.", "response": "None.", "category": "qa"},
        reads=("Sheep?\n\nA farm.",),
        notes=("(not read: category)",),
    ),
    _chat(
        "system_prompt beside a question",
        {"system_prompt": "Be brief.", "question": "Sheep?", "response": "None."},
        reads=("Be brief.", "Sheep?"),
        notes=("what the system says in 'system_prompt'",),
    ),
    _chat(
        "reasoning beside an answer",
        {"question": "Sheep?", "reasoning": "I look.", "answer": "None."},
        notes=("(not read: reasoning)",),
    ),
    _chat(
        "SQuAD's answers",
        {
            "question": "Sheep?",
            "context": "A farm.",
            "answers": {"text": ["None.", "No sheep."], "answer_start": [0, 1]},
        },
        reads=("A farm.\n\nSheep?",),
        notes=("the answers in 'answers', of each the first",),
    ),
    _chat("a completion as a list of one", {"prompt": "Sheep?", "completion": ["None."]}),
    Wild(
        name="a system column that comes late",
        task="chat",
        learnt=("None.",) * 102,
        reads=("Be brief.",),
        content=[*[{"messages": [USER, ANSWER]}] * 101, {"messages": [USER, ANSWER], "system": "Be brief.", "note": 1}],
        notes=("what the system says in 'system' (not read: note)",),
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
        "keys that no template reads",
        {"messages": [{**USER, "id": 1, "name": "Ann"}, {**ANSWER, "timestamp": "now"}]},
        notes=("keys of turns that the chat template does not read: id, name, timestamp",),
    ),
)
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
        "no text (image_url)",
        "a text model reads text alone",
    ),
    _no_chat(
        "image parts with an empty text",
        {
            "id": "a",
            "messages": [_turn("user", [{"type": "image", "text": ""}, {"type": "text", "text": "Sheep?"}]), ANSWER],
        },
        "no text (image)",
    ),
    _no_chat(
        "image parts without a type",
        {"id": "a", "messages": [_turn("user", [{"image": "x.png", "text": "Sheep?"}]), ANSWER]},
        "no text (image)",
    ),
    _no_chat(
        "tool uses as parts",
        {"id": "a", "messages": [USER, _turn("assistant", [{"type": "tool_use", "name": "count", "input": {}}])]},
        "no text (tool_use)",
    ),
    _no_chat(
        "unknown roles",
        {"id": "a", "messages": [_turn("narrator", "Sheep."), ANSWER]},
        "the role of message 1 is 'narrator'",
        "roles are system, user, assistant, tool",
    ),
    _no_chat(
        "speakers by name",
        {"id": "a", "conversation": [{"speaker": "Ann", "text": "Sheep?"}]},
        "the role of message 1 is 'Ann'",
    ),
    _no_chat(
        "pairs without roles",
        {"id": "a", "conversations": [["Sheep?", "None."]]},
        "message 1 is a list, not an object with a role",
    ),
    _no_chat(
        "turns as strings",
        {"id": "a", "turns": ["Sheep?", "None."], "category": "a long text about sheep"},
        "message 1 is a string",
    ),
    _no_chat(
        "a number as content",
        {"id": "a", "conversations": [{"from": "human", "value": "Sheep?"}, {"from": "gpt", "value": 0}]},
        "the content of message 2 is a number",
        "write it as a string",
    ),
    Wild(
        name="numpy's list in a CSV",
        file="rows.csv",
        content=_csv("messages", f"[{USER}\n {ANSWER}]"),
        refused=("a list as numpy prints it, without commas", "json.dumps"),
        where="rows.csv, line 2",
    ),
    Wild(
        name="numpy's list as a prompt",
        file="rows.csv",
        refused=("as numpy prints it",),
        where="rows.csv, line 2",
        content=f'prompt,completion\n"[{USER}\n {USER}]",None.\n',
    ),
    Wild(
        name="JSON that Excel cut",
        file="rows.csv",
        content=_csv("messages", '[{"role": "user", "content": "She'),
        refused=("the conversation is a string that is no JSON",),
        where="rows.csv, line 2",
    ),
    _no_chat(
        "messages as plain text", {"id": "a", "messages": "User: Sheep?\nAssistant: None."}, "a string that is no JSON"
    ),
    Wild(
        name="messages that are null",
        content=[{"messages": [USER, ANSWER]}, {"id": "a", "messages": None}],
        refused=("the conversation is null",),
        where="rows.jsonl, line 2",
    ),
    _no_chat(
        "broken JSON in tools",
        {"id": "a", "messages": [USER, ANSWER], "tools": '[{"name": '},
        "the column 'tools' is a string that is no JSON",
    ),
    _no_chat(
        "broken JSON in one of the tools",
        {"id": "a", "messages": [USER, ANSWER], "tools": ['{"name": ']},
        "a tool of the column 'tools' is a string that is no JSON",
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
        "requests without answers",
        {"custom_id": "a", "method": "POST", "body": {"messages": [USER]}},
        "there is no answer to learn",
    ),
    _no_chat("only a user", {"messages": [USER]}, "there is no answer to learn", "data.target_column"),
    _no_chat("only a system", {"messages": [_turn("system", "Be brief.")]}, "there is no answer to learn"),
    _no_chat(
        "two systems",
        {"system": "Be long.", "messages": [_turn("system", "Be brief."), USER, ANSWER]},
        "have two systems' turns",
    ),
    _no_chat(
        "a history that is no pairs",
        {"instruction": "Sheep?", "output": "None.", "history": [["Goats?"]]},
        "entry 1 of the column 'history' is no question with its answer",
    ),
    Wild(
        name="one turn a row",
        content=[
            {"message_id": "a", "parent_id": None, "role": "prompter", "text": "Sheep?"},
            {"message_id": "b", "parent_id": "a", "role": "assistant", "text": "None."},
        ],
        refused=("each row is one turn of a conversation (role, text)", "in a column messages"),
    ),
    Wild(
        name="one turn a row of a CSV",
        file="rows.csv",
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
        refused=("requests in 'request' and answers in 'response'", "in a column messages"),
    ),
    Wild(
        name="two columns of conversations",
        content=[{"id": "a", "first": [USER, ANSWER], "second": [USER, ANSWER]}],
        refused=("several columns hold conversations", "data.text_column: first, second"),
    ),
    # Answers
    *(
        _no_chat(f"an answer that is {what}", {"messages": [USER, ANSWER, USER, _turn("assistant", content)]}, reason)
        for what, content, reason in (
            ("empty", "", "message 4, an answer, is empty"),
            ("blank", " \n", "message 4, an answer, is empty"),
            ("null", None, "the content of message 4 is null"),
            ("a list of no parts", [], "message 4, an answer, is empty"),
            ("a list of empty parts", [{"type": "text", "text": ""}], "message 4, an answer, is empty"),
        )
    ),
    _no_chat(
        "an empty answer of ShareGPT",
        {"conversations": [{"from": "human", "value": "Sheep?"}, {"from": "gpt", "value": ""}]},
        "message 2, an answer, is empty",
    ),
    _no_chat(
        "an empty answer in messages of a completion",
        {"prompt": [USER], "completion": [_turn("assistant", "")]},
        "message 2, an answer, is empty",
    ),
    _no_chat("empty calls and no answer", {"messages": [USER, _turn("assistant", "", tool_calls=[])]}, "is empty"),
    _no_chat(
        "an empty answer in history",
        {"instruction": "Sheep?", "output": "None.", "history": [["Goats?", ""]]},
        "message 2, an answer, is empty",
    ),
    _no_chat("an empty question", {"prompt": "", "completion": "None."}, "nobody asks anything"),
    _no_chat("an empty question in messages", {"messages": [_turn("user", " "), ANSWER]}, "nobody asks anything"),
    _no_chat(
        "SQuAD without an answer",
        {"question": "Sheep?", "answers": {"text": [], "answer_start": []}},
        "the column 'answers' is empty",
    ),
    _no_chat(
        "a good and a bad output",
        {"instruction": "Sheep?", "input": "", "output": ["None.", "Many."]},
        "the column 'output' has 2 answers",
    ),
    _no_chat(
        "completions to choose from",
        {"prompt": "Sheep?", "completion": ["None.", "Many."]},
        "the column 'completion' has 2 answers",
    ),
    # Marks
    *(
        _no_chat(f"a mark {mark} of {value}", {"messages": [USER, {**ANSWER, mark: value}]}, mark, "message 2")
        for mark, value in (("weight", 0.5), ("loss", 2.3), ("train", "maybe"), ("mask", True), ("train_detail", [1]))
    ),
    _no_chat("marks that contradict", {"messages": [USER, {**ANSWER, "weight": 1, "train": False}]}, "contradict"),
    _no_chat(
        "a user's turn that is marked as learnt",
        {"messages": [{**USER, "train": True}, ANSWER]},
        "message 1, of the user, is marked as learnt",
        'task.loss_on = "all"',
    ),
    _no_chat(
        "a mark where all is learnt",
        {"messages": [USER, {**ANSWER, "weight": 0}]},
        "message 2 is marked as not learnt",
        settings={"task.loss_on": "all"},
    ),
    _no_chat(
        "a row that is marked as not learnt",
        {"messages": [USER, ANSWER], "train": False},
        "the column 'train' is False: the row is not to be learnt",
    ),
    _no_chat("a row of half a weight", {"messages": [USER, ANSWER], "weight": 0.5}, "the column 'weight' is 0.5"),
    _no_chat(
        "LLaMA-Factory's mask_history",
        {"messages": [USER, ANSWER], "mask_history": True},
        'set task.loss_on = "completion"',
    ),
    Wild(
        name="KTO in a CSV",
        file="rows.csv",
        refused=("the column 'label' says false: the answer is a bad one",),
        where="rows.csv, line 3",
        content="question,answer,label\nSheep?,None.,True\nSheep?,Many.,False\n",
    ),
    Wild(
        name="KTO's label that comes late",
        refused=("the column 'label' says false",),
        where="rows.jsonl, line 103",
        content=[{"messages": [USER, ANSWER], "label": True}] * 102 + [{"messages": [USER, ANSWER], "label": False}],
    ),
)

CASES = (
    *TEXTS,
    *CONVERSATIONS,
    *FORMS_OF_CONVERSATIONS,
    *UNREADABLE_CONVERSATIONS,
    *PREFERENCES,
    *LABELS,
    *PAIRS,
    *TAGS,
    *TABLES,
)
