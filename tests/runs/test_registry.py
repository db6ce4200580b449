"""The list of runs of a user, and how a run is found by name or path."""

import os
import shutil
import stat

import pytest

from tui_trainer.cli import main
from tui_trainer.errors import FolderError
from tui_trainer.runs.folder import RunFolder
from tui_trainer.runs.registry import (
    add_to_index,
    find_run,
    known_runs,
    list_problem,
    listed_roots,
    move_in_index,
    remove_from_index,
    state_folder,
)


@pytest.fixture
def home(private_home):
    return private_home


def made(parent, *names):
    folders = [RunFolder.create(parent, name) for name in names]
    for folder in folders:
        assert add_to_index(folder.root) is None
    return folders


def test_the_state_folder_follows_the_environment(monkeypatch, tmp_path):
    assert state_folder() == tmp_path / "home"
    monkeypatch.delenv("TUI_TRAINER_HOME")
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert str(state_folder()) == "/state/tui-trainer"
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", "/home/ada")
    assert str(state_folder()) == "/home/ada/.local/state/tui-trainer"


def test_known_runs_are_newest_last_without_deleted_ones(tmp_path):
    assert known_runs() == []
    first, second, third = made(tmp_path / "runs", "a", "b", "c")
    add_to_index(first.root)
    assert known_runs() == [second, third, first]
    remove_from_index(third.root)
    shutil.rmtree(second.root)
    assert known_runs() == [first]


def test_torn_and_garbage_lines_lose_no_other_run(tmp_path, home):
    (first,) = made(tmp_path / "runs", "a")
    with (home / "runs.jsonl").open("ab") as file:
        file.write(b'\x00\xff\n[]\n3\n{"run": 3}\n{"run": "a\\u0000b"}\n' + b"[" * 50_000 + b'\n{"run": "/tor')
    (second,) = made(tmp_path / "runs", "b")
    assert known_runs() == [first, second]


def test_the_index_is_private_and_compacted(tmp_path, home):
    before = os.umask(0)
    try:
        folders = made(tmp_path / "runs", "a", "b")
        for _ in range(100):
            add_to_index(folders[0].root)
    finally:
        os.umask(before)
    assert (home / "runs.jsonl").read_bytes().count(b'"run"') < 70
    assert known_runs() == [folders[1], folders[0]]
    assert stat.S_IMODE((home / "runs.jsonl").stat().st_mode) == 0o600
    assert stat.S_IMODE(home.stat().st_mode) == 0o700


def test_an_unwritable_state_folder_is_reported_and_stops_nothing(tmp_path, home, monkeypatch, capsys):
    folder = RunFolder.create(tmp_path / "runs", "a")
    home.write_text("a file where the folder should be")
    assert "cannot write the list of runs" in add_to_index(folder.root).message
    assert remove_from_index(folder.root) is not None
    assert known_runs() == []
    assert find_run("runs/a") == folder
    for place, words in ((home, "this is not a folder"), (home / "inside", "this is not a folder")):
        monkeypatch.setenv("TUI_TRAINER_HOME", str(place))
        assert words in list_problem().message and "TUI_TRAINER_HOME" in list_problem().hint
        with pytest.raises(FolderError, match="cannot hold the list of runs"):
            find_run("last")
        assert main(["runs"]) == 2 and words in capsys.readouterr().err
    monkeypatch.setenv("TUI_TRAINER_HOME", str(tmp_path / "not" / "there"))
    assert list_problem() is None and main(["runs"]) == 0
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK)
    assert "the folder is not writable" in list_problem().message


def test_a_run_is_found_by_path_name_prefix_or_last(tmp_path):
    chat, code, coda = made(tmp_path / "runs", "chat", "code", "coda")
    assert find_run("chat") == chat
    assert find_run("ch") == chat
    assert find_run("code") == code
    assert find_run("last") == coda
    assert find_run("runs/code") == code
    assert find_run(str(code.root)) == code


def test_an_exact_name_and_a_local_folder_win_over_prefixes(tmp_path):
    short, _, here = made(tmp_path / "runs", "run", "run-2", "local-2")
    local = RunFolder.create(tmp_path, "local")
    assert find_run("run") == short
    assert find_run("local") == local
    assert find_run("local-") == here


def test_an_ambiguous_reference_lists_the_candidates(tmp_path, subtests):
    made(tmp_path / "runs", "code", "coda", "same")
    made(tmp_path / "other", "same")
    candidates = {"co": ["code", "coda"], "same": [str(tmp_path / "runs/same"), str(tmp_path / "other/same")]}
    for reference, names in candidates.items():
        with subtests.test(reference):
            with pytest.raises(FolderError, match="matches 2 runs") as refusal:
                find_run(reference)
            assert all(name in str(refusal.value) for name in names)


def test_an_unknown_run_is_refused_with_the_nearest_names(tmp_path):
    with pytest.raises(FolderError, match=r"the list of runs is empty; .* `tui-trainer --no-ui` starts a run"):
        find_run("last")
    made(tmp_path / "runs", "quickstart", "zebra")
    with pytest.raises(FolderError, match="quickstart") as refusal:
        find_run("quikstart")
    assert "zebra" not in str(refusal.value)
    for reference in ("", "nothing/here", "\x1b[2J"):
        with pytest.raises(FolderError) as refusal:
            find_run(reference)
        assert "\x1b" not in str(refusal.value)


def test_a_moved_run_keeps_its_place_in_the_list(tmp_path):
    first, second = made(tmp_path / "runs", "a", "b")
    new_root = first.root.rename(first.root.with_name("z"))
    assert move_in_index(first.root, new_root) is None
    assert listed_roots() == [new_root, second.root]
    assert find_run("last") == second
    assert move_in_index(tmp_path / "unknown", tmp_path / "x") is None
    assert listed_roots() == [new_root, second.root]
