"""One story for each screen, and one for what all of them share: keys, the text of the screen, and what came of it.

They know nothing of how a screen is made. Whoever rebuilds one has to keep its story.
"""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest

from tests.runs.journals import end, held_out, run_of, start, steps
from tests.ui.canned import CPU, GPUS, SICK
from tests.ui.pictures import in_event_loop
from tests.ui.screens import open_screens
from tui_trainer.config.load import Request
from tui_trainer.hardware import probe as probe_module
from tui_trainer.runs.controls import Controls
from tui_trainer.runs.lock import RunLock


@pytest.fixture
def machine(monkeypatch):
    """`machine(facts)`: what the program finds when it looks at its machine."""

    def found(facts):
        monkeypatch.setattr(probe_module, "read_hardware", lambda: facts)
        return probe_module.probe_again()

    yield found
    probe_module.probe.cache_clear()


@pytest.fixture
def small(small_config, machine):
    """`small(steps=5)`: the file with the settings of a run of seconds, on a machine that was made up."""
    machine(CPU)
    return lambda **more: Path(small_config(**more))


def written(path: Path) -> dict:
    return tomllib.loads(path.read_text())


@in_event_loop
async def test_story_hardware(machine):
    """What the machine has, what is wrong and what helps, another card, and the machine looked at again."""
    async with open_screens(hardware=machine(SICK), size=(80, 24)) as screens:
        await screens.shows("gpu-box", "1 Hardware", "training", "problems: 1", "driver supports 12.4", "pip install")
        await screens.press("end")
        await screens.shows("libraries", "transformers", "missing", "above", gone="problems: 1")
        await screens.press("home")
        await screens.shows("problems: 1")

        machine(GPUS)
        await screens.press("r")
        await screens.shows("2 GPUs", "GPU 0, chosen automatically", "bf16", gone="problems: 1")
        await screens.press("space")
        await screens.shows("GPU 0, chosen by you")
        await screens.press("space")
        await screens.shows("GPU 1, chosen by you", "\u25b8 1 H200", "python of bert")
        machine(CPU)
        await screens.press("r")
        await screens.shows("AMD EPYC 9654", "no NVIDIA GPU was found", gone="H200")


@in_event_loop
async def test_story_config(small, tmp_path):
    """Find a setting, change it, be refused a wrong value, take back, compare presets, see rows, save."""
    path = small()
    async with open_screens(Request(config_file=path)) as screens:
        await screens.press("2")
        await screens.shows("char_lm", "can start", "plan    memory", "steps 3,000", "Enter edit")
        await screens.press("/", *"learn")
        await screens.shows("/ learn", "learning_rate", "0.01", gone="max_length")
        await screens.press("enter", "enter", "ctrl+u", *"99")
        await screens.shows("99 is above the maximum of 10", "Esc cancel")
        await screens.press("ctrl+u", *"5e-4", "enter")
        await screens.shows("5e-4", "Enter edit", "1 unsaved")
        await screens.press("u")
        await screens.shows("learning_rate is", "again (was", gone="unsaved")
        await screens.press("U", "escape", "/", *"max_steps", "enter", "enter", "ctrl+u", *"20", "enter")
        await screens.shows("2 unsaved", "steps 20")
        await screens.press("escape", "o")
        await screens.shows("learning_rate", "max_steps", gone="schema_version")
        await screens.press("o", "p")
        await screens.shows("Choose a recipe", "\u2500\u2500 Changes ")
        await screens.press("escape", "v")
        await screens.shows("sample 1 of", "trained", "times")
        await screens.press("escape", "s")
        await screens.shows("saved to", "; `tui-trainer ", " opens it again", gone="unsaved")
        assert written(path)["training"]["learning_rate"] == 5e-4 and written(path)["training"]["max_steps"] == 20

        await screens.press("S", "ctrl+u", *"other.toml", "enter")
        await screens.shows("saved to", "other.toml")
        assert written(tmp_path / "other.toml")["training"]["max_steps"] == 20


