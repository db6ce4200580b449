"""What the events of a journal add up to: steps, status, times, scores, gauges and the slowest process."""

import json
import math
from array import array
from dataclasses import replace

import pytest

from tests.runs.journals import PLANNED, step_done
from tui_trainer.lines.plan_and_events import gauges_line, step_line
from tui_trainer.reporting.curves import charts_of
from tui_trainer.runs import events as e
from tui_trainer.runs.events import from_line, to_line
from tui_trainer.runs.journal import JournalReader, JournalWriter
from tui_trainer.runs.result import best_by, ending_words, kept_step, newest_scores, training_memory_bytes
from tui_trainer.runs.state import GaugeSummary, apply_events, slowest_rank
from tui_trainer.runs.steps_and_eta import eta_seconds


def started(resumed_from_step=None, total_steps=100):
    return e.RunStarted(
        name="a", task="chat", device="cpu", pid=1, total_steps=total_steps, resumed_from_step=resumed_from_step
    )


def step(number, loss=2.0, tokens=100, seconds=0.5):
    return replace(step_done(number), loss_sum=loss * tokens, tokens=tokens, samples=4, step_seconds=seconds)


def evaluated(number, loss=1.5, seconds=2.0, scheduled=True):
    return e.EvalDone(
        step=number, loss_sum=loss * 10, tokens=10, loss=loss, seconds=seconds, scheduled=scheduled, best=False
    )


def saved(number, seconds=1.0):
    return e.CheckpointSaved(step=number, path=f"checkpoints/step-{number}", bytes=5, seconds=seconds, reason="x")


def steps(first, last):
    return [step(number) for number in range(first, last + 1)]


def columns(state):
    return [column for column in vars(state).values() if isinstance(column, array)]


def test_the_first_two_steps_of_a_start_are_not_timed():
    state = apply_events([started(), step(1, seconds=9.0), step(2, seconds=8.0), step(3), step(4)])
    assert (state.times.sums_since_start.steps, state.times.sums_since_start.step_seconds) == (2, 1.0)
    assert [done.step for done in state.recent_sums] == [3, 4]


def test_a_resumed_run_forgets_events_after_its_checkpoint():
    before = [started(), *steps(1, 4), evaluated(4, 1.5), saved(4), e.EpochDone(
        step=4, epoch=1, mean_loss=2.0, seconds=2.0, samples_per_second=1.0, tokens_per_second=1.0
    ), e.TextSampled(step=4, prompt="p", text="kept")]  # fmt: skip
    lost = [*steps(5, 8), evaluated(8, 1.0), saved(8), e.EpochDone(
        step=8, epoch=2, mean_loss=2.0, seconds=2.0, samples_per_second=1.0, tokens_per_second=1.0
    ), e.TextSampled(step=8, prompt="p", text="lost"), e.RunFailed(step=8, message="killed")]  # fmt: skip
    state = apply_events([*before, *lost, started(resumed_from_step=4)])
    assert [list(column) for column in columns(state)] == [list(column) for column in columns(apply_events(before))]
    assert {len(column) for column in columns(state)} == {4}
    for kept in (state.evals, state.checkpoints, state.epochs):
        assert [done.step for done in kept] == [4]
    assert [sample.text for sample in state.samples] == ["kept"]
    assert (state.step, state.resumed_from_step, state.failed, state.last_step) == (4, 4, None, None)
    assert state.status == "preparing"


def test_memory_of_a_run_that_continues_in_another_process_is_counted_from_that_process():
    def peak(number, used):
        return replace(step(number), peak_memory_bytes=used)

    here = [started(), e.LibrariesLoaded(resident_bytes=900), peak(1, 1080)]
    elsewhere = [started(resumed_from_step=1), e.LibrariesLoaded(resident_bytes=860)]
    assert training_memory_bytes(apply_events(here)) == 180
    assert training_memory_bytes(apply_events([*here, *elsewhere])) is None
    assert training_memory_bytes(apply_events([*here, *elsewhere, peak(2, 1030)])) == 170


