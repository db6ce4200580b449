"""The journal of a run: torn lines, garbage, a full disk, and events from other threads and processes."""

import errno
import os
import resource
import stat
from contextlib import contextmanager

import pytest

from tests.runs.journals import read_all, step_done
from tui_trainer.errors import FolderError
from tui_trainer.runs.events import (
    GaugesRead,
    PhaseChanged,
    Progress,
    RunFailed,
    RunFinished,
    RunStarted,
    TextSampled,
    to_line,
)
from tui_trainer.runs.journal import JournalReader, JournalWriter


def phases(count, start=0):
    return [PhaseChanged(phase=f"phase {number}", step=number) for number in range(start, start + count)]


def names(events):
    return [event.phase for event in events]


@contextmanager
def files_no_larger_than(size_bytes):
    """Writes beyond that size come back short, then fail with EFBIG, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_journal_cut_at_any_byte_loses_only_the_torn_line(tmp_path):
    path = tmp_path / "journal.jsonl"
    lines = [to_line(event).encode() + b"\n" for event in phases(5)]
    whole = b"".join(lines)
    cuts = range(len(lines[0] + lines[1]), len(whole) + 1)
    assert len(cuts) > 200
    for cut in cuts:
        path.write_bytes(whole[:cut])
        complete = whole[:cut].count(b"\n")
        reader = JournalReader(path)
        assert names(reader.read_new()) == names(phases(complete))
        with JournalWriter(path) as writer:
            writer.append(PhaseChanged(phase="after"))
        # A line that lacks nothing but its line break is completed by the writer.
        survivors = complete + (whole[cut : cut + 1] == b"\n")
        assert names(read_all(path)) == [*names(phases(survivors)), "after"]
        assert names(reader.read_new())[-1] == "after"


def test_a_torn_last_line_is_waited_for(tmp_path):
    path = tmp_path / "journal.jsonl"
    line = to_line(phases(1)[0]).encode() + b"\n"
    reader = JournalReader(path)
    assert reader.read_new() == []
    for size in range(len(line)):
        path.write_bytes(line[:size])
        assert reader.read_new() == []
    path.write_bytes(line)
    assert names(reader.read_new()) == ["phase 0"]
    assert reader.read_new() == []
    assert reader.skipped == 0


def test_garbage_between_lines_is_skipped_and_counted(tmp_path, subtests):
    first, second = (to_line(event).encode() + b"\n" for event in phases(2))
    garbage = (b"\x00" * 50, b"\xff\xfe\x80", b"not json", b'{"event": "Step', b"x" * 1_200_000, b"[" * 50_000, b"\r")
    for number, line in enumerate(garbage):
        with subtests.test(repr(line[:20])):
            path = tmp_path / f"{number}.jsonl"
            path.write_bytes(first + line + b"\n" + second)
            reader = JournalReader(path)
            assert names(reader.read_new()) == ["phase 0", "phase 1"]
            assert reader.skipped == 1


def test_an_endless_line_is_skipped_and_counted_once(tmp_path):
    path = tmp_path / "journal.jsonl"
    reader = JournalReader(path)
    with path.open("ab") as file:
        for _ in range(6):
            file.write(b"y" * 700_000)
            file.flush()
            assert reader.read_new() == []
        file.write(b"y\n" + to_line(phases(1)[0]).encode() + b"\n")
    assert names(reader.read_new()) == ["phase 0"]
    assert reader.skipped == 1


def test_a_valid_line_beyond_the_limit_is_skipped_wherever_chunks_end(tmp_path):
    path = tmp_path / "journal.jsonl"
    long = to_line(phases(1)[0]).encode()[:-1] + b" " * 1_000_000 + b"}\n"
    path.write_bytes((long + to_line(phases(1)[0]).encode() + b"\n") * 9)
    reader = JournalReader(path)
    assert names(reader.read_new()) == ["phase 0"] * 9
    assert reader.skipped == 9


def test_lines_across_chunk_borders_are_all_read(tmp_path):
    path = tmp_path / "journal.jsonl"
    text = "z" * 9_000
    with JournalWriter(path) as writer:
        writer.append(*[TextSampled(step=step, prompt="", text=text) for step in range(1_000)])
    assert path.stat().st_size > 8 * 2**20
    assert [event.step for event in read_all(path)] == list(range(1_000))


def test_lines_reach_readers_at_once_and_in_order(tmp_path):
    path = tmp_path / "journal.jsonl"
    reader = JournalReader(path)
    with JournalWriter(path) as writer:
        writer.append(*phases(3))
        assert names(reader.read_new()) == names(phases(3))
        writer.append(*phases(2, start=3))
        assert names(reader.read_new()) == names(phases(2, start=3))
        writer.sync()
        assert writer.failure_reason is None


def test_lines_are_written_whole_once_a_full_disk_has_room_again(tmp_path, subtests):
    for room_bytes in (0, 1, 40, 100, 333):
        with subtests.test(f"{room_bytes} bytes left"):
            path = tmp_path / f"{room_bytes}.jsonl"
            writer = JournalWriter(path)
            writer.append(*phases(1))
            with files_no_larger_than(path.stat().st_size + room_bytes):
                writer.append(*phases(3, start=1))
                writer.append(*phases(1, start=4))
                failing = writer.failure_reason
            assert failing == "File too large"
            writer.append(*phases(1, start=5))
            assert writer.failure_reason is None
            writer.close()
            reader = JournalReader(path)
            assert names(reader.read_new()) == names(phases(6))
            assert reader.skipped == 0


def test_pending_lines_are_bounded_and_the_oldest_are_dropped(tmp_path, subtests):
    line_bytes = len(to_line(phases(1, start=10)[0])) + 1
    for room_bytes, begun in ((0, []), (40, ["phase 10"])):
        with subtests.test(f"{room_bytes} bytes left"):
            path = tmp_path / f"{room_bytes}.jsonl"
            writer = JournalWriter(path, pending_limit_bytes=5 * line_bytes)
            with files_no_larger_than(room_bytes):
                for event in phases(30, start=10):
                    writer.append(event)
            writer.close()
            reader = JournalReader(path)
            written = names(reader.read_new())
            last = len(written) - len(begun)
            assert written == begun + names(phases(last, start=40 - last))
            assert 3 <= len(written) <= 6 and reader.skipped == 0


def test_a_torn_line_is_closed_although_the_disk_was_full_at_the_start(tmp_path):
    path = tmp_path / "journal.jsonl"
    path.write_bytes(to_line(phases(1)[0]).encode() + b'\n{"event": "Ph')
    with files_no_larger_than(path.stat().st_size):
        writer = JournalWriter(path, pending_limit_bytes=10)
        assert writer.failure_reason
        writer.append(*phases(1, start=1))
    writer.append(*phases(1, start=2))
    writer.close()
    assert names(read_all(path)) == ["phase 0", "phase 2"]


def test_a_closed_journal_ignores_events(tmp_path):
    path = tmp_path / "journal.jsonl"
    writer = JournalWriter(path)
    writer.close()
    writer.append(*phases(1))
    writer.sync()
    writer.close()
    assert writer.failure_reason
    assert read_all(path) == []


def test_a_side_event_gets_the_step_of_the_events_before_it(tmp_path):
    path = tmp_path / "journal.jsonl"
    with JournalWriter(path) as writer:
        writer.append_from_thread(GaugesRead(step=9))
        writer.append(
            RunStarted(name="a", task="t", device="cpu", pid=1, total_steps=9, resumed_from_step=4, step=4),
            PhaseChanged(phase="preparing", step=4),
            Progress(what="reading", done=1),
        )
        writer.append_from_thread(GaugesRead())
        writer.append(*[TextSampled(step=step, prompt="", text="") for step in (5, 6)])
        writer.append_from_thread(GaugesRead(step=99))
    assert [event.step for event in read_all(path) if isinstance(event, GaugesRead)] == [4, 6]


def test_a_side_event_gets_the_step_of_another_process(tmp_path):
    path = tmp_path / "journal.jsonl"
    with JournalWriter(path) as head, JournalWriter(path) as first:
        head.append(PhaseChanged(phase="training", step=4))
        first.append(PhaseChanged(phase="training", step=4), step_done(17), TextSampled(step=17, prompt="", text=""))
        head.read_newest_step()
        head.append_from_thread(GaugesRead())
    assert [event.step for event in read_all(path) if isinstance(event, GaugesRead)] == [17]


def test_side_events_are_left_out_unless_the_run_is_active(tmp_path):
    ends = [RunFinished(reason="done", loss=1.0, eval_loss=None, seconds=1.0), RunFailed(message="x")]
    for number, end in enumerate(ends):
        path = tmp_path / f"{number}.jsonl"
        writer = JournalWriter(path)
        for phase, memory_bytes in (("training", 1), ("paused", 2), ("training", 3)):
            writer.append(PhaseChanged(phase=phase))
            writer.append_from_thread(GaugesRead(process_memory_bytes=memory_bytes))
        writer.append(end)
        writer.append_from_thread(GaugesRead(process_memory_bytes=4))
        writer.close()
        closed = JournalWriter(path)
        closed.close()
        closed.append_from_thread(GaugesRead(process_memory_bytes=5))
        assert [event.process_memory_bytes for event in read_all(path) if isinstance(event, GaugesRead)] == [1, 3]
        assert read_all(path)[-1] == end
        assert (writer.failure_reason, closed.failure_reason) == (None, None)


def test_a_journal_is_private_for_any_umask(tmp_path):
    for umask in (0o000, 0o077, 0o777):
        path = tmp_path / f"{umask}.jsonl"
        before = os.umask(umask)
        try:
            JournalWriter(path).close()
        finally:
            os.umask(before)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_link_or_pipe_is_not_written_to(tmp_path):
    target = tmp_path / "secret"
    target.write_text("keep")
    (tmp_path / "link").symlink_to(target)
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe"):
        with pytest.raises(FolderError):
            JournalWriter(tmp_path / name)
        assert read_all(tmp_path / name) == []
    assert target.read_text() == "keep"


def test_a_replaced_journal_is_read_from_its_start(tmp_path):
    path = tmp_path / "journal.jsonl"
    reader = JournalReader(path)
    with JournalWriter(path) as writer:
        writer.append(*phases(4))
    assert len(reader.read_new()) == 4
    path.rename(tmp_path / "old")
    assert reader.read_new() == []
    with JournalWriter(path) as writer:
        writer.append(*phases(5))
    assert names(reader.read_new()) == names(phases(5))


def test_half_a_line_of_a_replaced_journal_is_forgotten(tmp_path):
    path = tmp_path / "journal.jsonl"
    reader = JournalReader(path)
    path.write_bytes(to_line(phases(1)[0]).encode()[:20])
    assert reader.read_new() == []
    path.rename(tmp_path / "old")
    with JournalWriter(path) as writer:
        writer.append(*phases(3))
    assert names(reader.read_new()) == names(phases(3))
    assert reader.skipped == 0


def test_a_failed_sync_is_reported_until_one_succeeds(tmp_path, monkeypatch):
    def broken(fd):
        raise OSError(errno.EIO, "Input/output error")

    with JournalWriter(tmp_path / "journal.jsonl") as writer:
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", broken)
            writer.sync()
        assert writer.failure_reason == "Input/output error"
        writer.append(*phases(1))
        assert writer.failure_reason == "Input/output error", "the write went well, and is not on the disk"
        writer.sync()
        assert writer.failure_reason is None
