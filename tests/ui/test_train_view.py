"""The Train screen in every phase, at every size, with both sets of signs, and how much of it changes in a second."""

import math
from dataclasses import replace

import pytest

from tui_trainer.hardware.facts import Gpu
from tui_trainer.hardware.gauges import Gauges
from tui_trainer.runs import events as e
from tui_trainer.runs.state import fold
from tui_trainer.ui.actions import ACTIONS, key_sign
from tui_trainer.ui.screens.train import PARTS, visible_parts
from tui_trainer.ui.screens.train_lines import (
    TrainScene,
    memory_role,
    memory_words,
    part_shares,
    stack,
    training_memory_bytes,
)
from tui_trainer.ui.screens.train_story import table_rows
from tui_trainer.ui.spans import ASCII, UNICODE, text_of, width_of
from tui_trainer.ui.widgets.gauge import CPU_TARGET, GaugeTrail, gauge_lines, target_bar
from tui_trainer.units import MIB

# Of the first column at 80, 120 and 200 cells, and of the second one.
WIDTHS, SECOND_WIDTHS = (80, 76, 136), (42, 62)
SECOND = {"machine", "readings", "times", "plan", "targets", "switched-on", "epochs", "samples"}
GIB = 2**30
RESIDENT = 240_000_000
LORA = {"base_model": "TinyLlama/TinyLlama-1.1B", "lora_rank": 16, "trained_parameters": 6_700}


def step(number, loss=2.0, seconds=0.125):
    return e.StepDone(
        step=number, epoch=number / 165, loss_sum=loss * 2048, tokens=2048, samples=16, lr=1e-3, grad_norm=0.5,
        step_seconds=seconds, data_seconds=seconds * 0.02, forward_seconds=seconds * 0.32,
        backward_seconds=seconds * 0.55, optimizer_seconds=seconds * 0.08, tokens_per_second=2048 / seconds,
        samples_per_second=16 / seconds, peak_memory_bytes=420_000_000,
    )  # fmt: skip


def evaluated(number, loss):
    return e.EvalDone(step=number, loss_sum=loss, tokens=1, loss=loss, seconds=0.7, scheduled=True, best=True)


def begun(total_steps=500):
    return [
        e.RunStarted(name="quickstart-20261120-180238", task="char_lm", device="cpu", pid=1, total_steps=total_steps),
        e.PhaseChanged(phase="preparing"),
    ]


def prepared(total_steps=500, **more):
    return [
        *begun(total_steps),
        e.DataPrepared(from_cache=False, rows=2626, eval_rows=292, tokens=336_000, eval_tokens=37_000, documents=45,
                       eval_documents=12, vocabulary=106, seconds=0.162),
        e.BaselinesMeasured(losses={"order 1": 2.4768, "order 2": 1.5}, eval_tokens=37_000, unit="token"),
        e.PlanMade(total_steps=total_steps, steps_per_epoch=165, effective_batch_size=16,
                   per_device_train_batch_size=8, gradient_accumulation_steps=2, parameters=818_000,
                   memory_bytes=195_000_000, disk_bytes=37_000_000, duration_seconds=70, **more),
        e.LibrariesLoaded(resident_bytes=RESIDENT),
    ]  # fmt: skip


def trained(steps=148, total_steps=500, **more):
    events = [*prepared(total_steps, **more), e.PhaseChanged(phase="training")]
    for number in range(1, steps + 1):
        events.append(step(number, loss=1.4 + 3 * math.exp(-number / 40)))
        if number % 50 == 0:
            events += [evaluated(number, 1.5), e.CheckpointSaved(
                step=number, path=f"checkpoints/step-{number}", bytes=9, seconds=0.02, reason="scheduled"
            )]  # fmt: skip
    epoch = e.EpochDone(step=steps, epoch=1, mean_loss=1.6, seconds=22.1, samples_per_second=119.0,
                        tokens_per_second=15_200.0)  # fmt: skip
    return [*events, epoch, e.TextSampled(step=steps, prompt="The ", text="such objects")]


def finished(eval_loss=1.5427):
    return e.RunFinished(step=500, reason="done", loss=1.4, eval_loss=eval_loss, seconds=65.0, model_path="model")


