"""Each process writes its part of a checkpoint, and any number of them reads what it needs of all parts."""

from __future__ import annotations

import json
import os
import socket
import tempfile
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader

from tests.distributed import rank_of_saved_tensors as saved
from tests.distributed.outcomes import losses
from tests.programs import start_program
from tests.runs.journals import read_all
from tui_trainer.errors import CheckpointError
from tui_trainer.launching.open_run import reopen_run
from tui_trainer.launching.run_lifecycle import execute_run
from tui_trainer.models.files import shards
from tui_trainer.runs import controls
from tui_trainer.runs.events import CheckpointSaved
from tui_trainer.training import checkpoint, checkpoint_folder
from tui_trainer.training.checkpoint import SavedTensors

ROOT = Path(__file__).parent.parent.parent
SPLIT = {
    "distributed.processes": 4,
    "distributed.strategy": "fsdp",
    "training.max_steps": 6,
    "training.effective_batch_size": 8,
    "checkpoint.save_steps": 3,
}
# A small part of the whole.
LIMIT_BYTES = 40_000
METERED = f"""
import json, os, sys
from pathlib import Path
from tui_trainer.models.files import shards
from tui_trainer.training import checkpoint as checkpoint_tensors
shards.SHARD_BYTES = {LIMIT_BYTES}
save = checkpoint_tensors.save_file
log = Path(sys.argv[1]) / "logs" / ("saved-" + os.environ["RANK"] + ".jsonl")
def metered(tensors, path, **more):
    size = sum(tensor.nbytes for tensor in tensors.values())
    largest = max((tensor.nbytes for tensor in tensors.values()), default=0)
    with log.open("a") as file:
        print(json.dumps([str(path), size, largest]), file=file)
    return save(tensors, path, **more)
checkpoint_tensors.save_file = metered
"""


def in_processes(count, what, folder):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    with tempfile.TemporaryFile() as log, open(os.devnull, "rb") as nothing:  # noqa: PTH123
        ranks = [
            start_program(
                [what, str(folder)],
                module="tests.distributed.rank_of_saved_tensors",
                folder=ROOT,
                environment=os.environ | shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
                files=(nothing.fileno(), log.fileno(), log.fileno()),
            )
            for rank in range(count)
        ]
        try:
            codes = [rank.wait(1500) for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
        log.seek(0)
        assert codes == [0] * count, log.read().decode()


def test_any_number_of_processes_reads_what_another_has_written(tmp_path):
    """torch's own reader as well, and each number is there once."""
    for written_by, read_by in ((1, (2,)), (4, (1, 2))):
        tmp_path /= f"of-{written_by}"
        tmp_path.mkdir()
        in_processes(written_by, "save", tmp_path)
        for count in read_by:
            in_processes(count, "load", tmp_path)
    assert len(list(tmp_path.glob("shard-*"))) == 4
    wanted = {name: saved.values(name) for name in saved.SIZES}
    found = {name: torch.zeros_like(tensor) for name, tensor in wanted.items()}
    # Of an empty tensor its planner makes a request for nothing.
    del found["of nobody"]
    with pytest.warns(UserWarning, match="load in a single process"):
        dcp.load(found, storage_reader=HuggingFaceStorageReader(str(tmp_path)), no_dist=True)
    assert all(tensor.equal(wanted[name]) for name, tensor in found.items())
    written = 0
    for path in tmp_path.glob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            written += sum(file.get_tensor(name).numel() for name in file.keys())  # noqa: SIM118
    assert written == sum(tensor.numel() for tensor in wanted.values())


def test_a_missing_part_is_named(tmp_path):
    in_processes(2, "save", tmp_path)
    [gone] = tmp_path.glob("shard-00002-*")
    gone.unlink()
    with SavedTensors(shards.all_files_of(tmp_path, saved.FILE)) as found:
        assert found.read("whole").equal(saved.values("whole"))
        # The end of the rows is not known to be missing: that there are all files is the manifest's matter.
        assert found.shape("rows") == (4, 3)
        with pytest.raises(CheckpointError, match="a part of the tensor rows is missing from all files"):
            found.read("rows", (slice(0, 7), slice(0, 3)))


def logged(folder, count):
    found = []
    for rank in range(count):
        lines = (folder.logs / f"saved-{rank}.jsonl").read_text().splitlines()
        found.append([json.loads(line) for line in lines])
    return found


@pytest.mark.full
def test_each_process_writes_its_share_and_holds_little_of_it(tiny_run, forked_ranks):
    forked_ranks.prelude = lambda group, rank: METERED
    wide = {"model.scratch.hidden_size": 96, "model.scratch.num_hidden_layers": 2}
    folder, outcome = tiny_run("split", SPLIT | wide)
    assert outcome.exit_code == 0
    # Without the state of generators, which is whole and small.
    by_process = [[line for line in lines if not line[0].endswith(checkpoint.RANDOM)] for lines in logged(folder, 4)]
    bytes_of = [sum(size for path, size, _ in lines if "step-3" in path) for lines in by_process]
    total = next(event.bytes for event in read_all(folder.journal) if isinstance(event, CheckpointSaved))
    # The rest is the tokenizer, the state of generators, headers of files.
    assert 0.8 * total < sum(bytes_of) < total and total > 10 * LIMIT_BYTES
    assert max(bytes_of) < 1.2 * sum(bytes_of) / 4, bytes_of
    # On the host of all four together no more than one process had there alone, or a tensor that is larger.
    assert all(size <= max(LIMIT_BYTES / 4, largest) for lines in by_process for _, size, largest in lines)
    print(f"a checkpoint of {total:,} bytes, written by the processes: {bytes_of}")


@pytest.mark.e2e
def test_from_two_to_one_to_four_and_to_copies(tiny_run, stopped_run):
    """Each stops after a step: what it leaves is what the next one begins with."""
    settings = SPLIT | {"distributed.processes": 2, "training.max_steps": 12}
    whole, _ = tiny_run("whole", settings)
    folder = stopped_run("moving", settings)
    for processes, strategy in ((1, "fsdp"), (4, "fsdp"), (2, "ddp")):
        plan = json.loads(folder.plan.read_bytes())
        plan["strategy"]["value"] = strategy
        folder.plan.write_text(json.dumps(plan))
        run = reopen_run(folder, processes=processes)
        if strategy == "fsdp":
            controls.request(folder.control, "stop")
        assert execute_run(run).exit_code == (3 if strategy == "fsdp" else 0)
    assert losses(folder) == pytest.approx(losses(whole), rel=1e-4)
    assert (folder.model / "model.safetensors").exists()


def test_a_file_of_another_process_that_the_first_does_not_see_is_refused(tmp_path):
    folder = checkpoint_folder.begin(tmp_path, 3)
    (folder / "mine").write_bytes(b"abc")
    described = {"theirs": {"bytes": 3, "xxh3_128": "0"}}
    with pytest.raises(
        OSError, match=r"theirs is not in .*: output\.runs_dir must be on a disk that all processes can access"
    ):
        checkpoint_folder.commit(folder, 3, described)
    assert checkpoint_folder.steps_saved(tmp_path) == []
