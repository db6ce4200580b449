"""Steps a second of DPO beside TRL's, on rows of varied length, on a CPU.

    python tests/benchmarks/preference_speed.py TRL_PYTHON [--rounds N]

`TRL_PYTHON` is the interpreter of an environment with trl, which the program itself never needs. A Llama of the shape
`small` of `llamas.py` trains in fp32 on pairs of log-normal lengths, of which none is truncated, eight pairs in each
step. The contenders take turns, each in a process of its own. Seconds are those between the ends of steps, without
the first three. TRL runs twice: with its reference model in each step, and with log-probabilities that it computes
before (`precompute_ref_log_probs`), as this program does. The passes before the first step are not counted for
either. The figures are medians over the rounds, and the ratios are of these medians.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from against_trl import TEMPLATE
from llamas import SHAPES, make

STEPS, WARM_UP, PAIRS = 10, 3, 8
CONTENDERS = ("ours", "trl", "trl, precomputed")


def write_pairs(documents: Path, path: Path) -> None:
    """Write a pair of two neighbouring documents for each row. The prompt is the beginning of the first one."""
    texts = [" ".join(json.loads(line)["text"].split()) for line in documents.read_text().splitlines()]
    texts = [text for text in texts if text]
    rows = []
    for one, other in zip(texts[: 2 * STEPS * PAIRS : 2], texts[1::2], strict=False):
        columns = {"prompt": ("user", " ".join(one.split()[:4])), "chosen": ("assistant", one)}
        columns["rejected"] = ("assistant", f"{other} again")
        rows.append({name: [{"role": role, "content": text}] for name, (role, text) in columns.items()})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def train_with_trl(folder: Path, *, precomputes: bool) -> list[float]:
    """Return the seconds of each step. Runs in the environment with trl."""
    from datasets import load_dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import DPOConfig, DPOTrainer

    ends: list[float] = []

    class Clock(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            ends.append(perf_counter())

    config = DPOConfig(
        output_dir=str(folder / "trl"), max_steps=STEPS, learning_rate=1e-5, per_device_train_batch_size=PAIRS,
        use_cpu=True, bf16=False, report_to=[], save_strategy="no", logging_strategy="no", disable_tqdm=True,
        gradient_checkpointing=False, max_length=SHAPES["small"].max_length * 2, precompute_ref_log_probs=precomputes,
    )  # fmt: skip
    tokenizer = AutoTokenizer.from_pretrained(folder / "small")
    model = AutoModelForCausalLM.from_pretrained(folder / "small", dtype="float32")
    data: Any = load_dataset("json", data_files=str(folder / "pairs.jsonl"), split="train")
    DPOTrainer(model, args=config, train_dataset=data, processing_class=tokenizer, callbacks=[Clock()]).train()
    return [end - start for start, end in pairwise(ends)]


def train_ours(folder: Path, name: str) -> list[float]:
    """Return the seconds of each step of this program's run."""
    settings = {
        "model.model_name_or_path": folder / "small", "data.path": folder / "pairs.jsonl", "data.eval_fraction": 0,
        "task.type": "preference", "tuning.method": "full", "training.learning_rate": 1e-5,
        "training.max_steps": STEPS, "training.effective_batch_size": PAIRS, "model.dtype": "float32",
        "training.mixed_precision": "no", "data.max_length": SHAPES["small"].max_length * 2,
        "checkpoint.save_steps": 0, "logging.logging_steps": 1, "logging.sample_steps": 0,
        "output.runs_dir": folder / "runs", "output.name": name,
    }  # fmt: skip
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    subprocess.run([sys.executable, "-m", "tui_trainer", "--no-ui", *words], check=True, stdout=subprocess.DEVNULL)
    events = map(json.loads, (folder / "runs" / name / "journal.jsonl").read_text().splitlines())
    ends = [datetime.fromisoformat(event["at"]).timestamp() for event in events if event["event"] == "StepDone"]
    return [end - start for start, end in pairwise(ends)]


def main() -> None:
    if sys.argv[1] == "--trl":
        print(json.dumps(train_with_trl(Path(sys.argv[2]), precomputes=sys.argv[3] == CONTENDERS[2])))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trl_python")
    parser.add_argument("--rounds", type=int, default=5)
    chosen = parser.parse_args()
    os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    rates: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        os.environ["TUI_TRAINER_HOME"] = str(folder / "home")
        model, documents = make(folder, "small")
        (model / "chat_template.jinja").write_text(TEMPLATE)
        write_pairs(documents, folder / "pairs.jsonl")
        for number in range(chosen.rounds):
            for name in CONTENDERS:
                if name == "ours":
                    seconds = train_ours(folder, f"round-{number}")
                else:
                    command = [chosen.trl_python, __file__, "--trl", str(folder), name]
                    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
                    seconds = json.loads(output.splitlines()[-1])
                rates[name].append(1 / (sum(seconds[WARM_UP:]) / len(seconds[WARM_UP:])))
                print(f"round {number + 1}  {name:18} {rates[name][-1]:.3f} steps/s", flush=True)
    medians = {name: median(found) for name, found in rates.items()}
    for name, found in rates.items():
        spread = f"({min(found):.3f} to {max(found):.3f})"
        print(
            f"{name:18} {medians[name]:.3f} steps/s {spread}, ours is {medians['ours'] / medians[name]:.2f} times that"
        )


if __name__ == "__main__":
    main()