STOPPED = e.RunFinished(step=148, reason="stopped", loss=1.4, eval_loss=None, seconds=20.0)
FAILED = e.RunFailed(step=148, message="CUDA out of memory", log_path="logs/run.log")
WORK = e.Progress(what="tokenising", done=420_000, total=1.2e6, unit="characters")
RANKS = e.RanksTimed(step=148, communication_seconds=[0.018, 0.019, 0.0181, 0.006])
PHASES = {
    "no run": None,
    "an empty state": [],
    "preparing": [*begun(0), WORK],
    "loading": [*prepared(), e.PhaseChanged(phase="loading")],
    "before step 1": [*prepared(), e.PhaseChanged(phase="training")],
    "one step": trained(1),
    "training": trained(),
    "in four processes": [*trained(processes=4), RANKS],
    "paused": [*trained(), e.PhaseChanged(phase="paused")],
    "resumed": [*trained(), e.RunStarted(name="q", task="t", device="cpu", pid=1, total_steps=500,
                                         resumed_from_step=100), WORK],
    "saving": [*trained(500), e.PhaseChanged(phase="saving")],
    "finished": [*trained(500), finished()],
    "stopped": [*trained(), STOPPED],
    "stopped at once": [*begun(), STOPPED],
    "failed": [*trained(), FAILED],
    "failed at once": [*begun(), FAILED],
}  # fmt: skip


def gauges(share=0.6, cards=0):
    card = {"utilisation_share": 0.93, "memory_free_bytes": 78 * GIB, "memory_bytes": 139 * GIB, "power_watts": 512.0}
    return Gauges(
        cpu_share=share, memory_used_bytes=12 * GIB, memory_bytes=32 * GIB, disk_used_bytes=210 * GIB,
        disk_bytes=512 * GIB, gpus=tuple(Gpu(index=n, temperature_celsius=71.0, **card) for n in range(cards)),
    )  # fmt: skip


KEYS = {action.id: key_sign(action.keys[0]) for action in ACTIONS}
TOLD = (("step 50: saved", "dim"),)


def scene(events, *, cards=0, told=TOLD, on=("TF32: no GPU",), glyphs=UNICODE, **options):
    return TrainScene(
        state=None if events is None else fold(events), glyphs=glyphs, gauges=gauges(cards=cards),
        sparks={"cpu": [0.5] * 12}, events=list(told), what_is_on=on, run_folder="runs/q",
        **{"resume": "tui-trainer resume q", "key_of": KEYS.__getitem__, **options},
    )  # fmt: skip


def drawn(made, width=80, height=10, names=()):
    """The text of the parts that are shown, or of those that are named, each with its heading."""
    visible, texts = visible_parts(made), []
    for name, (draw, heading) in PARTS.items():
        if name in (names or visible):
            rows = draw(made, width, height)
            assert rows or name in ("speed", "events"), name
            texts += ["-- {} -- {} --".format(*heading(made))] if heading else []
            texts.append(text_of(rows))
    return "\n".join(texts)


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("glyphs", [UNICODE, ASCII], ids=["unicode", "ascii"])
def test_every_part_of_every_phase_fits_every_width_and_ascii_stays_ascii(phase, glyphs):
    swept = 0
    for options in ({}, {"log_open": True}, {"table_open": True}, {"cards": 8}, {"is_beside": False}):
        made = scene(PHASES[phase], glyphs=glyphs, **options)
        for name in visible_parts(made) & set(PARTS):
            for width in SECOND_WIDTHS if name in SECOND else WIDTHS:
                rows = PARTS[name][0](made, width, 6)
                assert not glyphs.ascii or text_of(rows).isascii()
                assert len(rows) <= {"run": 1, "progress": 1, "events": 6, "log": 6, "table": 6}.get(name, 30), name
                assert name in ("rates", "epochs") or all(width_of(line) <= width for line in rows), name
                swept += 1
    assert swept >= 45


def test_each_phase_shows_the_parts_that_have_something_to_show():
    shown = {phase: visible_parts(scene(events)) for phase, events in PHASES.items()}
    assert shown["no run"] == {"invitation", "speed", "gauges"}
    assert shown["preparing"] == {"run", "events", "right", "machine", "preparation", "speed", "gauges", "switched-on"}
    training = {"run", "progress", "chart", "events", "right", "machine", "speed", "rates", "parts", "gauges", "small",
                "times", "plan", "epochs", "samples", "switched-on"}  # fmt: skip
    assert shown["training"] == shown["paused"] == training
    assert shown["finished"] == training - {"speed", "rates", "parts", "gauges"} | {"result"}
    assert {"preparation", "result"} <= shown["failed at once"] and "chart" not in shown["failed at once"]
    assert "tuning" in visible_parts(scene(trained(**LORA)))
    log, table = (visible_parts(scene(trained(), **{name: True})) for name in ("log_open", "table_open"))
    assert log - table == {"log"} and table - log == {"table"} and not log & {"speed", "result", "small"}


