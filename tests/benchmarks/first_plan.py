"""Seconds until there is a plan: of a shipped recipe, of any other model, and of an edit.

    python -m tests.benchmarks.first_plan [ROUNDS]

The plans are whole programs in processes of their own, each with a state folder where nothing is kept; `again` has the
one before it. An edit is planned in a process that has planned before, as the editor does it: it changes what goes
through the model, whose parts are known by then, or the method, of which the process that has torch is asked anew.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter

from tests.tiny_models import VOCABULARY, save_tiny_model, texts, tiny_tokenizer

# Recurrence and attention in turns: counted by building the whole model.
MIXED = "lfm2"
LAYERS = 24
EDITS = """
import sys, json
from time import perf_counter
from tui_trainer.config.load import Request
from tui_trainer.launching.prepare import estimated_plan
from tui_trainer.launching.open_run import load_config

shortcuts = json.loads(sys.argv[1])
def seconds(**changes):
    assignments = tuple(f"{key.replace('__', '.')}={value}" for key, value in changes.items())
    loaded = load_config(Request(profile="finetune", assignments=assignments, shortcuts=shortcuts))
    started = perf_counter()
    estimated_plan(loaded)
    return perf_counter() - started
seconds()
print(json.dumps({"rows": seconds(training__per_device_train_batch_size=2), "method": seconds(tuning__method="full")}))
"""


def save_mixed(folder: Path) -> Path:
    from transformers import AutoConfig, AutoModelForCausalLM

    fields = {
        "layer_types": ["conv", "conv", "full_attention", "conv"] * (LAYERS // 4), "num_hidden_layers": LAYERS,
        "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
        "vocab_size": VOCABULARY, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    AutoModelForCausalLM.from_config(AutoConfig.for_model(MIXED, **fields)).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def run(*words: str, home: str) -> tuple[float, str]:
    environment = {**os.environ, "TUI_TRAINER_HOME": home, "HF_HUB_OFFLINE": "1"}
    started = perf_counter()
    done = subprocess.run([sys.executable, *words], env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)[:200]}\n{done.stdout[-1000:]}{done.stderr[-2000:]}")
    return perf_counter() - started, done.stdout


def one_round(model: Path, listed: Path, documents: Path) -> dict[str, float]:
    found = {}
    program = ("-m", "tui_trainer", "plan")
    with tempfile.TemporaryDirectory() as home:
        found["a shipped recipe"], _ = run(*program, "--profile", "tinyllama-lora", "--data", str(documents), home=home)
        words = (*program, "--profile", "finetune", "--data", str(documents), "--model")
        found["a Llama"], _ = run(*words, str(listed), home=home)
        found["recurrence and attention in turns"], _ = run(*words, str(model), home=home)
        found["the same again"], _ = run(*words, str(model), home=home)
        shortcuts = {"model.model_name_or_path": str(model), "data.path": str(documents)}
        edits = json.loads(run("-c", EDITS, json.dumps(shortcuts), home=home)[1].splitlines()[-1])
        found["an edit of the micro-batch"] = edits["rows"]
        found["an edit of the method, the first time"] = edits["method"]
    return found


def main(rounds: int) -> int:
    with tempfile.TemporaryDirectory() as folder:
        model = save_mixed(Path(folder) / MIXED)
        listed = save_tiny_model(Path(folder) / "llama", "llama", num_hidden_layers=LAYERS)
        documents = Path(folder) / "documents.jsonl"
        documents.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts(60)))
        found = [one_round(model, listed, documents) for _ in range(rounds)]
    for name in found[0]:
        times = [each[name] for each in found]
        print(f"{name:40} {median(times):7.3f} s, {min(times):.3f} to {max(times):.3f}")
    print(f"load {os.getloadavg()[0]:.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 3))
