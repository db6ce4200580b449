"""Each offline recipe, trained for some steps and exported to every format that fits it; each folder then answers 50
rows in an environment that has only what its format needs, and none of this project.

    uv run --with torchao python tests/benchmarks/exports_alone.py [--steps 30] [--only PART OF A NAME]

Prints for each folder with how many of the trained model's answers its own are equal: labels, tags, or 12 tokens that
it writes, the likeliest each time. Formats in 8 bits round, so some of theirs may differ.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

ROWS, NEW_TOKENS = 50, 12
TORCH = ("torch", "transformers")
NEEDS = {
    "model": TORCH,
    "merged": TORCH,
    "adapter": (*TORCH, "peft"),
    "int8": (*TORCH, "torchao"),
    "onnx": ("onnxruntime", "tokenizers"),
    "onnx-int8": ("onnxruntime", "tokenizers"),
}

WITH_TRANSFORMERS = """
import json, sys, torch
from pathlib import Path
from transformers import *
folder, kind, rows, new = Path(sys.argv[1]), sys.argv[2], json.load(open(sys.argv[3])), int(sys.argv[4])
build = {"sequence_classification": AutoModelForSequenceClassification, "seq2seq": AutoModelForSeq2SeqLM,
         "token_classification": AutoModelForTokenClassification}.get(kind, AutoModelForCausalLM)
adapter = folder / "adapter_config.json"
if adapter.is_file():
    from peft import PeftModel
    base = json.loads(adapter.read_text())["base_model_name_or_path"]
    model = PeftModel.from_pretrained(build.from_pretrained(base), folder)
else:
    model = build.from_pretrained(folder)
model, tokenizer, found = model.eval(), AutoTokenizer.from_pretrained(folder), []
for row in rows:
    split = isinstance(row, list)
    inputs = tokenizer(row, return_tensors="pt", is_split_into_words=split)
    with torch.no_grad():
        if kind == "sequence_classification":
            found.append(model.config.id2label[int(model(**inputs).logits[0].argmax())])
        elif split:
            tags, best = {}, model(**inputs).logits[0].argmax(-1).tolist()
            for place, word in enumerate(inputs.word_ids(0)):
                tags.setdefault(word, model.config.id2label[best[place]])
            found.append([tags.get(number) for number in range(len(row))])
        else:
            inputs.pop("token_type_ids", None)
            ids = model.generate(**inputs, max_new_tokens=new, do_sample=False, num_beams=1)[0].tolist()
            ids = ids[1:] if model.config.is_encoder_decoder else ids[inputs["input_ids"].shape[1]:]
            found.append(tokenizer.decode(ids, skip_special_tokens=True))
print(json.dumps(found))
"""

WITH_ONNX = """
import json, sys
from pathlib import Path
import numpy as np
from tokenizers import Tokenizer
folder, kind, rows, new = Path(sys.argv[1]), sys.argv[2], json.load(open(sys.argv[3])), int(sys.argv[4])
sys.path.insert(0, str(folder))
from run_onnx import Graphs, answer
graphs, tokenizer, found = Graphs(folder), Tokenizer.from_file(str(folder / "tokenizer.json")), []
for row in rows:
    if isinstance(row, list):
        encoding = tokenizer.encode(row, is_pretokenized=True)
        best = graphs.logits(np.array([encoding.ids]), np.array([encoding.attention_mask]))[0].argmax(-1).tolist()
        tags = {}
        for place, word in enumerate(encoding.word_ids):
            tags.setdefault(word, graphs.config["id2label"][str(best[place])])
        found.append([tags.get(number) for number in range(len(row))])
    else:
        told = answer(graphs, tokenizer, row, new)
        found.append(told.split(", ")[0].rsplit(" ", 1)[0] if kind == "sequence_classification" else told)
