"""Trained models in the hands of others: what they answer without this package is what `predict` answers, for rows that
are longer than the limit, for pairs, and up to where an answer ends."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.tiny_models import save_tiny_model
from tests.trained_runs import ANIMALS, asked_row, train, training_row, words, write_rows
from tui_trainer.cli import main
from tui_trainer.runs.events import EvalDone
from tui_trainer.runs.folder import RunFolder
from tui_trainer.runs.journal import last_events

pytestmark = pytest.mark.full
# Of a base model that was made for other data.
SHAPING = {
    "min_length": 20, "no_repeat_ngram_size": 2, "num_beams": 4, "length_penalty": 2.0, "repetition_penalty": 5.0,
}  # fmt: skip
MOST = 12
NEW_MARKS = '"<|im_start|>,<|im_end|>"'


@dataclass(frozen=True)
class Case:
    """A run of `task` and what `predict` and others are asked. `kind`: the function of `loaded_elsewhere.py`."""

    name: str
    task: str
    kind: str
    rows: list[dict[str, Any]]
    answer: str
    data: list[dict[str, Any]] = field(default_factory=list)
    base: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    is_in_graphs: bool = False


def pair(n: int) -> dict[str, Any]:
    """A pair of 67 words. Its label stands where its second text begins, of which half remains within 24 tokens."""
    return {"text": " ".join(["runs"] * 40), "second": " ".join([ANIMALS[n % 2], *["home"] * 26]), "label": f"{n % 2}"}


def question(n: int) -> dict[str, Any]:
    animal = ANIMALS[n % 4]
    before = "The day is long . " * (n % 5)
    return {
        "question": "who runs", "context": f"{before}The {animal} runs home {n} . {before}",
        "answers": {"text": [animal], "answer_start": [len(before) + 4]},
    }  # fmt: skip


def twice(n: int) -> dict[str, Any]:
    """An answer of two equal words, which the settings of the base model forbid."""
    animal = ANIMALS[n % 4]
    return {"input": f"{animal} " + "runs " * (n % 3 * 20), "output": f"{animal} {animal}"}


LORA = {"model.init": "pretrained", "tuning.method": "lora", "training.max_steps": 60, "training.learning_rate": 0.03}
SHORT, LONG = range(6), [["The", ANIMALS[n % 4], *["runs"] * (60 + n), "home"] for n in range(4)]
CASES = [
    Case("labels of long texts", "sequence_classification", "labelled",
         [{"texts": [" ".join(some)]} for some in (*map(words, SHORT), *LONG)], "label"),
    Case("pairs beside an adapter with new tokens", "sequence_classification", "labelled",
         [{"texts": [pair(n)["text"][: 4 * n + 9], pair(n)["second"]]} for n in SHORT], "label",
         [pair(n) for n in range(40)], "bert",
         {**LORA, "data.text_pair_column": "second", "data.max_length": 24, "model.add_tokens": '"sheep,hen"'}),
    Case("pairs", "sequence_classification", "labelled",
         [{"texts": [pair(n)["text"][: 4 * n + 9], pair(n)["second"]]} for n in SHORT], "label",
         [pair(n) for n in range(40)], "bert",
         {"model.init": "pretrained", "data.text_pair_column": "second", "data.max_length": 24}, True),
    Case("tags", "token_classification", "tagged", [{"words": words(n)} for n in SHORT], "tags"),
    Case("tags of long sentences", "token_classification", "tagged", [{"words": some} for some in LONG], "tags",
         settings={"data.max_length": 24}, is_in_graphs=True),
    Case("answers in long contexts", "question_answering", "marked",
         [{"texts": [question(n)["question"], question(n)["context"]]} for n in range(9)], "answer",
         [question(n) for n in range(60)], settings={"data.max_length": 24, "task.doc_stride": 6}, is_in_graphs=True),
    Case("answers of a model made for other data", "seq2seq", "answered",
         [{"text": twice(n)["input"].strip()} for n in range(8)], "text", [twice(n) for n in range(60)], "bart",
         {"model.init": "pretrained", "data.max_length": 32, "training.max_steps": 100, "training.learning_rate": 0.01},
         is_in_graphs=True),
    Case("answers beside an adapter", "seq2seq", "answered",
         [{"text": twice(n)["input"].strip()} for n in range(8)], "text", [twice(n) for n in range(60)], "bart",
         {**LORA, "data.max_length": 32}),
    Case("conversations", "chat", "continued",
         [{"messages": asked_row("chat", n)["messages"][:1], "most": MOST} for n in SHORT], "text",
         settings={"training.max_steps": 80}),
    Case("conversations beside an adapter with new tokens in spare rows", "chat", "continued",
         [{"messages": asked_row("chat", n)["messages"][:1], "most": MOST} for n in SHORT], "text",
         [training_row("chat", n) for n in range(60)], "llama",
         {**LORA, "task.chat_template": "chatml", "model.add_tokens": NEW_MARKS, "data.max_length": 64,
          "training.max_steps": 150}),
    Case("texts", "causal_lm", "continued", [{"text": " ".join(words(n)[:2]), "most": MOST} for n in SHORT], "text"),
    Case("characters", "char_lm", "continued", [{"text": " ".join(words(n)[:2]), "most": MOST} for n in SHORT], "text"),
]  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory, finished) -> Callable[[Case], RunFolder]:
    """Return `runs(case)`: its finished run; those without settings of their own are shared with other tests."""
    made: dict[str, RunFolder] = {}

    def make(case: Case) -> RunFolder:
        if not case.data and not case.settings:
            return finished(case.task)
        if case.name not in made:
            place = tmp_path_factory.mktemp(case.task)
            changes = {"evaluation.generate_rows": 8, **case.settings}
            if case.data:
                changes["data.path"] = write_rows(place / "rows.jsonl", case.data)
            if case.task == "seq2seq":
                changes["data.eval_path"] = write_rows(place / "held_out.jsonl", [twice(n) for n in range(8)])
            if case.base:
                changes["model.model_name_or_path"] = base = save_tiny_model(
                    place / case.base, case.base, **({"vocab_size": 448} if case.base == "llama" else {})
                )
                settings = json.loads(path.read_text()) if (path := base / "generation_config.json").is_file() else {}
                path.write_text(json.dumps(settings | SHAPING))
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("TUI_TRAINER_HOME", str(place / "home"))
                made[case.name] = train(place, case.task, changes)
        return made[case.name]

    return make


def predicted(case: Case, run: RunFolder, folder: Path) -> list[Any]:
    """Return what `predict` answers, as `loaded_elsewhere.py` has it."""
    columns = {"labelled": ("text", "second"), "marked": ("question", "context")}.get(case.kind, ())
    key = {"tagged": "tokens", "answered": "input"}.get(case.kind, "text")
    rows = [
        dict(zip(columns, row["texts"], strict=False)) if "texts" in row
        else {"messages": row["messages"]} if "messages" in row
        else {key: row.get("words") or row["text"]}
        for row in case.rows
    ]  # fmt: skip
    data, out = write_rows(folder / "asked.jsonl", rows), folder / "answers.jsonl"
    more = ["--max-new-tokens", f"{MOST}"] if case.kind == "continued" else []
    assert main(["predict", str(run.root), "--data", str(data), "--out", str(out), "--overwrite", *more]) == 0
    found = [json.loads(line)["prediction"] for line in out.read_text().splitlines()]
    assert not any(None in one["tags"] for one in found if "tags" in one)
    return [[one["label"], one["probability"]] if case.kind == "labelled" else one[case.answer] for one in found]


def answers_elsewhere(questions: list[dict[str, Any]]) -> list[list[Any]]:
    command = [sys.executable, str(Path(__file__).with_name("loaded_elsewhere.py"))]
    done = subprocess.run(command, input=json.dumps(questions), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def code_of(run: RunFolder) -> str:
    code = (run.model / "README.md").read_text().partition("```python\n")[2].partition("```")[0]
    adapter = run.model / "adapter_config.json"
    base = json.loads(adapter.read_bytes())["base_model_name_or_path"] if adapter.is_file() else ""
    return code.replace("path/of/this/folder", str(run.model)).replace("path/of/the/base/model", base)


def test_code_of_the_readme_answers_as_predict_does(runs, tmp_path, subtests):
    asked = [case for case in CASES if case.name != "tags of long sentences"]  # cut there: no pipeline reads windows
    rows = [{"kind": case.kind, "graphs": False, "source": code_of(runs(case)), "rows": case.rows} for case in asked]
    for case, found in zip(asked, answers_elsewhere(rows), strict=True):
        with subtests.test(case.name):
            run = runs(case)
            wanted = predicted(case, run, tmp_path)
            if case.kind == "labelled":
                assert [label for label, _ in found] == [label for label, _ in wanted]
                assert [chance for _, chance in found] == pytest.approx([chance for _, chance in wanted], abs=1e-4)
                continue
            assert found == wanted
            if case.task == "seq2seq":
                [measured] = [
                    event.scores["exact_match"] for event in last_events(run.journal) if type(event) is EvalDone
                ]
                right = [answer == twice(n)["output"] for n, answer in enumerate(found)]
                assert measured == sum(right) / len(right)
            if case.task == "chat":
                assert all(0 < len(text) < MOST / 2 for text in found)  # it stops where the answer ends


@pytest.mark.e2e
@pytest.mark.timeout(1800)  # an export takes a minute, and several on a busy machine
@pytest.mark.skipif(find_spec("onnxruntime") is None, reason="needs onnxruntime")
def test_graphs_of_onnx_answer_as_predict_does(runs, tmp_path, subtests, capsys):
    asked, rows = [case for case in CASES if case.is_in_graphs], []
    for case in asked:
        assert main(["export", str(runs(case).root), "--to", "onnx"]) == 0, capsys.readouterr()
        folder = str(runs(case).exports / "onnx")
        rows.append({"kind": case.kind, "graphs": True, "source": folder, "rows": case.rows})
    for case, found in zip(asked, answers_elsewhere(rows), strict=True):
        with subtests.test(case.name):
            wanted = predicted(case, runs(case), tmp_path)
            shown = [f"{label} {chance:.2f}" for label, chance in wanted] if case.kind == "labelled" else wanted
            assert found == shown
