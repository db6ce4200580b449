"""Questions to another process: answers, failures, cancelling, and which processes are left."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
from importlib import import_module
from pathlib import Path

import pytest

from tui_trainer.models import counting
from tui_trainer.worker import asking
from tui_trainer.worker.asking import Worker, WorkerFailed, ask
from tui_trainer.worker.child import Child
from tui_trainer.worker.questions import OF_SHAPES, QUESTIONS

HEAVY = ("torch", "transformers", "datasets", "peft", "textual")
# The first worker takes a question, closes its socket and does not end; the next one answers.
ENDS_WHEN_ASKED = """
import os, pathlib, sys, time
was_here = pathlib.Path(sys.argv[1])
sys.stdin.readline()
if not was_here.exists():
    was_here.touch()
    os.close(0)
    os.close(1)
    time.sleep(1e6)
print('{"answer": 3}', flush=True)
sys.stdin.read()
"""
# A worker with a process of its own; both wait forever.
WITH_A_PROCESS = """
import os, subprocess, sys, time
sys.stdin.readline()
other = subprocess.Popen(["sleep", "infinity"])
print('{"progress": {"processes": [%d, %d]}}' % (os.getpid(), other.pid), flush=True)
time.sleep(1e6)
"""
# A program that asks such a worker, which ends with the program as every worker does.
ASKING = """
import sys, threading
from tui_trainer.worker import asking
worker = "import threading, os, sys\\nfrom tui_trainer.worker import answering\\n" \\
    "answering._worker.answers = sys.stdout\\n" \\
    "threading.Thread(target=answering._end_with_the_program, daemon=True).start()\\n" + sys.argv[1]
command = asking._command
asking._command = lambda *asked: ([sys.executable, "-c", worker], command(*asked)[1])
asking.ask("dry_run", {}, progress=lambda told: print(*told["processes"], flush=True))
"""
# A worker that becomes another program, as one does that trains with other libraries.
BEGINS_ANEW = """
import sys, types
from tui_trainer.worker import answering, questions
again = types.ModuleType("again")
def answer(asked, report):
    report(part=1)
    answering.restart_worker([sys.executable, "-c", sys.argv[1]], {"A": "b"})
again.answer = answer
sys.modules["again"], questions.QUESTIONS["dry_run"] = again, "again:answer"
answering.answer_questions(["dry_run"])
"""
ANEW = """
import json, os, sys
print(json.dumps({"answer": [json.loads(sys.stdin.readline())["input"], sys.argv[1], os.environ["A"]]}))
"""


class Slow(subprocess.Popen):
    def wait(self, timeout=None):
        if timeout:
            raise subprocess.TimeoutExpired("slow", timeout)
        return super().wait()


@pytest.fixture
def script(monkeypatch):
    """`script(text, *arguments)`: workers run this text, also the one that all tests share."""
    monkeypatch.setattr(asking, "Child", Child)
    asking.shapes_worker.close()

    def set_script(text: str, *arguments: object) -> None:
        command = [sys.executable, "-c", text, *map(str, arguments)]
        monkeypatch.setattr(asking, "_command", lambda questions, sees_gpus: (command, dict(os.environ)))

    yield set_script
    asking.shapes_worker.close()


def test_a_worker_that_is_slow_to_end_is_replaced(script, monkeypatch, tmp_path):
    script(ENDS_WHEN_ASKED, tmp_path / "was_here")
    monkeypatch.setattr(subprocess, "Popen", Slow)
    assert ask("dry_run", {}) == 3


def test_a_forked_program_has_a_worker_of_its_own(script, monkeypatch):
    script("import os, sys\nfor line in sys.stdin: print(f'{{\"answer\": {os.getpid()}}}', flush=True)")
    worker = Worker("dry_run")
    try:
        ours = worker.ask("dry_run", {})
        read, write = os.pipe()
        if not (fork := os.fork()):
            os.write(write, str(worker.ask("dry_run", {})).encode())
            worker.close()
            os._exit(0)
        os.waitpid(fork, 0)
        assert int(os.read(read, 20)) != ours == worker.ask("dry_run", {})
    finally:
        worker.close()


KILLED = "killed, probably because memory ran out"
FAILURES = [
    ('print(\'{"failed": "no model"}\', flush=True)', "failed: no model", "no model", False),
    ("sys.exit('first\\nlast words')", "failed: last words", "last words", False),
    ("os.kill(os.getpid(), 9)", f"was {KILLED}", KILLED, True),
    ("os.kill(os.getpid(), 11)", "failed: SIGSEGV", "SIGSEGV", False),
    ("os._exit(0)", "failed: no error message", "no error message", False),
    ("time.sleep(1e6)", "took more than 1 s", "", False),
]


def test_a_missing_answer_is_reported_with_its_reason(script, subtests):
    for text, message, reason, is_killed in FAILURES:
        with subtests.test(text):
            script(f"import os, sys, time\nsys.stdin.readline()\n{text}")
            with pytest.raises(WorkerFailed) as failure:
                ask("dry_run", {}, timeout_seconds=1 if "sleep" in text else None)
            assert (str(failure.value), failure.value.reason, failure.value.is_killed) == (message, reason, is_killed)


def has_ended(process: int) -> bool:
    """Return whether the process is gone or a zombie of another parent."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def wait_for_end(processes: list[int]) -> None:
    for process in processes:
        try:
            watched = os.pidfd_open(process)
        except ProcessLookupError:
            continue
        assert select.select([watched], [], [], 60)[0], "still there"
        os.close(watched)
        assert has_ended(process)


