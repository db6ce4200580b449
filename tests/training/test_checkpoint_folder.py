"""A checkpoint is whole or it is none: damage is named, and the one before is used."""

import errno
import json
import os
import random
import shutil
from pathlib import Path

import pytest

from tests.combinations import first_by_default
from tui_trainer.errors import EXIT_DONE, CheckpointError
from tui_trainer.launching.carry_out import carry_out
from tui_trainer.launching.open_run import open_again
from tui_trainer.runs.events import RunProblem, RunStarted
from tui_trainer.runs.journal import read_all
from tui_trainer.training import checkpoint_folder
from tui_trainer.training.checkpoint_folder import (
    begin,
    clear_leftovers,
    commit,
    damage_of,
    newest_whole,
    rotate,
    set_aside_after,
    steps_saved,
)


def make(checkpoints, step):
    folder = begin(checkpoints, step)
    (folder / "model.safetensors").write_bytes(random.Random(step).randbytes(5000))
    (folder / "position.json").write_text(f'{{"step": {step}}}')
    return commit(folder, step)


@pytest.fixture
def three(tmp_path):
    for step in (9, 10, 100):
        make(tmp_path, step)
    return tmp_path


def test_rotation_goes_by_step_not_by_date_and_never_down_to_nothing(three):
    os.utime(three / "step-9", (2**33, 2**33))
    rotate(three, keep=2)
    assert steps_saved(three) == [100, 10]
    rotate(three, keep=0)
    assert steps_saved(three) == [100]


def test_rotation_spares_the_best_and_what_others_put_there(three):
    (three / "step-best").mkdir()
    (three / "step-5").mkdir()
    rotate(three, keep=1, spare=[9])
    assert steps_saved(three) == [100, 9]
    assert (three / "step-best").is_dir()
    assert (three / "step-5").is_dir()


@pytest.mark.parametrize("name", ["model.safetensors", "position.json"])
def test_every_flipped_bit_and_every_cut_is_noticed(three, name):
    path, whole, chance = three / "step-100" / name, (three / "step-100" / name).read_bytes(), random.Random(1)
    for _ in range(100):
        place = chance.randrange(len(whole) * 8)
        flipped = bytearray(whole)
        flipped[place // 8] ^= 1 << place % 8
        path.write_bytes(flipped)
        assert name in (damage_of(three / "step-100", 100) or "")
    for length in {0, 1, len(whole) - 1, *(chance.randrange(len(whole)) for _ in range(20))}:
        path.write_bytes(whole[:length])
        assert name in (damage_of(three / "step-100", 100) or "")
    path.write_bytes(whole)
    assert damage_of(three / "step-100", 100) is None


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"null", b'{"format": 1}', b'{"format": 9, "step": 100, "files": {}}', b"\xff" * 9]
)
def test_a_damaged_manifest_is_no_checkpoint(three, content):
    (three / "step-100" / "manifest.json").write_bytes(content)
    assert damage_of(three / "step-100", 100)
    damages = []
    found = newest_whole(three, damages.append)
    assert found is not None
    assert found.step == 10
    assert len(damages) == 1


def test_a_checkpoint_that_cannot_be_read_now_is_not_taken_for_damaged(three, monkeypatch):
    def failing(path):
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    monkeypatch.setattr(checkpoint_folder, "_describe", failing)
    with pytest.raises(CheckpointError, match=r"step-100: model.safetensors cannot be read \(Input/output error\)"):
        newest_whole(three, pytest.fail)
    assert steps_saved(three)[0] == 100


def test_a_renamed_checkpoint_is_not_taken_for_another_step(three):
    (three / "step-100").rename(three / "step-200")
    damages = []
    assert newest_whole(three, damages.append).step == 10
    assert "step 100" in damages[0]


def test_what_a_kill_left_is_cleared_and_nothing_else(three):
    begin(three, 11)
    (three / "step-9").rename(three / ".removing-step-9")
    (three / ".mine").mkdir()
    clear_leftovers(three)
    assert sorted(path.name for path in three.iterdir()) == [".mine", "step-10", "step-100"]


def test_a_checkpoint_is_removed_beside_what_a_kill_left_of_one_of_its_name(three):
    left = three / ".removing-step-9"
    left.mkdir()
    (left / "model.safetensors").write_bytes(b"half")
    rotate(three, keep=2)
    assert sorted(path.name for path in three.iterdir()) == ["step-10", "step-100"]


def test_a_checkpoint_that_exists_damaged_is_replaced(three):
    (three / "step-100" / "model.safetensors").write_bytes(b"")
    make(three, 100)
    assert damage_of(three / "step-100", 100) is None


@pytest.mark.parametrize("name", first_by_default(["model.safetensors", "position.json"]))
def test_a_run_with_a_damaged_checkpoint_goes_on_from_the_one_before_to_the_same_bits(tiny_run, name):
    changes = {"checkpoint.save_steps": 4, "model.scratch.attention_dropout": 0.2}
    whole, _ = tiny_run("whole", changes)
    wanted = (whole.checkpoints / "step-10" / "optimizer.safetensors").read_bytes()
    damaged, _ = tiny_run("damaged", changes)
    (damaged.checkpoints / "step-10" / name).unlink()

    assert carry_out(open_again(damaged)).exit_code == EXIT_DONE
    events = read_all(damaged.journal)
    assert [event.resumed_from_step for event in events if isinstance(event, RunStarted)] == [None, 8]
    assert [name in event.message for event in events if isinstance(event, RunProblem)] == [True]
    assert (damaged.checkpoints / "step-10" / "optimizer.safetensors").read_bytes() == wanted