@in_event_loop
async def test_story_checklist(small):
    """What needs a look comes first; a fix is shown, applied, taken back, applied again and saved."""
    path = small()
    path.write_text(path.read_text().replace("eval_steps = 0", "eval_steps = 1"))
    async with open_screens(Request(config_file=path), size=(120, 35)) as screens:
        await screens.press("3")
        everything = await screens.shows("checks", "finding", "pass", "warn", "why", "of")
        await screens.press("o")
        await screens.shows("only open checks", gone="\u2713")
        assert everything.count("\u2713") > 3
        for _ in range(12):
            if "fix    evaluation.eval_steps: 1.0 \u2192" in screens.text:
                break
            await screens.press("down")
        await screens.shows("fix    evaluation.eval_steps: 1.0 \u2192")
        await screens.press("enter")
        await screens.shows("\u2500 Finding", "a apply fix")
        await screens.press("a")
        await screens.shows("applied evaluation.eval_steps", "u to undo")
        await screens.press("u")
        await screens.shows("undid", "fix    evaluation.eval_steps: 1.0 \u2192")
        await screens.press("A")
        await screens.shows("Change ", "evaluation.eval_steps ", "1.0 \u2192", "Enter apply", "Esc back")
        await screens.press("enter")
        await screens.shows("applied ", "u to undo")
        await screens.press("2", "s")
        await screens.shows("saved to")
        assert written(path)["evaluation"]["eval_steps"] != 1


@in_event_loop
async def test_story_train(small, tmp_path):
    """A run is started, paused, read, evaluated, saved and stopped by keys."""
    async with open_screens(Request(config_file=small(steps=1_000_000)), size=(120, 35)) as screens:
        await screens.press("4")
        await screens.shows("Press t to start")
        await screens.press("t")
        await screens.shows("Start data-char_lm?", "memory", "disk", "CPU", "Enter start")
        await screens.press("enter")
        await screens.shows("training", "of 1,000,000", "tokens/s", "ETA", "S stop")
        await screens.press("p")
        await screens.shows("paused")
        await screens.press("v")
        await screens.shows("\u2500\u2500 learning rate ")
        await screens.press("left")
        await screens.until(lambda: re.search(r"step [\d,]+  learning rate \d\.\d", screens.text))
        await screens.press("escape", "H")
        await screens.shows("close")
        await screens.press("escape", "p")
        await screens.shows("training", gone="paused")
        await screens.press("E", "s")
        await screens.shows("held out", "saved at step")
        await screens.press("t")
        await screens.shows("a run is already active")
        await screens.press("S")
        await screens.shows("Save and stop?")
        await screens.press("enter")
        await screens.shows("Stopped at step", "of 1,000,000", "press p", "p resume", "w try the model")

    (run,) = (tmp_path / "runs").iterdir()
    events = [json.loads(line) for line in (run / "journal.jsonl").read_text().splitlines()]
    applied = [event["action"] for event in events if event["event"] == "ControlApplied"]
    assert applied == ["pause", "resume", "evaluate", "save", "stop"]
    assert events[-1]["event"] == "RunFinished" and events[-1]["reason"] == "stopped"
    assert f"step-{events[-1]['step']}" in [folder.name for folder in (run / "checkpoints").iterdir()]


