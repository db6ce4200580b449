"""No key waits: every key of every screen and dialog beside processes that never answer, and a disk that never does.

What would wait in the thread of the screens is noted there: no clock is needed, and none could be trusted.
"""

from __future__ import annotations

import builtins
import fcntl
import io
import json
import os
import pkgutil
import select
import socket
import subprocess
import threading
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.previews import PREVIEW
from tests.runs.journals import end, run_of, start, steps
from tests.ui.pictures import in_event_loop
from tests.ui.screens import Screens, open_screens
from tui_trainer import ui
from tui_trainer.config.load import Request, all_settings
from tui_trainer.hardware.probe import probe
from tui_trainer.launching import open_run as launching
from tui_trainer.launching import preview as previewing
from tui_trainer.models import counting as answers
from tui_trainer.runs.folder import RunFolder
from tui_trainer.runs.lock import RunLock
from tui_trainer.ui import app as app_module
from tui_trainer.ui import processes
from tui_trainer.ui.dialogs import Dialog
from tui_trainer.ui.keymap import ACTIONS, PLACES
from tui_trainer.ui.run_dialogs import TryDialog
from tui_trainer.worker import asking
from tui_trainer.worker.child import Child

_CALLS_SHOWN = 6


class Waiting:
    """Where the screens would have waited, and the processes that never answer, from `begin` on."""

    def __init__(self, dead: Path) -> None:
        self.dead = dead
        self.found: dict[str, None] = {}
        self.processes: list[subprocess.Popen[Any]] = []
        self.over = threading.Event()
        self._is_on = False

    def begin(self) -> None:
        self._is_on = True

    def end(self) -> None:
        self._is_on = False
        self.over.set()
        for process in self.processes:
            process.kill()

    def note(self, what: str) -> bool:
        """Whether it is a call of the screens that would wait."""
        if not self._is_on or threading.current_thread() is not threading.main_thread():
            return False
        calls = traceback.extract_stack()[:-2]
        ours = [call for call in calls if f"{os.sep}tui_trainer{os.sep}" in call.filename]
        begins_a_thread = any(call.filename == threading.__file__ and call.name == "start" for call in calls[-4:])
        if not ours or begins_a_thread:
            return False
        shown = " < ".join(f"{Path(call.filename).name}:{call.lineno} {call.name}" for call in ours[:-_CALLS_SHOWN:-1])
        self.found[f"{what} in {shown}"] = None
        return True

    def never(self, what: str) -> Callable[..., Any]:
        """A function that does not return."""

        def wait(*_: object, **__: object) -> None:
            if self.note(what):
                raise TimeoutError(f"{what} does not answer")
            self.over.wait()
            raise TimeoutError(f"{what} did not answer")

        return wait

    def begins(self, arguments: object) -> object:
        return ["sleep", "infinity"] if self._is_on else arguments

    def touch(self, path: object) -> None:
        if self._is_on and isinstance(path, str | bytes | os.PathLike):
            name = os.fsdecode(path)
            if name.startswith(f"{self.dead}{os.sep}"):
                self.never(f"the disk of {os.path.relpath(name, self.dead)}")()


@pytest.fixture
def waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Waiting]:
    monkeypatch.setattr(app_module, "TICK_SECONDS", 0.2)
    monkeypatch.setenv("EDITOR", "no-such-editor")
    monkeypatch.delenv("VISUAL", raising=False)
    # The busiest process of this user may be a test beside this one.
    monkeypatch.setattr(processes, "end_process", lambda *_, **__: "not of a test")
    found = Waiting(tmp_path / "dead")
    # As before the first screen; it asks a process for the kind of the processor.
    probe()

    class NeverAnswers(subprocess.Popen):
        def __init__(self, args: Any, **more: Any) -> None:
            super().__init__(found.begins(args), **more)
            found.processes.append(self)

        def wait(self, timeout: float | None = None) -> int:
            if timeout != 0 and self.poll() is None:
                found.note("Popen.wait")
            return super().wait(timeout)

        def communicate(self, *args: Any, **more: Any) -> Any:
            found.note("Popen.communicate")
            return super().communicate(*args, **more)

    def spy(module: Any, name: str, waits: Callable[..., object]) -> None:
        plain = getattr(module, name)

        def call(*args: Any, **more: Any) -> Any:
            if waits(*args, **more):
                found.note(f"{module.__name__}.{name}")
            return plain(*args, **more)

        monkeypatch.setattr(module, name, call)

    def spy_on_disk(module: Any, name: str) -> None:
        plain = getattr(module, name)

        def call(path: Any = ".", *args: Any, **more: Any) -> Any:
            found.touch(path)
            return plain(path, *args, **more)

        monkeypatch.setattr(module, name, call)

    monkeypatch.setattr(subprocess, "Popen", NeverAnswers)
    # Other tests have a fork in its place.
    monkeypatch.setattr(asking, "Child", Child)
    monkeypatch.setattr(answers, "prepared_data_folder", lambda environment: tmp_path / "prepared")
    spy(threading.Condition, "wait", lambda _, timeout=None: timeout != 0)
    spy(threading.Thread, "join", lambda thread, timeout=None: timeout != 0 and thread.is_alive())
    spy(time, "sleep", lambda seconds: seconds)
    spy(fcntl, "flock", lambda _, how: not how & (fcntl.LOCK_NB | fcntl.LOCK_UN))
    spy(os, "fsync", lambda _: True)
    spy(os, "waitpid", lambda _, options: not options & os.WNOHANG)
    spy(socket, "getaddrinfo", lambda *_, **__: True)
    spy(select, "select", lambda *_: len(_) < 4 or _[3] != 0)
    spy(Child, "read_lines", lambda _, seconds=0.0: seconds != 0)
    for name in ("stat", "lstat", "open", "scandir", "listdir", "access", "statvfs", "mkdir", "readlink", "unlink"):
        spy_on_disk(os, name)
    for module in (io, builtins):
        spy_on_disk(module, "open")
    asking.shapes_worker.close()
    yield found
    found.end()
    # One may have been begun in that moment, and never answers.
    while asking.shapes_worker.is_asked:
        asking.shapes_worker.cancel()
        threading.Event().wait(0.05)
    asking.shapes_worker.close()


