"""Several sources with weights, from the settings to the last byte of a resumed run."""

from __future__ import annotations

import json
import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from tests.runs.journals import read_all
from tests.tasks.test_resume import SETTINGS, hashes
from tui_trainer.cli import main
from tui_trainer.config.changes import with_changes
from tui_trainer.config.load import LoadedConfig, Request
from tui_trainer.config.paths import data_of
from tui_trainer.data.preparing.token_rows import Rows
from tui_trainer.errors import DataError
from tui_trainer.launching.open_run import load_config, open_new, reopen_run
from tui_trainer.launching.prepare import read_plan
from tui_trainer.launching.run_lifecycle import execute_run
from tui_trainer.runs.events import DataPrepared
from tui_trainer.tasks import find_task

# Of each task the rows of two sources that name their columns differently.
TABLES: dict[str, tuple[Any, Any]] = {
    "causal_lm": (
        lambda n: {"text": f"{n} and {n % 5} of them, and {n} more"},
        lambda n: {"id": n, "body": f"here {n} tales are told of {n % 7} sheep"},
    ),
    "chat": (
        lambda n: {"messages": [{"role": "user", "content": f"{n}?"}, {"role": "assistant", "content": f"{n % 5}!"}]},
        lambda n: {"instruction": f"count to {n}", "output": f"{n % 3} and {n}"},
    ),
    "seq2seq": (
        lambda n: {"input": f"{n} and {n % 5}", "output": f"makes {n + n % 5}"},
        lambda n: {"question": f"{n} or {n % 4}?", "answer": f"it is {n}"},
    ),
    "sequence_classification": (
        lambda n: {"text": f"{n} and {n % 5} of them", "label": ["few", "some", "many"][n % 3]},
        lambda n: {"sentence": f"here are {n} sheep", "label": ["few", "many"][n % 2]},
    ),
    "question_answering": (
        lambda n: {"question": f"how many {n}?", "context": f"there are {n} sheep", "answers": f"{n} sheep"},
        lambda n: {"query": f"who {n}?", "passage": f"hen {n} is {n % 7}", "answer": f"hen {n}" if n % 5 else ""},
    ),
    "token_classification": (
        lambda n: {"tokens": [f"{n}", "in", f"{n % 7}"], "ner_tags": ["B-A", "O", "B-B"]},
        lambda n: {"words": ["by", f"{n}"], "tags": ["O", "B-B"]},
    ),
}


def write(path: Path, count: int, row: Any) -> Path:
    path.write_text("".join(json.dumps(row(n)) + "\n" for n in range(count)))
    return path


def loaded(tmp_path: Path, task: str, **changes: Any) -> LoadedConfig:
    """Return the config of a run on 60 rows that are used twice and 50 of which half are used."""
    first, second = TABLES[task]
    paths = write(tmp_path / "a.jsonl", 60, first), write(tmp_path / "b.jsonl", 50, second)
    settings = {**SETTINGS, "task.type": task, "data.path": ",".join(map(str, paths)), "data.weights": "2,0.5"}
    settings |= {"output.runs_dir": tmp_path / "runs", "output.name": "run", **changes}
    return load_config(Request(assignments=tuple(f"{key}={value}" for key, value in settings.items())))


def test_every_task_reads_sources_with_other_columns_and_applies_their_weights(tmp_path, subtests):
    for name in TABLES:
        with subtests.test(name):
            (tmp_path / name).mkdir()
            config, task = loaded(tmp_path / name, name, **{"data.max_length": 200}).config, find_task(name)
            asked = config, data_of(config), tmp_path / "cache"
            guess, data = task.data_facts(*asked), task.prepare(*asked, lambda *_: None)
            facts = task.facts(config, data)
            assert not guess.exact and facts.exact
            assert data.counts.eval_rows == pytest.approx(22, abs=2)
            used = [source.rows_per_epoch for source in facts.sources]
            assert [source.rows for source in facts.sources] == [60, 50] and sum(used) == data.counts.train_rows
            assert used[0] % 2 == 0 and used == pytest.approx([96, 20], abs=2)
            assert guess.rows == pytest.approx(data.counts.train_rows, rel=0.06)
            assert [source.rows_per_epoch for source in guess.sources] == pytest.approx(used, rel=0.1)
            assert task.data_facts(*asked) == facts
            rows = Rows(data.train_path)
            assert len({rows.row(index).tobytes() for index in range(len(rows))}) <= used[0] // 2 + used[1]


def replayed(tmp_path: Path, task: str, **changes: Any) -> LoadedConfig:
    """Return the config of a run on 60 rows, with a fifth of each epoch from 50 replayed ones."""
    settings = {"data.path": tmp_path / "a.jsonl", "data.weights": "", "data.replay": tmp_path / "b.jsonl"}
    return loaded(tmp_path, task, **{**settings, "data.replay_share": 0.2, "data.max_length": 200, **changes})


def test_replay_is_a_share_of_each_epoch_of_every_task_and_is_never_held_out(tmp_path, subtests):
    for name in TABLES:
        with subtests.test(name):
            (tmp_path / name).mkdir()
            config, task = replayed(tmp_path / name, name).config, find_task(name)
            asked = config, data_of(config), tmp_path / "cache"
            guess, data = task.data_facts(*asked), task.prepare(*asked, lambda *_: None)
            own, replay = task.facts(config, data).sources
            assert (own.is_replay, replay.is_replay) == (False, True) and (own.rows, replay.rows) == (60, 50)
            share = replay.rows_per_epoch / (own.rows_per_epoch + replay.rows_per_epoch)
            # Of texts, the share is that of their characters.
            assert share == pytest.approx(0.2, abs=0.08 if name == "causal_lm" else 0.01)
            assert own.rows_per_epoch + data.counts.eval_rows == 60 and data.counts.eval_rows == pytest.approx(
                12, abs=1
            )
            guessed = [source.rows_per_epoch for source in guess.sources]
            assert guessed == pytest.approx([own.rows_per_epoch, replay.rows_per_epoch], rel=0.25)
            assert replay.words().endswith(f"{replay.rows_per_epoch} per training epoch (data.replay)")
            without = replayed(tmp_path / name, name, **{"data.replay": ""}).config
            assert task.prepare(without, data_of(without), tmp_path / "cache", None).counts.train_rows < 60