@in_event_loop
async def test_story_runs(small, tmp_path):
    """Runs are found, compared, renamed, deleted, opened, stopped, and taken as the settings of a new one."""
    runs = tmp_path / "runs"
    run_of(runs, "broken", start(300), *steps(1, 20))
    slow = run_of(runs, "slow", start(300), *steps(1, 200), held_out(100, 4.8), end(200, "stopped"))
    fast = run_of(runs, "fast", start(300), *steps(1, 300), held_out(150, 4.6, accuracy=0.8), end(300, eval_loss=4.6))
    slow.config.write_text("[training]\nlearning_rate = 1e-3\n")
    fast.config.write_text("[training]\nlearning_rate = 2e-3\n")
    async with open_screens(Request(config_file=small()), size=(120, 35)) as screens:
        await screens.press("5")
        shown = await screens.shows("3 runs", "fast", "finished", "slow", "stopped", "broken", "interrupted")
        assert shown.index("fast") < shown.index("slow") < shown.index("broken"), "the newest comes first"
        await screens.press("/", *"stop")
        await screens.shows("slow", "1 matching 'stop'", gone="broken")
        await screens.press("escape")
        await screens.shows("broken")

        await screens.press("home", "space", "down", "space", "C")
        await screens.shows("A fast", "B slow", "training loss over steps", "300/300", "accuracy", "0.800")
        await screens.press("end")
        await screens.shows("training.learning_rate", "0.002", "0.001")
        await screens.press("home")
        await screens.press("x")
        await screens.shows("over trained tokens")
        await screens.press("escape", "escape")
        await screens.shows("3 runs", gone="marked")

        await screens.press("home", "N")
        await screens.shows("fast", "Enter")
        await screens.press("ctrl+u", *"slow", "enter")
        await screens.shows("this exists already")
        await screens.press("ctrl+u", *"faster", "enter")
        await screens.shows("faster", gone="Rename")
        assert (runs / "faster/journal.jsonl").is_file() and not fast.root.exists()

        await screens.press("end", "D")
        await screens.shows("Frees ", "y delete", "Enter/Esc back")
        await screens.press("enter")
        await screens.shows("? help", gone="Frees ")
        assert (runs / "broken").is_dir()
        await screens.press("D")
        await screens.shows("Frees ", "B: journal")
        await screens.press("y")
        await screens.shows("deleted broken")
        # The message covers the last line for some seconds.
        await screens.shows("2 runs", gone="deleted broken")
        assert not (runs / "broken").exists()

        asked = Controls(slow.control)
        with RunLock(slow.lock):
            await screens.press("r")
            await screens.settled()
            await screens.press("end", "D")
            await screens.shows("slow is running; S stops it")
            await screens.press("S")
            await screens.shows("Save and stop?")
            await screens.press("enter")
            found: list[str] = []
            await screens.until(lambda: found.extend(one.action for one in asked.take_requests()) or found)
            assert found == ["stop"]

        await screens.press("home", "enter")
        await screens.shows("faster  finished", "Finished after 300 steps", "loss", "4.6000")
        await screens.press("5", "c")
        await screens.shows("Enter edit", "1 changed")
        await screens.press("/", *"learn", "enter")
        await screens.shows("learning_rate", "2e-3")


@in_event_loop
async def test_story_help_commands_and_leaving(small, tmp_path):
    """Every screen has its help, actions are found by name, Ctrl+C ends nothing, and leaving asks what is unsaved."""
    async with open_screens(Request(config_file=small())) as screens:
        for key, title, words in (
            ("1", "1 Hardware", "Read the machine again"),
            ("2", "2 Config", "Edit the value in place."),
            ("3", "3 Checklist", "Apply the fix that this check"),
            ("4", "4 Train", "Pause or resume the run"),
            ("5", "5 Runs", "Open the run on the Train"),
        ):
            await screens.press(key)
            await screens.shows(title, "? help")
            await screens.press("?")
            await screens.shows("Keys", words, "Esc close")
            await screens.press("escape")
            await screens.shows("? help", gone="Esc close")
        await screens.press("tab", "tab")
        await screens.shows("Enter edit")
        await screens.press(":", *"save as")
        await screens.shows("Config: save as", "Save to another file.")
        await screens.press("escape")
        await screens.shows("? help", gone="Save to another file.")
        await screens.press(":", *"checklist")
        await screens.shows("is the run ready, and is it fast?")
        await screens.press("enter")
        await screens.shows("checks", "finding")

        await screens.resize(60, 19)
        await screens.shows("needs 60x20", "terminal: 60x19")
        await screens.resize(80, 24)
        await screens.shows("? help")
        await screens.press("ctrl+c")
        await screens.shows("Ctrl+C stops nothing here: q quits")
        await screens.press("f12")
        await screens.until(lambda: list(tmp_path.glob("tui-trainer-screen-*.svg")))

        await screens.press("2", "/", *"max_steps", "enter", "right", "escape", "q")
        await screens.shows("Quit?", "that are not saved", "s save first", "Esc")
        await screens.press("escape")
        await screens.shows("1 unsaved", gone="Quit?")
        await screens.press("q", "q")
        await screens.until(lambda: screens.ended)
    async with open_screens(Request(config_file=small())) as screens:
        await screens.shows("unsaved edits of an earlier session", gone=" not saved.")
        await screens.press("2")
        await screens.shows(" not saved.")