def test_lora_is_named_with_its_base_and_what_is_trainable():
    below, plan = (drawn(scene(trained(**LORA)), names=[name]) for name in ("tuning", "plan"))
    assert below == "LoRA r 16 on TinyLlama-1.1B: 6.7 k of 818 k parameters are trainable (0.82 %)"
    assert "TinyLlama-1.1B on cpu" in plan and "r 16, 6.7 k of 818 k (0.82 %)" in plan
    whole = drawn(scene(trained(base_model="/models/gpt2/", trained_parameters=818_000)))
    assert "gpt2: all 818 k parameters are trainable" in whole and "all 818 k parameters" in whole
    assert "LoRA" not in drawn(scene(trained())) + whole


def test_targets_are_counted_beside_the_memory_and_told_where_there_is_room():
    aimed = {"targets": {"samples_per_second": 100.0, "memory_gib": 0.1, "model_size_gib": 0.5, "loss": 1.6}}
    running = scene(trained(**aimed))
    assert "targets 2 of 4 met, memory 171.7 of 186.0 MiB planned" in drawn(running, names=["speed"])
    beside = drawn(running, names=["targets"])
    assert "✓ samples/s 128 (at least 100)" in beside and "memory 400.5 MiB (at most 102.4 MiB)" in beside
    assert beside.count(UNICODE.good) == 2 and beside.count(UNICODE.bad) == 1 and "held-out loss 1.500" in beside
    over = drawn(scene([*trained(**aimed), finished()]), names=["result"])
    assert over.count("target ") == 4 and "not known yet" in over and "not met" in over
    assert "targets" in visible_parts(running) and "targets" not in visible_parts(scene(trained()))


def test_memory_is_told_as_the_plan_counts_it():
    on_cpu, on_card = fold(trained()), fold([event for event in trained() if not isinstance(event, e.LibrariesLoaded)])
    assert memory_words(on_cpu) == "171.7 of 186.0 MiB planned"
    assert memory_words(on_card) == "186.0 MiB planned, process 400.5 MiB", "a journal that has not noted it"
    on_card.device = "cuda:0"
    assert memory_words(on_card) == "400.5 of 186.0 MiB planned" and memory_role(on_card) == "warn"
    assert memory_role(on_cpu) == "text" and memory_words(fold(prepared())) == "186.0 MiB planned"
    for more, role in ((60, "text"), (90, "warn")):
        # 232 and 262 MiB of 186: the first may be what the screens draw.
        other = fold(trained())
        other.resident_bytes_before -= more * MIB
        assert memory_role(other) == role
    again = e.RunStarted(name="q", task="t", device="cpu", pid=1, total_steps=500, resumed_from_step=100)
    assert training_memory_bytes(fold([*trained(), again])) is None, "the process before is gone"
    for name in ("speed", "plan"):
        assert "of 186.0 MiB planned" in drawn(scene(trained()), names=[name])


def test_before_a_run_the_key_and_what_would_happen_are_named():
    text = drawn(scene(None, offer=["about 500 steps in 70 s"]))
    assert "Press t to start" in text
    assert "about 500 steps in 70 s" in text
    assert "CPU" in text


def test_long_preparation_says_what_and_how_far():
    text = drawn(scene(PHASES["preparing"]))
    assert "preparing" in text
    assert "tokenising" in text
    assert "35 % of 1.2 M characters" in text
    assert "12 k rows so far" in drawn(scene([*begun(0), e.Progress(what="x", done=12_040, unit="rows so far")]))


