"""`python -m tests.distributed.rank_of_many_runs LIST`: one process of a group that carries out many planned runs.

LIST names a run folder with its `plan.json` in each line. The processes join once: a run costs its steps, not a start.
"""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path

from tui_trainer.data.preparing.cache import read_entry
from tui_trainer.hardware.environment import prepare_environment
from tui_trainer.hardware.storage import prepared_data_folder
from tui_trainer.launching.prepare import read_plan, versions
from tui_trainer.runs.controls import Controls
from tui_trainer.runs.folder import RunFolder
from tui_trainer.runs.journal import JournalWriter
from tui_trainer.training.job import Job
from tui_trainer.training.ranks import SINGLE_PROCESS, Ranks, join_ranks
from tui_trainer.training.run import run


def carry_out(folder: RunFolder, ranks: Ranks) -> None:
    plan = read_plan(folder)
    assert plan is not None and plan.processes.value == ranks.world_size
    data = read_entry(prepared_data_folder() / plan.data_key)
    assert data is not None, "the plan was made from prepared data"
    job = Job(plan=plan, data=data, folder=folder, checkpoint=None, baselines=None, versions=versions())
    journal = folder.journal if ranks.is_first else folder.logs / f"rank-{ranks.rank}.jsonl"
    with JournalWriter(journal) as writer:
        assert run(job, writer, Controls(folder.control), ranks).reason == "done"


def main() -> None:
    import torch

    prepare_environment()
    torch.set_num_threads(1)
    ranks = join_ranks(torch.device("cpu")) if int(os.environ["WORLD_SIZE"]) > 1 else SINGLE_PROCESS
    for line in Path(sys.argv[1]).read_text().splitlines():
        try:
            carry_out(RunFolder.open(Path(line)), ranks)
        except BaseException:
            print(f"in {line}:", flush=True)
            traceback.print_exc()
            # The others wait in a collective.
            os._exit(1)
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
