"""Libraries that a start loads: commands that need no torch load none.

`tests/benchmarks/first_step.py` uses FIRST_STEP, TEXT and `run`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.programs import shared_folder
from tui_trainer.models.catalogue import all_entries
from tui_trainer.models.facts import find_model
from tui_trainer.models.heads import supported_heads

HEAVY = ("torch", "transformers", "datasets", "huggingface_hub", "textual", "peft")
COMMANDS = [["--help"], ["plan"], ["explain", "data"], ["runs"], ["profiles"], ["guide", "start"]]
LOOK = f"""
import sys
from pathlib import Path
from tui_trainer.cli import main
from tui_trainer.models import counting as answers
from tui_trainer.planning import fit
# Questions that only torch can answer have been answered before.
answers.prepared_data_folder = lambda environment: Path(ANSWERS)
fit.measure_layer = lambda *_, **__: (None, "not counted in tests")
for command in COMMANDS:
    assert main(command) == 0, command
from tui_trainer.downloading import hub
from tui_trainer.models.problems import model_problems
loaded = [name for name in {HEAVY!r} if name in sys.modules]
sys.exit(f"loaded: {{loaded}}" if loaded else 0)
"""


def look(commands: list[list[str]]) -> str:
    """Return a program that runs the commands and fails if one of them loaded a heavy library."""
    return LOOK.replace("COMMANDS", repr(commands)).replace("ANSWERS", repr(str(shared_folder())))


def run(*arguments: str, home: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"TUI_TRAINER_HOME": home}
    return subprocess.run(
        [sys.executable, *arguments], env=environment, cwd=home, capture_output=True, text=True, timeout=1500
    )


def test_light_commands_load_no_heavy_library(tmp_path):
    """Among them are plans for a pretrained and a catalogued model, on tables and on saved data sets."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from tests.tiny_models import save_tiny_model

    model = str(save_tiny_model(tmp_path / "model", "llama"))
    (tmp_path / "rows.csv").write_text("id,body\n" + "".join(f"{n},{n} sheep and a goat\n" for n in range(99)))
    decoders = [entry for entry in all_entries() if "causal_lm" in supported_heads(str(entry.config["model_type"]))]
    smallest = min(decoders, key=lambda entry: entry.parameters)
    assert all(find_model(name).shape.parameters for name in (model, smallest.name))
    rows = pa.Table.from_pylist([{"text": f"{n} sheep and a goat"} for n in range(99)])
    (tmp_path / "rows.jsonl").write_text("".join(f'{{"text": "{n} sheep and a goat"}}\n' for n in range(99)))
    pq.write_table(rows, tmp_path / "rows.parquet")
    for split in ("train", "test"):
        (tmp_path / "saved" / split).mkdir(parents=True)
        with pa.ipc.new_stream(tmp_path / "saved" / split / "data-00000-of-00001.arrow", rows.schema) as writer:
            writer.write_table(rows)
    (tmp_path / "saved/dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    plans = [
        ["plan", "--model", model, "--data", "rows.csv", "--set", "tuning.method=lora"],
        ["plan", "--model", smallest.name, "--data", "rows.csv"],
        *(["plan", "--data", path] for path in ("rows.jsonl", "rows.parquet", "saved")),
    ]
    done = run("-c", look([*COMMANDS, *plans]), home=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "tui-trainer --no-ui" in done.stdout and done.stdout.count("micro-batch") >= 1 + len(plans)


FIRST_SCREEN = """
import sys
import tui_trainer.ui.main
early = [name for name in ("textual", "rich", "psutil") if name in sys.modules]
from tui_trainer.hardware.probe import probe
from tui_trainer.ui.app import TrainerApp
from tui_trainer.ui.keymap import load_keymap
from tui_trainer.ui.spans import UNICODE
from tui_trainer.ui.workbench import Workbench

bench = Workbench(None, probe(), UNICODE)
app = TrainerApp(bench, load_keymap())

def look():
    assert "libraries" in "".join(map(str, app.export_screenshot().split())), "the machine is shown"
    loaded = [name for name in LATER if name in sys.modules]
    app.exit((early, loaded))

bench.begin = look
bench.end = lambda: None
print(app.run(headless=True, size=(80, 24)))
"""


def test_first_screen_loads_only_the_modules_that_it_shows(tmp_path):
    pages = [f"ui.screens.{name}" for name in ("config", "checklist", "train", "runs")]
    later = [
        "planning.plan",
        "data.sources.source",
        "models.shape",
        "tasks.contract",
        "advice.checklist",
        "ui.starting",
    ]
    later = [
        f"tui_trainer.{name}" for name in (*later, "ui.starting", "config.sections", "runs.events", *pages, "ui.chart")
    ]
    code = FIRST_SCREEN.replace("LATER", repr([*later, "pydantic", "numpy"]))
    done = run("-c", code, home=str(tmp_path))
    assert done.stdout.strip() == "([], [])", done.stderr


def test_list_of_runs_loads_no_planning(tmp_path):
    look_at = "print({'numpy', 'tui_trainer.config.sections'} & set(sys.modules))"
    done = run("-c", f"import sys; from tui_trainer.cli import main; main(['runs']); {look_at}", home=str(tmp_path))
    assert done.stdout.splitlines()[1:] == ["set()"], done.stderr


TEXT = "the quick brown fox jumps over the lazy dog. " * 400
FIRST_STEP = """
import json, sys, time
from tui_trainer.config.load import Request
from tui_trainer.launching.run_lifecycle import execute_run
from tui_trainer.launching.open_run import load_config, open_new

assignments = ("data.path=text.txt", "data.max_length=32", "model.scratch.hidden_size=16", "training.max_steps=1",
               "model.scratch.num_attention_heads=2", "model.scratch.num_hidden_layers=1", "logging.sample_steps=0",
               "training.effective_batch_size=4", "output.runs_dir=.", *sys.argv[1:])
opened = open_new(load_config(Request(assignments=assignments)))
from tui_trainer.training import components
take_step = components.take_step

def look(*arguments, **more):
    report = take_step(*arguments, **more)
    print("seconds", time.process_time())
    print("loaded", json.dumps(sorted(sys.modules)))
    return report

components.take_step = look
assert execute_run(opened).exit_code == 0
"""
# transformers itself loads accelerate, torch._dynamo, torch.distributed and scipy with any of its models.
UNUSED = {"peft", "datasets", "bitsandbytes", "textual", "pandas", "sklearn", "rouge_score", "transformers.trainer",
          "transformers.trainer_utils", "transformers.optimization"}  # fmt: skip


def loaded_at_the_first_step(folder, *settings: str) -> set[str]:
    (folder / "text.txt").write_text(TEXT)
    done = run("-c", FIRST_STEP, *settings, home=str(folder))
    assert done.returncode == 0, done.stderr
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("loaded"))
    return set(json.loads(line.removeprefix("loaded")))


def families(loaded: set[str]) -> set[str]:
    return {name.split(".")[2] for name in loaded if name.startswith("transformers.models.")}


@pytest.mark.e2e
def test_fine_tuning_of_characters_loads_only_what_it_uses(tmp_path):
    loaded = loaded_at_the_first_step(tmp_path)
    assert not UNUSED & loaded
    assert "torch" in loaded and families(loaded) == {"auto", "llama"}