def test_training_shows_where_the_run_is_at_the_smallest_size():
    text = drawn(scene(PHASES["training"]))
    for words in ("quickstart-20261120-180238  training", "step 148 of 500", "ETA", "29 %", "epoch 0.90 of 3.0",
                  "held out 1.5000", "16.4 k tokens/s", "128.0 rows/s", "125 ms a step", "lr 1.00e-03",
                  "gradient 0.5", "data  2 %  forward 32 %  backward 55 %  optimizer  8 %",
                      "memory 171.7 of 186.0 MiB planned",
                  "saved at step 100,   48 steps ago", "step 50: saved", f"16 rows = 2 {UNICODE.times} 8"):  # fmt: skip
        assert words in text, words


def test_one_step_since_the_last_checkpoint_is_one_step():
    assert "saved at step 100,    1 step ago" in drawn(scene(trained(101)))


def test_the_end_is_measured_against_the_baselines():
    text = drawn(scene(PHASES["finished"]))
    assert "Finished after 500 steps, 1 min 05 s of training." in text
    assert "2.4768  order 1         ✓ beaten" in text
    assert "1.5000  order 2         ✗ not beaten" in text
    assert "runs/q/model" in text
    assert "try it   w" in text
    assert "100 %" in text
    assert "it was better before: 1.5000 at step 50" in text
    assert "better before" not in drawn(scene([*trained(500), finished(1.5)]))


def test_a_stopped_run_says_how_to_go_on():
    text = drawn(scene(PHASES["stopped"]))
    assert "Stopped at step 148 of 500." in text
    assert "tui-trainer resume q" in text
    assert "from step 100, as if it had never stopped" in text
    assert "from the beginning" in drawn(scene(PHASES["stopped at once"]))


def test_a_failure_shows_its_message_and_its_log():
    text = drawn(scene(PHASES["failed"]))
    assert "failed" in text.splitlines()[0]
    assert "CUDA out of memory" in text
    assert "runs/q/logs/run.log" in text


def test_a_run_whose_process_is_gone_is_not_called_training():
    text = drawn(scene(PHASES["training"], interrupted=True))
    assert "interrupted" in text.splitlines()[0]
    assert "training" not in text.splitlines()[0]
    assert "ETA" not in text
    assert "Its process is gone" in text


def test_the_log_opens_and_shows_its_tail():
    lines = [f"row {number}" for number in range(100)]
    assert "row 99" in drawn(scene(PHASES["training"], log_lines=lines, log_open=True))
    assert "row 89" not in drawn(scene(PHASES["training"], log_lines=lines, log_open=True))
    assert "row 99" not in drawn(scene(PHASES["training"], log_lines=lines))
    assert "nothing has been written" in drawn(scene(PHASES["training"], log_open=True))


def test_events_are_whole_newest_last_and_can_be_scrolled_back():
    told = [(f"event {number} " + "word " * 20, "text") for number in range(9)]
    text = drawn(scene(PHASES["training"], told=told), height=4, names=["events"])
    assert "event 8" in text
    assert text.splitlines()[-1].strip().endswith("word")
    assert not text.splitlines()[-4].startswith("  ") and len(text.splitlines()) == 5
    back = drawn(scene(PHASES["training"], told=told, events_back=3), height=4, names=["events"])
    assert "event 5" in back
    assert "event 6" not in back


def test_hostile_text_acts_on_nothing_wherever_it_stands():
    bad = "\x1b[2J\x9b31m[red]x[/]\u202e\n"
    events = [
        e.RunStarted(name=bad, task=bad, device=bad, pid=1, total_steps=500), *prepared()[1:],
        e.BaselinesMeasured(losses={bad: 2.0}, eval_tokens=1, unit=bad), *(step(n) for n in range(1, 40)),
        e.TextSampled(step=40, prompt=bad, text=bad), e.Progress(what=bad, done=1, total=2, unit=bad),
    ]  # fmt: skip
    for ending in ([], [e.RunFailed(step=1, message=bad, log_path=bad)]):
        for log_open in (False, True):
            made = scene([*events, *ending], told=[(bad, "text")], on=[bad], log_lines=[bad], log_open=log_open)
            for width in WIDTHS:
                text = drawn(made, width)
                assert not set(text) & set("\x1b\x9b\u202e")
                assert "[red]" in text
    assert "\x1b" not in drawn(scene(None, offer=[bad]))