def test_a_worker_has_the_lowest_priority_while_a_run_trains(script):
    script("import os, sys\nfor line in sys.stdin: print(f'{{\"answer\": {os.nice(0)}}}', flush=True)")
    begun_before, begun_within = Worker("dry_run"), Worker("dry_run")
    try:
        before = begun_before.ask("dry_run", {})
        with begun_before.lowest_priority(), begun_within.lowest_priority():
            assert begun_before.ask("dry_run", {}) == begun_within.ask("dry_run", {}) == 19
        assert begun_within.ask("dry_run", {}) == begun_before.ask("dry_run", {}) == before < 19
    finally:
        begun_before.close()
        begun_within.close()


def test_a_cancel_ends_the_worker_and_its_processes(script):
    script(WITH_A_PROCESS)
    processes: list[int] = []
    asked, failures = threading.Event(), []

    def on_progress(told):
        processes.extend(told["processes"])
        asked.set()

    def wait():
        try:
            ask("dry_run", {}, progress=on_progress)
        except WorkerFailed as failure:
            failures.append(str(failure))

    waiting = threading.Thread(target=wait)
    waiting.start()
    assert asked.wait(1500)
    asking.end_workers()
    waiting.join(1500)
    assert failures == ["was cancelled"]
    wait_for_end(processes)
    assert len(processes) == 2


def test_a_cancelled_question_is_asked_again(script):
    """Whoever asks next gets an answer: the cancel says nothing about the model."""
    script(WITH_A_PROCESS)
    answers, failures = counting.Answers("dry_run", 0), []

    def wait():
        try:
            answers.ask({"model": "one"})
        except WorkerFailed as failure:
            failures.append(failure.is_cancelled)

    waiting = threading.Thread(target=wait)
    waiting.start()
    while not asking.shapes_worker.is_asked:
        waiting.join(0.01)
    while waiting.is_alive():  # as often as the process had not begun yet
        asking.end_workers()
        waiting.join(0.01)
    assert failures == [True]
    script('import sys; sys.stdin.readline(); print(\'{"answer": "answered"}\', flush=True); sys.stdin.read()')
    assert answers.ask({"model": "one"}) == "answered"


def test_an_error_in_the_progress_callback_ends_the_worker(script):
    script(WITH_A_PROCESS)
    processes: list[int] = []

    def on_progress(told):
        processes.extend(told["processes"])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ask("dry_run", {}, progress=on_progress)
    wait_for_end(processes)
    assert len(processes) == 2


@pytest.mark.full
def test_a_program_that_is_killed_leaves_no_worker_behind():
    command = [sys.executable, "-c", ASKING, WITH_A_PROCESS]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        processes = [int(one) for one in program.stdout.readline().split()]
        program.send_signal(signal.SIGKILL)
        wait_for_end(processes)
    assert len(processes) == 2


def test_a_worker_that_becomes_another_program_gets_the_same_question(script):
    script(BEGINS_ANEW, ANEW)
    told = []
    assert ask("dry_run", {"rows": 3}, progress=told.append) == [{"rows": 3}, "dry_run", "b"]
    assert told == [{"part": 1}]


# ---------------------------------------------------------------- the entry


def entry(*questions: str, text: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-X", "importtime", "-m", "tui_trainer.worker", *questions]
    return subprocess.run(command, input=text, capture_output=True, text=True, timeout=1500)


def loaded_by(done: subprocess.CompletedProcess[str]) -> set[str]:
    return {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}


@pytest.mark.full
def test_every_question_has_a_function():
    for name, place in QUESTIONS.items():
        module, _, function = place.partition(":")
        assert callable(getattr(import_module(module), function)), name
    assert set(OF_SHAPES) <= set(QUESTIONS) and len(QUESTIONS) >= 9


@pytest.mark.full
def test_the_entry_loads_only_what_its_question_needs():
    """The question `try_machine` needs no torch until it computes."""
    done = entry("try_machine", text=json.dumps({"question": "count_model", "input": {}}) + "\n")
    assert json.loads(done.stdout)["failed"].startswith("this worker answers the questions try_machine, but not")
    ours = {name for name in loaded_by(done) if name.startswith("tui_trainer.")}
    assert ours and not [name for name in ours if name.split(".")[1] not in ("worker", "errors", "terminal")]
    assert not loaded_by(done) & {*HEAVY, "numpy"}
    [module] = {QUESTIONS["try_machine"].partition(":")[0]}
    command = [sys.executable, "-P", "-c", f"import sys, {module}; print(sorted(sys.modules))"]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert module in loaded and not [name for name in HEAVY if f"'{name}'" in loaded]


@pytest.mark.full
def test_an_entry_without_a_known_question_names_the_questions():
    done = entry("no_such_question")
    assert done.returncode == 1 and "questions: count_model" in done.stderr