class Presser:
    """Presses every key there is; `pressed` are those of each dialog, by its class and heading."""

    def __init__(self, screens: Screens) -> None:
        self.screens, self.app, self.bench = screens, screens.app, screens.bench
        self.pressed: defaultdict[tuple[type[Dialog], str], set[str]] = defaultdict(set)

    @property
    def met(self) -> set[type[Dialog]]:
        return {kind for kind, _ in self.pressed}

    async def every_action(
        self, *places: str, only: str = "", before: Callable[[str], None] = lambda name: None
    ) -> None:
        """Of these places, or `only` those of these names; each of `app` on the Config screen."""
        for place in places:
            page = PLACES.index("config" if place == "app" else place) - 1
            for action in ACTIONS:
                if action.place == place and action.name != "quit" and action.name in (only.split() or [action.name]):
                    while True:
                        if self.bench.current_page != page:
                            self.bench.go(page)
                            await self.screens.pilot.pause()
                        before(action.name)
                        await self.screens.press(action.keys[0])
                        if not await self._new_keys_of_dialogs():
                            break
                    if self.app.page.is_typing:
                        await self.screens.press("x", "tab", "down", "escape")

    async def _new_keys_of_dialogs(self) -> bool:
        found = False
        while dialog := self.app.dialog:
            pressed = self.pressed[type(dialog), dialog.heading]
            if dialog.heading == "Quit?":
                # The help runs its entries, this one too.
                pressed.update(key for key, _ in dialog.keys)
            if isinstance(dialog, TryDialog) or hasattr(dialog, "field"):
                await self.screens.press("x")
            while self.app.dialog is dialog and (keys := [key for key, _ in dialog.keys if key not in pressed]):
                pressed.add(keys[0])
                found = True
                await self.screens.press(*(keys[0].split() or ["space"]))
            if self.app.dialog is dialog:
                await self.screens.press("escape")
            await self.screens.pilot.pause()
        while len(self.app.screen_stack) > 1:
            await self.screens.press("escape")
            await self.screens.pilot.pause()
        return found

    async def every_editor(self) -> None:
        """Of settings whose values are looked for on the disk."""
        page = self.app.page
        for key in (setting.key for setting in all_settings().values() if setting.completes):
            page.model.reveal(key)
            page._show_rows(key)
            await self.screens.press("enter")
            await self._new_keys_of_dialogs()
            if page.editor:
                await self.screens.press("x", "tab", "backspace", "down")
                page._close()

    async def leave(self) -> None:
        """With more than one `q` where the first one closes what is open, and another asks."""
        for _ in range(3):
            if not self.screens.ended:
                await self.screens.press("q")
        await self.screens.until(lambda: self.screens.ended)


def dialogs() -> set[type[Dialog]]:
    """All that can be opened."""
    for module in pkgutil.walk_packages(ui.__path__, f"{ui.__name__}."):
        import_module(module.name)
    found, left = set[type[Dialog]](), [Dialog]
    while left:
        kind = left.pop()
        below = [one for one in kind.__subclasses__() if one.__module__.startswith("tui_trainer.")]
        left += below
        found |= set() if below else {kind}
    return found


