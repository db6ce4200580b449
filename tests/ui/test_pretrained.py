"""A pretrained model in the screens: named on the command line or in a file, tuned by keys, used by plain peft."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.runs.journals import read_all
from tests.tiny_models import save_tiny_model, texts
from tests.ui.pictures import in_event_loop
from tests.ui.screens import open_screens
from tui_trainer.config.load import Request
from tui_trainer.launching.open_run import load_config
from tui_trainer.runs.events import PlanMade, StepDone
from tui_trainer.runs.folder import RunFolder
from tui_trainer.runs.state import apply_events
from tui_trainer.ui.main import _tell_end

SETTINGS = (
    "data.max_length=32", "tuning.method=lora", "tuning.r=4", "training.max_steps=3", "training.effective_batch_size=4",
    "training.learning_rate=0.02", "evaluation.eval_steps=0", "evaluation.max_eval_rows=4", "checkpoint.save_steps=0",
    "logging.sample_steps=0",
)  # fmt: skip


@pytest.fixture
def named_by_flags(tmp_path: Path) -> Request:
    """`--model ./tiny-llama --data notes.jsonl`, and a run of seconds."""
    save_tiny_model(tmp_path / "tiny-llama", "llama")
    (tmp_path / "notes.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts(40)))
    shortcuts = {"model.model_name_or_path": "./tiny-llama", "data.path": "notes.jsonl"}
    return Request(shortcuts=shortcuts, assignments=SETTINGS)


async def _trained(request: Request, *, saves: bool) -> Path:
    """From the first screen to the result, by keys; the folder of the run. `saves`: the settings go to a file first."""
    async with open_screens(request) as screens:
        await screens.shows("t start")
        await screens.press("2", "slash", *"model_name", "enter")
        await screens.shows("model_name_or_path", "tiny-llama", "plan    memory", "steps 3")
        if saves:
            await screens.press("s")
            await screens.shows("Save as", "tui-trainer.toml")
            await screens.press("enter")
            await screens.shows("saved to")
        await screens.press("4")
        await screens.shows("Press t to start", "tiny-llama, LoRA r 4: 4.1 k of 30.9 k parameters (13 %) are trainable")
        await screens.press("t")
        await screens.shows(
            "Start notes-tiny-llama?",
            "3, each with 4 rows",
            "tiny-llama",
            "LoRA r 4: 4.1 k of 30.9 k parameters (13 %) are trainable",
        )
        await screens.press("enter")
        await screens.shows("Finished after 3 steps", "planned", "adapter", "/model", "w try the model")
        assert screens.bench.run is not None
        return screens.bench.run.folder.root


@pytest.mark.full
@in_event_loop
async def test_a_length_of_a_recipe_is_cut_to_the_learnt_positions_as_without_screens(tmp_path):
    model = save_tiny_model(tmp_path / "tiny-gpt2", "gpt2")
    (tmp_path / "notes.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts(40)))
    request = Request(shortcuts={"model.model_name_or_path": str(model), "data.path": "notes.jsonl"})
    headless = await asyncio.to_thread(load_config, request)
    async with open_screens(request, size=(160, 50)) as screens:
        document = screens.bench.document
        assert document.problems == () and not document.is_changed("data.max_length")
        assert document.loaded.config.data == headless.config.data and document.loaded.notes == headless.notes
        await screens.press("2", "/", *"data.max_length", "enter")
        await screens.shows("from recipe finetune", "gpt2 model has 128")
        await screens.press("enter", "ctrl+u", *"256", "enter")
        await screens.shows("256 is above 128")
        await screens.press("r")
        await screens.shows("can start", gone="256 is above 128")


@pytest.mark.e2e
def test_a_pretrained_model_is_tuned_by_keys_from_flags_and_from_a_file(named_by_flags, tmp_path, capsys):
    by_flags = asyncio.run(_trained(named_by_flags, saves=True))
    run = RunFolder(by_flags)
    _tell_end(SimpleNamespace(folder=run, state=apply_events(read_all(run.journal)), outcome=None, poll=lambda: None))
    told = capsys.readouterr().out
    assert f"adapter        {by_flags}/model" in told and f"base model   {tmp_path / 'tiny-llama'}" in told
    from_file = asyncio.run(_trained(Request(config_file=tmp_path / "tui-trainer.toml"), saves=False))
    assert by_flags != from_file
    losses = []
    for folder in (by_flags, from_file):
        events = list(read_all(folder / "journal.jsonl"))
        losses.append([event.loss for event in events if isinstance(event, StepDone)])
        (plan,) = [event for event in events if isinstance(event, PlanMade)]
        assert (plan.base_model, plan.lora_rank) == (str(tmp_path / "tiny-llama"), 4)
    assert losses[0] == losses[1] and len(losses[0]) == 3

    import torch
    from peft import AutoPeftModelForCausalLM
    from transformers import AutoTokenizer

    tuned = AutoPeftModelForCausalLM.from_pretrained(from_file / "model")
    tokenizer = AutoTokenizer.from_pretrained(from_file / "model")
    ids = tokenizer("3 plus 4 is", return_tensors="pt").input_ids
    written = tuned.generate(input_ids=ids, max_new_tokens=4, min_new_tokens=4, do_sample=False)
    assert written.shape == (1, ids.shape[1] + 4)
    moved = [weight for name, weight in tuned.named_parameters() if "lora_B" in name]
    assert moved and all(torch.any(weight != 0) for weight in moved), "an adapter that learnt nothing is all zeros"


@pytest.mark.e2e
@in_event_loop
async def test_other_data_and_a_model_change_recipe_and_task_and_the_screen_says_so(tmp_path, monkeypatch):
    """As `--model ./bert --data x.csv` would: nothing is left of the quickstart that was on the screen."""
    monkeypatch.chdir(tmp_path)
    save_tiny_model(tmp_path / "bert", "bert")
    (tmp_path / "x.csv").write_text("text,label\n" + "a sheep,animal\na wheel,car\n" * 20)
    async with open_screens(Request(), size=(200, 50)) as screens:
        await screens.shows("t start")
        await screens.press("2", "slash", *"path", "enter", "enter", "ctrl+u", *"x.csv", "enter")
        await screens.shows("x.csv (edited")
        await screens.press("slash", *"model_name", "enter", "enter", "ctrl+u", *"bert", "enter")
        both = "now recipe finetune and task sequence_classification, to fit model and x.csv"
        others = "max_length is now 130; columns: text text, label label"
        await screens.shows(f"{both}; {others}; u to undo", "recipe finetune")
        await screens.press("u")
        await screens.shows(
            "model_name_or_path is empty again (was", "the task is now char_lm, because no model is set", "recipe quick"
        )
