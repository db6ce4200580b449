"""`tui-trainer runs`, `compare`, `label`, `rename` and `delete` on the command line."""

import io
import json
import os
import re
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from tests.runs.journals import PLANNED, end, held_out, run_of, start, steps
from tui_trainer.cli import main
from tui_trainer.errors import FolderError
from tui_trainer.runs import delete_and_rename
from tui_trainer.runs.folder import RunFolder
from tui_trainer.runs.lock import RunLock, folder_lock, keep_in_use
from tui_trainer.runs.registry import known_runs


@pytest.fixture
def pair(tmp_path):
    first = run_of(tmp_path / "runs", "first", start(), *steps(1, 40), end(40))
    return [first, run_of(tmp_path / "runs", "second", start(), *steps(1, 20))]


def test_runs_are_listed_newest_first(pair, capsys):
    assert main(["runs"]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split()[:2] == ["run", "state"]
    assert [row.split()[:3] for row in rows] == [["second", "interrupted", "20/5000"], ["first", "finished", "40/5000"]]


def test_early_stopped_run_is_described_alike_in_list_end_and_comparison(pair, tmp_path, capsys):
    last = replace(end(40, "early stopping", 0.9), model_step=30, model_path="model", scores={"macro_f1": 0.81})
    evals = held_out(30, 0.9, accuracy=0.8, macro_f1=0.81), held_out(40, 0.7, best=False, accuracy=0.9, macro_f1=0.75)
    plan = replace(PLANNED, total_steps=102, metric="macro_f1")
    run_of(tmp_path / "runs", "early", start(102), plan, *steps(1, 40), *evals, last)
    assert main(["runs"]) == 0
    row = capsys.readouterr().out.splitlines()[1]
    assert re.search(r"^early +stopped early +40/102, kept 30 .* 0\.900  macro F1 0\.810( |$)", row), row
    assert main(["runs", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)[0]
    assert (found["ending"], found["kept_step"]) == ("stopped early at step 40; kept step 30: macro F1 0.810", 30)
    assert main(["attach", "early", "--no-ui"]) == 0
    assert capsys.readouterr().out.startswith(f"{found['ending']}, 9.0 s of training\nheld-out loss  0.9000")
    assert main(["compare", "early", "first"]) == 0
    state, _, counts = capsys.readouterr().out.splitlines()[1:4]
    assert "stopped early" in state and "40/102, kept 30" in counts


def test_json_of_runs_has_its_documented_fields(pair, capsys):
    assert main(["runs", "--json"]) == 0
    newest = json.loads(capsys.readouterr().out)[0]
    before = "name path status step total_steps loss eval_loss started_at alive scores".split()
    assert set(before) < newest.keys() and newest["name"] == "second" and newest["path"] == str(pair[1].root)
    assert newest["size_bytes"] >= newest["freed_bytes"] > 0 and len(newest["loss_curve"]) == 20


def test_json_of_runs_is_valid_for_losses_that_are_not_finite(tmp_path, capsys):
    ended = end(2, eval_loss=float("nan"))
    run_of(tmp_path, "a", start(), *steps(1, 2), ended)
    assert main(["runs", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["eval_loss"] == "NaN"


def test_runs_removed_by_hand_are_not_listed(pair, capsys):
    pair[1].root.rename(pair[1].root.parent / "away")
    assert main(["runs"]) == 0
    assert "second" not in capsys.readouterr().out


def test_two_runs_are_compared(pair, capsys):
    assert main(["compare", "first", "second"]) == 0
    assert capsys.readouterr().out.splitlines()[0].split() == ["first", "second"]
    assert main(["compare", "first", "second", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [len(run["train_curve"]) for run in found["runs"]] == [40, 20] and found["differences"] == []


def test_impossible_comparison_is_refused(pair, capsys):
    for words, message in (
        (["first"], "2 to 6 runs can be compared, not 1"),
        (["first", "first"], "named twice"),
        (["first", "nothing"], "no run 'nothing'"),
        ([], "Missing argument"),
    ):
        assert main(["compare", *words]) == 2
        assert message in capsys.readouterr().err


def test_run_is_renamed(pair, capsys):
    assert main(["rename", "first", "better"]) == 0
    assert "first is now called better; its folder is" in capsys.readouterr().out
    assert [run.name for run in known_runs()] == ["better", "second"]
    assert main(["rename", "better", "second"]) == 2
    assert main(["rename", "better", "a/b"]) == 2
    message = capsys.readouterr().err
    assert "exists already" in message and "cannot be the name of a run" in message


def test_deleting_without_a_terminal_needs_yes(pair, capsys):
    assert main(["delete", "first"]) == 2
    message = capsys.readouterr().err
    assert "--yes" in message and "frees" in message and len(known_runs()) == 2
    assert main(["delete", "first", "--yes"]) == 0
    assert "KiB freed" in capsys.readouterr().out and known_runs() == pair[1:]


@pytest.mark.parametrize(("answer", "left"), [("y", 1), ("n", 2), ("", 2)])
def test_deleting_on_a_terminal_asks_first(pair, capsys, monkeypatch, answer, left):
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{answer}\n"))
    for stream in (sys.stdin, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: True)
    assert main(["delete", "first"]) == 0
    printed = capsys.readouterr()
    assert "KiB? [y/N]" in printed.err and len(known_runs()) == left
    assert ("deleted first" in printed.out) == (left == 1)


def test_active_run_is_neither_deleted_nor_renamed(pair, capsys):
    for words in (["delete", "second"], ["delete", "second", "--yes"], ["rename", "second", "b"]):
        with RunLock(pair[1].lock):
            assert main(words) == 2
        assert "in use by process" in capsys.readouterr().err and known_runs() == pair


def test_half_deleted_run_is_listed_and_can_be_deleted_by_name(pair, capsys):
    pair[0].root.rename(pair[0].root.with_name(".deleting-first"))
    assert main(["runs"]) == 0
    assert "half deleted" in capsys.readouterr().out
    assert main(["delete", "first", "--yes"]) == 0
    assert [path.name for path in pair[0].root.parent.iterdir()] == ["second"]
    assert main(["delete", "first", "--yes"]) == 2


def test_foreign_files_in_a_run_folder_are_kept_and_named(pair, capsys):
    (pair[0].root / "notes.txt").write_text("mine")
    assert main(["delete", "first", "--yes"]) == 0
    assert "notes.txt" in capsys.readouterr().out and (pair[0].root / "notes.txt").exists()


@pytest.mark.parametrize("command", ["delete", "rename"])
def test_link_to_a_run_is_not_deleted_or_renamed(command, pair, tmp_path, capsys):
    run, more = pair[0], ["--yes"] if command == "delete" else ["other"]
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for link in (tmp_path / "best", elsewhere / "first"):
        link.symlink_to(run.root)
        for reference in {str(link), f"{link}/", os.path.relpath(link)} - {"first"}:
            assert main([command, reference, *more]) == 2, reference
            message = capsys.readouterr().err
            assert f"{link}: this is a link to a run, and nothing was {command.rstrip('e')}ed; `rm {link}`" in message
            assert str(run.root) in message and known_runs() == pair and link.is_symlink()
    (tmp_path / "first").symlink_to(run.root)
    assert main([command, "first", *more]) == 0, "the run that has this name is meant"
    assert not run.root.exists()


def test_queued_run_can_only_be_stopped(pair, capsys, monkeypatch):
    monkeypatch.setattr("tui_trainer.runs.slurm.active_job", lambda folder: "7")
    assert main(["ask", "second", "pause"]) == 2
    message = capsys.readouterr().err
    assert (
        "job 7 of second has not started" in message
        and "tui-trainer stop second" in message
        and "resume" not in message
    )


OTHER_HOST = {"host": "3f2a", "pid": 7, "process_started": 1.0, "at": "2026-11-20T13:45:00Z"}
CHANGES = (
    delete_and_rename.delete,
    delete_and_rename.bytes_to_free,
    lambda root: delete_and_rename.rename(root, f"{root.name}-renamed"),
)
READERS = {
    "export": ["--to", "merged"],
    "publish": ["--to", "me/it"],
    "evaluate": [],
    "predict": ["--data", "asked.jsonl", "--out", "out.jsonl"],
    "generate": ["a text"],
    "chat": [],
    "bench": [],
}


def test_run_is_neither_deleted_nor_renamed_while_a_command_reads_it(pair, monkeypatch, capsys, subtests):
    run, refused = pair[0], []

    def read(*_, **__):
        for change in CHANGES:
            with pytest.raises(FolderError, match=rf"in use by `{command} first`, process {os.getpid()} on this host"):
                change(run.root)
            refused.append(change)
        raise FolderError("the model was read")

    monkeypatch.setattr("tui_trainer.exporting.trained_model.TrainedModel.of", read)
    monkeypatch.setattr("tui_trainer.exporting.trained_model.weights_folder_of", read)
    monkeypatch.setattr("tui_trainer.exporting.publishing.source_of", read)
    for command, options in READERS.items():
        with subtests.test(command):
            refused.clear()
            assert main([command, "first", *options]) == 2
            assert "the model was read" in capsys.readouterr().err and len(refused) == len(CHANGES)
    assert main(["delete", "first", "--yes"]) == 0


def test_refusal_for_a_lock_of_another_host_names_the_command_that_removes_it(tmp_path, subtests):
    """A container that was made again has another name."""
    for number, (change, place) in enumerate(product(CHANGES, ("run.lock", "in_use/7-ab.lock"))):
        with subtests.test(f"{number}: {place}"):
            run = run_of(tmp_path / "runs", f"run-{number}", start(), *steps(1, 2), end(2))
            lock = run.root / place
            lock.parent.mkdir(exist_ok=True)
            lock.write_text(json.dumps(OTHER_HOST))
            with pytest.raises(FolderError, match="process 7 on host 3f2a since 2026-11-20T13:45:00Z") as refusal:
                change(run.root)
            command = re.search(
                r"former name of this machine or container, remove the lock: `(rm .*)`$", str(refusal.value)
            )
            subprocess.run(command[1], shell=True, check=True)
            change(run.root)


def test_run_that_was_deleted_while_waiting_for_its_lock_is_not_read(pair, monkeypatch):
    run, waiting = pair[0], folder_lock

    @contextmanager
    def late(folder):
        with waiting(folder):
            run.root.rename(delete_and_rename.deletion_path(run.root))
            yield

    monkeypatch.setattr("tui_trainer.runs.lock.folder_lock", late)
    with pytest.raises(FolderError, match="just been renamed or deleted"), keep_in_use(run, "export"):
        raise AssertionError


def test_run_in_a_read_only_folder_can_be_read(pair, monkeypatch):
    monkeypatch.setattr(Path, "mkdir", lambda *_, **__: (_ for _ in ()).throw(PermissionError(13, "no")))
    with keep_in_use(pair[0], "export"):
        pass


def test_request_to_a_run_of_another_host_names_its_lock(pair, capsys):
    pair[1].lock.write_text(json.dumps(OTHER_HOST))
    assert main(["stop", "second"]) == 0
    assert "process 7 on host 3f2a since 2026-11-20T13:45:00Z; " in (message := capsys.readouterr().err)
    assert f"remove the lock: `rm {pair[1].lock}`" in message


def test_tags_and_note_of_a_run_are_listed_and_kept_on_renaming(pair, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    assert main(["label", "first"]) == 0
    assert main(["label", "first", "--tags", "#Base fp8,base", "--note", "the one to beat\x1b[31m"]) == 0
    assert main(["label", "second", "--tags", "a!b"]) == 2
    printed = capsys.readouterr()
    nothing, kept = printed.out.splitlines()
    assert nothing == "first: no tags and no note" and kept.startswith("first: #base #fp8 the one to beat")
    assert "'a!b' cannot be a tag" in printed.err and "\x1b" not in printed.out
    assert main(["runs"]) == 0
    head, _, row = capsys.readouterr().out.splitlines()
    assert "tags and note" in head and "#base #fp8 the one to beat" in row
    assert main(["runs", "--json"]) == 0
    second, first = json.loads(capsys.readouterr().out)
    assert first["tags"] == ["base", "fp8"] and first["note"].startswith("the one") and second["tags"] == []
    assert main(["label", "first", "--note", ""]) == 0
    assert main(["rename", "first", "better"]) == 0
    assert main(["label", "better"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "better: #base #fp8"
    assert main(["label", "better", "--tags", ""]) == 0
    assert not RunFolder(pair[0].root.with_name("better")).labels.exists()


def test_labels_of_foreign_origin_are_made_safe_or_ignored(pair, capsys):
    for text in (
        "{",
        '{"tags": 3, "note": []}',
        '{"tags": ["ok", 3, "\\u001b[2J"], "note": "a\\u001b]0;title\\u0007"}',
    ):
        pair[0].labels.write_text(text)
        assert main(["runs"]) == 0
        assert main(["label", "first"]) == 0
        out = capsys.readouterr().out
        assert "\x1b" not in out and "\x07" not in out
    assert "first: #ok a" in out
    pair[0].labels.unlink()
    pair[0].labels.symlink_to(pair[1].journal)
    assert main(["label", "first", "--note", "x"]) == 0
    assert not pair[0].labels.is_symlink() and pair[1].journal.stat().st_size > 1_000