@pytest.mark.e2e
@in_event_loop
async def test_no_key_of_any_screen_or_dialog_waits_for_a_process_a_lock_or_a_write(waiting, tmp_path, monkeypatch):
    runs = tmp_path / "runs"
    for name in ("one", "two", "three", "four"):
        run_of(runs, name, start(100), *steps(1, 100), end(100))
    run_of(runs, "half", start(100), *steps(1, 50))
    living = run_of(runs, "living", start(100), *steps(1, 50))
    for name in ("open_new", "reopen_run"):
        monkeypatch.setattr(launching, name, waiting.never(name))
    monkeypatch.setattr(TryDialog, "_generate", waiting.never("a model that writes"))
    monkeypatch.setattr(previewing, "make_preview", lambda *_, **__: PREVIEW)

    def attached(name: str) -> bool:
        run = screens.bench.run
        return run is not None and run.folder.name == name

    def end_what_measures(action: str) -> None:
        if action in ("tune", "sizes", "switches"):
            for one in screens.bench.commands:
                if process := getattr(one, "process", None):
                    process.alive = False

    def choose(action: str) -> None:
        model = page.model
        wanted = {"stop": "living", "resume": "half"}.get(action, "")
        places = [
            place
            for place, one in enumerate(model.shown_runs)
            if one.name == wanted or (not wanted and one.status == "finished")
        ]
        model.choose(places[0])
        headings = {heading for _, heading in presser.pressed}
        if action == "compare" or (action == "export" and "Export 2 runs" not in headings):
            model.marked = [one.path for one in model.shown_runs if one.is_run][:2]
        elif action == "export":
            model.marked = []

    with RunLock(living.lock):
        async with open_screens() as screens:
            await screens.shows("A run is active")
            await screens.press("escape")
            waiting.begin()
            presser = Presser(screens)
            await presser.every_action("hardware", "config", "app", "checklist", before=end_what_measures)
            screens.bench.go(1)
            await screens.pilot.pause()
            await presser.every_editor()
            for name, only in (("living", ""), ("half", "pause"), ("one", "doctor try_model export report")):
                screens.bench.attach_to(RunFolder(runs / name))
                await screens.until(lambda name=name: attached(name))
                await presser.every_action("train", only=only)
            screens.bench.go(4)
            page = screens.app.pages["runs"]
            await screens.until(lambda: len(page.model.shown_runs) == 6)
            await presser.every_action("runs", before=choose)
            await screens.resize(60, 20)
            await screens.press("down", "x")
            await screens.resize(80, 24)
            await presser.leave()
    assert not list(waiting.found)
    # These are behind a choice within another dialog: `test_commands.py` and `test_new_run.py` open them.
    # An import is shown once a process has answered, which may be too late here: `test_own_processes.py`.
    left = {kind.__name__ for kind in dialogs() - presser.met}
    assert left - {"ImportedDialog"} == {"FileDialog", "ColumnsDialog"}


@pytest.fixture
def request_on_a_dead_disk(waiting) -> Request:
    """Model, data, the user's own profile and all runs."""
    waiting.dead.mkdir()
    named = {"model.model_name_or_path": "model", "data.path": "rows.jsonl", "output.runs_dir": "runs"}
    return Request(assignments=tuple(f"{key}={waiting.dead / name}" for key, name in named.items()))


@pytest.mark.e2e
@in_event_loop
async def test_every_key_is_answered_and_q_leaves_where_no_disk_answers(waiting, request_on_a_dead_disk):
    run = run_of(waiting.dead / "runs", "away", start(100), *steps(1, 50))
    waiting.begin()
    async with open_screens(request_on_a_dead_disk, ready=lambda bench: bench.document) as screens:
        presser = Presser(screens)
        screens.bench.attach_to(run)
        await presser.every_action("hardware", "config", "train", "runs")
        screens.bench.go(1)
        await screens.pilot.pause()
        await presser.every_editor()
        await presser.leave()
    assert not list(waiting.found)


def a_model_never_seen(folder: Path) -> None:
    folder.mkdir()
    config = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 32, "vocab_size": 97,
        "intermediate_size": 1237, "num_hidden_layers": 2, "num_attention_heads": 4,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.full
@in_event_loop
async def test_recipes_are_chosen_while_a_model_is_counted_and_q_ends_the_process_that_counts(waiting, tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"text": "a sheep"}\n' * 9)
    a_model_never_seen(tmp_path / "model")
    asked = Request(shortcuts={"model.model_name_or_path": "./model", "data.path": "rows.jsonl"})
    counting = "counting the parameters of ./model ..."
    waiting.begin()
    async with open_screens(asked, ready=lambda bench: bench.document, size=(120, 40)) as screens:
        await screens.press("2")
        await screens.shows("plan...", counting)
        await screens.press("p")
        first = await screens.shows("Choose a recipe", counting, "\u2500\u2500 Changes ")
        await screens.press("up")
        assert await screens.shows(counting, "\u2500\u2500 Changes ") != first
        await screens.press("enter")
        await screens.shows("recipe ", gone="Choose a recipe")
        await screens.press("t")
        await screens.shows(f"planning: {counting}")
        screens.bench.go(3)
        await screens.shows("A new run is being prepared.", f"planning: {counting}", gone="Nothing is training")
        [counter] = [process for process in waiting.processes if process.poll() is None]
        await Presser(screens).leave()
    counter.wait(1500)
    assert not list(waiting.found)
