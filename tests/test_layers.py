"""Architecture of the package: the order of the rooms, and where heavy libraries may be imported.

Each checker takes a text, so that a test can give it a text that breaks its rule.
"""

from __future__ import annotations

from pathlib import Path

import tui_trainer
from tests.benchmarks.structure import circles, graph_of, imports_of, modules_of

PACKAGE = Path(tui_trainer.__file__).resolve().parent
# From the top down. A room may import the rooms on later lines, and not its neighbours on the same line. A file may
# have a line of its own.
LEVELS = (
    {"cli", "__main__"},
    {"ui"},
    {"measure"},
    {"lines"},
    {"advice/checklist"},
    {"advice/fixes"},
    {"advice/gather"},
    {"launching", "importing", "downloading"},
    {"training", "exporting"},
    {"reporting"},
    {"measure/micro_batches", "measure/trial"},
    {"advice"},
    {"measure/turns"},
    {"planning"},
    {"tasks", "tuning"},
    {"losses"},
    {"models", "tracking"},
    {"config", "hardware", "runs"},
    {"data"},
    {"methods", "worker"},
    {"files"},
    {"terminal"},
    {"errors", "units"},
)
LEVEL_OF = {room: level for level, rooms in enumerate(LEVELS) for room in rooms}
ONE_ROOM = {"__main__": "cli"}
# This module needs no torch, and models are tried from checkpoints.
EXCEPTIONS = {("exporting", "tui_trainer.training.checkpoint_folder")}

HEAVY = {"torch", "transformers", "datasets", "peft", "accelerate", "bitsandbytes", "deepspeed", "safetensors.torch"}
HEAVY_ROOMS = {"training", "exporting", "losses"}
ONLY_IN = {"textual": "ui/", "pynvml": "hardware/nvml.py"}
VAGUE_NAMES = {"utils", "util", "helpers", "helper", "manager", "common", "misc"}


def room_of(path: str) -> str:
    """Return the first part of the path, or the first two if LEVELS has them."""
    parts = Path(path).with_suffix("").parts
    file = "/".join(parts[:2])
    return file if file in LEVEL_OF else parts[0]


def upward_imports(text: str, path: str) -> list[str]:
    """Return the imports of this package that do not go down."""
    room = room_of(path)
    wrong = []
    for found in imports_of(text, path):
        parts = found.name.split(".")
        if parts[0] != "tui_trainer" or len(parts) == 1:
            continue
        target = room_of("/".join(parts[1:]))
        if target not in LEVEL_OF:
            wrong.append(f"{path}:{found.line}: {found.name} is in no known room")
        elif not _may_see(room, target) and not any(
            (room, name) in EXCEPTIONS for name in (found.name, found.name.rpartition(".")[0])
        ):
            wrong.append(f"{path}:{found.line}: {room} may not see {found.name}")
    return wrong


def _may_see(room: str, target: str) -> bool:
    same = ONE_ROOM.get(room, room) == ONE_ROOM.get(target, target)
    return same or LEVEL_OF[target] > LEVEL_OF[room]


def misplaced_libraries(text: str, path: str) -> list[str]:
    """Return heavy libraries at module scope and libraries outside the one place they belong to."""
    wrong = []
    for found in imports_of(text, path):
        for library in HEAVY:
            if _is_part(found.name, library) and not found.deferred and room_of(path) not in HEAVY_ROOMS:
                wrong.append(f"{path}:{found.line}: {library} at module scope")
        for library, place in ONLY_IN.items():
            if _is_part(found.name, library) and not path.startswith(place):
                wrong.append(f"{path}:{found.line}: {library} belongs to {place}")
    return wrong


def _is_part(name: str, library: str) -> bool:
    return name == library or name.startswith(f"{library}.")


def vague_names(_text: str, path: str) -> list[str]:
    return [path for part in Path(path).with_suffix("").parts if part in VAGUE_NAMES]


def swept(check) -> list[str]:
    """Return the problems that a checker finds in all modules of the package."""
    paths = sorted(path for path in PACKAGE.rglob("*.py") if "_profiles" not in path.parts)
    assert len(paths) >= 60
    texts = {path.relative_to(PACKAGE).as_posix(): path.read_text(encoding="utf-8") for path in paths}
    assert {"cli/train.py", "runs/journal.py", "training/run.py", "tasks/char_lm.py"} <= set(texts)
    del texts["__init__.py"]
    return [problem for path, text in texts.items() for problem in check(text, path)]


