"""The pieces of the one command for the day with a card, without one: limits, lines, wheels, the report."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep

import pytest

from tests.gpu import day, parts, report, wheels
from tests.gpu.day import Line, append, read_lines, run_part
from tests.gpu.wheels import Candidate, Group, closure, fitting, groups_within, our_groups, selection
from tui_trainer.config.load import all_settings

CARD = {"name": "NVIDIA H200", "memory.total": "143771", "driver_version": "580.1", "compute_cap": "9.0"}


def run(code: str, work: Path, limit_seconds: float = 60, **options) -> Line:
    command = [sys.executable, "-c", code]
    return run_part("part", command, work, limit_seconds=limit_seconds, env=os.environ, **options)


def is_alive(pid: int) -> bool:
    with suppress(OSError):
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    return False


# A child that does not listen to SIGTERM, with one of its own; both write their numbers.
STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
from pathlib import Path
Path(sys.argv[1] if len(sys.argv) > 1 else "PLACE").write_text(f"{os.getpid()} {grandchild.pid}")
print("at work", flush=True)
time.sleep(600)
"""


def test_at_its_limit_a_part_ends_with_all_that_it_started(tmp_path, monkeypatch):
    output = tmp_path / "work" / day.OUTPUT
    # The limit comes as soon as the part is at work, however slow the machine is.
    monkeypatch.setattr(day, "monotonic", lambda: monotonic() + 600 * bool(output.exists() and output.read_bytes()))
    monkeypatch.setattr(day, "_GRACE_SECONDS", 0.5)
    line = run(STUBBORN.replace("PLACE", str(tmp_path / "pids")), tmp_path / "work", limit_seconds=600)
    assert line.state == "timeout"
    assert line.reason == "not done in 600 s"
    assert line.error == ["at work"]
    pids = [int(word) for word in (tmp_path / "pids").read_text().split()]
    assert len(pids) == 2
    assert not any(is_alive(pid) for pid in pids)


def test_a_stop_ends_the_part_and_all_that_it_started(tmp_path, monkeypatch):
    monkeypatch.setattr(day, "_GRACE_SECONDS", 0.5)
    pids = tmp_path / "pids"
    code = STUBBORN.replace("PLACE", str(pids))
    line = run(code, tmp_path / "work", is_stopped=lambda: pids.exists() and bool(pids.read_text()))
    assert line.state == "interrupted"
    assert not any(is_alive(int(word)) for word in pids.read_text().split())


def test_what_a_part_leaves_running_ends_with_it(tmp_path):
    code = "import subprocess, sys; child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
    code += f"open({str(tmp_path / 'pid')!r}, 'w').write(str(child.pid))"
    assert run(code, tmp_path / "work").state == "done"
    until = monotonic() + 20
    while is_alive(pid := int((tmp_path / "pid").read_text())) and monotonic() < until:
        sleep(0.1)
    assert not is_alive(pid)


def test_a_part_that_fails_keeps_its_figures_and_its_last_lines(tmp_path):
    figures = f"open({str(tmp_path / 'work' / day.FIGURES)!r}, 'w').write('{{\"half\": 1}}')"
    line = run(f"{figures}\nprint('a' * 9999)\nraise SystemExit('it broke')", tmp_path / "work")
    assert (line.state, line.reason) == ("failed", "exit code 1")
    assert line.figures == {"half": 1}
    assert line.error == ["a" * 500, "it broke"]


def test_a_part_with_nothing_to_measure_says_why(tmp_path):
    figures = f"open({str(tmp_path / 'work' / day.FIGURES)!r}, 'w').write('{{\"skipped\": \"no pytest\"}}')"
    line = run(f"{figures}\nraise SystemExit({day.SKIPPED})", tmp_path / "work")
    assert (line.state, line.reason, line.figures, line.error) == ("skipped", "no pytest", {}, [])


