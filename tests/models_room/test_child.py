"""A process that is asked one question after the other, and may end in the moment in which it is asked."""

import os
import subprocess
import sys
from types import SimpleNamespace

from tui_trainer.models import child

# The first one takes a question, tells that it says nothing more, and does not end; the next one answers.
SCRIPT = """
import os, pathlib, sys
was_here = pathlib.Path(sys.argv[1])
sys.stdin.readline()
if not was_here.exists():
    was_here.touch()
    os.close(1)
    sys.stdin.read()
print('{"answer": 3}', flush=True)
sys.stdin.read()
"""


class Slow(subprocess.Popen):
    def wait(self, timeout=None):
        if timeout:
            raise subprocess.TimeoutExpired("slow", timeout)
        return super().wait()


def test_one_that_is_slow_to_end_was_not_killed_for_its_memory(monkeypatch, tmp_path):
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "was_here")]
    monkeypatch.setattr(child, "_command", lambda module, sees_gpus: (command, os.environ))
    monkeypatch.setattr(child, "subprocess", SimpleNamespace(**{**vars(subprocess), "Popen": Slow}))
    asked = child.AnsweringChild()
    try:
        assert child.read_answer(asked._hear("{}", 60)) == 3
    finally:
        asked.kill()


def test_a_fork_asks_a_process_of_its_own(monkeypatch):
    echo = "import os, sys\nfor line in sys.stdin: print(f'{{\"answer\": {os.getpid()}}}', flush=True)"
    monkeypatch.setattr(child, "_command", lambda module, sees_gpus: ([sys.executable, "-c", echo], os.environ))
    asked = child.AnsweringChild()
    monkeypatch.setattr(child, "answering_child", asked)
    os.register_at_fork(after_in_child=asked.forget)
    try:
        ours = child.read_answer(asked._hear("{}", 60))
        read, write = os.pipe()
        if not (fork := os.fork()):
            os.write(write, str(child.read_answer(asked._hear("{}", 60))).encode())
            asked.kill()
            os._exit(0)
        os.waitpid(fork, 0)
        assert int(os.read(read, 20)) != ours == child.read_answer(asked._hear("{}", 60))
    finally:
        asked.kill()
