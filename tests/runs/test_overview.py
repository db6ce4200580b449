"""The list of runs: what it shows of each, how little it reads, and what it does not read again."""

import json
import os
import shutil
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from tests.runs.journals import AT, end, held_out, read_all, run_of, start, step_done, steps
from tui_trainer.lines.plan_and_events import age_words
from tui_trainer.reporting.facts import facts_of
from tui_trainer.runs import events as e
from tui_trainer.runs.comparison import compare
from tui_trainer.runs.delete_and_rename import delete, rename
from tui_trainer.runs.events import to_line
from tui_trainer.runs.folder import RunFolder
from tui_trainer.runs.lock import RunLock
from tui_trainer.runs.overview import CURVE_POINTS, Overviews, overview
from tui_trainer.runs.registry import add_to_index, remove_from_index
from tui_trainer.runs.state import apply_events


@pytest.fixture
def reads(monkeypatch):
    """The lengths of all reads by offset."""
    lengths = []
    read = os.pread

    def counted(fd, length, offset):
        block = read(fd, length, offset)
        lengths.append(len(block))
        return block

    monkeypatch.setattr(os, "pread", counted)
    return lengths


def test_an_overview_has_the_start_the_end_and_the_loss_of_a_run(tmp_path, subtests):
    for last in (10, 5_000):
        with subtests.test(f"{last} steps"):
            parent = tmp_path / str(last)
            folder = run_of(parent, "a", start(), *steps(1, last), held_out(last, 1.25, accuracy=0.9), end(last))
            found = overview(folder)
            assert (found.name, found.path, found.task, found.started_at) == ("a", folder.root, "chat", start().at)
            assert (found.status, found.step, found.total_steps) == ("finished", last, 5_000)
            assert (found.loss, found.eval_loss, found.scores) == (1.5, 1.25, {"accuracy": 0.9})
            assert (found.alive, found.epoch, found.share_done) == (False, last / 100, last / 5_000)
            assert found.last_event_at == end().at


def test_loss_and_curve_are_of_the_whole_journal(tmp_path, subtests):
    for last in (1, 3, 50, 400, 5_000):
        with subtests.test(f"{last} steps"):
            folder = run_of(tmp_path, f"{last}", start(), *steps(1, last))
            found = overview(folder)
            assert found.loss == pytest.approx(apply_events(read_all(folder.journal)).loss_smoothed)
            curve = found.loss_curve
            assert len(curve) == min(last, CURVE_POINTS) and list(curve) == sorted(curve, reverse=True)
            assert curve[-1] == pytest.approx(5 - last / 1000, abs=0.01 + last / 1000 / CURVE_POINTS)
            assert curve[0] == pytest.approx(5, abs=0.05 + 1.5 * last / 1000 / CURVE_POINTS)


def test_losses_that_are_not_finite_are_left_out(tmp_path):
    folder = run_of(tmp_path, "a", start(), step_done(1), step_done(2, float("nan")), step_done(3, float("inf")))
    assert (overview(folder).step, overview(folder).loss, overview(folder).loss_curve) == (3, 2.0, (2.0,))


def test_the_best_evaluation_is_by_the_planned_metric(tmp_path):
    evals = [held_out(10, 1.0, f1=0.5), held_out(20, 1.1, f1=0.7), held_out(30, 0.9, f1=0.6, best=False)]
    folder = run_of(tmp_path, "a", start(), *evals)
    assert (overview(folder).metric, overview(folder).best) == ("loss", 1.1)
    folder.plan.write_text(json.dumps({"config": {"evaluation": {"metric_for_best_model": "f1"}}}))
    assert (overview(folder).metric, overview(folder).best, overview(folder).eval_loss) == ("f1", 0.7, 0.9)
    for damaged in ("{", "[]", '{"config": 3}'):
        folder.plan.write_text(damaged)
        assert overview(folder).metric == "loss"


def test_a_run_without_an_owner_is_interrupted(tmp_path):
    folder = run_of(tmp_path, "a", start(), *steps(1, 3))
    assert overview(folder).status == "interrupted"
    with RunLock(folder.lock):
        assert (overview(folder).status, overview(folder).alive) == ("training", True)
    assert overview(folder).status == "interrupted"


def test_unchanged_journals_are_not_read_again(tmp_path, reads):
    folders = [run_of(tmp_path, f"run-{n}", start(), *steps(1, 2_000)) for n in range(3)]
    overviews = Overviews()
    first = overviews.read()
    assert [one.name for one in first] == ["run-2", "run-1", "run-0"]
    reads.clear()
    assert overviews.read() == first and reads == []
    assert Overviews().read() == first and [overview(folder) for folder in reversed(folders)] == first and reads == []
    with folders[1].journal.open("ab") as journal:
        journal.write(to_line(end()).encode() + b"\n")
    assert [one.status for one in overviews.read()] == ["interrupted", "finished", "interrupted"]
    assert sum(reads) == folders[1].journal.stat().st_size
    reads.clear()
    assert compare(folders[:2]).runs[1].status == "finished" and facts_of(folders[2]).listed_run == first[0]
    assert sum(reads) == sum(folder.journal.stat().st_size for folder in folders), "each is read once"