assert "torch" not in sys.modules and "transformers" not in sys.modules
print(json.dumps(found))
"""


@dataclass(frozen=True, slots=True)
class Recipe:
    """One run: `source` is its data; `more` are arguments of the command line besides the profile."""

    name: str
    kind: str
    source: str
    formats: tuple[str, ...]
    more: tuple[str, ...] = ()


QUANTISED = ("onnx", "onnx-int8", "int8")
RECIPES = [
    Recipe("docstring-topics", "sequence_classification", "sample:python-docstrings", QUANTISED),
    Recipe("python-entities", "token_classification", "sample:python-tokens", QUANTISED),
    Recipe("signature-summaries", "seq2seq", "sample:python-signatures", QUANTISED),
    Recipe("chat-scratch", "chat", "sample:python-help-chat", QUANTISED),
    Recipe("scratch-llama", "causal_lm", "sample:python-reference", QUANTISED),
    Recipe("char-lm", "char_lm", "sample:python-reference", ("onnx", "onnx-int8")),
    Recipe("chat-lora", "chat", "sample:python-help-chat", ("merged", "adapter", *QUANTISED)),
]


def texts_of(recipe: Recipe, model: Path) -> list[Any]:
    """What a trained model is asked: lists of words for tags, else texts."""
    from transformers import AutoTokenizer

    from tui_trainer.data.columns.text_columns import ColumnChoices
    from tui_trainer.data.problems import ProblemList
    from tui_trainer.data.sources.source import open_source

    if recipe.kind == "char_lm":
        text = "".join(path.read_text() for path in Path("tui_trainer").glob("*.py"))
        tokenizer = AutoTokenizer.from_pretrained(model)
        known = "".join(sign for sign in text if tokenizer.convert_tokens_to_ids(sign) != tokenizer.unk_token_id)
        return [known[at : at + 40] for at in range(0, ROWS * 40, 40)]
    if recipe.kind == "causal_lm":
        found = islice(open_source(recipe.source).documents(problems=ProblemList()), ROWS)
        words = " ".join(document.text for document in found).split()
        return [" ".join(words[at : at + 8]) for at in range(0, ROWS * 8, 8)]
    table = open_source(recipe.source).rows(ProblemList(), max_rows=ROWS, choices=ColumnChoices("auto"))
    rows = [dict(row.values) for row in table]
    if recipe.kind == "chat":
        tokenizer = AutoTokenizer.from_pretrained(model)
        first = [row["messages"][:1] for row in rows]
        return [tokenizer.apply_chat_template(one, tokenize=False, add_generation_prompt=True) for one in first]
    column = {"sequence_classification": "text", "token_classification": "tokens", "seq2seq": "input"}[recipe.kind]
    # No more than any model reads: cutting is not what is compared.
    return [value[:15] if isinstance(value, list) else value[:80] for value in (row[column] for row in rows)]


def command(*arguments: str) -> None:
    done = subprocess.run([sys.executable, "-m", "tui_trainer", *arguments], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(arguments)}: {done.stderr[-2000:]}")


def alone(folder: Path, name: str, recipe: Recipe, asked: Path) -> list[Any]:
    """The answers of a folder in an environment with what its format needs."""
    packages = [f"--with={one}=={importlib.metadata.version(one)}" for one in NEEDS[name]]
    script = WITH_ONNX if name.startswith("onnx") else WITH_TRANSFORMERS
    run = ["uv", "run", "--isolated", "--no-project", "--python", "3.11", *packages, "python", "-c", script]
    environment = {key: value for key, value in os.environ.items() if key not in ("VIRTUAL_ENV", "PYTHONPATH")}
    done = subprocess.run(
        [*run, str(folder), recipe.kind, str(asked), str(NEW_TOKENS)],
        capture_output=True,
        text=True,
        env=environment,
        cwd=asked.parent,
    )
    if done.returncode:
        sys.exit(f"{recipe.name}, {name}: {done.stderr[-2000:]}")
    found: list[Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def compared(recipe: Recipe, place: Path, steps: int) -> Iterator[tuple[str, int, str]]:
    """(format, equal answers, packages) of each folder, the run's own `model` first."""
    runs = place / "runs"
    settings = {
        "training.max_steps": steps, "output.runs_dir": runs, "output.name": recipe.name, "evaluation.eval_steps": 0,
        "logging.sample_steps": 0,
    }  # fmt: skip
    profile = recipe.name
    if recipe.name == "chat-lora":
        profile = "chat-scratch"
        settings |= {"model.model_name_or_path": runs / "chat-scratch/model", "model.init": "pretrained"}
        settings |= {"tuning.method": "lora"}
    command(
        "--no-ui",
        "--profile",
        profile,
        *(part for key, value in settings.items() for part in ("--set", f"{key}={value}")),
    )
    model = runs / recipe.name / "model"
    asked = place / f"{recipe.name}.json"
    asked.write_text(json.dumps(texts_of(recipe, model)))
    names = "adapter" if (model / "adapter_config.json").is_file() else "model"
    wanted = alone(model, names, recipe, asked)
    yield "as trained", len(wanted), ", ".join(NEEDS[names])
    for name in recipe.formats:
        command("export", recipe.name, "--to", name)
        found = alone(runs / recipe.name / "export" / name, name, recipe, asked)
        yield name, sum(one == other for one, other in zip(found, wanted, strict=True)), ", ".join(NEEDS[name])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--only", default="")
    asked = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    print(f"{'recipe':<20} {'format':<10} equal answers  packages")
    with tempfile.TemporaryDirectory() as place:
        os.environ["TUI_TRAINER_HOME"] = f"{place}/home"
        for recipe in RECIPES:
            if asked.only in recipe.name or (asked.only == "chat-lora" and recipe.name == "chat-scratch"):
                for name, equal, packages in compared(recipe, Path(place), asked.steps):
                    print(f"{recipe.name:<20} {name:<10} {equal:>5} of {ROWS}     {packages}", flush=True)


if __name__ == "__main__":
    main()
