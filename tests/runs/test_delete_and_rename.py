"""Deleting and renaming runs: only inactive ones, and only their own files."""

import os
import shutil

import pytest

from tests.runs.journals import run_of, start
from tui_trainer.errors import FolderError
from tui_trainer.runs import delete_and_rename
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
    announced = delete_and_rename.bytes_to_free(run.root)
    assert announced == folder_size(run.root).bytes > 10_000
    assert delete_and_rename.delete(run.root) == delete_and_rename.Deleted(freed_bytes=announced)
    assert list(run.root.parent.iterdir()) == [] and listed_roots() == []


def test_a_run_with_a_queued_job_is_not_deleted(run, monkeypatch):
    monkeypatch.setattr(delete_and_rename, "active_job", lambda folder: "5")
    for change in (delete_and_rename.delete, delete_and_rename.bytes_to_free):
        with pytest.raises(FolderError, match="job 5 of this run is in the queue"):
            change(run.root)
        with RunLock(run.lock), pytest.raises(FolderError, match="in use by process"):
            change(run.root)


def test_a_run_that_starts_meanwhile_is_not_deleted(run, monkeypatch):
    """It takes the lock after its owner was looked up."""
    monkeypatch.setattr(delete_and_rename, "read_lock_owner", lambda path: None)
    with RunLock(run.lock), pytest.raises(FolderError, match="in use"):
        delete_and_rename.delete(run.root)
    assert known_runs() == [run] and run.journal.is_file()


def test_no_run_starts_in_a_folder_that_is_being_deleted(run, monkeypatch):
    refused = []

    def starting_meanwhile(path):
        with pytest.raises(FolderError) as refusal:
            RunLock(run.lock).acquire()
        refused.append(refusal)

    monkeypatch.setattr(delete_and_rename, "sync_folder", starting_meanwhile)
    delete_and_rename.delete(run.root)
    assert len(refused) == 1 and not run.root.exists()


def test_a_half_deleted_run_is_listed_and_can_be_deleted(run, monkeypatch):
    def killed(path):
        raise KeyboardInterrupt

    with monkeypatch.context() as crash:
        crash.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            delete_and_rename.delete(run.root)
    (rest,) = Overviews().read()
    assert (rest.name, rest.status) == ("a", "half deleted") and known_runs() == []
    assert (rest.path / MARKER).is_file()
    assert delete_and_rename.bytes_to_free(rest.path) > 10_000
    assert delete_and_rename.delete(rest.path).freed_bytes > 10_000
    assert list(run.root.parent.iterdir()) == [] and listed_roots() == []


def test_deleting_the_rest_of_a_run_keeps_a_new_run_of_its_name(run):
    run.root.rename(delete_and_rename.deletion_path(run.root))
    new = run_of(run.root.parent, "a", start())
    delete_and_rename.delete(delete_and_rename.deletion_path(new.root))
    assert known_runs() == [new] and new.journal.is_file()


def test_deleting_a_run_that_is_gone_removes_it_from_the_list(run):
    shutil.rmtree(run.root)
    assert delete_and_rename.delete(run.root).freed_bytes == 0 and listed_roots() == []


def test_links_are_not_followed(run, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("")
    run.model.symlink_to(outside)
    (run.checkpoints / "link").symlink_to(outside)
    link = tmp_path / "runs/link"
    link.symlink_to(run.root)
    for change in (delete_and_rename.delete, lambda root: delete_and_rename.rename(root, "b")):
        with pytest.raises(FolderError, match="a symbolic link"):
            change(link)
    delete_and_rename.delete(run.root)
    assert (outside / "precious").exists()


def test_a_foreign_folder_is_refused_and_not_changed(tmp_path):
    foreign = tmp_path / "thesis"
    (foreign / "model").mkdir(parents=True)
    for change in (
        delete_and_rename.delete,
        delete_and_rename.bytes_to_free,
        lambda root: delete_and_rename.rename(root, "b"),
    ):
        with pytest.raises(FolderError, match="not the folder of a run"):
            change(foreign)
    assert [path.name for path in foreign.iterdir()] == ["model"]


def test_an_unwritable_folder_is_refused_with_the_reason(run, monkeypatch):
    def refused(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "rename", refused)
    with pytest.raises(FolderError, match="cannot be deleted: Permission denied"):
        delete_and_rename.delete(run.root)
    with pytest.raises(FolderError, match="cannot be renamed: Permission denied"):
        delete_and_rename.rename(run.root, "b")
    assert known_runs() == [run]


def test_a_renamed_run_keeps_its_files_and_place_in_the_list(run):
    newer = run_of(run.root.parent, "newer", start())
    assert delete_and_rename.rename(run.root, "b") is None
    assert [folder.name for folder in known_runs()] == ["b", "newer"] and known_runs()[1] == newer
    assert (run.root.with_name("b") / "journal.jsonl").is_file() and not run.root.exists()
    with RunLock(run.root.with_name("b") / "run.lock"):
        pass


def test_an_invalid_or_existing_name_is_refused(run):
    (run.root.parent / "taken").symlink_to("nowhere")
    for name in ("", ".hidden", "a/b", "..", "x" * 65, "\x1b[2J", ".deleting-a"):
        with pytest.raises(FolderError, match="cannot be the name of a run"):
            delete_and_rename.rename(run.root, name)
    for name in ("taken", "a"):
        with pytest.raises(FolderError, match="exists already"):
            delete_and_rename.rename(run.root, name)
    assert known_runs() == [run]


def test_a_rename_is_kept_when_the_list_cannot_be_written(run, private_home):
    shutil.rmtree(private_home)
    private_home.write_text("a file where the folder should be")
    assert "cannot write the list of runs" in delete_and_rename.rename(run.root, "b").message
    assert run.root.with_name("b").is_dir()