def test_only_new_lines_of_an_active_run_are_read(tmp_path, reads):
    folder, overviews = run_of(tmp_path, "a", start(), *steps(1, 2_000)), Overviews()
    with RunLock(folder.lock):
        for step in (2_001, 2_002):
            overviews.read()
            reads.clear()
            line = to_line(step_done(step)).encode() + b"\n"
            with folder.journal.open("ab") as journal:
                journal.write(line)
            assert overviews.read()[0].step == step and reads[-1] == len(line)
        assert not folder.summary.exists()


def test_an_unusable_summary_is_replaced(tmp_path, reads, subtests):
    folder = run_of(tmp_path, "a", start(), *steps(1, 20), end(20))
    first, whole = overview(folder), folder.summary.read_bytes()
    for damaged in (b"", b"{", b"[]", b'{"version": 0}', b"9" * 5_000, b"\xff\x00"):
        with subtests.test(repr(damaged[:20])):
            folder.summary.write_bytes(damaged)
            reads.clear()
            assert overview(folder) == first and reads and folder.summary.read_bytes() == whole
    for changed in ('"task": 3', '"status": "running"', '"loss_curve": ["x"]', '"scores": []'):
        with subtests.test(changed):
            fields = json.loads(whole)
            fields[1].update(json.loads(f"{{{changed}}}"))
            folder.summary.write_text(json.dumps(fields))
            assert overview(folder) == first


def test_an_overview_needs_no_summary_that_can_be_written(tmp_path):
    folder = run_of(tmp_path, "a", start(), end(5))
    folder.summary.mkdir()
    assert overview(folder).status == "finished" and folder.summary.is_dir()


def test_a_renamed_run_is_listed_by_its_new_name(tmp_path):
    folder = run_of(tmp_path, "a", start(), end(5))
    overview(folder)
    assert rename(folder.root, "b") is None
    assert [(one.name, one.path.name, one.status) for one in Overviews().read()] == [("b", "b", "finished")]


def test_a_new_owner_is_noticed_with_an_unchanged_journal(tmp_path):
    for name, last in (("running", ()), ("ended", (end(3),))):
        folder = run_of(tmp_path, name, start(), *steps(1, 3), *last)
        overviews = Overviews()
        assert not overviews.read()[0].alive
        with RunLock(folder.lock):
            assert overviews.read()[0].alive and overview(folder).alive and folder.summary.exists()
        assert not overviews.read()[0].alive and not overview(folder).alive


def test_a_removed_run_is_noticed(tmp_path):
    folders = [run_of(tmp_path, "a", start()), run_of(tmp_path, "b", start())]
    overviews = Overviews()
    folders[0].journal.unlink()
    assert [one.status for one in overviews.read()] == ["interrupted", "interrupted"]
    for folder in folders:
        shutil.rmtree(folder.root)
    assert [one.status for one in overviews.read()] == ["gone", "gone"]
    run_of(tmp_path, "a", start(), end())
    assert [one.status for one in overviews.read()] == ["finished", "gone"]


def test_folders_without_a_run_are_listed_with_the_reason(tmp_path):
    names = ("whole", "gone", "file", "foreign", "empty", "by-hand", "half", "no-journal")
    folders = {name: run_of(tmp_path, name, start()) for name in names}
    for name in ("gone", "file", "foreign", "empty"):
        shutil.rmtree(folders[name].root)
    folders["file"].root.write_text("not a folder")
    folders["empty"].root.mkdir()
    folders["foreign"].root.mkdir()
    (folders["foreign"].root / "thesis.tex").write_text("")
    for path in (folders["by-hand"].journal, folders["by-hand"].config):
        path.unlink()
    folders["half"].root.rename(tmp_path / ".deleting-half")
    folders["no-journal"].journal.unlink()
    found = {one.name: (one.status, one.is_run) for one in Overviews().read()}
    assert found == {
        "whole": ("interrupted", True),
        "no-journal": ("interrupted", True),
        "gone": ("gone", False),
        "file": ("no run folder", False),
        "foreign": ("no run folder", False),
        "empty": ("no run folder", False),
        "by-hand": ("half deleted", False),
        "half": ("half deleted", False),
    }


def test_a_half_deleted_run_is_listed_beside_a_new_one_of_its_name(tmp_path):
    run_of(tmp_path, "a", start()).root.rename(tmp_path / ".deleting-a")
    folder = run_of(tmp_path, "a", start())
    assert [(one.path, one.status) for one in Overviews().read()] == [
        (tmp_path / ".deleting-a", "half deleted"),
        (folder.root, "interrupted"),
    ]