def test_scores_of_steps_are_weighted_means():
    def scored(number, right, pairs):
        return replace(step(number), sums={"accuracy": right, "margin": 2.0}, counts={"accuracy": pairs, "margin": 0})

    before = [started(), step(1), step(2), scored(3, 1, 4), scored(4, 6, 6)]
    state = apply_events(before)
    assert state.training_scores == {"accuracy": 0.7}, "a sum of which nothing counted has no mean"
    assert [f"{mean:g}" for mean in state.step_scores["accuracy"]] == ["nan", "nan", "0.25", "1"]
    assert "loss 2.0000  accuracy 0.700  lr" in step_line(before[-1], state)
    [chart] = [chart for chart in charts_of(state) if chart.title == "In training: accuracy"]
    assert chart.curves[0].points[-1] == (4, 1.0)
    apply_events([started(resumed_from_step=3), step(4)], state)
    assert [f"{mean:g}" for mean in state.step_scores["accuracy"]] == ["nan", "nan", "0.25", "nan"]
    assert apply_events(steps(1, 3)).step_scores == {}


def test_a_start_without_a_checkpoint_begins_anew_but_keeps_prepared_data():
    data = e.DataPrepared(from_cache=False, rows=1, eval_rows=1, tokens=1, eval_tokens=1, documents=1,
                          eval_documents=1, vocabulary=1, seconds=1.0)  # fmt: skip
    state = apply_events([started(), *steps(1, 5), evaluated(0), data, started(total_steps=7), *steps(1, 2)])
    assert list(state.steps) == [1, 2]
    assert (state.evals, state.data, state.total_steps) == ([], data, 7)


def test_a_repeated_step_replaces_the_first_one_and_all_after_it():
    state = apply_events([started(), *steps(1, 6), evaluated(6), step(4, loss=9.0)])
    assert list(state.steps) == [1, 2, 3, 4]
    assert state.losses[-1] == 9.0
    assert state.evals == []


STATUSES = [
    ([], "preparing"),
    ([started(), e.PhaseChanged(phase="loading")], "preparing"),
    ([started(), e.PhaseChanged(phase="training")], "training"),
    ([started(), e.PhaseChanged(phase="something new"), step(1)], "training"),
    ([started(), step(1), e.PhaseChanged(phase="saving")], "training"),
    ([started(), step(1), e.PhaseChanged(phase="paused")], "paused"),
    ([started(), e.RunFinished(reason="done", loss=1.0, eval_loss=None, seconds=1.0)], "finished"),
    ([started(), e.RunFinished(reason="early stopping", loss=1.0, eval_loss=None, seconds=1.0)], "finished"),
    ([started(), e.RunFinished(reason="stopped", loss=1.0, eval_loss=None, seconds=1.0)], "stopped"),
    ([started(), e.RunFailed(message="x")], "failed"),
    ([started(), e.PhaseChanged(phase="paused"), started(resumed_from_step=0)], "preparing"),
]


def test_the_status_is_one_word(subtests):
    for events, status in STATUSES:
        with subtests.test(f"{status} after {len(events)} events"):
            assert apply_events(events).status == status


EARLY = {"reason": "early stopping", "loss": 1.0, "seconds": 1.0, "step": 4, "model_path": "model"}
BEFORE_THE_LAST = e.EvalDone(
    step=3, loss_sum=0.9, tokens=1, loss=0.9, seconds=1, scheduled=True, best=True, scores={"macro_f1": 0.81}
)
LAST = e.EvalDone(
    step=4, loss_sum=0.7, tokens=1, loss=0.7, seconds=1, scheduled=True, best=False, scores={"macro_f1": 0.75}
)


