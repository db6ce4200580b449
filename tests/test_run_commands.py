"""`tui-trainer runs`, `compare`, `rename` and `delete` as they are typed."""

import io
import json
import os
import re
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.runs.journals import end, held_out, run_of, start, steps
from tests.runs.test_comparison import PLANNED
from tui_trainer.cli import main
from tui_trainer.errors import FolderError
from tui_trainer.runs import at_rest
from tui_trainer.runs.folder import RunFolder
from tui_trainer.runs.lock import RunLock, folder_lock, in_use
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


def test_a_run_that_stopped_early_is_the_same_in_the_list_at_its_end_and_beside_another(pair, tmp_path, capsys):
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
    state, _, _, _, counts = capsys.readouterr().out.splitlines()[1:6]
    assert "stopped early" in state and "40/102, kept 30" in counts


def test_the_json_of_runs_has_all_that_it_had(pair, capsys):
    assert main(["runs", "--json"]) == 0
    newest = json.loads(capsys.readouterr().out)[0]
    before = "name path status step total_steps loss eval_loss started_at alive scores".split()
    assert set(before) < newest.keys() and newest["name"] == "second" and newest["path"] == str(pair[1].root)
    assert newest["size_bytes"] >= newest["freed_bytes"] > 0 and len(newest["loss_curve"]) == 20


def test_losses_that_are_no_numbers_are_json_as_well(tmp_path, capsys):
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


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["first"], "2 to 6 runs can be compared, not 1"),
        (["first", "first"], "named twice"),
        (["first", "nothing"], "no run 'nothing'"),
        ([], "Missing argument"),
    ],
)
def test_what_cannot_be_compared_is_refused(pair, capsys, words, told):
    assert main(["compare", *words]) == 2
    assert told in capsys.readouterr().err


def test_a_run_is_renamed(pair, capsys):
    assert main(["rename", "first", "better"]) == 0
    assert "first is now better" in capsys.readouterr().out
    assert [run.name for run in known_runs()] == ["better", "second"]
    assert main(["rename", "better", "second"]) == 2
    assert main(["rename", "better", "a/b"]) == 2
    told = capsys.readouterr().err
    assert "exists already" in told and "cannot be the name of a run" in told


def test_deleting_without_a_terminal_needs_yes(pair, capsys):
    assert main(["delete", "first"]) == 2
    told = capsys.readouterr().err
    assert "--yes" in told and "KiB freed" in told and len(known_runs()) == 2
    assert main(["delete", "first", "--yes"]) == 0
    assert "KiB freed" in capsys.readouterr().out and known_runs() == pair[1:]


@pytest.mark.parametrize(("answer", "left"), [("y", 1), ("n", 2), ("", 2)])
def test_deleting_on_a_terminal_asks_with_what_is_freed(pair, capsys, monkeypatch, answer, left):
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{answer}\n"))
    for stream in (sys.stdin, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: True)
    assert main(["delete", "first"]) == 0
    shown = capsys.readouterr()
    assert "KiB? [y/N]" in shown.err and len(known_runs()) == left
    assert ("deleted first" in shown.out) == (left == 1)


@pytest.mark.parametrize("words", [["delete", "second"], ["delete", "second", "--yes"], ["rename", "second", "b"]])
def test_a_run_that_lives_is_refused(pair, capsys, words):
    with RunLock(pair[1].lock):
        assert main(words) == 2
    assert "in use by process" in capsys.readouterr().err and known_runs() == pair


def test_what_is_half_deleted_is_listed_and_deleted_by_its_name(pair, capsys):
    pair[0].root.rename(pair[0].root.with_name(".deleting-first"))
    assert main(["runs"]) == 0
    assert "half deleted" in capsys.readouterr().out
    assert main(["delete", "first", "--yes"]) == 0
    assert [path.name for path in pair[0].root.parent.iterdir()] == ["second"]
    assert main(["delete", "first", "--yes"]) == 2


def test_files_that_no_run_made_stay_and_are_named(pair, capsys):
    (pair[0].root / "notes.txt").write_text("mine")
    assert main(["delete", "first", "--yes"]) == 0
    assert "notes.txt" in capsys.readouterr().out and (pair[0].root / "notes.txt").exists()


@pytest.mark.parametrize("command", ["delete", "rename"])
def test_a_link_to_a_run_is_not_taken_for_the_run(command, pair, tmp_path, capsys):
    run, more = pair[0], ["--yes"] if command == "delete" else ["other"]
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for link in (tmp_path / "best", elsewhere / "first"):
        link.symlink_to(run.root)
        for reference in {str(link), f"{link}/", os.path.relpath(link)} - {"first"}:
            assert main([command, reference, *more]) == 2, reference
            told = capsys.readouterr().err
            assert f"{link}: this is a link to a run, and nothing was {command.rstrip('e')}ed; `rm {link}`" in told
            assert str(run.root) in told and known_runs() == pair and link.is_symlink()
    (tmp_path / "first").symlink_to(run.root)
    assert main([command, "first", *more]) == 0, "the run that has this name is meant"
    assert not run.root.exists()


