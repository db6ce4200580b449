"""`tui-trainer generate`: prompts, windows, seeds and beams."""

import io
import json
import shutil

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.trained_runs import write_rows
from tui_trainer.cli import main
from tui_trainer.errors import FolderError
from tui_trainer.exporting.trained_model import adapter_base, source_words
from tui_trainer.lines.plan_and_events import end_lines
from tui_trainer.runs.events import RunFinished
from tui_trainer.runs.state import RunState
from tui_trainer.terminal.safe_text import show_control_characters


@pytest.fixture
def run(reference_run):
    """A finished run whose model reads 16 characters. It must not be changed."""
    return reference_run()


@pytest.fixture
def tried(run, capsys):
    """Return `tried(prompt, *options)`: the output and the errors of `generate`."""

    def generate(*arguments: str, folder=run.root) -> tuple[str, str]:
        capsys.readouterr()
        assert main(["generate", str(folder), *arguments]) == 0
        return tuple(capsys.readouterr())

    return generate


def test_short_prompt_is_read_whole_although_much_is_written(tried):
    text, said = tried("3 times 4", "--max-new-tokens", "100")
    assert text.startswith("3 times 4")
    assert "left out" not in said
    assert len(text) > 60


def test_prompt_that_is_too_long_is_cut_at_its_start_with_a_note(tried):
    text, said = tried("0 times 0 is 0, said the 0th sheep.", "--max-new-tokens", "5")
    assert text.startswith("0 times 0 is 0, said the 0th sheep.")
    assert "the first 20 tokens" in said


def test_seed_determines_the_text(tried):
    texts = [tried("3", "--seed", seed, "--temperature", "5")[0] for seed in ("1", "1", "2")]
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.full
def test_beams_write_the_text_of_transformers_whatever_the_seed(tried, run):
    model = AutoModelForCausalLM.from_pretrained(run.model)
    tokenizer = AutoTokenizer.from_pretrained(run.model)
    inputs = tokenizer("said the", return_tensors="pt")

    def found(beams: int) -> str:
        ids = model.generate(**inputs, max_new_tokens=8, do_sample=False, num_beams=beams)[
            0, inputs.input_ids.shape[1] :
        ]
        return f"said the{show_control_characters(tokenizer.decode(ids, skip_special_tokens=True))}\n"

    asked = ("said the", "--max-new-tokens", "8", "--beams", "8")
    texts = [tried(*asked, "--seed", seed) for seed in ("1", "2")]
    assert texts[0] == texts[1] == tried(*asked, "--temperature", "0")
    assert texts[0][0] == found(8) and "reference: model, 8 beams\n" in texts[0][1]
    assert found(8) != found(1) == tried(*asked[:3], "--beams", "1", "--temperature", "0")[0], "the control"
    assert len(tried("said the", "--max-new-tokens", "40", "--beams", "2")[0]) > 30, "over several windows"


@pytest.mark.full
def test_beams_in_the_generation_config_are_not_used_for_sampling(tried, run, tmp_path):
    before = tried("said the", "--seed", "1", "--max-new-tokens", "8")
    copy = shutil.copytree(run.root, tmp_path / "runs" / "reference")
    path = copy / "model" / "generation_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "num_beams": 4}))
    assert tried("said the", "--seed", "1", "--max-new-tokens", "8", folder=copy) == before


@pytest.mark.full
def test_beams_answer_each_line_of_standard_input(finished, capsys, monkeypatch):
    run = str(finished("seq2seq").root)
    written = []
    for options in (("--beams", "4"), ("--beams", "4", "--seed", "3")):
        monkeypatch.setattr("sys.stdin", io.StringIO("a horse 7\na hen 2\n"))
        assert main(["generate", run, "--max-new-tokens", "6", *options]) == 0
        written.append(capsys.readouterr().out)
    assert written[0] == written[1] and written[0].count("\n") == 2


def test_beams_that_have_no_use_are_refused_with_the_reason(finished, tmp_path, capsys, subtests):
    data, out = write_rows(tmp_path / "rows.jsonl", [{"text": "a hen"}]), tmp_path / "out.jsonl"
    inputs = {"generate": ("a hen",), "predict": ("--data", str(data), "--out", str(out))}
    for task, options, reason in (
        ("causal_lm", ("--temperature", "0.5"), "--beams cannot be combined with --temperature above 0"),
        ("sequence_classification", (), "was trained for sequence_classification and generates no text"),
    ):
        for command, asked in inputs.items():
            with subtests.test(f"{command}, {task}"):
                assert main([command, str(finished(task).root), *asked, "--beams", "2", *options]) == 2
                message = capsys.readouterr().err
                assert reason in message and message.count("\n") == 1 and not out.exists()


def test_only_texts_are_compared_and_only_with_a_base_model(finished, capsys, subtests):
    for task, name, reason in (
        ("causal_lm", "last", "--against only accepts base"),
        ("causal_lm", "base", "was trained from scratch, so it has no base model"),
        ("sequence_classification", "base", "generates no text to compare"),
    ):
        with subtests.test(f"{task}, {name}"):
            assert main(["generate", str(finished(task).root), "a hen", "--against", name]) == 2
            message = capsys.readouterr().err
            assert reason in message and message.count("\n") == 1


def test_prompt_may_be_empty_and_must_be_utf8(tried, run, capsys):
    assert tried("", "--max-new-tokens", "3")[0]
    assert main(["generate", str(run.root), "caf\udce9", "--max-new-tokens", "3"]) == 2
    assert r"an argument is not UTF-8: caf\xe9" in capsys.readouterr().err


def test_run_without_a_model_is_refused(tiny_run, capsys):
    from tui_trainer.runs import controls

    tiny_run("early", before=lambda run: controls.request(run.folder.control, "stop"))
    assert main(["generate", "early", "x"]) == 2
    assert "no model and no checkpoint yet" in capsys.readouterr().err


@pytest.fixture
def adapter(tmp_path):
    """Return `adapter(base)`: the folder of an adapter without its weights."""

    def make(base: object):
        folder = tmp_path / "model"
        folder.mkdir(exist_ok=True)
        (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": base, "r": 4}))
        return folder

    return make


def test_adapter_is_described_with_its_base_model(adapter, tmp_path):
    (tmp_path / "llama").mkdir()
    assert source_words(adapter(str(tmp_path / "llama"))) == f"model, an adapter on {tmp_path / 'llama'}"
    assert source_words(adapter("org/tiny")) == "model, an adapter on org/tiny"
    assert source_words(tmp_path / "llama") == "llama" and adapter_base(tmp_path / "llama") == ""
    assert adapter_base(adapter(None)) == ""


def test_adapter_with_a_missing_base_model_is_refused(adapter, tmp_path):
    with pytest.raises(FolderError, match=r"model: the base model of this adapter no longer exists: /.*/gone; put the"):
        source_words(adapter(str(tmp_path / "gone")))


def test_last_lines_of_a_run_tell_an_adapter_from_a_model():
    state = RunState()
    state.apply(RunFinished(step=2, reason="done", loss=0.5, eval_loss=None, seconds=9.0, model_path="model"))
    adapter = end_lines(state, "run", "/runs/run", "org/tiny")
    assert "adapter        /runs/run/model" in adapter and any("base model   org/tiny" in line for line in adapter)
    assert "model          /runs/run/model" in end_lines(state, "run", "/runs/run")
