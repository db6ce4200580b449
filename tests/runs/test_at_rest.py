"""Runs are deleted and renamed only at rest, and only what they made is removed."""

import os
import shutil

import pytest

from tests.runs.journals import run_of, start
from tui_trainer.errors import FolderError
from tui_trainer.runs import at_rest
from tui_trainer.runs.folder import MARKER, folder_size
from tui_trainer.runs.lock import RunLock
from tui_trainer.runs.overview import Overviews
from tui_trainer.runs.registry import known_runs, listed_roots


@pytest.fixture
def run(tmp_path):
    folder = run_of(tmp_path / "runs", "a", start())
    (folder.checkpoints / "step-1").mkdir()
    (folder.checkpoints / "step-1/model.safetensors").write_bytes(bytes(10_000))
    return folder


def test_deleting_frees_what_was_announced_and_forgets_the_run(run):
    announced = at_rest.bytes_to_free(run.root)
    assert announced == folder_size(run.root).bytes > 10_000
    assert at_rest.delete(run.root) == at_rest.Deleted(freed_bytes=announced)
    assert list(run.root.parent.iterdir()) == [] and listed_roots() == []


@pytest.mark.parametrize("change", [at_rest.delete, at_rest.bytes_to_free, lambda root: at_rest.rename(root, "b")])
def test_a_run_that_lives_is_left_alone(run, change):
    with RunLock(run.lock), pytest.raises(FolderError, match="in use by process"):
        change(run.root)
    assert known_runs() == [run]


@pytest.mark.parametrize("change", [at_rest.delete, at_rest.bytes_to_free])
def test_a_run_that_lives_in_a_job_is_not_told_to_wait_for_it(run, change, monkeypatch):
    monkeypatch.setattr(at_rest, "active_job", lambda folder: "5")
    with pytest.raises(FolderError, match="job 5 of this run is in the queue"):
        change(run.root)
    with RunLock(run.lock), pytest.raises(FolderError, match="in use by process"):
        change(run.root)


def test_a_run_that_starts_in_between_is_left_alone(run, monkeypatch):
    """It took the lock after the look at its owner."""
    monkeypatch.setattr(at_rest, "owner", lambda path: None)
    with RunLock(run.lock), pytest.raises(FolderError, match="in use"):
        at_rest.delete(run.root)
    assert known_runs() == [run] and run.journal.is_file()


def test_nobody_starts_in_a_folder_that_is_being_deleted(run, monkeypatch):
    refused = []

    def starting_meanwhile(path):
        with pytest.raises(FolderError) as refusal:
            RunLock(run.lock).acquire()
        refused.append(refusal)

    monkeypatch.setattr(at_rest, "sync_folder", starting_meanwhile)
    at_rest.delete(run.root)
    assert len(refused) == 1 and not run.root.exists()


def test_a_crash_leaves_it_half_deleted_and_the_rest_can_be_deleted(run, monkeypatch):
    def killed(path):
        raise KeyboardInterrupt

    with monkeypatch.context() as crash:
        crash.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            at_rest.delete(run.root)
    (rest,) = Overviews().read()
    assert (rest.name, rest.status) == ("a", "half deleted") and known_runs() == []
    assert (rest.path / MARKER).is_file()
    assert at_rest.bytes_to_free(rest.path) > 10_000
    assert at_rest.delete(rest.path).freed_bytes > 10_000
    assert list(run.root.parent.iterdir()) == [] and listed_roots() == []


def test_the_rest_of_a_run_is_deleted_by_the_runs_own_name_as_well(run):
    run.root.rename(at_rest.remains_of(run.root))
    assert at_rest.delete(run.root).freed_bytes > 10_000
    assert list(run.root.parent.iterdir()) == [] and listed_roots() == []


def test_a_new_run_of_the_name_stays_when_the_rest_of_the_old_one_is_deleted(run):
    run.root.rename(at_rest.remains_of(run.root))
    new = run_of(run.root.parent, "a", start())
    at_rest.delete(at_rest.remains_of(new.root))
    assert known_runs() == [new] and new.journal.is_file()


def test_what_no_run_made_stays(run):
    (run.root / "notes.txt").write_text("mine")
    (run.root / "figures").mkdir()
    assert at_rest.delete(run.root).kept == ("figures", "notes.txt")
    assert sorted(path.name for path in run.root.iterdir()) == ["figures", "notes.txt"]
    assert listed_roots() == []


def test_a_run_that_is_gone_is_forgotten(run):
    shutil.rmtree(run.root)
    assert at_rest.delete(run.root).freed_bytes == 0 and listed_roots() == []


def test_links_are_not_followed(run, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("")
    run.model.symlink_to(outside)
    (run.checkpoints / "link").symlink_to(outside)
    link = tmp_path / "runs/link"
    link.symlink_to(run.root)
    for change in (at_rest.delete, lambda root: at_rest.rename(root, "b")):
        with pytest.raises(FolderError, match="a link"):
            change(link)
    at_rest.delete(run.root)
    assert (outside / "precious").exists()


def test_a_foreign_folder_is_refused_and_nothing_is_written_in_it(tmp_path):
    foreign = tmp_path / "thesis"
    (foreign / "model").mkdir(parents=True)
    for change in (at_rest.delete, at_rest.bytes_to_free, lambda root: at_rest.rename(root, "b")):
        with pytest.raises(FolderError, match="not the folder of a run"):
            change(foreign)
    assert [path.name for path in foreign.iterdir()] == ["model"]


def test_a_folder_that_cannot_be_written_says_why(run, monkeypatch):
    def refused(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "rename", refused)
    with pytest.raises(FolderError, match="cannot be deleted: Permission denied"):
        at_rest.delete(run.root)
    with pytest.raises(FolderError, match="cannot be renamed: Permission denied"):
        at_rest.rename(run.root, "b")
    assert known_runs() == [run]


def test_a_renamed_run_keeps_its_place_and_its_files(run):
    newer = run_of(run.root.parent, "newer", start())
    assert at_rest.rename(run.root, "b") is None
    assert [folder.name for folder in known_runs()] == ["b", "newer"] and known_runs()[1] == newer
    assert (run.root.with_name("b") / "journal.jsonl").is_file() and not run.root.exists()
    with RunLock(run.root.with_name("b") / "run.lock"):
        pass


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "..", "x" * 65, "\x1b[2J", ".deleting-a"])
def test_a_name_that_no_run_can_have_is_refused(run, name):
    with pytest.raises(FolderError, match="cannot be the name of a run"):
        at_rest.rename(run.root, name)
    assert known_runs() == [run]


def test_a_name_that_is_taken_is_refused(run):
    (run.root.parent / "taken").symlink_to("nowhere")
    for name in ("taken", "a"):
        with pytest.raises(FolderError, match="exists already"):
            at_rest.rename(run.root, name)
    assert known_runs() == [run]


def test_a_list_that_cannot_be_written_undoes_no_rename(run, private_home):
    shutil.rmtree(private_home)
    private_home.write_text("a file where the folder should be")
    assert "cannot be written" in at_rest.rename(run.root, "b").message
    assert run.root.with_name("b").is_dir()