def test_a_run_that_waits_in_the_queue_can_only_be_stopped(pair, capsys, monkeypatch):
    monkeypatch.setattr("tui_trainer.runs.slurm.active_job", lambda folder: "7")
    assert main(["ask", "second", "pause"]) == 2
    told = capsys.readouterr().err
    assert "job 7 of second has not begun" in told and "tui-trainer stop second" in told and "resume" not in told


READERS = {
    "export": ["--to", "merged"],
    "publish": ["--to", "me/it"],
    "evaluate": [],
    "predict": ["--data", "asked.jsonl", "--out", "out.jsonl"],
    "generate": ["a text"],
    "chat": [],
    "bench": [],
}


@pytest.mark.parametrize("command", READERS)
def test_a_run_is_neither_deleted_nor_renamed_while_a_command_reads_it(command, pair, monkeypatch, capsys):
    run, seen = pair[0], []

    def read(*_, **__):
        for change in (at_rest.delete, at_rest.bytes_to_free, lambda root: at_rest.rename(root, "b")):
            with pytest.raises(FolderError, match=rf"in use by `{command} first`, process {os.getpid()} on this host"):
                change(run.root)
            seen.append(change)
        raise FolderError("that was all")

    monkeypatch.setattr("tui_trainer.exporting.trained_model.TrainedModel.of", read)
    monkeypatch.setattr("tui_trainer.exporting.trained_model.weights_of", read)
    monkeypatch.setattr("tui_trainer.exporting.publishing.source_of", read)
    assert main([command, "first", *READERS[command]]) == 2
    assert "that was all" in capsys.readouterr().err and len(seen) == 3
    assert main(["delete", "first", "--yes"]) == 0


@pytest.mark.parametrize("change", [at_rest.delete, at_rest.bytes_to_free, lambda root: at_rest.rename(root, "b")])
@pytest.mark.parametrize("place", ["run.lock", "in_use/7-ab.lock"])
def test_a_lock_of_a_host_that_is_gone_says_which_command_removes_it(change, place, pair):
    """Such as that of a container that was made anew."""
    lock = pair[0].root / place
    lock.parent.mkdir(exist_ok=True)
    left = {"host": "3f2a", "pid": 7, "process_started": 1.0, "at": "2026-11-20T13:45:00Z"}
    lock.write_text(json.dumps(left))
    with pytest.raises(FolderError, match="process 7 on host 3f2a since 2026-11-20T13:45:00Z") as refusal:
        change(pair[0].root)
    command = re.search(r"old name of this machine or container, remove its lock: `(rm .*)`$", str(refusal.value))[1]
    subprocess.run(command, shell=True, check=True)
    change(pair[0].root)


def test_nobody_begins_to_read_a_run_that_is_just_being_deleted(pair, monkeypatch):
    """It waited for the lock, and then the folder has another name."""
    run, waiting = pair[0], folder_lock

    @contextmanager
    def late(folder):
        with waiting(folder):
            run.root.rename(at_rest.remains_of(run.root))
            yield

    monkeypatch.setattr("tui_trainer.runs.lock.folder_lock", late)
    with pytest.raises(FolderError, match="renamed or deleted just now"), in_use(run, "export"):
        raise AssertionError


def test_a_run_of_which_nothing_can_be_written_can_be_read(pair, monkeypatch):
    monkeypatch.setattr(Path, "mkdir", lambda *_, **__: (_ for _ in ()).throw(PermissionError(13, "no")))
    with in_use(pair[0], "export"):
        pass


def test_a_request_to_a_host_that_may_be_gone_says_so(pair, capsys):
    left = {"host": "3f2a", "pid": 7, "process_started": 1.0, "at": "2026-11-20T13:45:00Z"}
    pair[1].lock.write_text(json.dumps(left))
    assert main(["stop", "second"]) == 0
    assert "process 7 on host 3f2a since 2026-11-20T13:45:00Z; " in (told := capsys.readouterr().err)
    assert f"remove its lock: `rm {pair[1].lock}`" in told


def test_a_run_has_tags_and_a_note_which_the_lists_show(pair, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    assert main(["label", "first"]) == 0
    assert main(["label", "first", "--tags", "#Base fp8,base", "--note", "the one to beat\x1b[31m"]) == 0
    assert main(["label", "second", "--tags", "a!b"]) == 2
    told = capsys.readouterr()
    nothing, kept = told.out.splitlines()
    assert nothing == "first: no tags and no note" and kept.startswith("first: #base #fp8 the one to beat")
    assert "'a!b' cannot be a tag" in told.err and "\x1b" not in told.out
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


def test_what_somebody_else_wrote_as_labels_is_made_safe_or_left_out(pair, capsys):
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
