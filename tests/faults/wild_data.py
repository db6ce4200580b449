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

Model = Literal["decoder", "encoder", "text to text", "text to text of T5's kind"]


@dataclass(frozen=True, kw_only=True)
class Wild:
    """One file, and what becomes of it under a model where nobody names a task.

    `content`: rows, or the text or the bytes of the file. Either `refused` stands in the refusal, with `where` it
    stands; or `task` is what is learnt, `learnt` of each row as `test_wild_data.learnt_of` writes it, with all of
    `reads` in what the model reads, and all of `notes` in what is said; `whole`: each row with its special tokens.
    `template`: a chat template of its own.
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
    whole: tuple[str, ...] = ()
    template: str = ""

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


def _chat(*turns: Mapping[str, Any], tools: Sequence[Any] = ()) -> list[dict[str, Any]]:
    return [{"messages": list(turns), **({"tools": tools} if tools else {})}] * 2


def _says(role: str, content: str, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def _calls(name: str, **arguments: Any) -> dict[str, Any]:
    return {"tool_calls": [{"type": "function", "function": {"name": name, "arguments": arguments}}]}


ASKS, TELLS = _says("user", "Sheep?"), _says("assistant", "None.")
TOOL = {"type": "function", "function": {"name": "find_sheep", "description": "Finds.", "parameters": {}}}
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
_NO_WRITE = "does not write"
_ONCE = "spell special tokens of the tokenizer at their beginning or end: each stands there once"

TEMPLATES = (
    # What a template has no place for.
    Wild(
        name="template without calls",
        content=_chat(ASKS, _says("assistant", "", **_calls("find_sheep", hill="far"))),
        template=PLAIN,
        refused=(_NO_WRITE, "the tool call 'find_sheep' of message 2", "chatml"),
        where="rows.jsonl, line 1",
    ),
    Wild(
        name="template without arguments of calls",
        content=_chat(ASKS, _says("assistant", "", **_calls("find_sheep", hill="far"))),
        template=NAMED_CALLS,
        refused=(_NO_WRITE, "'hill' in the tool call 'find_sheep' of message 2"),
        where="line 1",
    ),
    Wild(
        name="template without tools",
        content=_chat(ASKS, TELLS, tools=[TOOL]),
        template=PLAIN,
        refused=(_NO_WRITE, "the tool 'find_sheep'"),
        where="line 1",
    ),
    Wild(
        name="template without a system turn",
        content=_chat(_says("system", "Be brief."), ASKS, TELLS),
        template=NO_SYSTEM,
        refused=(_NO_WRITE, "the content of message 1 (system)"),
        where="line 1",
    ),
    Wild(
        name="template without a system turn, from a column",
        content=[{"system": "Be brief.", "prompt": "Sheep?", "completion": "None."}] * 2,
        template=NO_SYSTEM,
        refused=(_NO_WRITE, "the content of message 1 (system)"),
    ),
    Wild(
        name="template that cuts what is said",
        content=_chat(ASKS, TELLS),
        template=FIRST_WORDS,
        refused=("leaves out what the assistant says",),
    ),
    Wild(
        name="template without content beside calls",
        content=_chat(ASKS, _says("assistant", "I look.", **_calls("find_sheep", hill="far"))),
        template=NO_CONTENT_BESIDE_CALLS,
        refused=(_NO_WRITE, "the content of message 2 (assistant)"),
    ),
    Wild(
        name="template that drops a tool's result",
        content=_chat(
            ASKS, _says("assistant", "", **_calls("find_sheep", hill="far")), _says("tool", "Sixteen."), TELLS
        ),
        template=XML_CALLS.replace("{{ m.content }}", "{{ m.content if m.role != 'tool' }}"),
        refused=(_NO_WRITE, "the content of message 3 (tool)"),
    ),
    Wild(
        name="an answer that is reasoning alone",
        content=_chat(ASKS, _says("assistant", "", reasoning_content="One, two.")),
        refused=("the reasoning of message 2", "nothing else"),
    ),
    Wild(
        name="an answer that is reasoning alone, in its text",
        content=_chat(ASKS, _says("assistant", "<think>One, two.</think>")),
        template=CUTS_ALL,
        refused=("the reasoning of message 2", "nothing else"),
    ),
    Wild(
        name="earlier reasoning cut by the template",
        content=_chat(ASKS, _says("assistant", _THOUGHT), ASKS, _says("assistant", _THOUGHT)),
        template=CUTS_EARLIER,
        refused=("writes answer 1 otherwise once the conversation goes on", 'task.loss_on = "completion"'),
    ),
    Wild(
        name="rows that the template does not write, left out",
        content=[*_chat(_says("system", "Be brief."), ASKS, TELLS)[:1], {"messages": [ASKS, TELLS]}],
        template=NO_SYSTEM,
        settings={"data.on_bad_rows": "skip"},
        task="chat",
        learnt=("None.",),
    ),
    # What is left out and named.
    Wild(
        name="reasoning under chatml",
        content=_chat(ASKS, _says("assistant", "None.", reasoning_content="One, two.")),
        task="chat",
        learnt=("None.",) * 2,
        notes=("does not write what was thought in 2 turns of 2 rows",),
    ),
    Wild(
        name="thinking under chatml",
        content=_chat(
            ASKS, _says("assistant", "None.", thinking="One, two."), ASKS, _says("assistant", "No.", thinking="Hm")
        ),
        settings={"data.max_length": 256},
        task="chat",
        learnt=("None. | No.",) * 2,
        notes=("what was thought in 4 turns of 2 rows",),
    ),
    Wild(
        name="reasoning cut out of every answer",
        content=_chat(ASKS, _says("assistant", _THOUGHT), ASKS, _says("assistant", "No.")),
        template=CUTS_ALL,
        task="chat",
        learnt=("None. | No.",) * 2,
        notes=("what was thought in 2 turns of 2 rows",),
    ),
    Wild(
        name="earlier reasoning cut, the last answer learnt",
        content=_chat(ASKS, _says("assistant", _THOUGHT), ASKS, _says("assistant", _THOUGHT)),
        template=CUTS_EARLIER,
        settings={"task.loss_on": "completion"},
        task="chat",
        learnt=(_THOUGHT,) * 2,
        notes=("what was thought in 2 turns of 2 rows",),
    ),
    Wild(
        name="names of speakers under chatml",
        content=_chat(_says("user", "Sheep?", name="Ann"), TELLS),
        task="chat",
        learnt=("None.",) * 2,
        notes=("does not write who speaks (name) in 2 turns of 2 rows",),
    ),
    # What templates may do.
    Wild(
        name="reasoning that the template writes",
        content=_chat(ASKS, _says("assistant", "None.", reasoning_content="One, two.")),
        template=THINKS,
        task="chat",
        learnt=(_THOUGHT,) * 2,
    ),
    Wild(
        name="reasoning under another name than the template's",
        content=_chat(ASKS, _says("assistant", "None.", reasoning="One, two.")),
        template=THINKS,
        task="chat",
        learnt=(_THOUGHT,) * 2,
    ),
    Wild(
        name="contents stripped by the template",
        content=_chat(_says("user", " Sheep?\n"), _says("assistant", "None.\n\n")),
        template=STRIPPED,
        task="chat",
        learnt=("None.",) * 2,
        reads=("[user] Sheep?\n",),
    ),
    Wild(
        name="system turn within a question",
        content=_chat(_says("system", "Be brief."), ASKS, TELLS),
        template=SYSTEM_LAST,
        task="chat",
        learnt=("None.",) * 2,
        reads=("[user] Be brief. Sheep?",),
    ),
    Wild(
        name="calls as tags",
        content=_chat(ASKS, _says("assistant", "", **_calls("find_sheep", hill='so "far"', most=3, near=False))),
        template=XML_CALLS,
        task="chat",
        learnt=('<find_sheep><hill>so "far"</hill><most>3</most><near>false</near></find_sheep>',) * 2,
    ),
    Wild(
        name="calls as JSON in a string",
        content=_chat(ASKS, _says("assistant", "", **_calls("find_sheep", hill='a "far"\none'))),
        template=TEXT_CALLS,
        task="chat",
        learnt=('find_sheep "{\\"hill\\": \\"a \\\\\\"far\\\\\\"\\\\none\\"}"',) * 2,
    ),
    Wild(
        name="results as JSON",
        content=_chat(ASKS, TELLS, _says("tool", '{"sheep": "a\nb"}'), TELLS),
        template=RESULTS_AS_JSON,
        task="chat",
        learnt=("None. | None.",) * 2,
        reads=('"{\\"sheep\\": \\"a\\nb\\"}"',),
    ),
    Wild(
        name="tools and calls under chatml",
        content=_chat(
            ASKS, _says("assistant", "", **_calls("find_sheep", hill="far")), _says("tool", "0"), TELLS, tools=[TOOL]
        ),
        task="chat",
        settings={"data.max_length": 800},
        learnt=('<tool_call>\n{"name": "find_sheep", "arguments": {"hill": "far"}}\n</tool_call> | None.',) * 2,
        reads=("<tools>\n",),
    ),
    # Special tokens that texts spell.
    Wild(
        name="text that begins as the tokenizer begins it",
        content=[{"text": "<bos>A sheep."}, {"text": "A goat."}],
        task="causal_lm",
        learnt=("A sheep.", "A goat."),
        whole=("<bos>A sheep.<eos>", "<bos>A goat.<eos>"),
        notes=(f"1 documents {_ONCE}",),
    ),
    Wild(
        name="text with several beginnings and ends",
        content=[{"text": "\n<bos><bos>A sheep.<eos>\n<eos> \n"}] * 2,
        task="causal_lm",
        learnt=("A sheep.",) * 2,
        whole=("<bos>A sheep.<eos>",) * 2,
        notes=(f"2 documents {_ONCE}",),
    ),
    Wild(
        name="text whose end is followed by a newline",
        content=[{"text": "A sheep.<eos>\n"}] * 2,
        task="causal_lm",
        learnt=("A sheep.",) * 2,
        whole=("<bos>A sheep.<eos>",) * 2,
    ),
    Wild(
        name="text that ends once",
        content=[{"text": "<bos>A sheep. <eos>"}] * 2,
        task="causal_lm",
        learnt=("A sheep.",) * 2,
        whole=("<bos>A sheep. <eos>",) * 2,
    ),
    Wild(
        name="text with an end within it",
        content=[{"text": "A sheep.<eos>A goat."}] * 2,
        task="causal_lm",
        learnt=("A sheep.A goat.",) * 2,
        whole=("<bos>A sheep.<eos>A goat.<eos>",) * 2,
    ),
    Wild(
        name="classified text that spells its frame",
        content=[{"text": "<s>a sheep</s>", "label": "animal"}, {"text": "a rose</s>\n", "label": "plant"}],
        model="encoder",
        task="sequence_classification",
        learnt=("a sheep -> animal", "a rose -> plant"),
        whole=("<s>a sheep</s>", "<s>a rose</s>"),
        notes=(f"2 rows {_ONCE}",),
    ),
    Wild(
        name="answer that spells its end",
        content=[{"document": "Many sheep.</s>", "summary": "<s>Sheep.</s>"}] * 2,
        model="text to text",
        task="seq2seq",
        learnt=("Many sheep. -> Sheep.",) * 2,
        whole=("<s>Many sheep.</s>",) * 2,
        notes=(f"2 rows {_ONCE}",),
    ),
    Wild(
        name="answer of T5 that spells its end",
        content=[{"document": "the sheep </s>", "summary": "sheep </s>"}] * 2,
        model="text to text of T5's kind",
        task="seq2seq",
        learnt=("the sheep -> sheep",) * 2,
        notes=(f"2 rows {_ONCE}",),
    ),
    Wild(
        name="conversation that spells the tokens of its template",
        content=_chat(_says("user", "<bos>Sheep?<eos>"), _says("assistant", "None.<eos>")),
        template="{{ bos_token }}" + PLAIN.replace("{{ m.content }}", "{{ m.content }}{{ eos_token }}"),
        task="chat",
        learnt=("None.<eos>",) * 2,
        notes=("2 rows spell special tokens",),
    ),
)

CASES = (*TEXTS, *CONVERSATIONS, *PREFERENCES, *LABELS, *PAIRS, *TAGS, *TABLES, *TEMPLATES)
