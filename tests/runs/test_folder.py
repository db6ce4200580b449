"""Run folders: names, permissions, atomic files, and what is removed with them."""

import os
import stat
from pathlib import Path

import pytest

from tui_trainer.errors import FolderError
from tui_trainer.runs.folder import RunFolder, check_name, check_target, write_atomically

BAD_NAMES = [
    "", ".", "..", "../x", "x/../../y", "/etc", "a/b", ".hidden", "-flag", "a\0b", "x" * 65, "x" * 300, "a b", "a\n",
    "\u8d70" * 80, "\U00020000" * 64, "a\u200db", "\u0301a", "a\ud800", "~root", "a\\b", "\x1b[2J",
]  # fmt: skip


def everything_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def test_a_name_that_leaves_the_folder_or_could_be_misread_is_refused(tmp_path, subtests):
    runs_dir = tmp_path / "deep" / "runs"
    for name in BAD_NAMES:
        with subtests.test(ascii(name)):
            assert check_name(name)
            with pytest.raises(FolderError) as refusal:
                RunFolder.create(runs_dir, name)
            assert refusal.value.problems[0].key == "output.name"
            assert str(refusal.value).isprintable()
            assert everything_in(tmp_path) == []


def test_an_ordinary_name_is_accepted(tmp_path):
    scripts = ("\u00fc", "\u8d70\u308b", "\ud55c\uae00_1", "\u0939\u093f\u0928\u094d\u0926\u0940")
    for name in ("a", "qwen-0.5b_2026.11.20", "0", "x" * 64, *scripts):
        assert check_name(name) is None
        assert RunFolder.create(tmp_path, name).root == tmp_path.resolve() / name


def test_files_and_folders_are_private_for_any_umask(tmp_path, subtests):
    for umask in (0o000, 0o022, 0o077, 0o777):
        new = tmp_path / f"{umask:o}"
        before = os.umask(umask)
        try:
            folder = RunFolder.create(new / "runs", "a")
            folder.write_file("config.toml", b"x")
            folder.write_file(folder.logs / "worker.log", b"y")
        finally:
            os.umask(before)
        made = [new, *new.rglob("*")]
        with subtests.test(f"{umask:o}"):
            assert len(made) == 8
            assert {mode(path) for path in made if path.is_dir()} == {0o700}
            assert {mode(path) for path in made if path.is_file()} == {0o600}


def test_an_existing_run_is_not_overwritten(tmp_path):
    RunFolder.create(tmp_path, "a").write_file("config.toml", b"first")
    with pytest.raises(FolderError, match="tui-trainer resume a"):
        RunFolder.create(tmp_path, "a")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    with pytest.raises(FolderError, match="already exists"):
        RunFolder.create(tmp_path, "dangling")
    assert (tmp_path / "a" / "config.toml").read_bytes() == b"first"
    assert not (tmp_path / "nowhere").exists()


def test_checking_a_target_leaves_nothing_behind(tmp_path):
    assert check_target(tmp_path / "not" / "yet", "a") == []
    assert everything_in(tmp_path) == []
    (tmp_path / "there").mkdir()
    assert check_target(tmp_path / "there", "a") == []
    assert everything_in(tmp_path) == ["there"]


def test_an_unwritable_folder_is_refused_with_the_reason(tmp_path, subtests):
    (tmp_path / "file").write_text("text")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for runs_dir in ("file", "file/below", "/proc/tui-trainer", "/dev/full", "loop", "nul\0"):
        with subtests.test(ascii(runs_dir)):
            (problem,) = check_target(tmp_path / runs_dir, "a")
            assert problem.where and problem.message.removeprefix("cannot be used: ")
            with pytest.raises(FolderError):
                RunFolder.create(tmp_path / runs_dir, "a")
            assert everything_in(tmp_path) == ["file", "loop"]


def test_discarding_removes_all_that_creating_made(tmp_path):
    folder = RunFolder.create(tmp_path / "new" / "runs", "a")
    folder.write_file("plan.json", b"{}")
    (folder.checkpoints / "step-1").mkdir()
    (folder.checkpoints / "step-1" / "state.json").write_text("{}")
    assert folder.discard()
    assert everything_in(tmp_path) == []


def test_discarding_leaves_files_of_others(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("keep")
    folder = RunFolder.create(tmp_path / "new" / "runs", "a")
    (folder.root / "notes.txt").write_text("mine")
    (folder.root / "model").symlink_to(outside)
    (folder.checkpoints / "link").symlink_to(outside)
    assert not folder.discard()
    assert everything_in(tmp_path / "new") == ["runs", "runs/a", "runs/a/notes.txt"]
    assert (outside / "precious").read_text() == "keep"


def test_a_foreign_folder_is_not_discarded(tmp_path):
    (tmp_path / "plan.json").write_text("{}")
    with pytest.raises(FolderError, match="not created by tui-trainer"):
        RunFolder(tmp_path).discard()
    real = RunFolder.create(tmp_path, "real")
    (tmp_path / "link").symlink_to(real.root)
    with pytest.raises(FolderError, match="this is a link"):
        RunFolder(tmp_path / "link").discard()
    assert everything_in(real.root) == [".tui-trainer", "checkpoints", "logs"]


def test_a_moved_run_without_its_hidden_files_opens(tmp_path):
    folder = RunFolder.create(tmp_path, "a")
    folder.write_file("plan.json", b"{}")
    moved = folder.root.rename(tmp_path / "b")
    (moved / ".tui-trainer").unlink()
    assert RunFolder.open(moved).plan.read_bytes() == b"{}"
    assert RunFolder.open(moved).name == "b"


def test_a_path_without_a_run_does_not_open(tmp_path, subtests):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    for name in ("empty", "file", "missing", "nul\0"):
        with subtests.test(ascii(name)), pytest.raises(FolderError):
            RunFolder.open(tmp_path / name)


def test_a_file_is_replaced_as_a_whole_and_a_link_is_not_followed(tmp_path):
    folder = RunFolder.create(tmp_path, "a")
    (tmp_path / "secret").write_text("keep")
    folder.config.symlink_to(tmp_path / "secret")
    folder.write_file("config.toml", b"new")
    assert (tmp_path / "secret").read_text() == "keep"
    assert not folder.config.is_symlink()
    assert folder.config.read_bytes() == b"new"


def test_no_file_is_written_outside_the_run(tmp_path):
    folder = RunFolder.create(tmp_path, "a")
    (folder.root / "out").symlink_to(tmp_path)
    for path in ("../x", tmp_path / "x", "out/x"):
        with pytest.raises(FolderError, match="outside"):
            folder.write_file(path, b"")
    with pytest.raises(FolderError, match="No such file"):
        folder.write_file("missing/x", b"")
    assert not (tmp_path / "x").exists()


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    (tmp_path / "target").mkdir()
    with pytest.raises(OSError):
        write_atomically(tmp_path / "target", b"data")
    assert everything_in(tmp_path) == ["target"]