EARLY_ENDS = [
    ("macro_f1", e.RunFinished(eval_loss=0.9, model_step=3, **EARLY), "kept step 3: macro F1 0.810"),
    ("loss", e.RunFinished(eval_loss=0.9, model_step=3, **EARLY), "kept step 3: held-out loss 0.9000"),
    ("macro_f1", e.RunFinished(eval_loss=0.9, **EARLY), "kept step 3: macro F1 0.810"),  # an older journal
    ("macro_f1", e.RunFinished(eval_loss=0.7, model_step=4, **EARLY), ""),  # the best could not be saved
]


def test_a_run_that_stopped_early_reports_the_model_that_it_kept(subtests):
    for metric, last, words in EARLY_ENDS:
        with subtests.test(f"{metric} {last.model_step}"):
            state = apply_events(
                [started(), replace(PLANNED, total_steps=10, metric=metric), BEFORE_THE_LAST, LAST, last]
            )
            assert ending_words(state) == "stopped early at step 4" + (f"; {words}" if words else "")
            assert (state.status, state.status_words) == ("finished", "stopped early")
            assert kept_step(state) == (3 if words else None)
            assert newest_scores(state) == {"macro_f1": 0.81 if words else 0.75}


OTHER_ENDS = [
    (e.RunFinished(step=10, reason="done", loss=1.0, eval_loss=0.7, seconds=1.0, model_step=10), "finished after"),
    (e.RunFinished(step=6, reason="stopped", loss=1.0, eval_loss=0.7, seconds=1.0), "stopped at step 6 of 10"),
    (e.RunFinished(step=0, reason="stopped", loss=None, eval_loss=None, seconds=0.0), "stopped before the first"),
    (e.RunFailed(step=3, message="x"), "failed at step 2 of 10"),
]


def test_every_other_end_has_its_sentence_and_no_kept_step(subtests):
    for last, words in OTHER_ENDS:
        with subtests.test(words):
            state = apply_events([started(), replace(PLANNED, total_steps=10), step(1), step(2), last])
            assert ending_words(state).startswith(words) and kept_step(state) is None and state.share_done == 0.2


def test_progress_ends_with_its_phase():
    working = [e.PhaseChanged(phase="preparing"), e.Progress(what="tokenising", done=1, total=2, unit="rows")]
    assert apply_events(working).progress == working[1]
    assert apply_events([*working, e.PhaseChanged(phase="loading")]).progress is None


def test_the_remaining_time_is_known_from_the_third_step():
    slow = [step(1, seconds=60.0), step(2, seconds=30.0)]
    assert eta_seconds(apply_events([started(), *slow])) is None
    assert eta_seconds(apply_events([started(), *slow, step(3)])) == pytest.approx(97 * 0.5)
    assert eta_seconds(apply_events([started(), *slow, *steps(3, 80), step(100)])) == 0


def test_the_remaining_time_warms_up_again_after_a_resume():
    events = [started(), *steps(1, 10), started(resumed_from_step=10), step(11, seconds=60.0), step(12, seconds=60.0)]
    assert eta_seconds(apply_events(events)) is None
    assert eta_seconds(apply_events([*events, step(13)])) == pytest.approx(87 * 0.5)


def test_the_remaining_time_counts_scheduled_evaluations_and_saves():
    events = [started(), evaluated(0, seconds=50.0), *steps(1, 10), evaluated(10), saved(10), *steps(11, 20)]
    events += [evaluated(20), evaluated(20, seconds=99.0, scheduled=False), saved(20)]
    assert eta_seconds(apply_events(events)) == pytest.approx(80 * (0.5 + 0.2 + 0.1))


def test_the_remaining_time_is_none_when_the_run_has_ended():
    assert eta_seconds(apply_events([started(), *steps(1, 9), e.RunFailed(message="x")])) is None
    assert eta_seconds(apply_events([started(total_steps=0), *steps(1, 9)])) is None


