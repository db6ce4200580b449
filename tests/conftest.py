"""What tests share: a private state folder, and tiny real runs made through the same door as the command line."""

from __future__ import annotations

import gc
import os
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.program_server import give_room_on_the_disk
from tests.programs import ForkedWorker, shared_folder
from tui_trainer.config.load import LoadedConfig, Request
from tui_trainer.errors import EXIT_DONE
from tui_trainer.hardware.environment import prepare_environment
from tui_trainer.launching import prepare
from tui_trainer.launching import run_lifecycle as carry_out_module
from tui_trainer.launching.open_run import OpenRun, load_config, open_new
from tui_trainer.launching.run_lifecycle import Outcome, execute_run
from tui_trainer.models import counting as answers
from tui_trainer.planning import fit
from tui_trainer.runs.folder import RunFolder
from tui_trainer.runs.registry import add_to_index
from tui_trainer.worker import asking

os.environ["HF_HUB_OFFLINE"] = "1"
prepare_environment()
# Each of hundreds of processes would compile torch and transformers, which takes 10 s. Bytecode goes to a folder of the
# tests instead of where the variable forbids it.
if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
    sys.dont_write_bytecode = False
    sys.pycache_prefix = os.environ["PYTHONPYCACHEPREFIX"] = str(Path(__file__).parents[1] / ".pytest_cache/bytecode")

TINY = {
    "data.max_length": 16,
    "data.eval_fraction": 0.2,
    "model.scratch.hidden_size": 16,
    "model.scratch.num_hidden_layers": 1,
    "model.scratch.num_attention_heads": 2,
    "training.effective_batch_size": 4,
    "training.learning_rate": 0.01,
    "training.max_steps": 10,
    "evaluation.eval_steps": 0,
    "evaluation.max_eval_rows": 8,
    "checkpoint.save_steps": 0,
    "logging.sample_steps": 0,
    "logging.logging_steps": 5,
}


give_room_on_the_disk()

# Which test's run is the first of its process depends on their order: peaks of none are kept.
next(carry_out_module._EARLIER_RUNS)

# Garbage of all generations is collected a tenth as often.
gc.set_threshold(700, 10, 100)


def pytest_addoption(parser: pytest.Parser) -> None:
    words = "files in a random order, and the tests of each; the same order for the same seed"
    parser.addoption("--shuffle", type=int, metavar="SEED", help=words)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out files, without importing them, where every test has a mark that `-m` excludes."""
    named = {Path(argument.partition("::")[0]).resolve() for argument in config.args}
    if not collection_path.match("test_*.py") or collection_path in named:
        return None
    mark = re.search(r"^pytestmark = \[?pytest\.mark\.(\w+)", collection_path.read_text("utf-8"), re.MULTILINE)
    is_excluded = mark is not None and f"not {mark[1]}" in config.getoption("markexpr")
    return is_excluded or None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if (seed := config.getoption("--shuffle")) is not None:
        random = Random(seed)
        # What a file makes once for its tests is made once.
        of_file = {item.path: random.random() for item in items}
        items.sort(key=lambda item: (of_file[item.path], random.random()))


def pytest_runtest_setup() -> None:
    """What libraries are made of is left out of garbage collections: going through torch, transformers and Textual
    again and again was a quarter of the processor time of the tests."""
    if len(sys.modules) > _frozen_modules + 300:
        _freeze()


def _freeze() -> None:
    global _frozen_modules
    gc.collect()
    gc.freeze()
    _frozen_modules = len(sys.modules)


def pytest_xdist_auto_num_workers() -> int:
    """One process a core, and one more for the time in which others wait for a program or a terminal."""
    return len(os.sched_getaffinity(0)) + 1


def pytest_collection_finish() -> None:
    """Tests and their runs compute on one core, whatever a plan says: they run side by side, and two threads that wait
    for each other take a second a step where others use the cores too."""
    if process := sys.modules.get("tui_trainer.training.process"):
        process.torch.set_num_threads(1)
        process._set_threads = lambda _: process.torch.set_num_threads(1)


def pytest_unconfigure() -> None:
    asking.shapes_worker.close()
    gc.unfreeze()


_frozen_modules = 0


@pytest.fixture(autouse=True)
def private_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """State, cache and runs of a test stay in its own folder."""
    home = tmp_path / "home"
    monkeypatch.setenv("TUI_TRAINER_HOME", str(home))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    # What architectures consist of is asked once for all tests.
    monkeypatch.setattr(answers, "prepared_data_folder", lambda environment: shared_folder())
    return home


@pytest.fixture(autouse=True)
def forked_workers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker is a fork of a process that has loaded torch; of tests with the mark e2e, a process of its own."""
    if not request.node.get_closest_marker("e2e"):
        monkeypatch.setattr(asking, "Child", ForkedWorker)