@pytest.fixture
def nested(tmp_path):
    """A checkpoint with a file in a folder of its own, beside which there is a file that is none of it."""
    folder = begin(tmp_path, 7)
    (folder / "position.json").write_text("{}")
    (folder / "templates" / "more").mkdir(parents=True)
    (folder / "templates" / "more" / "tools.jinja").write_text("tools")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "tools.jinja").write_text("tools")
    return commit(folder, 7)


def test_files_of_inner_folders_are_part_of_a_checkpoint(nested):
    assert damage_of(nested.path, 7) is None
    assert newest_whole(nested.path.parent, lambda damage: pytest.fail(damage)).path == nested.path
    assert not [path for path in nested.path.rglob("*") if path.stat().st_mode & 0o077]
    inner = nested.path / "templates" / "more" / "tools.jinja"
    inner.write_text("other")
    assert damage_of(nested.path, 7) == "templates/more/tools.jinja is not what was written"
    inner.unlink()
    assert damage_of(nested.path, 7) == "templates/more/tools.jinja is missing"


@pytest.mark.parametrize("name", ["../outside/tools.jinja", "{outside}/tools.jinja", "templates/../position.json", ""])
def test_a_manifest_whose_names_lead_elsewhere_is_refused(nested, name):
    name = name.format(outside=nested.path.parent / "outside")
    path = nested.path / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["files"][name] = manifest["files"]["templates/more/tools.jinja"]
    path.write_text(json.dumps(manifest))
    assert damage_of(nested.path, 7) == f"{name} is missing"


def test_a_link_in_a_checkpoint_is_not_followed(nested):
    outside = nested.path.parent / "outside"
    shutil.rmtree(nested.path / "templates" / "more")
    (nested.path / "templates" / "more").symlink_to(outside)
    assert damage_of(nested.path, 7) == "templates/more/tools.jinja is missing"
    (nested.path / "templates" / "more").unlink()
    (nested.path / "templates" / "more").mkdir()
    (nested.path / "templates" / "more" / "tools.jinja").symlink_to(outside / "tools.jinja")
    assert damage_of(nested.path, 7) == "templates/more/tools.jinja is missing"


def test_a_link_is_not_saved(tmp_path):
    folder = begin(tmp_path, 7)
    (folder / "weights").symlink_to("/etc/hostname")
    with pytest.raises(OSError):
        commit(folder, 7)


def test_inner_folders_are_synced_after_their_files_and_before_the_name(tmp_path, monkeypatch):
    folder, order, sync = begin(tmp_path, 7), [], os.fsync
    (folder / "templates").mkdir()
    (folder / "templates" / "tools.jinja").write_text("tools")

    def note(number):
        order.append(Path(f"/proc/self/fd/{number}").resolve().relative_to(tmp_path).as_posix())
        sync(number)

    monkeypatch.setattr(os, "fsync", note)
    commit(folder, 7)
    begun = folder.name
    assert order[:3] == [f"{begun}/templates/tools.jinja", f"{begun}/templates", begun]
    assert order[-1] == "."


def test_a_save_is_synced_before_it_gets_its_name(tmp_path, monkeypatch):
    order = []
    sync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda number: order.append("fsync") or sync(number))
    rename = type(tmp_path).rename
    monkeypatch.setattr(type(tmp_path), "rename", lambda self, to: order.append("rename") or rename(self, to))
    make(tmp_path, 3)
    named = len(order) - 1 - order[::-1].index("rename")
    assert order[:named].count("fsync") >= 3
    assert "fsync" in order[named:]


def test_damaged_newer_checkpoints_do_not_make_rotation_remove_the_good_one(three):
    for step in (10, 100):
        (three / f"step-{step}" / "model.safetensors").write_bytes(b"")
    assert newest_whole(three, lambda damage: None).step == 9
    set_aside_after(three, 9)
    make(three, 12)
    rotate(three, keep=1)
    assert newest_whole(three, lambda damage: pytest.fail(damage)).step == 12
    assert sorted(path.name for path in three.iterdir()) == ["damaged-step-10", "damaged-step-100", "step-12"]


def test_a_run_whose_two_newest_checkpoints_are_damaged_keeps_what_it_saves_next(tiny_run):
    changes = {"checkpoint.save_steps": 2, "checkpoint.save_total_limit": 3}
    folder, _ = tiny_run("damaged", changes)
    assert steps_saved(folder.checkpoints) == [10, 8, 6]
    for step in (10, 8):
        (folder.checkpoints / f"step-{step}" / "position.json").write_text("{}")
    assert carry_out(open_again(folder)).exit_code == EXIT_DONE
    assert steps_saved(folder.checkpoints) == [10, 8, 6]
    assert newest_whole(folder.checkpoints, lambda damage: pytest.fail(damage)).step == 10


def test_a_run_whose_checkpoints_are_all_damaged_begins_anew_beside_them(tiny_run):
    folder, _ = tiny_run("damaged", {"checkpoint.save_steps": 5, "checkpoint.save_total_limit": 2})
    for step in (10, 5):
        (folder.checkpoints / f"step-{step}" / "position.json").write_text("{}")
    assert carry_out(open_again(folder)).exit_code == EXIT_DONE
    assert [event.resumed_from_step for event in read_all(folder.journal) if isinstance(event, RunStarted)] == [None, 0]
    names = sorted(path.name for path in folder.checkpoints.iterdir())
    assert names == ["damaged-step-10", "damaged-step-5", "step-10", "step-5"]