def test_rates_are_of_the_last_fifty_steps():
    assert apply_events([started()]).tokens_per_second is None
    events = [started(), *[step(number, seconds=5.0) for number in range(1, 101)]]
    state = apply_events([*events, *[step(number, tokens=200, seconds=0.25) for number in range(101, 151)]])
    assert state.tokens_per_second == pytest.approx(800)
    assert state.samples_per_second == pytest.approx(16)


def test_the_smoothed_loss_is_weighted_by_tokens_without_losses_that_are_not_finite():
    state = apply_events(
        [started(), step(1, loss=1.0, tokens=300), step(2, loss=5.0, tokens=100), step(3, loss=math.nan)]
    )
    assert state.loss_smoothed == pytest.approx(2.0)
    assert math.isnan(state.losses[-1])
    assert apply_events([started()]).loss_smoothed is None


def test_the_best_evaluation_is_the_lowest_finite_one():
    assert best_by(apply_events([]), "loss") is None
    events = [evaluated(1, math.nan), evaluated(2, 1.25), evaluated(3, 1.75)]
    assert best_by(apply_events(events), "loss") == events[1]


def test_the_last_samples_and_problems_are_kept():
    samples = [e.TextSampled(step=number, prompt="p", text="t") for number in range(30)]
    problems = [e.RunProblem(step=number, kind="stall", message="m") for number in range(130)]
    state = apply_events([*samples, *problems])
    assert [sample.step for sample in state.samples] == list(range(10, 30))
    assert [problem.step for problem in state.problems] == list(range(30, 130))


def used(number, share=0.5):
    return e.GaugesRead(step=number, process_memory_bytes=number, process_cpu_share=share, usable_cores=2.0)


def test_readings_are_of_the_last_hour_and_their_summary_of_the_whole_run():
    state = apply_events([started(), *(used(number) for number in range(1000))])
    assert [reading.step for reading in state.gauges] == list(range(280, 1000))
    summary = state.gauge_summary
    assert (summary.readings, summary.peak("process_memory_bytes"), summary.mean("busy_cores")) == (1000, 999, 1.0)
    assert (state.step, state.status) == (0, "preparing")


def test_a_resume_keeps_all_readings():
    again = [started(resumed_from_step=4), used(4), started(), used(0)]
    state = apply_events([started(), *steps(1, 6), used(6), *again])
    assert [reading.step for reading in state.gauges] == [6, 4, 0]
    assert state.gauge_summary.readings == 3


def test_a_journal_with_the_former_deadline_and_events_of_a_later_version_is_read():
    at = "2026-11-24T18:00:00+00:00"
    plan = json.loads(to_line(PLANNED)) | {"deadline": at, "row_shares": 1}
    late = {"event": "DeadlineAtRisk", "step": 2, "kind": "deadline", "message": "late", "due": at, "ways": [{}]}
    planned, unknown = (from_line(json.dumps(line)) for line in (plan, late))
    assert planned == PLANNED and isinstance(unknown, e.Unknown)
    begun, *done = started(), *steps(1, 2)
    assert apply_events([begun, planned, *done, unknown]) == apply_events([begun, PLANNED, *done])


def test_a_step_takes_less_than_a_hundred_bytes_of_memory(tmp_path):
    with JournalWriter(tmp_path / "journal.jsonl") as writer:
        writer.append(started(), *steps(1, 2_000))
    state = apply_events(JournalReader(tmp_path / "journal.jsonl").stream())
    assert len(columns(state)) > 10 and {len(column) for column in columns(state)} == {2_000}
    kept_bytes = sum(len(column) * column.itemsize for column in columns(state))
    assert kept_bytes / 2_000 < 100
    assert len(state.recent_sums) <= 50


# Gauges.

GIB = 1 << 30


def summary_of(*readings):
    summary = GaugeSummary()
    for reading in readings:
        summary.add(reading)
    return summary


