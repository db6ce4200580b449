"""Events of a run as lines of JSON: to the bit, and across versions."""

import json
import math
import struct
from dataclasses import replace

import pytest

from tui_trainer.runs import events as e
from tui_trainer.runs.events import LINE_LIMIT_BYTES, from_line, to_line

HOSTILE = '\x1b]52;c;eA==\x07 line\r\nbreak\u2028\x00 "quote" \ud800 lone \x7f\x9b {"event": "RunFinished"} é 😀'
AT = "2026-11-20T13:45:00.123Z"
NUMBERS = (0.1 + 0.2, 1e-323, 1.7976931348623157e308, -0.0, math.nan, math.inf, -math.inf)
ONE_OF_EACH = [
    e.RunStarted(at=AT, name=HOSTILE, task="chat", device="cpu", pid=7, total_steps=9, versions={HOSTILE: "2.9"}),
    e.RunStarted(name="x", task="t", device="cuda:0", pid=7, total_steps=9, resumed_from_step=4, step=4),
    e.PhaseChanged(phase="paused", step=3),
    e.Progress(what="tokenising", done=3.5, total=None, unit="rows"),
    e.DataPrepared(from_cache=True, rows=1, eval_rows=2, tokens=3, eval_tokens=4, documents=5, eval_documents=6,
                   vocabulary=7, seconds=0.25, notes=["2 rows dropped", HOSTILE]),
    e.PlanMade(total_steps=9, steps_per_epoch=3, effective_batch_size=8, per_device_train_batch_size=4,
               gradient_accumulation_steps=2, parameters=10**6, memory_bytes=2**30, disk_bytes=2**31,
               duration_seconds=61.5),
    e.LibrariesLoaded(resident_bytes=2**29),
    e.BaselinesMeasured(losses={"order 1": 2.4, "order 2": math.inf}, eval_tokens=10, unit="character"),
    e.BetweenSteps(step=4, steps=4, journal_seconds=0.5, empty_cache_seconds=math.inf, other_seconds=0.25),
    e.RanksTimed(step=4, communication_seconds=[0.25, 0.5]),
    e.EvalDone(step=5, loss_sum=10.5, tokens=4, loss=2.625, seconds=1.5, scheduled=True, best=False),
    e.EpochDone(epoch=1, mean_loss=math.nan, seconds=3.0, samples_per_second=2.0, tokens_per_second=5.0),
    e.CheckpointSaved(step=5, path="checkpoints/step-5", bytes=2**40, seconds=0.5, reason="schedule"),
    e.GaugesRead(at=AT, step=1200, process_memory_bytes=2**31, process_cpu_share=0.35, usable_cores=2.0, gpus=[
        e.GpuReading(index=0, utilization_share=0.93, memory_used_bytes=2**36, memory_bytes=2**37,
                     process_memory_bytes=2**35, power_watts=512.3, temperature_celsius=71.0)]),
    e.GaugesRead(gpus=[e.GpuReading(index=3), e.GpuReading(index=7)]),
    e.GaugesRead(process_cpu_share=math.nan, usable_cores=-math.inf, process_memory_bytes=-1, gpus=[
        e.GpuReading(index=-1, utilization_share=math.nan, power_watts=math.inf, temperature_celsius=-math.inf)]),
    e.TextSampled(prompt=HOSTILE, text="NaN"),
    e.RunProblem(kind="checkpoint damaged", message=HOSTILE, hint="none"),
    e.MicroBatchReduced(step=57, kind="out of memory", message=HOSTILE, hint="", what="training", rows_before=8,
                        rows=4, passes=8, longest_row=512, peak_memory_bytes=2**33),
    e.ControlApplied(action="save", request_id=3),
    e.RunFinished(reason="done", loss=None, eval_loss=-math.inf, seconds=10.0, model_path="model"),
    e.RunFailed(message=HOSTILE, log_path=None),
    e.InferenceMeasured(step=5, samples_per_second=52.5, rows=32),
    e.Unknown(at=AT, step=3, kind="LaterKind", data={"gpu": [1, {"share": 0.5}], "seed": 2**60}),
]  # fmt: skip


def step_done(number: float = 0.5, step: int = 1) -> e.StepDone:
    return e.StepDone(
        step=step, epoch=number, loss_sum=number, tokens=100, samples=4, lr=number, grad_norm=number,
        step_seconds=number, data_seconds=number, forward_seconds=number, backward_seconds=number,
        optimizer_seconds=number, tokens_per_second=number, samples_per_second=number, peak_memory_bytes=10,
    )  # fmt: skip


def bits(event: e.Event) -> list[object]:
    """Return values that compare to the bit: NaN equals NaN, and -0.0 is not 0.0."""
    values = [getattr(event, name) for name in event.__dataclass_fields__]
    return [struct.pack("d", value) if isinstance(value, float) else repr(value) for value in values]