@pytest.fixture(autouse=True)
def no_dry_run(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory goes by the general formula, but in tests with the mark `dry_run`: a process takes a second for each model
    and setup."""
    if not request.node.get_closest_marker("dry_run"):
        monkeypatch.setattr(fit, "measure_layer", lambda *_, **__: (None, "not counted in tests"))


@pytest.fixture
def bf16_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU without bf16 is refused it, and emulates it here: slower, and to the same numbers."""
    machine = prepare.probe()
    able = replace(machine, cpu_flags=machine.cpu_flags | {"avx512_bf16"})
    monkeypatch.setattr(prepare, "probe", lambda: able)


@pytest.fixture
def sheep(tmp_path: Path) -> Path:
    """A small text file of 36 lines."""
    return _write_sheep(tmp_path)


def _write_sheep(folder: Path) -> Path:
    path = folder / "sheep.txt"
    path.write_text("\n".join(f"{n} times {m} is {n * m}, said the {n}th sheep." for n in range(12) for m in range(3)))
    return path


def _load_tiny(folder: Path, data: Path, name: str, changes: dict[str, Any] | None) -> LoadedConfig:
    settings = {**TINY, "output.runs_dir": folder / "runs", "output.name": name, **(changes or {})}
    assignments = tuple(f"{key}={value}" for key, value in settings.items())
    return load_config(Request(assignments=assignments, shortcuts={"data.path": str(data)}))


@pytest.fixture
def tiny_config(tmp_path: Path, sheep: Path) -> Callable[..., LoadedConfig]:
    """`tiny_config(name, {"training.max_steps": 5})`: a loaded config of a run of seconds."""

    def make(name: str, changes: dict[str, Any] | None = None) -> LoadedConfig:
        return _load_tiny(tmp_path, sheep, name, changes)

    return make


@pytest.fixture
def tiny_run(tiny_config: Callable[..., LoadedConfig]) -> Callable[..., tuple[RunFolder, Outcome]]:
    """`tiny_run(name, changes, before=...)`: carries the run out in this thread; `before(run)` may plant requests."""

    def make(
        name: str, changes: dict[str, Any] | None = None, before: Callable[[OpenRun], None] = lambda run: None
    ) -> tuple[RunFolder, Outcome]:
        run = open_new(tiny_config(name, changes))
        before(run)
        return run.folder, execute_run(run)

    return make


@pytest.fixture(scope="session")
def reference_run(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., RunFolder]:
    """`reference_run(changes)`: the folder of a tiny run in which nothing happened, trained once for all tests that
    compare with it; it must not be changed, and not be asked for once a test has planted something."""
    found: dict[str, RunFolder] = {}

    def make(changes: dict[str, Any] | None = None) -> RunFolder:
        key = repr(sorted((changes or {}).items()))
        if key not in found:
            place = tmp_path_factory.mktemp("reference")
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("TUI_TRAINER_HOME", str(place / "home"))
                run = open_new(_load_tiny(place, _write_sheep(place), "reference", changes))
                outcome = execute_run(run)
            assert outcome.exit_code == EXIT_DONE, outcome
            found[key] = run.folder
        return found[key]

    return make


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., RunFolder]:
    """`finished("seq2seq")`: a tiny finished run of a task, trained once; its folder must not be changed. With
    `adapted` it is an adapter on a tiny Llama."""
    from tests.tiny_models import save_tiny_model
    from tests.trained_runs import train

    found: dict[tuple[str, bool], RunFolder] = {}

    def make(task: str, adapted: bool = False) -> RunFolder:
        if (task, adapted) not in found:
            with pytest.MonkeyPatch.context() as patch:
                place = tmp_path_factory.mktemp(task)
                patch.setenv("TUI_TRAINER_HOME", str(place / "home"))
                patch.setattr(fit, "measure_layer", lambda *_, **__: (None, "not counted in tests"))
                changes = {}
                if adapted:
                    model = save_tiny_model(place / "llama", "llama")
                    changes = {
                        "model.init": "pretrained", "model.model_name_or_path": model, "tuning.method": "lora",
                    }  # fmt: skip
                found[task, adapted] = train(place, task, changes)
        return found[task, adapted]

    return make


@pytest.fixture
def adapted_run(finished: Callable[..., RunFolder], tmp_path: Path) -> RunFolder:
    """A finished run called `causal_lm` with an adapter on a tiny Llama; a copy, which may be changed."""
    root = shutil.copytree(finished("causal_lm", adapted=True).root, tmp_path / "runs" / "causal_lm")
    add_to_index(root)
    return RunFolder(root)