def card(share=0.9, used=60 * GIB, watts=500.0, celsius=70.0, index=0):
    return e.GpuReading(index=index, utilization_share=share, memory_used_bytes=used, memory_bytes=140 * GIB,
                      power_watts=watts, temperature_celsius=celsius)  # fmt: skip


def test_the_line_of_gauges_has_means_of_use_and_power_and_peaks_of_memory(subtests):
    first = e.GaugesRead(process_memory_bytes=3 * GIB, process_cpu_share=0.5, usable_cores=4.0, gpus=[card()])
    second = e.GaugesRead(process_memory_bytes=2 * GIB, process_cpu_share=0.25, usable_cores=4.0,
                        gpus=[card(0.5, 61 * GIB, 400.0, 60.0)])  # fmt: skip
    nothing = e.GaugesRead(gpus=[e.GpuReading(index=0)])
    some = e.GaugesRead(process_memory_bytes=GIB, gpus=[e.GpuReading(index=0, power_watts=80.0)])
    rows = [
        ([first, second], "GPU 70 %, 61.0 of 140.0 GiB, 450 W, 70 \u00b0C; process 3.0 GiB with libraries, "
                          "CPU 1.5 of 4 cores"),
        ([e.GaugesRead(gpus=[card(), card(0.7, index=1, celsius=75.0)])],
         "GPU 80 %, 60.0 of 140.0 GiB, 1000 W, 75 \u00b0C"),
        ([nothing, some], "GPU 80 W; process 1.0 GiB with libraries"),
        ([e.GaugesRead(process_memory_bytes=GIB)], "process 1.0 GiB with libraries"),
        ([e.GaugesRead(gpus=[e.GpuReading(index=0, utilization_share=0.0)])], "GPU 0 %"),
    ]  # fmt: skip
    for readings, words in rows:
        with subtests.test(words):
            assert gauges_line(3, summary_of(*readings)) == f"step 3: {words}"
    assert gauges_line(1, summary_of()) is None and gauges_line(1, summary_of(nothing)) is None


def test_readings_that_are_not_finite_are_not_shown():
    for value in (math.nan, math.inf, -math.inf):
        odd = e.GaugesRead(process_cpu_share=value, usable_cores=value,
                         gpus=[e.GpuReading(index=0, utilization_share=value, power_watts=value,
                                          temperature_celsius=value)])  # fmt: skip
        assert gauges_line(1, summary_of(odd)) is None
        assert gauges_line(1, summary_of(odd, e.GaugesRead(gpus=[card()]), odd)) == gauges_line(
            1, summary_of(e.GaugesRead(gpus=[card()]))
        )


# The slowest process.


def timed(*times, step_seconds=0.1):
    """Return the state after ten steps and reports of the seconds that each process spent in communication."""
    done = [step(n, seconds=step_seconds) for n in range(1, 11)]
    return apply_events([started(), *done, *(e.RanksTimed(step=10, communication_seconds=list(one)) for one in times)])


def test_the_process_that_waits_least_is_the_slowest():
    found = slowest_rank(timed([0.018, 0.019, 0.0181, 0.006]))
    assert found.rank == 3
    # The median of the others waits 12.1 ms longer for what it takes.
    assert found.lag_seconds == pytest.approx(0.0121)
    assert found.words == "slowest: rank 3, makes each step 14 % longer (12 ms), communication 6 %"


def test_the_slowest_process_is_of_the_last_reports_of_as_many_processes():
    found = slowest_rank(timed([0.5, 0.0, 0.5], [0.02, 0.04], [0.04, 0.02], [0.01, 0.03]))
    assert (found.rank, found.lag_seconds) == (0, pytest.approx(0.02 / 3))


def test_there_is_no_slowest_process_without_reports_of_several():
    assert slowest_rank(timed()) is None
    assert slowest_rank(timed([0.1])) is None


def test_a_start_forgets_the_times_of_processes():
    told = timed([0.01, 0.03])
    told.apply(started(resumed_from_step=5))
    assert not told.rank_times
