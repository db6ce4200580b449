"""Each config of `wild_configs.py` becomes the run that it describes, which can be planned, or is refused with the
reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from tests.faults.wild_configs import DEFAULTS, GROUPS, WildConfig
from tests.tiny_models import save_tiny_model
from tui_trainer.config.load import Request
from tui_trainer.errors import InputError
from tui_trainer.hardware.facts import Driver, Gpu
from tui_trainer.hardware.probe import probe
from tui_trainer.importing.imported import Imported, import_file, write_config
from tui_trainer.launching import open_run as start
from tui_trainer.planning import plan as planning
from tui_trainer.tasks.contract import DataFacts
from tui_trainer.units import GIB

FAMILIES = {"decoder": "llama", "encoder": "bert", "text to text": "t5"}
# No file of the corpus asks for longer rows.
LONGEST_ROW = 131072
CARDS = tuple(
    Gpu(
        index=index, name="NVIDIA H100 80GB HBM3", uuid=f"GPU-{index}", capability=(9, 0), memory_bytes=80 * GIB,
        memory_free_bytes=79 * GIB,
    )
    for index in range(2)
)  # fmt: skip
LIBRARIES = ("bitsandbytes", "deepspeed", "flash-attn", "liger-kernel", "peft", "torchao", "triton", "unsloth")
FACTS = DataFacts(
    rows=4000, eval_rows=100, tokens=400_000, eval_tokens=10_000, vocabulary=384, row_tokens=100.0, exact=True,
    reason="", class_count=2,
)  # fmt: skip


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    place = tmp_path_factory.mktemp("models")
    sizes = {"llama": {"max_position_embeddings": LONGEST_ROW}, "bert": {"max_position_embeddings": LONGEST_ROW}}
    return {kind: save_tiny_model(place / name, name, **sizes.get(name, {})) for kind, name in FAMILIES.items()}


def imported(wild: WildConfig, folder: Path) -> Imported:
    """Import the file as the command does with --to imported.toml. Raises InputError."""
    found = import_file(wild.write(folder), wild.kind, wild.processes, config_path=Path("imported.toml"))
    found.refuse_other_runs()
    return found


def plan(wild: WildConfig, found: Imported, model: Path, folder: Path) -> None:
    """Make the plan of a machine with two cards on which every library is installed. Raises InputError."""
    file = folder / "imported.toml"
    write_config(found, file)
    data = folder / "rows.jsonl"
    data.write_text('{"text": "A sheep sang.", "label": "a"}\n' * 8, encoding="utf-8")
    # "auto" chooses this hardware profile as well, but reads all of them first.
    lacking: dict[str, object] = {"data.path": data, "hardware_profile": "h100-h200"}
    if found.values.get("model.init") != "scratch" or "model.model_name_or_path" in found.values:
        lacking["model.model_name_or_path"] = model
    if found.values.get("task.type") == "chat" and "task.chat_template" not in found.values:
        lacking["task.chat_template"] = "chatml"  # the tiny model has none of its own
    if wild.model != "decoder" and "task.type" not in found.values:
        lacking["task.type"] = {"encoder": "sequence_classification", "text to text": "seq2seq"}[wild.model]
    assignments = tuple(f"{key}={value}" for key, value in lacking.items())
    loaded = start.load_config(Request(config_file=file, assignments=assignments))
    planning.make(loaded, start.probe(), FACTS)


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = replace(
        probe(), gpus=CARDS, driver=Driver(version="580", cuda=(13, 0)), torch_cuda=(13, 0), memory_bytes=512 * GIB,
        memory_available_bytes=500 * GIB, libraries={**probe().libraries, **dict.fromkeys(LIBRARIES, "99.0")},
    )  # fmt: skip
    monkeypatch.setattr(start, "probe", lambda: facts)


@pytest.mark.parametrize("group", GROUPS)
def test_each_file_becomes_the_run_that_it_describes_or_is_refused_with_the_reason(
    group: str, models: Mapping[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    for number, wild in enumerate(GROUPS[group]):
        folder = tmp_path / str(number)
        folder.mkdir()
        monkeypatch.chdir(folder)
        with subtests.test(wild.name):
            assert_outcome(wild, models[wild.model], folder)


def assert_outcome(wild: WildConfig, model: Path, folder: Path) -> None:
    assert bool(wild.refused) != bool(wild.values), "a file is imported or refused"
    try:
        found = imported(wild, Path())
    except InputError as error:
        message = "\n".join(f"{problem}; {problem.hint}" for problem in error.problems)
        assert wild.refused, message
        assert all(part in message for part in wild.refused), message
        assert all("\n" not in str(problem) for problem in error.problems)
        return
    report = "\n".join(found.report)
    assert not wild.refused, f"{found.values}\n{report}"
    values = {key: str(value).removeprefix(f"{folder}/") if key == "task.chat_template" else value
              for key, value in found.values.items()}  # fmt: skip
    assert values == {**DEFAULTS.get(wild.defaults, {}), **wild.values}, report
    assert all(part in report for part in wild.told), report
    if wild.planned:
        plan(wild, found, model, folder)
