"""A damaged checkpoint is named, and the one before it is used."""

import errno
import json
import os
import random
import shutil
from pathlib import Path

import pytest

from tui_trainer.errors import CheckpointError
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


def test_every_flipped_bit_and_every_cut_is_noticed(three):
    chance = random.Random(1)
    for name in ("model.safetensors", "position.json"):
        path = three / "step-100" / name
        whole = path.read_bytes()
        for _ in range(100):
            bit = chance.randrange(len(whole) * 8)
            flipped = bytearray(whole)
            flipped[bit // 8] ^= 1 << bit % 8
            path.write_bytes(flipped)
            assert name in (damage_of(three / "step-100", 100) or "")
        for length in {0, 1, len(whole) - 1, *(chance.randrange(len(whole)) for _ in range(20))}:
            path.write_bytes(whole[:length])
            assert name in (damage_of(three / "step-100", 100) or "")
        path.write_bytes(whole)
        assert damage_of(three / "step-100", 100) is None


def test_a_damaged_manifest_is_no_checkpoint(three):
    for content in (
        b"", b"{", b"[]", b"null", b'{"format": 1}', b'{"format": 9, "step": 100, "files": {}}', b"\xff" * 9,
    ):  # fmt: skip
        (three / "step-100" / "manifest.json").write_bytes(content)
        assert damage_of(three / "step-100", 100), content
        damages = []
        assert newest_whole(three, damages.append).step == 10, content
        assert len(damages) == 1, content


def test_an_unreadable_checkpoint_is_not_taken_for_damaged(three, monkeypatch):
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


def test_only_the_leftovers_of_a_killed_process_are_cleared(three):
    begin(three, 11)
    (three / "step-9").rename(three / ".removing-step-9")
    (three / ".mine").mkdir()
    clear_leftovers(three)
    assert sorted(path.name for path in three.iterdir()) == [".mine", "step-10", "step-100"]


def test_a_checkpoint_is_removed_beside_a_leftover_of_its_name(three):
    left = three / ".removing-step-9"
    left.mkdir()
    (left / "model.safetensors").write_bytes(b"half")
    rotate(three, keep=2)
    assert sorted(path.name for path in three.iterdir()) == ["step-10", "step-100"]


def test_a_damaged_checkpoint_of_the_same_step_is_replaced(three):
    (three / "step-100" / "model.safetensors").write_bytes(b"")
    make(three, 100)
    assert damage_of(three / "step-100", 100) is None


@pytest.fixture
def nested(tmp_path):
    """A checkpoint with a file in an inner folder; a file beside the checkpoint is not part of it."""
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
    assert damage_of(nested.path, 7) == "templates/more/tools.jinja differs from what was written"
    inner.unlink()
    assert damage_of(nested.path, 7) == "templates/more/tools.jinja is missing"


def test_a_manifest_with_names_outside_of_the_checkpoint_is_refused(nested):
    outside = nested.path.parent / "outside"
    path = nested.path / "manifest.json"
    written = path.read_text()
    for name in ("../outside/tools.jinja", f"{outside}/tools.jinja", "templates/../position.json", ""):
        manifest = json.loads(written)
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


def test_files_and_folders_are_synced_before_a_checkpoint_gets_its_name(tmp_path, monkeypatch):
    folder, order, sync, rename = begin(tmp_path, 7), [], os.fsync, Path.rename
    (folder / "templates").mkdir()
    (folder / "templates" / "tools.jinja").write_text("tools")

    def note(number):
        order.append(Path(f"/proc/self/fd/{number}").resolve().relative_to(tmp_path).as_posix())
        sync(number)

    monkeypatch.setattr(os, "fsync", note)
    monkeypatch.setattr(Path, "rename", lambda self, to: order.append("rename") or rename(self, to))
    commit(folder, 7)
    unnamed, named = order[: order.index("rename")], order[order.index("rename") + 1 :]
    assert unnamed[:3] == [f"{folder.name}/templates/tools.jinja", f"{folder.name}/templates", folder.name]
    assert named[-1] == "."


def test_damaged_newer_checkpoints_do_not_make_rotation_remove_the_good_one(three):
    for step in (10, 100):
        (three / f"step-{step}" / "model.safetensors").write_bytes(b"")
    assert newest_whole(three, lambda damage: None).step == 9
    set_aside_after(three, 9)
    make(three, 12)
    rotate(three, keep=1)
    assert newest_whole(three, lambda damage: pytest.fail(damage)).step == 12
    assert sorted(path.name for path in three.iterdir()) == ["damaged-step-10", "damaged-step-100", "step-12"]
