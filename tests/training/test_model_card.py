"""The model card: its metadata, foreign names that stay names, and code that loads the model."""

from __future__ import annotations

import os
import re

import pytest
import yaml
from huggingface_hub import ModelCard
from markdown_it import MarkdownIt

from tests.trained_runs import training_row, write_rows
from tui_trainer.config.changes import with_changes
from tui_trainer.launching.prepare import estimated_plan
from tui_trainer.reporting.facts import ReportedModel
from tui_trainer.training.final_model import model_card

FACTS = ReportedModel(step=2, weights_step=2, training_seconds=1.0, train_loss=1.0, eval_loss=None)
HOSTILE = [
    "a: b",
    "#hash",
    "- item",
    "x\nlicense: mit\npipeline_tag: evil",
    "x\n---\n# A heading",
    "<script>alert(1)</script>",
    "[a link](http://there.example)",
    "![an image](http://there.example)",
    "| a | cell |",
    "`code` **bold** _it_",
    "\x1b[2J'\"\\",
    "{{template}}",
    "null",
]


@pytest.fixture
def card(tiny_config):
    """`card(model, data, source)`: the card of a run with these names."""
    plan = estimated_plan(tiny_config("a"))

    def make(model: str = "", data: str = "/srv/private/data.jsonl", source: str = "data.jsonl (2 kB)") -> str:
        changes = {"data.path": data}
        if model:
            changes |= {"model.model_name_or_path": model, "model.init": "pretrained", "tuning.method": "lora"}
        changed = plan.model_copy(update={"config": with_changes(plan.config, {**changes, "task.type": "causal_lm"})})
        return model_card(changed, FACTS, source, {"torch": "2"})

    return make


def parts(text: str) -> tuple[dict, list]:
    found = re.fullmatch(r"---\n(.*?)\n---\n(.*)", text, re.DOTALL)
    return yaml.safe_load(found[1]), MarkdownIt("commonmark").enable("table").parse(found[2])


def shape(tokens: list) -> list[tuple[str, list[str]]]:
    return [(one.type, [child.type for child in one.children or []]) for one in tokens]


def test_a_name_is_neither_metadata_nor_markup(card, subtests):
    expected, plain = parts(card("/srv/private/llama"))
    assert expected.pop("base_model") == "llama"
    assert list(expected) == ["library_name", "pipeline_tag", "tags"]
    for name in HOSTILE:
        text = card(f"/srv/private/{name}", f"/srv/private/{name}", f"{name} (2 kB)")
        metadata, tokens = parts(text)
        with subtests.test(repr(name)):
            assert {key: value for key, value in metadata.items() if key != "base_model"} == expected
            assert shape(tokens) == shape(plain), text
            assert dict(ModelCard(text).data.to_dict())["pipeline_tag"] == "text-generation"
            assert "private" not in text and "\x1b" not in text


def test_the_base_model_is_named_so_that_others_can_find_it(card):
    snapshot = "/home/me/.cache/huggingface/hub/models--meta--llama-3/snapshots/0a1b"
    for model, base, loaded in (
        ("/srv/private/llama", "llama", '"path/of/the/base/model"'),
        ("meta/llama-3", "meta/llama-3", "'meta/llama-3'"),
        (snapshot, "meta/llama-3", "'meta/llama-3'"),
    ):
        text = card(model)
        assert parts(text)[0]["base_model"] == base
        assert f"parameters for {base} (" in text and f"from_pretrained({loaded})" in text


def test_data_is_named_without_its_folder(card):
    for path, source, words in (
        ("/srv/private/rows", "/srv/private/rows (3 files, 2 kB)", "rows (3 files, 2 kB)"),
        ("/srv/private/rows/*.jsonl", "/srv/private/rows/*.jsonl (3 files, 2 kB)", r"\*.jsonl (3 files, 2 kB)"),
        ("/srv/private/a, /srv/private/a/b", "/srv/private/a (2 files, 1 kB), b (1 kB)", "a (2 files, 1 kB), b (1 kB)"),
        ("sample:licenses", "sample:licenses (of Python)", "sample:licenses (of Python)"),
    ):
        assert f"Trained on {words}: " in card(data=path, source=source), path


def test_the_card_of_a_run_names_no_folder_of_this_machine(tiny_run, tmp_path):
    (tmp_path / "rows").mkdir()
    for name in "ab":
        write_rows(tmp_path / f"rows/{name}.jsonl", [training_row("causal_lm", n) for n in range(30)])
    folder, _ = tiny_run("a", {"data.path": str(tmp_path / "rows")})
    text = (folder.model / "README.md").read_text()
    assert "Trained on rows (2 files" in text and os.fspath(tmp_path) not in text