def test_imports_go_down_only():
    assert swept(upward_imports) == []


def test_no_modules_import_each_other():
    """Imports inside functions and for the type checker count, and so do imports through other modules."""
    graph = graph_of(modules_of(PACKAGE.parent), PACKAGE.parent)
    assert len(graph) >= 300 and "tui_trainer.runs.events" in graph["tui_trainer.runs.state"]
    assert circles(graph) == []
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set()}) == [["b", "c"]]


def test_every_room_has_a_level():
    rooms = {room_of(path.relative_to(PACKAGE).as_posix()) for path in PACKAGE.rglob("*.py")} - {"__init__"}
    assert rooms <= set(LEVEL_OF)
    assert len(rooms) >= 14
    loose = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__"}
    assert loose == {"__main__", "errors", "units"}


def test_imports_that_go_up_or_sideways_are_found():
    wrong = [
        ("data/preparing/token_rows.py", "from tui_trainer.training.step import take_step"),
        ("data/preparing/token_rows.py", "from tui_trainer.config.sections import Config"),
        ("data/preparing/token_rows.py", "def f():\n    import tui_trainer.cli"),
        ("runs/events.py", "from tui_trainer import ui"),
        ("lines/headless.py", "from tui_trainer.ui.main import run"),
        ("lines/headless.py", "if TYPE_CHECKING:\n    from tui_trainer.ui import app"),
        ("exporting/merge.py", "from tui_trainer.training.step import take_step"),
        ("training/run.py", "from ..exporting import generate"),
        ("planning/plan.py", "from tui_trainer.nowhere import thing"),
        ("errors.py", "from .units import format_bytes"),
        ("advice/examine.py", "from tui_trainer.launching.open_run import load_config"),
        ("advice/examine.py", "from tui_trainer.advice.gather import gather"),
        ("reporting/facts.py", "from tui_trainer.advice import fixes"),
    ]
    for path, text in wrong:
        assert len(upward_imports(text, path)) == 1, (path, text)
    right = [
        ("cli.py", "from tui_trainer.runs.registry import find_run"),
        ("ui/app.py", "from tui_trainer import lines"),
        ("exporting/generate.py", "from tui_trainer.training.checkpoint_folder import newest_whole"),
        ("training/run.py", "from .step import take_step\nfrom ..runs import events"),
        ("advice/gather.py", "from .context import Context\nfrom tui_trainer.launching.open_run import load_config"),
        ("reporting/facts.py", "from tui_trainer.advice.examine import examine"),
    ]
    for path, text in right:
        assert upward_imports(text, path) == [], (path, text)


def test_heavy_libraries_stay_in_their_rooms():
    assert swept(misplaced_libraries) == []


def test_misplaced_libraries_are_found():
    wrong = [
        ("planning/plan.py", "import torch"),
        ("planning/plan.py", "from torch.nn import functional"),
        ("tasks/chat.py", "try:\n    from transformers import AutoTokenizer\nexcept ImportError:\n    pass"),
        ("tasks/chat.py", "class A:\n    import peft"),
        ("tasks/chat.py", "if TYPE_CHECKING:\n    import torch\nelse:\n    import datasets"),
        ("data/sources/source.py", "from safetensors.torch import load_file"),
        ("lines/headless.py", "def f():\n    from textual.app import App"),
        ("hardware/gauges.py", "import pynvml"),
    ]
    for path, text in wrong:
        assert len(misplaced_libraries(text, path)) == 1, (path, text)
    right = [
        ("training/run.py", "import torch"),
        ("tasks/chat.py", "def f():\n    import torch"),
        ("tasks/chat.py", "if TYPE_CHECKING:\n    from torch import Tensor"),
        ("data/sources/source.py", "import torchlight"),
        ("ui/screens/train.py", "from textual.app import App"),
        ("hardware/nvml.py", "import pynvml"),
    ]
    for path, text in right:
        assert misplaced_libraries(text, path) == [], (path, text)


def test_no_module_has_a_vague_name():
    assert swept(vague_names) == []
    assert vague_names("", "data/utils.py") and vague_names("", "common/rows.py") and not vague_names("", "lines.py")