@pytest.mark.full
def test_replay_is_named_by_plan_model_card_and_report(tmp_path, capsys):
    run = open_new(replayed(tmp_path, "seq2seq"))
    assert execute_run(run).exit_code == 0 and main(["report", str(run.folder.root)]) == 0
    assert [source.is_replay for source in read_plan(run.folder).sources] == [False, True]
    assert "12 rows of each epoch are replayed" in (run.folder.model / "README.md").read_text()
    assert "50 rows, 12 per training epoch (data.replay)" in (run.folder.root / "report.md").read_text()
    paths = {"data.path": tmp_path / "a.jsonl", "data.replay": tmp_path / "b.jsonl", "task.type": "seq2seq"}
    sets = [f"--set={key}={value}" for key, value in {**SETTINGS, **paths}.items()]
    assert main(["plan", *sets]) == 0
    assert "per training epoch (data.replay)" in capsys.readouterr().out


def test_replay_that_cannot_work_is_refused_in_a_sentence(tmp_path, subtests):
    config, task, (answered, _) = replayed(tmp_path, "chat").config, find_task("chat"), TABLES["chat"]
    for own_count, row, count, share, message in (
        (60, lambda n: {"text": f"no answer {n}"}, 9, 0.2, "b.jsonl: no column holds conversations"),
        (60, answered, 1, 0.005, "none of the 1 rows of this source is trained on; raise data.replay_share"),
        (60, answered, 1, 0.5, None),
        (300, answered, 1, 0.5, "has too few rows for data.replay_share = 0.5"),
    ):
        with subtests.test(message):
            write(tmp_path / "a.jsonl", own_count, answered)
            write(tmp_path / "b.jsonl", count, row)
            asked = with_changes(config, {"data.replay_share": share})
            with pytest.raises(DataError) if message else nullcontext() as refused:
                task.prepare(asked, data_of(asked), tmp_path / "cache", None)
            assert not message or message in str(refused.value), refused.value


@pytest.mark.full
@pytest.mark.parametrize("task", ["causal_lm", "sequence_classification"])
def test_a_resumed_run_on_weighted_sources_ends_with_the_same_bytes(task, tmp_path):
    run = open_new(loaded(tmp_path, task))
    assert execute_run(run).exit_code == 0
    folder = run.folder
    model, last = folder.model, folder.checkpoints / "step-8"
    wanted, checkpoint = hashes(model), hashes(last)
    assert wanted and checkpoint
    for place in (model, last):
        shutil.rmtree(place)
    assert execute_run(reopen_run(folder)).exit_code == 0
    assert (hashes(model), hashes(last)) == (wanted, checkpoint)
    plan = read_plan(folder)
    assert [one.weight for one in plan.sources] == [2, 0.5]
    prepared = next(event for event in read_all(folder.journal) if isinstance(event, DataPrepared))
    assert sum("per training epoch (data.weights" in note for note in prepared.notes) == 2


def test_a_plan_and_a_preview_show_the_rows_of_each_source(tmp_path, capsys):
    request = loaded(tmp_path, "sequence_classification").config.data
    settings = {**SETTINGS, "task.type": "sequence_classification", "data.path": request.path, "data.weights": "2,0.5"}
    sets = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    assert main(["plan", *sets]) == 0
    shown = capsys.readouterr().out
    assert "trains on a.jsonl (" in shown and "trains on b.jsonl (" in shown
    assert "KiB): about 60 rows, about 96 per training epoch (data.weights 2)\n" in shown
    assert main(["preview", *sets, "-n", "1"]) == 0
    shown = capsys.readouterr().out
    assert "KiB): 50 rows, 20 per training epoch (data.weights 0.5)\n" in shown


def test_a_character_model_reads_several_sources_and_evaluates_on_another(tmp_path):
    for name, sign in (("a", "a"), ("b", "b"), ("c", "c")):
        (tmp_path / f"{name}.txt").write_text(f"{sign} sheep went.\n" * 60)
    paths = {name: str(tmp_path / f"{name}.txt") for name in "abc"}
    settings = {"data.max_length": 16, "data.path": f"{paths['a']}, {paths['b']}"}

    def prepared(**more):
        asked = {**settings, **more}
        config = load_config(Request(profile="char-lm", assignments=tuple(f"{k}={v}" for k, v in asked.items()))).config
        task = find_task("char_lm")
        asked = config, data_of(config), tmp_path / "cache"
        return task.data_facts(*asked), task.prepare(*asked, lambda *_: None)

    guess, data = prepared(**{"data.eval_fraction": 0.1})
    assert sum("of document 1 are held out" in note for note in data.notes) == 2, "of each source its share"
    assert (data.counts.train_documents, data.counts.eval_documents) == (2, 2)
    assert guess.tokens == pytest.approx(data.counts.train_tokens, rel=0.06)
    guess, data = prepared(**{"data.eval_path": paths["c"]})
    assert (data.counts.train_characters, data.counts.eval_characters) == (2 * 60 * 14, 60 * 14)
    assert data.counts.unknown_eval_tokens == 60
    assert (guess.tokens, guess.eval_tokens) == (data.counts.train_tokens, data.counts.eval_tokens)