@pytest.fixture
def ends(monkeypatch):
    """What each part comes to in `day.main`, without a card or a child; `done` unless it is named."""
    states: dict[str, str] = {}
    monkeypatch.setattr(day, "card", lambda: CARD)
    monkeypatch.setattr(day, "install", lambda *_: {"installed": {}, "lacking": {}})
    monkeypatch.setattr(sys, "path", list(sys.path))
    limits = {}

    def run_part(name, command, work, *, limit_seconds, env, is_stopped):
        assert command[2:4] == ["tests.gpu.parts", name]
        assert env["HF_HUB_OFFLINE"] == "1"
        limits[name] = limit_seconds
        if states.get(name) == "interrupted":
            for number in (signal.SIGINT, signal.SIGINT, signal.SIGTERM):  # pressed twice, and more
                signal.raise_signal(number)
            assert is_stopped()
        return Line(name=name, started="", seconds=1.0, state=states.get(name, "done"), figures={"n": 1})

    monkeypatch.setattr(day, "run_part", run_part)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield states, limits
    for number, handler in before.items():
        signal.signal(number, handler)


def test_parts_that_fail_do_not_stop_the_others(ends, tmp_path):
    states, limits = ends
    states |= {"start": "failed", "memory": "timeout", "trace": "skipped"}
    assert day.main(["--out", str(tmp_path / "out"), "--minutes", "10"]) == 1
    found = {line["name"]: line["state"] for line in read_lines(tmp_path / "out")}
    assert found == {"machine": "done"} | {name: states.get(name, "done") for name in day.SHARES}
    # Nothing took time: each has its share of all that the ones before it left.
    assert limits["start"] == pytest.approx(600 * 0.08, rel=0.05)
    assert limits["trace"] == pytest.approx(600, rel=0.05)


def test_the_same_folder_goes_on_where_it_stopped(ends, tmp_path, capsys):
    states, limits = ends
    states |= {"memory": "interrupted"}
    arguments = ["--out", str(tmp_path)]
    assert day.main(arguments) == 130
    assert set(limits) == {"start", "tests", "memory"}
    limits.clear()
    states["memory"] = "done"
    assert day.main(arguments) == 0
    assert set(limits) == day.SHARES.keys() - {"start", "tests"}
    assert "start: done before" in capsys.readouterr().out
    limits.clear()
    assert day.main([*arguments, "--only", "start,trace"]) == 0
    assert set(limits) == {"start", "trace"}


def test_a_folder_of_another_machine_is_refused(ends, tmp_path, capsys):
    assert day.main(["--out", str(tmp_path), "--only", "start"]) == 0
    lines = len((tmp_path / day.RESULTS).read_text().splitlines())
    assert day.main(["--out", str(tmp_path), "--dry"]) == 2
    assert "its lines are of NVIDIA H200" in capsys.readouterr().err
    assert len((tmp_path / day.RESULTS).read_text().splitlines()) == lines