def test_a_journal_that_is_a_link_is_not_followed(tmp_path):
    folder = run_of(tmp_path, "a", start())
    folder.journal.unlink()
    folder.journal.symlink_to("/dev/zero")
    assert overview(folder).status == "unreadable"


def test_a_journal_of_garbage_is_an_interrupted_run(tmp_path):
    folder = run_of(tmp_path, "a")
    for garbage in (b"", b"\n", b"\xff" * 300_000, b'{"event": "StepDone"\n' * 20_000, b'{"event": "StepDone"}'):
        folder.journal.write_bytes(garbage)
        assert (overview(folder).status, overview(folder).loss_curve) == ("interrupted", ())


def test_another_machines_clock_gives_no_age(tmp_path):
    run_of(tmp_path, "a", start())
    (one,) = Overviews().read()
    now = datetime(2026, 11, 20, 13, 46, tzinfo=UTC)
    assert one.age_seconds(now) == 60.0 and age_words(one, now) == "1 min 00 s"
    before = now.replace(hour=12)
    assert one.age_seconds(before) < 0 and age_words(one, before) == "clock ahead"


def test_a_measured_size_counts_each_file_once(tmp_path):
    folder = run_of(tmp_path, "a", start())
    overviews = Overviews()
    assert [(one.size_bytes, one.freed_bytes) for one in overviews.read()] == [(None, None)]
    before = overviews.measure(folder.root).bytes
    weights = folder.checkpoints / "weights"
    weights.write_bytes(bytes(5_000))
    os.link(weights, folder.checkpoints / "again")
    os.link(weights, folder.logs / "and-again")
    (folder.root / "notes.txt").write_bytes(bytes(300))
    (folder.root / "elsewhere").symlink_to("/usr")
    link_bytes = len("/usr")
    overviews.measure(folder.root)
    (one,) = overviews.read()
    assert one.size_bytes == before + 5_300 + link_bytes
    assert one.freed_bytes == before + 5_000
    os.link(weights, tmp_path / "outside")
    assert overviews.measure(folder.root).freed_bytes == before


def test_unlisted_runs_are_found_in_the_folders_of_runs(tmp_path):
    def begun(name: str, at: str) -> RunFolder:
        return run_of(tmp_path / "runs", name, replace(start(), at=f"2026-11-{at}T10:00:00.000Z"))

    known = [begun("old", "10"), begun("new", "20")]
    unknown = [begun("newest", "25"), begun("between", "15"), begun("oldest", "05"), begun("half", "15")]
    for folder in unknown:
        assert remove_from_index(folder.root) is None
    unknown[3].root.rename(tmp_path / "runs" / ".deleting-half")
    for name in (".cache", "thesis"):
        (tmp_path / "runs" / name).mkdir()
    (tmp_path / "runs" / "notes.txt").write_text("")
    (tmp_path / "runs" / "latest").symlink_to(known[1].root)
    overviews, places = Overviews(), [tmp_path / "runs", tmp_path / "runs" / ".." / "runs", tmp_path / "nowhere"]
    for _ in range(2):
        found = [(one.path.name, one.status) for one in overviews.read(places)]
        assert [name for name, _ in found] == ["newest", "new", "between", "old", "oldest", ".deleting-half", "thesis"]
        assert [status for _, status in found[5:]] == ["half deleted", "no run folder"]
    assert [one.name for one in overviews.read()] == ["new", "old"]
    assert delete(tmp_path / "runs" / ".deleting-half") and delete(unknown[0].root)
    assert not {"newest", ".deleting-half"} & {one.path.name for one in overviews.read(places)}


def test_runs_of_all_folders_are_listed(tmp_path):
    run_of(tmp_path / "runs", "a", start())
    elsewhere = run_of(tmp_path / "other", "a", start())
    add_to_index(elsewhere.root)
    assert [one.path.parent.name for one in Overviews().read()] == ["other", "runs"]


def test_a_folder_without_a_journal_and_an_owner_is_preparing(tmp_path):
    folder = RunFolder.create(tmp_path, "a")
    folder.config.write_text("")
    with RunLock(folder.lock):
        assert overview(folder).status == "preparing"


def reduced(step: int) -> e.MicroBatchReduced:
    return e.MicroBatchReduced(
        at=AT, step=step, kind="out of memory", message="m", what="training", rows_before=4, rows=2, passes=2,
        longest_row=9,
    )  # fmt: skip


def test_an_overview_counts_the_out_of_memory_events_of_a_run(tmp_path):
    folder = run_of(tmp_path, "a", start(), *steps(1, 3), reduced(3), reduced(4), end(5))
    assert overview(folder).out_of_memory_events == 2
    assert overview(run_of(tmp_path, "b", start(), end(5))).out_of_memory_events == 0


def test_out_of_memory_events_are_taken_from_the_plan(tmp_path):
    folder = run_of(tmp_path, "a", start(), end(5))
    folder.plan.write_text('{"out_of_memory_events": 3}')
    assert overview(folder).out_of_memory_events == 3
