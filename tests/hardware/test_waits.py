"""Waits for cores and for storage, read from files as the kernel writes them."""

from __future__ import annotations

from tui_trainer.hardware.processor import CoreWaits, DiskReads


def write(tasks, name, computed, waited):
    (tasks / name).mkdir(parents=True, exist_ok=True)
    (tasks / name / "schedstat").write_text(f"{computed} {waited} 12\n")


def test_the_core_wait_share_counts_threads_that_existed_at_the_look_before(tmp_path):
    waits = CoreWaits(tmp_path)
    write(tmp_path, "1", 10**9, 10**9)
    write(tmp_path, "2", 0, 0)
    assert waits.share() is None
    write(tmp_path, "1", 2 * 10**9, 15 * 10**8)
    write(tmp_path, "2", 10**9, 5 * 10**8)
    write(tmp_path, "3", 7 * 10**9, 9 * 10**9)
    assert waits.share() == round(1 / 3, 4)
    assert waits.share() is None, "nothing was computed since"


def test_a_kernel_without_wait_counters_gives_no_share(tmp_path):
    assert CoreWaits(tmp_path / "none").share() is None
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "schedstat").write_text("\n")
    waits = CoreWaits(tmp_path)
    assert (waits.share(), waits.share()) == (None, None)


def test_bytes_and_stalls_of_storage_count_from_the_look_before(tmp_path):
    (tmp_path / "self").mkdir()
    (tmp_path / "pressure").mkdir()
    clock = [100.0]
    reads = DiskReads(lambda: clock[0], tmp_path)

    def note(read, stalled):
        (tmp_path / "self/io").write_text(f"rchar: 5\nread_bytes: {read}\nwrite_bytes: 9\n")
        (tmp_path / "pressure/io").write_text(f"some avg10=1.00 avg60=0.00 avg300=0.00 total={stalled}\nfull avg10=0\n")

    note(1_000, 0)
    assert (reads.bytes(), reads.stall_share()) == (None, None)
    clock[0] = 104.0
    note(5_000, 1_000_000)
    assert (reads.bytes(), reads.stall_share()) == (4_000, 0.25)


def test_a_system_without_storage_counters_gives_none(tmp_path):
    reads = DiskReads(root=tmp_path)
    assert [reads.bytes(), reads.stall_share()] * 2 == [None] * 4