def test_an_event_is_read_back_unchanged_from_printable_strict_json(subtests):
    for event in ONE_OF_EACH:
        with subtests.test(repr(event)[:80]):
            line = to_line(event)
            back = from_line(line)
            assert type(back) is type(event) and bits(back) == bits(event)
            assert line.isascii() and line.isprintable()
            data = json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
            assert list(data)[:3] == ["event", "at", "step"]


def test_numbers_are_read_back_to_the_bit_from_first_and_later_lines():
    for number in NUMBERS:
        event = step_done(number)
        for _ in range(2):
            assert bits(from_line(to_line(event).encode())) == bits(event)


def test_every_kind_of_event_is_in_the_table():
    assert {type(event) for event in ONE_OF_EACH} | {e.StepDone} == {*e.KINDS.values(), e.Unknown}


def test_sums_of_a_step_are_read_back_and_empty_ones_are_not_written():
    plain = step_done()
    scored = replace(plain, sums={"accuracy": 3.0, HOSTILE: math.nan}, counts={"accuracy": 4, HOSTILE: 2})
    for event in (plain, scored, scored, plain):
        assert bits(from_line(to_line(event))) == bits(event)
    assert not {"sums", "counts"} & json.loads(to_line(plain)).keys()
    assert scored.scores["accuracy"] == 0.75 and not from_line(to_line(plain)).scores
    one, other = (from_line(to_line(plain)) for _ in range(2))
    assert one.sums is not other.sums


def test_a_problem_has_its_short_name_in_the_journal():
    assert json.loads(to_line(e.RunProblem(kind="stall", message="slow")))["event"] == "Problem"


def test_fields_of_a_later_version_are_ignored():
    data = json.loads(to_line(step_done(step=8))) | {"energy_joules": 3.5, "colour": "red"}
    assert bits(from_line(json.dumps(data))) == bits(e.StepDone(**_fields(data)))


def test_unknown_fields_of_a_gpu_are_ignored_and_missing_ones_are_none():
    event = from_line('{"event": "GaugesRead", "later": 1, "gpus": [{"index": 2, "fan_share": 0.5}]}')
    assert event == e.GaugesRead(at="", gpus=[e.GpuReading(index=2)])
    assert event.gpus[0].utilization_share is None and event.process_memory_bytes is None


def _fields(data):
    return {key: value for key, value in data.items() if key in e.StepDone.__dataclass_fields__}


GOOD = json.loads(to_line(step_done()))
GARBAGE = [
    b"", b"null", b"[]", b"{}", b"\x00\x00", b"\xff\xfe", b'{"event": 3}', b'{"event": ["StepDone"]}',
    b"[" * 100_000, b'{"event": "PhaseChanged", "phase": 3}', b'{"event": "PhaseChanged"}',
    b'{"event": "Progress", "what": "x", "done": NaN}', b'{"event": "Later", "step": "soon"}',
    to_line(step_done()).encode() + b"}", to_line(step_done()).encode() * 2,
    *[b'{"event": "GaugesRead", "gpus": %s}' % gpus for gpus in (
        b"null", b"{}", b"[0]", b"[{}]", b'[{"index": null}]', b'[{"index": 0.5}]', b'[{"index": "0"}]', b"[[]]",
        b'[{"index": 0, "power_watts": "much"}]', b'[{"index": 0, "memory_bytes": 0.5}]', b'[{"index": NaN}]',
    )],
    *[json.dumps(GOOD | change).encode() for change in (
        {"step": "1"}, {"step": True}, {"step": 1.0}, {"tokens": 10**18}, {"lr": 10**400}, {"lr": "fast"}, {"lr": None},
        {"lr": True}, {"lr": [1.0]}, {"peak_memory_bytes": None},
    )],
]  # fmt: skip


def test_garbage_is_refused_with_a_value_error(subtests):
    for line in GARBAGE:
        with subtests.test(repr(line[-60:])):
            from_line(to_line(step_done()))
            with pytest.raises(ValueError):
                from_line(line)


def test_a_text_of_megabytes_is_shortened_to_a_readable_line():
    event = e.TextSampled(prompt="p", text="😀" * 1_000_000)
    line = to_line(event)
    assert len(line) < LINE_LIMIT_BYTES
    assert from_line(line).text.startswith("😀😀")


def test_the_loss_of_a_step_without_tokens_is_not_a_number():
    assert step_done(50.0).loss == 0.5
    nothing = json.dumps(GOOD | {"tokens": 0})
    assert math.isnan(from_line(nothing).loss)


def test_the_time_is_utc_with_milliseconds():
    assert len(e.utc_now()) == len(AT)
    assert e.utc_now().endswith("Z")
    assert e.utc_now()[10] == "T"
