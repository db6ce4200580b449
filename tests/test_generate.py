"""Trying a model: the prompt is read, the window slides, foreign bytes are survived."""

import json

import pytest

from tui_trainer.cli import main
from tui_trainer.errors import FolderError
from tui_trainer.exporting.trained_model import adapter_base, source_words
from tui_trainer.lines.plan_and_events import end_lines
from tui_trainer.runs.events import RunFinished
from tui_trainer.runs.state import RunState


@pytest.fixture
def tried(tiny_run, capsys):
    """`tried("prompt", "--max-new-tokens", "40")`: what `generate` prints for a tiny model that reads 16 characters."""
    tiny_run("tiny")

    def generate(*arguments: str) -> tuple[str, str]:
        capsys.readouterr()
        assert main(["generate", "tiny", *arguments]) == 0
        return tuple(capsys.readouterr())

    return generate


def test_a_short_prompt_is_read_whole_however_much_is_written(tried):
    text, said = tried("3 times 4", "--max-new-tokens", "100")
    assert text.startswith("3 times 4")
    assert "left out" not in said
    assert len(text) > 60


def test_a_prompt_longer_than_the_model_reads_is_cut_at_its_beginning_and_told(tried):
    text, said = tried("0 times 0 is 0, said the 0th sheep.", "--max-new-tokens", "5")
    assert text.startswith("0 times 0 is 0, said the 0th sheep.")
    assert "the first 20 tokens" in said


def test_the_same_seed_writes_the_same_text_and_another_another(tried):
    texts = [tried("3", "--seed", seed, "--temperature", "5")[0] for seed in ("1", "1", "2")]
    assert texts[0] == texts[1] != texts[2]


def test_a_prompt_may_be_empty_and_one_that_is_no_utf8_is_refused(tried, tiny_run, capsys):
    assert tried("", "--max-new-tokens", "3")[0]
    assert main(["generate", "tiny", "caf\udce9", "--max-new-tokens", "3"]) == 2
    assert r"an argument is not UTF-8: caf\xe9" in capsys.readouterr().err


def test_a_run_without_a_model_is_refused_with_a_sentence(tiny_run, capsys):
    from tui_trainer.runs import controls

    tiny_run("early", before=lambda run: controls.request(run.folder.control, "stop"))
    assert main(["generate", "early", "x"]) == 2
    assert "no model yet" in capsys.readouterr().err


@pytest.fixture
def adapter(tmp_path):
    """`adapter(base)`: the folder of an adapter as peft writes it, without its weights."""

    def make(base: object):
        folder = tmp_path / "model"
        folder.mkdir(exist_ok=True)
        (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": base, "r": 4}))
        return folder

    return make


def test_an_adapter_is_said_to_be_one_with_its_model(adapter, tmp_path):
    (tmp_path / "llama").mkdir()
    assert source_words(adapter(str(tmp_path / "llama"))) == f"model, an adapter on {tmp_path / 'llama'}"
    assert source_words(adapter("org/tiny")) == "model, an adapter on org/tiny"
    assert source_words(tmp_path / "llama") == "llama" and adapter_base(tmp_path / "llama") == ""
    assert adapter_base(adapter(None)) == ""


def test_an_adapter_whose_model_is_gone_says_so(adapter, tmp_path):
    with pytest.raises(FolderError, match=r"model: the adapter is for /.*/gone, which is not there any more; put the"):
        source_words(adapter(str(tmp_path / "gone")))


def test_generate_names_the_model_of_an_adapter_before_torch_is_loaded(tried, adapter, tmp_path, capsys):
    assert "tiny: model\n" in tried("3", "--max-new-tokens", "1")[1]
    gone = json.dumps({"base_model_name_or_path": str(tmp_path / "gone")})
    (tmp_path / "runs" / "tiny" / "model" / "adapter_config.json").write_text(gone)
    assert main(["generate", "tiny", "3"]) == 2
    assert "which is not there any more" in capsys.readouterr().err


def test_the_last_lines_of_a_run_tell_an_adapter_from_a_model():
    state = RunState()
    state.apply(RunFinished(step=2, reason="done", loss=0.5, eval_loss=None, seconds=9.0, model_path="model"))
    adapter = end_lines(state, "run", "/runs/run", "org/tiny")
    assert "adapter        /runs/run/model" in adapter and any("on           org/tiny" in line for line in adapter)
    assert "model          /runs/run/model" in end_lines(state, "run", "/runs/run")