def test_a_run_of_another_process_shows_what_it_last_read_of_itself_and_so_does_one_that_is_over():
    def read(share, memory):
        card = e.GpuReading(
            index=0, utilization_share=share, memory_used_bytes=60 * GIB, memory_bytes=139 * GIB, power_watts=512.0,
            temperature_celsius=71.0,
        )  # fmt: skip
        return e.GaugesRead(step=40, process_memory_bytes=memory, process_cpu_share=0.5, usable_cores=8, gpus=[card])

    events = [*trained(), read(0.5, 3 * GIB), read(0.9, 2 * GIB)]
    assert not visible_parts(scene(events)) & {"readings", "readings-here"}
    other = scene(events, is_beside=False)
    assert {"readings", "readings-here", "machine"} <= visible_parts(other) and "gauges" not in visible_parts(other)
    last, whole = drawn(other, 200, names=["readings"]).splitlines()[1:]
    assert last.split(maxsplit=1) == [
        "last", "GPU 90 %, 60.0 of 139.0 GiB, 512 W, 71 C; process 2.0 GiB, CPU 4.0 of 8 cores"]  # fmt: skip
    assert whole.startswith("whole run") and "GPU 70 %" in whole and "process 3.0 GiB" in whole
    assert "read at step 40" in drawn(other, names=["readings-here"])
    over = scene([*events, finished()], is_beside=False)
    assert {"readings", "readings-here", "result"} <= visible_parts(over)


def test_a_bar_shows_the_part_of_its_target_that_is_not_reached():
    assert text_of([target_bar(0.3, 10, CPU_TARGET, UNICODE)]) == "███··░░░··"
    assert text_of([target_bar(0.6, 10, CPU_TARGET, ASCII)]) == "######==.."
    assert target_bar(0.6, 10, CPU_TARGET, ASCII)[0][1] == "good"
    assert target_bar(0.9, 10, CPU_TARGET, ASCII)[0][1] == "accent"
    assert text_of([target_bar(None, 10, CPU_TARGET, UNICODE)]) == "--"


def test_what_is_not_reported_is_drawn_as_dashes():
    text = text_of(gauge_lines(Gauges(gpus=(Gpu(index=0),)), {}, 42, UNICODE))
    assert [line.split()[:2] for line in text.splitlines()] == [
        ["GPU", "0"], ["memory", "--"], ["CPU", "--"], ["RAM", "--"], ["disk", "--"]]  # fmt: skip
    assert "0 %" not in text


def test_the_last_minute_is_kept_in_parts_that_do_not_slide():
    trail = GaugeTrail()
    for second in range(100):
        trail.take(gauges(share=second / 100), second)
    sparks = trail.sparks(99)
    assert len(sparks["cpu"]) == 12
    assert sparks["cpu"][-1] == pytest.approx(0.97)
    assert sparks["cpu"][0] == pytest.approx(0.42)
    assert trail.sparks(95)["cpu"] == sparks["cpu"]
    assert math.isnan(trail.sparks(105)["cpu"][-1])


def test_the_parts_of_a_step_add_up_to_all_of_it():
    shares = part_shares([step(1, seconds=0.1), step(2, seconds=0.3)])
    assert shares == pytest.approx([0.02, 0.32, 0.55, 0.08, 0.03])
    assert text_of([stack(shares, 20)]) == "fffffffbbbbbbbbbbbo."
    assert part_shares([]) is None


def test_the_slowest_of_several_processes_is_named_beside_the_speed():
    shown = drawn(scene(PHASES["in four processes"]))
    assert "slowest: rank 3, +11 % (12 ms a step), communication 5 %" in shown
    assert "slowest" not in drawn(scene(PHASES["training"]))
    assert "slowest" not in drawn(scene([*PHASES["in four processes"], finished()]))


def test_text_of_wide_signs_is_wrapped_by_cells_and_whole():
    made, text = scene(None), "\u6f22\u5b57" * 30
    rows = made.wrapped(text, 40)
    assert text_of(rows).replace("\n", "") == text and max(map(width_of, rows)) <= 40
    assert len(made.wrapped(text, 40, most=2)) == 2


def test_class_names_of_wide_signs_are_shown_whole():
    done = evaluated(9, 1.0)
    rows = {"\u6f22\u5b57" * 4: [1.0, 2.0], "\u6570\u636e" * 4: [3.0, 4.0]}
    done = replace(done, table_columns=["precision", "recall"], table_rows=rows)
    assert all(name in text_of(table_rows(done, 80, 9, UNICODE)) for name in rows)
