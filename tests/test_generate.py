"""Trying a model: the prompt is read, the window slides, foreign bytes are survived."""

import pytest

from tui_trainer.cli import main


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


def test_a_prompt_that_is_no_utf8_or_empty_is_no_traceback(tried):
    assert tried("caf\udce9", "--max-new-tokens", "3")[0]
    assert tried("", "--max-new-tokens", "3")[0]


def test_a_run_without_a_model_is_refused_with_a_sentence(tiny_run, capsys):
    from tui_trainer.runs import controls

    tiny_run("early", before=lambda run: controls.request(run.folder.control, "stop"))
    assert main(["generate", "early", "x"]) == 2
    assert "no model yet" in capsys.readouterr().err
