"""Peak memory of a streamed merge: a LoRA run on a Llama of 1.2 billion weights in bf16, in files of at most 600 MB.

    uv run python tests/benchmarks/merging.py [--shape 1.2b] [--shard 600MB] [--keep FOLDER]

Trains one step, then merges in a process of its own and prints its peak of resident memory, with the files that it maps
and without what the libraries take, beside the largest file of the base model and of the result.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path

from tests.benchmarks import llamas
from tui_trainer.units import format_bytes

MERGE = """
import resource, sys
from pathlib import Path
import peft, torch, transformers
from transformers import LlamaForCausalLM
from tui_trainer.exporting.contract import find_format
from tui_trainer.exporting.trained_model import TrainedModel
from tui_trainer.runs.folder import RunFolder
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
find_format("merged").write(TrainedModel.of(RunFolder.open(Path(sys.argv[1]))), Path(sys.argv[2]), lambda *_: None)
print(before * 1024, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


def ended(*command: str | Path) -> str:
    done = subprocess.run([sys.executable, *map(str, command)], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{command[:3]}: {done.stderr[-2000:]}")
    return done.stdout


def largest(folder: Path) -> int:
    return max(path.stat().st_size for path in folder.glob("*.safetensors"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=llamas.SHAPES, default="1.2b")
    parser.add_argument("--shard", default="600MB")
    parser.add_argument("--keep", type=Path, help="a folder for the model and the run, instead of a temporary one")
    chosen = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    llamas.SHARD = chosen.shard
    with tempfile.TemporaryDirectory() if chosen.keep is None else nullcontext(chosen.keep) as folder:
        place = Path(folder)
        os.environ["TUI_TRAINER_HOME"] = str(place / "home")
        model, documents = llamas.make(place, chosen.shape)
        settings = {
            "task.type": "causal_lm", "tuning.method": "lora", "model.model_name_or_path": model,
            "data.path": documents, "data.max_length": 32, "data.packing": "false", "training.max_steps": 1,
            "training.effective_batch_size": 1, "evaluation.max_eval_rows": 2, "evaluation.eval_steps": 0,
            "logging.sample_steps": 0, "output.runs_dir": place / "runs", "output.name": "merge",
        }  # fmt: skip
        run, merged = place / "runs/merge", place / "merged"
        if not run.exists():
            pairs = (part for key, value in settings.items() for part in ("--set", f"{key}={value}"))
            ended("-m", "tui_trainer", "--no-ui", *pairs)
        merged.mkdir(exist_ok=True)
        before, peak = map(int, ended("-c", MERGE, run, merged).split())
        shard = largest(model)
        print(f"base model: {format_bytes(sum(p.stat().st_size for p in model.glob('*.safetensors')))}", end=", ")
        print(f"largest file {format_bytes(shard)}; of the result {format_bytes(largest(merged))}")
        print(f"peak {format_bytes(peak)}, {format_bytes(before)} of it before the merge: ", end="")
        print(f"{(peak - before) / shard:.2f} times the largest file, with the libraries {peak / shard:.2f} times")


if __name__ == "__main__":
    main()
