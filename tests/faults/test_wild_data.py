"""Each data file of `wild_data.py` trains on what its rows say, or is refused with the reason."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.faults.wild_data import GROUPS, Wild
from tests.tiny_models import save_tiny_model
from tui_trainer.config.load import LoadedConfig, Request
from tui_trainer.data.batching.collate import IGNORE
from tui_trainer.data.preparing.cache import PreparedData
from tui_trainer.data.preparing.token_rows import Rows, TokenRow
from tui_trainer.data.preview import names_in
from tui_trainer.errors import ConfigError, InputError
from tui_trainer.hardware.storage import prepared_data_folder
from tui_trainer.launching.fitted_presets import fitted_task_named
from tui_trainer.launching.open_run import load_config
from tui_trainer.planning.conflicts import setting_problems
from tui_trainer.tasks import find_task

# The tokenizers of these models read bytes, so that decoding gives the text back.
FAMILIES = {"decoder": "llama", "encoder": "roberta", "text to text": "bart", "text to text of T5's kind": "t5"}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    place = tmp_path_factory.mktemp("models")
    return {kind: save_tiny_model(place / kind, family) for kind, family in FAMILIES.items()}


def prepared(wild: Wild, model: Path | None, folder: Path) -> tuple[LoadedConfig, PreparedData]:
    """Prepare the file as a run does when it begins. Raises InputError."""
    settings: dict[str, Any] = {"data.eval_fraction": 0, "data.max_length": 128, **wild.settings}
    settings["hardware_profile"] = "none"  # no hardware profile concerns the data, and choosing one reads all of them
    if wild.template:
        settings["task.chat_template"] = folder / "own.jinja"
        (folder / "own.jinja").write_text(wild.template)
    elif wild.model.startswith("decoder"):
        settings.setdefault("task.chat_template", "chatml")
    loaded = load_config(
        Request(
            shortcuts={"data.path": str(wild.write(folder))}
            | ({"model.model_name_or_path": str(model)} if model else {}),
            assignments=tuple(f"{key}={value}" for key, value in settings.items()),
        )
    )
    if problems := setting_problems(loaded):
        raise ConfigError(problems)
    task = find_task(loaded.config.task.type)
    with fitted_task_named(loaded):
        return loaded, task.prepare(loaded.config, loaded.data, prepared_data_folder(), lambda *progress: None)


def learnt_of(row: TokenRow, loaded: LoadedConfig, data: PreparedData, tokenizer: Any) -> str:
    """Return what a row teaches, as the corpus writes it.

    That is a text; the answers of a conversation, with " | " between them; `input -> answer`; `text -> label, label`;
    or `word/TAG word/TAG`.
    """
    task, names = loaded.config.task.type, list(names_in(data.details))
    read = text_of(row.tokens, tokenizer)
    labels = row.labels
    if labels is None:
        return read
    if task == "seq2seq":
        return f"{read} -> {text_of(labels, tokenizer)}"
    if task == "sequence_classification":
        match data.details["problem_type"]:
            case "regression":
                return f"{read} -> {labels.view('float32')[0]:g}"
            case "multi_label_classification":
                has = [name for name, label in zip(names, labels, strict=True) if label]
            case _:
                has = [names[int(labels[0])]]
        return f"{read} -> {', '.join(has)}"
    if task == "question_answering":
        first, last = labels
        return f"{read} -> {text_of(row.tokens[first : last + 1], tokenizer)}"
    if task == "token_classification":
        words: list[str] = []
        for token, label in zip(row.tokens, labels, strict=True):
            text = text_of([token], tokenizer)
            if label != IGNORE:
                words.append(f"{text.strip()}/{names[label]}")
            elif text and words:
                word, _, tag = words[-1].rpartition("/")
                words[-1] = f"{word}{text}/{tag}"
        return " ".join(words)
    runs: list[list[int]] = []
    before = False
    for token, label in zip(row.tokens, labels, strict=True):
        if label != IGNORE:
            runs = runs if before else [*runs, []]
            runs[-1].append(token)
        before = label != IGNORE
    return " | ".join(text_of(run, tokenizer) for run in runs)


def text_of(ids: Any, tokenizer: Any) -> str:
    """Decode without special tokens. Those of chatml are text to these tokenizers, and are removed here."""
    text = tokenizer.decode([int(token) for token in ids], skip_special_tokens=True)
    return str(text).replace("<|im_end|>", "").strip(" ")


@pytest.mark.parametrize("group", GROUPS)
def test_each_file_trains_on_what_its_rows_say_or_is_refused_with_the_reason(
    group: str, models: Mapping[str, Path], tmp_path: Path, subtests: pytest.Subtests
) -> None:
    for number, wild in enumerate(GROUPS[group]):
        with subtests.test(wild.name):
            assert_outcome(wild, models.get(wild.model), tmp_path / str(number))


def assert_outcome(wild: Wild, model: Path | None, folder: Path) -> None:
    assert bool(wild.refused) != bool(wild.task), "a file trains or is refused"
    folder.mkdir()
    try:
        loaded, data = prepared(wild, model, folder)
    except InputError as error:
        message = "\n".join(f"{problem}{problem.hint}" for problem in error.problems)
        assert wild.refused, message
        assert all(part in message for part in wild.refused), message
        assert wild.where in message, message
        return
    task, notes = find_task(loaded.config.task.type), "\n".join((*loaded.notes, *data.all_notes))
    tokenizer, rows = task.load_tokenizer(loaded.config, data), Rows(data.train_path)
    found = [rows.example(index) for index in range(len(rows))]
    learnt = tuple(learnt_of(row, loaded, data, tokenizer) for row in found)
    assert not wild.refused, f"learns {task.name}: {learnt}\n{notes}"
    assert (task.name, learnt) == (wild.task, wild.learnt), notes
    if wild.whole:
        assert tuple(tokenizer.decode(row.tokens.tolist()) for row in found) == wild.whole, notes
    read = "\n".join(tokenizer.decode(row.tokens.tolist()) for row in found)
    assert all(part in read for part in wild.reads), read
    assert all(part in notes for part in wild.notes), notes
