"""Commands begun from the screens, with the real program behind them."""

from __future__ import annotations

import json

import pytest

from tests.downloading.fake_hub import FakeHub, environment_of, serving
from tests.trained_runs import asked_row, write_rows
from tests.ui.canned import open_canned
from tests.ui.pictures import in_event_loop


@pytest.fixture
def finished_run(finished):
    """Made before there is an event loop."""
    return finished("sequence_classification")


@pytest.mark.e2e
@in_event_loop
async def test_a_finished_run_is_evaluated_and_predicts_a_file_from_the_train_screen(
    finished_run, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path / "asked.jsonl", [asked_row("sequence_classification", n) for n in range(12)])
    # The row of a sheep, and the same text with a wrong label.
    suite = [{"prompt": "The sheep home 0", "must": "learn", "label": label} for label in ("sheep", "hen")]
    write_rows(tmp_path / "suite.jsonl", suite)
    async with open_canned(size=(100, 30)) as screens:
        screens.bench.attach_to(finished_run)
        await screens.shows("held out", "result")
        await screens.press("M")
        await screens.shows(
            "More actions", "p  predict on a file", "r  write a report", "x  export", "w  try the model"
        )
        await screens.press("e")
        await screens.shows("Enter begin", "Computes the loss and scores of")
        await screens.press("enter")
        await screens.ticks("rows: held-out data of", "accuracy", "loss")
        await screens.press("escape", "M", "G")
        await screens.shows("suite.jsonl")
        await screens.press(*"suite", "enter")
        await screens.shows("Enter begin", "answer the rows of")
        await screens.press("enter")
        await screens.ticks("2 rows of", "does not pass: 1 not learnt, 0 allowed", "why    it is not hen")
        await screens.press("escape", "M", "p")
        await screens.shows("asked.jsonl")
        await screens.press(*"asked", "enter")
        await screens.shows("Output: ", ".jsonl", "Enter begin")
        await screens.press("enter")
        await screens.ticks("12 rows", "rows/s")
        # The file gets its name when it is whole.
        await screens.until(lambda: list(tmp_path.glob("asked.*.jsonl")))
    [out] = tmp_path.glob("asked.*.jsonl")
    assert len(out.read_text().splitlines()) == 12 and "prediction" in json.loads(out.read_text().splitlines()[0])


@pytest.mark.full
@in_event_loop
async def test_a_model_is_downloaded_after_its_size_and_the_room_were_shown(tmp_path, monkeypatch):
    from tests.tiny_models import save_tiny_model

    model = save_tiny_model(tmp_path / "llama", "llama")
    with serving(FakeHub(models={"org/tiny": model})) as hub:
        for name, value in environment_of(hub, tmp_path).items():
            if name.startswith(("HF_", "TUI")):
                monkeypatch.setenv(name, value)
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        async with open_canned(size=(100, 30)) as screens:
            await screens.press("d")
            await screens.shows("m a model", "d a data set")
            await screens.press("m", *"org/tiny", "enter")
            await screens.ticks("org/tiny, revision main", "size", "GiB free", "Enter confirm")
            assert not list(tmp_path.glob("hf/**/*.safetensors"))
            await screens.press("enter")
            await screens.ticks("org/tiny is in")
        assert list(tmp_path.glob("hf/**/*.safetensors"))


@pytest.mark.e2e
def test_a_run_is_exported_by_keyboard(open_terminal, adapted_run):
    folder = adapted_run
    terminal = open_terminal(size=(80, 24))
    terminal.wait_for("1 Hardware", "threads")
    terminal.press("5")
    terminal.wait_for(folder.name[:4], "finished", "held out")
    terminal.press("x")
    terminal.wait_for(f"Export {folder.name}", "onnx", " free.", "\u25b8 adapter")
    terminal.press("enter")
    terminal.wait_for("exporting", "c cancel the export")
    # The box and the page behind it both change.
    terminal.wait_for(" s elapsed", gone=" 0 s elapsed")
    terminal.press("escape")
    terminal.wait_for("Enter open", gone="cancel the export")
    terminal.wait_for("to adapter: ", seconds=240)
    assert (folder.root / "export/adapter/certificate.json").is_file()
    terminal.press("x")
    terminal.wait_for("matches the trained model", "held-out loss", "exported")
    terminal.press("escape")
    terminal.wait_for("Enter open", gone="matches the trained model")
    terminal.press("q")
    assert terminal.wait_for_end() == 0
