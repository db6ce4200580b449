"""Press keys at random in the real program, and look that it never fails.

    python -m tests.faults.random_keys [--keys 5000] [--seed N] [--size 80x24]

The program sits in a pseudo-terminal, in a folder of its own with a small config, and gets every key of its screens and
dialogs, letters and figures, escape sequences and the mouse. Where a key ends it, it is begun again, with the runs that
it made. A failure is a crash report, a traceback on the terminal, an exit code that no ending has, or screens that do
not answer `?` any more; the seed and the last keys are printed with it.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
from collections import deque
from contextlib import suppress
from pathlib import Path

import psutil

from tests.ui.conftest import KEYS, Terminal, write_small_config
from tui_trainer.ui.keymap import ACTIONS

EXIT_CODES = (0, 1, 3)
# What reaches beyond the folder: other processes, installed packages. ctrl+z has its own sweep.
OUT_OF_REACH = ("hardware.processes", "hardware.install", "checklist.install", "app.suspend")
# Somebody else's process is not ended, whatever is pressed.
_WITHOUT_SIGNALS = """
import os, runpy, psutil
psutil.Process.send_signal = psutil.Process.terminate = psutil.Process.kill = lambda *_: None
runpy.run_module("tui_trainer", run_name="__main__", alter_sys=True)
"""
_TYPED = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 /.,-_#<>=?!:'\"[]{}()\u00e9\u6f22"
_ODD = ["\x1b[Z", "\x1b[200~a\nb\x1b[201~", "\x1b[1;5C", "\x1bx", "\x1b[15~", "\x1b[24~", "\x1b[I", "\x1b[O", "\xff"]
_LOOK_EVERY = 40


class Presser:
    def __init__(self, folder: Path, seed: int, size: tuple[int, int]) -> None:
        self._random, self._size, self._folder = random.Random(seed), size, folder
        self.pressed: deque[str] = deque(maxlen=120)
        self.starts = 0
        write_small_config(folder, steps=400)
        keys = folder / "config" / "tui-trainer" / "keys.toml"
        keys.parent.mkdir(parents=True)
        known = {action.id for action in ACTIONS}
        assert known.issuperset(OUT_OF_REACH)
        # A key that nothing here presses; what is found by its name in the palette asks before it does anything.
        keys.write_text("".join(f'"{id}" = "f{15 + at}"\n' for at, id in enumerate(OUT_OF_REACH)))
        self._choices = [*_TYPED, *_ODD, *KEYS.values()]
        self._terminal = self._start()

    def _start(self) -> Terminal:
        self.starts += 1
        home = self._folder / "home"
        environment = os.environ | {
            "TERM": "xterm-256color", "LC_ALL": "C.UTF-8", "HF_HUB_OFFLINE": "1", "TUI_TRAINER_HOME": str(home),
            "XDG_CONFIG_HOME": str(self._folder / "config"), "EDITOR": "true", "VISUAL": "true",
            "UV_OFFLINE": "1", "PIP_NO_INDEX": "1",
        }  # fmt: skip
        command = [sys.executable, "-c", _WITHOUT_SIGNALS, "small.toml"]
        terminal = Terminal(
            lambda slave: subprocess.Popen(
                ["setsid", "--ctty", *command],
                stdin=slave, stdout=slave, stderr=slave, cwd=self._folder, env=environment,
            ),
            *self._size, self._folder,
        )  # fmt: skip
        terminal.wait_for("? help")
        return terminal

    def press(self, count: int) -> None:
        """Raises AssertionError for what must not be."""
        for at in range(1, count + 1):
            key = self._mouse() if self._random.random() < 0.05 else self._random.choice(self._choices)
            self.pressed.append(key)
            try:
                self._terminal.send(key.encode("latin-1") if key == "\xff" else key)
            except OSError:
                # It has ended, and is looked at below.
                self._terminal.wait_for_end()
            self._terminal.read(0.01)
            if not self._terminal.alive:
                self._look_at_end()
                self._terminal = self._start()
            elif at % _LOOK_EVERY == 0:
                self._look()
        self._look()

    def _mouse(self) -> str:
        x, y = self._random.randint(1, self._size[0]), self._random.randint(1, self._size[1])
        button = self._random.choice([0, 0, 0, 64, 65])
        return f"\x1b[<{button};{x};{y}M\x1b[<{button};{x};{y}m"

    def _look(self) -> None:
        """Whatever is open is closed by some escapes; then the screens say what their keys are."""
        for _ in range(6):
            self._terminal.send("\x1b")
            self._terminal.let_pass(0.15)
            if not self._terminal.alive:
                return
        self._terminal.send("\x0c")
        self._terminal.wait_for("? help")
        self._assert_no_crash()

    def _look_at_end(self) -> None:
        code = self._terminal.wait_for_end()
        os.close(self._terminal.master)
        self._assert_no_crash()
        # Ctrl+C behind the screens, while it ends, is the shell's.
        has_left = self._terminal.raw.rfind(b"\x1b[?1049l") > self._terminal.raw.rfind(b"\x1b[?1049h")
        assert code in EXIT_CODES or (code == 130 and has_left), f"it ended with {code}"

    def _assert_no_crash(self) -> None:
        reports = list((self._folder / "home" / "logs").glob("crash-*"))
        assert not reports, reports[0].read_text()
        assert b"Traceback" not in self._terminal.raw, self._terminal.text

    def end(self) -> None:
        if self._terminal.alive:
            self._terminal.process.kill()
            self._terminal.process.wait()
        # Detached runs, and what the screens began.
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if Path(process.cwd()).is_relative_to(self._folder):
                    process.kill()


def press_at_random(count: int, seed: int, size: tuple[int, int]) -> int:
    """How often the program was begun. Raises AssertionError with the seed and the last keys."""
    with tempfile.TemporaryDirectory(prefix="random-keys-", ignore_cleanup_errors=True) as folder:
        presser = Presser(Path(folder), seed, size)
        try:
            presser.press(count)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, after {list(presser.pressed)}:\n{error}") from None
        finally:
            presser.end()
        return presser.starts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--size", default="80x24")
    asked = parser.parse_args()
    columns, rows = map(int, asked.size.split("x"))
    starts = press_at_random(asked.keys, asked.seed, (columns, rows))
    print(f"{asked.keys} keys at {asked.size}, seed {asked.seed}: {starts} starts, no error")


if __name__ == "__main__":
    main()