def test_without_a_card_only_a_dry_run_starts(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(day, "card", lambda: None)
    assert day.main(["--out", str(tmp_path / "out")]) == 2
    assert "--dry" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_lines_are_the_newest_of_each_name_and_a_torn_one_does_not_count(tmp_path):
    for state in ("failed", "done"):
        append(tmp_path, Line(name="start", started="", seconds=0, state=state))
    with (tmp_path / day.RESULTS).open("a") as file:
        file.write('[1]\n{"name": 3}\n{"name": "tests", "sta')
    assert [(line["name"], line["state"]) for line in read_lines(tmp_path)] == [("start", "done")]


def test_the_card_is_read_from_nvidia_smi(tmp_path, monkeypatch):
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'NVIDIA H200, 143771, 580.1, 9.0, 700.00'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert day.card() == {**CARD, "power.limit": "700.00"}
    program.write_text("#!/bin/sh\necho 'No devices were found'\nexit 6\n")
    assert day.card() is None


def test_every_part_has_a_share_of_the_time_and_rows_in_the_report():
    assert list(parts.PARTS) == list(day.SHARES) == list(report.ROWS)
    assert sum(day.SHARES.values()) == 100


# Wheels


CANDIDATES = {
    "torch": Candidate("2.11.0", ("numpy", "nvidia-cublas; platform_system == 'Linux'", "colorama; os_name == 'nt'")),
    "nvidia-cublas": Candidate("13.1"),
    "numpy": Candidate("2.4"),
    "peft": Candidate("0.21", ("torch>=2", "accelerate>=0.21", "huggingface_hub>=1.31")),
    "accelerate": Candidate("1.15", ("tomli; python_version < '3.11'", "psutil")),
    "psutil": Candidate("7.2"),
    "huggingface-hub": Candidate("1.33"),
    "liger-kernel": Candidate("0.8", ("torch", "tests-extra; extra == 'dev'")),
    "bitsandbytes": Candidate("0.49", ("numpy", "torch")),
}


def test_only_what_is_missing_or_too_old_is_taken_with_what_it_requires():
    have = {"torch": "2.11.0", "numpy": "1.26", "huggingface-hub": "1.5"}
    found = closure(["peft>=0.18", "numpy>=1.26"], CANDIDATES, have, "3.12")
    assert found.taken == ["peft", "accelerate", "huggingface-hub", "psutil"]
    assert found.lacking == []
    assert closure(["peft>=0.30", "textual"], CANDIDATES, have, "3.12").lacking == ["peft>=0.30", "textual"]


def test_what_the_image_surely_has_is_never_fetched():
    groups = [Group("needed", ["peft", "numpy"]), Group("liger-kernel", ["liger-kernel"])]
    found = dict(selection(groups, ["torch==2.11.*"], CANDIDATES, "3.12"))
    assert found["needed"] == ["peft", "accelerate", "huggingface-hub", "psutil"]
    assert found["liger-kernel"] == ["liger-kernel"]
    assert found["what a leaner image lacks"] == found["what an older image lacks"] == []


def test_what_the_image_may_lack_or_have_too_old_is_brought_in_case():
    """transformers brings the hub's library, maybe too old for us, and that, in some versions, psutil."""
    brought = {
        **CANDIDATES, "transformers": Candidate("5.17", ("huggingface-hub>=1.5", "psutil; extra == 'dev'")),
        "huggingface-hub": Candidate("1.33", ("psutil",)),
    }  # fmt: skip
    groups = [Group("needed", ["peft", "psutil", "huggingface_hub>=1.31"])]
    found = dict(selection(groups, ["torch", "transformers"], brought, "3.12"))
    assert found["needed"] == ["peft", "accelerate"]
    assert found["what a leaner image lacks"] == ["psutil"]
    assert found["what an older image lacks"] == ["huggingface-hub"]
    found = dict(selection(groups, ["torch", "transformers", "huggingface_hub"], brought, "3.12"))
    assert found["what an older image lacks"] == []


def test_groups_fit_in_their_order_and_what_does_not_is_told():
    groups = [("needed", ["a", "b"]), ("large", ["c"]), ("small", ["d"])]
    names, left_out = fitting(groups, {"a": 30_000_000, "b": 5_000_000, "c": 40_000_000, "d": 1_000_000}, 60_000_000)
    assert names == ["a", "b", "d"]
    assert left_out == ["large: 40.0 MB more, 25.0 MB are left"]


def test_what_pyproject_requires_is_all_asked_for_once():
    names = [re.split(r"[<>=!~ \[]", text)[0].lower() for group in our_groups() for text in group.requirements]
    assert len(names) == len(set(names))
    assert {"torch", "textual", "pyarrow", "pytest", "liger-kernel", "bitsandbytes", "datasets"} <= set(names)
    within, left_out = groups_within(60)
    assert wheels._SMALLER in within[0].requirements
    assert [words.split(":")[0] for words in left_out] == ["datasets", "trl"]
    assert groups_within(200) == (our_groups(), [])


# The switches and the facts


def test_switches_are_read_from_the_settings_there_are(monkeypatch):
    found, _ = parts.available_switches(dry=False)
    known = all_settings()
    assert {"packing", "compile", "checkpointing"} <= {title for title, *_ in found}
    for _, _, settings in found:
        assert settings.keys() == {"off", "on"}
        assert all(key in known for side in settings.values() for key in side)
    monkeypatch.setattr(parts, "find_spec", lambda name: name == "liger_kernel")
    found, left_out = parts.available_switches(dry=False)
    on = {title: settings["on"] for title, _, settings in found}
    assert on["kernels liger"] == {"model.kernels": "liger"}
    assert left_out["flash_attention_3"] == "flash_attn_interface is not installed"


def test_facts_that_differ_from_nvidia_smi_are_named(tmp_path, monkeypatch):
    document = {
        "gpus": [{"name": "NVIDIA H200", "memory_bytes": 143771 * 2**20, "capability": [9, 1]}],
        "driver": {"version": "580.1"}, "problems": [],
    }  # fmt: skip
    part = parts.Part(work=tmp_path, models=tmp_path, dry=False, until=monotonic() + 60)
    monkeypatch.setattr(parts, "card", lambda: CARD)
    monkeypatch.setattr(parts.Part, "program", lambda *_, **__: type("Done", (), {"stdout": json.dumps(document)}))
    assert parts.facts_beside_nvidia_smi(part)["different"] == ["compute_cap"]


def test_a_command_beyond_its_limit_costs_only_its_own_figures(tmp_path):
    part = parts.Part(work=tmp_path, models=tmp_path, dry=False, until=monotonic() + 60)
    with pytest.raises(parts.PartFailed, match="not done in 1 s"):
        part.command("-c", "import time; time.sleep(600)", limit_seconds=1)
    assert part.limit(1) < 60 < 2 * part.limit(1)
    assert part.limit(4) == pytest.approx(30, abs=1)


# The report


def lines_of(**by_name) -> list[dict]:
    facts = {"dry": False, "card": CARD, "date": "2026-11-25", "libraries": {"torch": "2.11.0", "peft": None}}
    machine = {"name": "machine", "state": "done", "figures": facts}
    return [machine, *({"name": name, "state": "done", **line} for name, line in by_name.items())]


GRID = {"configurations": [
    {"name": "llama 6x1024", "predicted_bytes": 104, "measured_bytes": 100},
    {"name": "gpt2 | lora", "predicted_bytes": 85, "measured_bytes": 100},
]}  # fmt: skip
RACE = {
    "shape": "1.2b", "method": "lora", "parameters": 1_235_814_400, "left_out": {"trl": "trl is not installed"},
    "planned": {"allocated_bytes": 33 * 2**30, "step_seconds": 0.2},
    "contenders": {
        "ours": {"median_tokens_per_second": 61234.5, "peak_memory_bytes": 30 * 2**30, "mfu": 0.512,
                 "step_seconds": 0.25},
        "trainer": {"median_tokens_per_second": 20000.0, "peak_memory_bytes": 0, "mfu": None, "step_seconds": 0.8,
                    "ours_times": 3.06},
    },
}  # fmt: skip


def test_the_report_has_the_card_the_day_and_the_figures_of_the_lines():
    text = report.report(lines_of(memory={"figures": GRID}, speed={"figures": {"races": [RACE]}}))
    assert "NVIDIA H200 (143771 MiB, driver 580.1), torch 2.11.0, 2026-11-25" in text
    assert "1 of 2 within 10%, 2 of 2 within 20%; farthest gpt2 \\| lora (-15 %)" in text
    assert "ours 61,234 real tokens/s, 30.0 GiB, MFU 51 %; trainer 20,000 real tokens/s (ours 3.06 times)" in text
    assert "memory of ours planned 33.0 GiB, measured 30.0 GiB (+10 %)" in text
    assert "step of ours planned 0.2 s, measured 0.25 s (-20 %)" in text
    assert "trl left out: trl is not installed" in text
    assert "- resume: not run" in text


def test_the_report_lists_failures_and_keeps_what_was_measured_before():
    text = report.report(lines_of(
        tests={"state": "failed", "reason": "exit code 1", "error": ["first", "E  assert 1 == 2"],
               "figures": {"passed": 50, "failed": {"test_one": "x"}, "skipped": ["no bnb"], "skipped_count": 2}},
        trace={"state": "timeout", "reason": "not done in 9 s", "error": [], "figures": {}},
        switches={"state": "skipped", "reason": "nothing here", "figures": {}},
        speed={"figures": {"races": [], "left_out": {"qlora 8b": "bitsandbytes is not installed"}}},
    ))  # fmt: skip
    assert "50 passed, 1 failed, 2 skipped: test\\_one (no bnb)" in text
    assert "- tests: failed exit code 1: E assert 1 == 2" in text
    assert "- trace: timeout not done in 9 s" in text
    assert "- switches: skipped nothing here" in text
    assert "- speed, qlora 8b: bitsandbytes is not installed" in text


def test_the_report_names_each_wait_and_those_that_are_not_listed():
    figures = {
        "steps": 10, "step_seconds": 0.25, "device_busy_share": 0.97,
        "synchronisations": {"training/recorder.py flush": 1, "losses/next_token.py __call__": 10},
        "unexpected": ["losses/next_token.py __call__"],
    }  # fmt: skip
    text = report.report(lines_of(trace={"figures": figures}))
    assert (
        "waits: training/recorder.py flush 1, losses/next\\_token.py \\_\\_call\\_\\_ 10; not on the list: losses"
        in text
    )
    assert "busy for 97 %" in text
    text = report.report(lines_of(trace={"figures": {**figures, "device_busy_share": None}}))
    assert "without a card nothing waits for one" in text


HOSTILE = "x | y\n| z\x1b[31m `rm` <script> [a](b)‮" + "w" * 5000


@pytest.mark.parametrize("figures", [
    {"configurations": [{"name": HOSTILE, "predicted_bytes": 1, "measured_bytes": 2}], "failed": [HOSTILE]},
    {"configurations": [{"name": "n", "predicted_bytes": float("nan"), "measured_bytes": 1}]},
    {"configurations": [{"name": "n", "predicted_bytes": "1", "measured_bytes": True}]},
    {"configurations": [{"name": "n", "predicted_bytes": 1, "measured_bytes": 0}]},
    {"configurations": 3}, {"configurations": [None]}, {"left_out": {HOSTILE: HOSTILE}}, [], None, HOSTILE,
], ids=lambda value: str(value)[:30].encode("unicode_escape").decode())  # fmt: skip
def test_hostile_figures_stay_in_their_cells(figures):
    lines = lines_of(memory={"figures": figures, "reason": HOSTILE})
    lines[0]["figures"] |= {"card": {"name": HOSTILE}, "date": [1]}
    text = report.report(lines)
    head, _, *rows = text.split("\n\n")[0].splitlines()
    for row in (head, *rows):
        assert len(re.findall(r"(?<!\\)\|", row)) == 4
        assert len(row) < 1500
        assert "nan" not in row
    assert text.isascii() or "‮" not in text
    assert "\x1b" not in text
    assert "<script>" not in text.replace("\\<script\\>", "")


def test_figures_that_cannot_be_read_are_a_failure():
    text = report.report(lines_of(memory={"figures": {"configurations": [{"name": "n"}]}}))
    assert "- memory: its figures cannot be read (KeyError: 'predicted\\_bytes')" in text


GUIDE = f"before\n{report.BEGIN}\nnone yet\n{report.END}\nafter\n"


def test_only_figures_of_a_card_are_written_between_the_markers(tmp_path, capsys):
    guide, out = tmp_path / "gpu.md", tmp_path / "out"
    guide.write_text(GUIDE)
    out.mkdir()
    lines = lines_of(memory={"figures": GRID})
    (out / day.RESULTS).write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert report.main([str(out), "--write", str(guide)]) == 0
    text = guide.read_text()
    assert text.startswith(f"before\n{report.BEGIN}\n\n| on a GPU |")
    assert text.endswith(f"\n{report.END}\nafter\n")
    assert "none yet" not in text
    assert report.main([str(out), "--write", str(guide)]) == 0
    assert guide.read_text() == text
    lines[0]["figures"] |= {"dry": True, "card": None}
    (out / day.RESULTS).write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert report.main([str(out), "--write", str(guide)]) == 2
    assert guide.read_text() == text
    assert "figures of no card" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", report.BEGIN, GUIDE + GUIDE, f"{report.END}{report.BEGIN}"])
def test_a_file_without_the_two_markers_stays_as_it_is(text):
    with pytest.raises(ValueError, match="it needs the lines"):
        report.written(text, "table")


def test_the_guide_has_the_markers():
    text = (day.ROOT / "tui_trainer/guides/gpu.md").read_text(encoding="utf-8")
    assert "table" in report.written(text, "table")
