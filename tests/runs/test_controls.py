"""Requests to a running run: each arrives once and in order, whatever the file holds."""

import json
import os
import resource
import stat
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.runs.journals import start
from tui_trainer.errors import FolderError
from tui_trainer.launching.run_lifecycle import last_answered_id
from tui_trainer.runs.controls import CONTROL_ACTIONS, Controls, request
from tui_trainer.runs.events import ControlApplied
from tui_trainer.runs.lock import RunLock


@pytest.fixture
def path(tmp_path):
    return tmp_path / "control.json"


def actions(requests):
    return [one.action for one in requests]


def test_each_request_arrives_once_and_in_order(path):
    controls = Controls(path)
    assert controls.take_requests() == []
    ids = [request(path, action) for action in CONTROL_ACTIONS]
    assert ids == [1, 2, 3, 4, 5]
    assert actions(controls.take_requests()) == list(CONTROL_ACTIONS)
    assert controls.take_requests() == []
    request(path, "save")
    assert [(one.id, one.action) for one in controls.take_requests()] == [(6, "save")]
    assert controls.take_requests() == []


def test_requests_to_an_earlier_start_are_ignored(path):
    request(path, "stop")
    controls = Controls(path)
    request(path, "save")
    assert actions(controls.take_requests()) == ["save"]


def test_requests_after_the_last_known_one_are_answered(path):
    for action in ("save", "pause", "stop"):
        request(path, action)
    assert actions(Controls(path, last_earlier_id=2).take_requests()) == ["stop"]
    assert actions(Controls(path, last_earlier_id=0).take_requests()) == ["save", "pause", "stop"]


def test_a_restart_repeats_unanswered_requests_and_a_pause_that_holds(path, subtests):
    for action in ("save", "pause", "resume", "evaluate"):
        request(path, action)
    for done, again in (
        ("save pause resume", "evaluate"),
        ("save pause", "pause resume evaluate"),
        ("", "save pause resume evaluate"),
    ):
        with subtests.test(f"answered: {done}"):
            events = [ControlApplied(action=action, request_id=number) for number, action in enumerate(done.split(), 1)]
            before = last_answered_id(0, [ControlApplied(action="stop", request_id=9), start(), *events])
            assert actions(Controls(path, last_earlier_id=before).take_requests()) == again.split()


def test_waiting_requests_are_returned_again_and_first(path):
    controls = Controls(path)
    request(path, "pause")
    assert actions(controls.peek_requests()) == ["pause"]
    request(path, "save")
    assert actions(controls.take_requests()) == ["pause", "save"]
    assert controls.take_requests() == []


def test_a_request_is_read_once_there_are_free_file_descriptors(path):
    controls = Controls(path)
    request(path, "stop")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))  # too many open files
    try:
        assert not controls.has_stop()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert controls.has_stop()


def test_requests_from_several_threads_are_all_kept(path):
    controls = Controls(path)
    with ThreadPoolExecutor(4) as pool:
        ids = list(pool.map(lambda _: request(path, "save"), range(40)))
    assert sorted(ids) == list(range(1, 41))
    assert [one.id for one in controls.take_requests()] == list(range(1, 41))


def test_a_change_within_one_clock_tick_is_noticed(path):
    controls = Controls(path)
    request(path, "save")
    os.utime(path, ns=(0, 0))
    size_bytes = path.stat().st_size
    assert actions(controls.take_requests()) == ["save"]
    content = json.loads(path.read_text())
    content["requests"][0] |= {"id": 2, "action": "stop"}
    path.rename(path.with_name("kept"))  # its inode is not free for the next file
    path.write_text(json.dumps(content))
    os.utime(path, ns=(0, 0))
    assert path.stat().st_size == size_bytes
    assert actions(controls.take_requests()) == ["stop"]


GARBAGE = [
    b"", b"\x00" * 9, b'{"requests": [', b"[]", b"3", b"\xff", b'{"requests": 3}', b'{"requests": [3, null, []]}',
    b'{"requests": [{"id": "1", "action": "stop", "at": ""}, {"id": 1, "action": "explode", "at": ""}]}',
    b'{"requests": [{"id": 1, "action": ["stop"], "at": ""}, {"id": true, "action": "stop", "at": ""}]}',
    b"[" * 100_000,
]  # fmt: skip


def test_garbage_is_no_request_and_is_replaced_by_the_next_one(tmp_path, subtests):
    for number, garbage in enumerate(GARBAGE):
        with subtests.test(repr(garbage[:40])):
            path = tmp_path / f"{number}.json"
            controls = Controls(path)
            request(path, "save")
            assert len(controls.take_requests()) == 1
            path.write_bytes(garbage)
            assert controls.take_requests() == []
            request(path, "stop")
            assert actions(controls.take_requests()) == ["stop"]


def test_the_file_keeps_the_last_hundred_and_ids_go_on(path):
    for _ in range(103):
        last = request(path, "evaluate")
    kept = json.loads(path.read_text())["requests"]
    assert last == 103
    assert [one["id"] for one in kept] == list(range(4, 104))


def test_a_folder_link_or_pipe_in_place_of_the_file_is_no_request(tmp_path):
    names = ("real", "link", "folder", "pipe")
    waiting = {name: Controls(tmp_path / name) for name in names}
    (tmp_path / "real").write_text('{"requests": [{"id": 1, "action": "stop", "at": ""}]}')
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    assert {name: actions(waiting[name].take_requests()) for name in names} == {
        "real": ["stop"], "link": [], "folder": [], "pipe": []
    }  # fmt: skip


def test_the_file_is_private_and_leaves_no_temporary_file(path):
    before = os.umask(0)
    try:
        request(path, "save")
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(path.parent.iterdir()) == [path]


def test_a_request_that_cannot_be_written_is_an_error(tmp_path):
    with pytest.raises(FolderError, match="cannot request save: No such file"):
        request(tmp_path / "gone" / "control.json", "save")


def test_a_stop_that_cannot_be_written_names_the_kill_command(path):
    path.mkdir()
    with RunLock(path.with_name("run.lock")), pytest.raises(FolderError, match=f"kill {os.getpid()}`"):
        request(path, "stop")
    with pytest.raises(FolderError, match=r"cannot request save: Is a directory$"):
        request(path, "save")


def test_a_stop_from_the_same_process_needs_no_file(path):
    path.mkdir()
    controls = Controls(path)
    assert not controls.has_stop() and not controls.has_news()
    controls.stop()
    assert controls.has_stop() and controls.has_news()
    assert actions(controls.take_requests()) == ["stop"]
    assert controls.take_requests() == [] and controls.has_stop()
