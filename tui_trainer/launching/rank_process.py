"""A training process that torchrun starts: `python -m tui_trainer.launching.rank_process RUN_FOLDER`."""

import json
import os
import socket
import sys
import traceback
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from threading import Thread
from typing import Any, NoReturn

from tui_trainer.data.preparing.cache import PreparedData, read_entry
from tui_trainer.errors import DataError, GroupOutOfMemory, InputError, RunError
from tui_trainer.hardware.diagnosis import choose_gpu
from tui_trainer.hardware.environment import prepare_environment
from tui_trainer.hardware.probe import probe
from tui_trainer.hardware.storage import prepared_data_folder
from tui_trainer.launching.gauge_writer import GaugeWriter
from tui_trainer.launching.prepare import read_plan, versions
from tui_trainer.launching.torchrun import STOP, Assignment, hold_log, result_path, send_failure_reason, send_message
from tui_trainer.launching.torchrun_agent import end_by_parent_only
from tui_trainer.planning.plan import Plan
from tui_trainer.planning.processes import cards_for
from tui_trainer.runs.controls import Controls
from tui_trainer.runs.folder import RunFolder, write_atomically
from tui_trainer.runs.journal import JournalWriter
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.training.job import Job
from tui_trainer.units import quantity
from tui_trainer.worker.answering import wait_for_hang_up


def main() -> NoReturn:
    """Train, then exit. With exit code 1, `rank-N.json` in the logs has the reason why the run could not continue."""
    end_by_parent_only()
    prepare_environment()
    folder, rank = RunFolder.open(Path(sys.argv[1])), int(os.environ["RANK"])
    hold_log(folder, rank)
    try:
        outcome = _train(folder, rank)
    except InputError as error:
        outcome = {"kind": "input", "problems": [asdict(problem) for problem in error.problems]}
    except GroupOutOfMemory as error:
        outcome = {"kind": "out of memory", "message": str(error)}
    except RunError as error:
        outcome = {"kind": "run", "message": str(error)}
    except Exception as error:  # any error of a library; the traceback goes to the log
        traceback.print_exc()
        outcome = {"kind": "error", "message": f"{type(error).__name__}: {one_line(str(error), 300)}"}
    try:
        write_atomically(result_path(folder, rank), json.dumps(outcome).encode(), durable=False)
    except OSError:
        send_message(rank=rank, result=outcome)
    # Skip the interpreter's shutdown, which would wait for collectives in progress.
    sys.stdout.flush()
    os._exit(0 if outcome["kind"] == "done" else 1)


def _train(folder: RunFolder, rank: int) -> dict[str, Any]:
    assignment = Assignment.read(folder)
    assert assignment is not None, "it is written before the processes are started"
    controls = Controls(folder.control, last_earlier_id=assignment.last_earlier_id)
    Thread(target=_watch_starter, args=(controls,), daemon=True).start()
    from tui_trainer.training.process import device_of, use_device
    from tui_trainer.training.ranks import join_ranks
    from tui_trainer.training.run import run

    plan = read_plan(folder)
    assert plan is not None, "the plan is written before the processes are started"
    plan = plan.model_copy(update={"gpu_uuid": _gpu_uuid(plan)})
    checkpoint, baselines, data = assignment.checkpoint, assignment.baselines, _prepared(plan)
    job = Job(plan=plan, data=data, folder=folder, checkpoint=checkpoint, baselines=baselines, versions=versions())
    device = device_of(plan)
    use_device(device)
    ranks = join_ranks(device, offloads=plan.cpu_offload.value)
    # Other ranks write to a file in the logs: their events repeat those of rank 0 or concern only their machine.
    path = folder.journal if rank == 0 else folder.logs / f"rank-{rank}.jsonl"
    with JournalWriter(path, on_failure=send_failure_reason if rank == 0 else lambda reason: None) as journal:
        this_process = socket.gethostname(), os.getpid()
        others = [other for other in ranks.gathered(this_process) if other != this_process]
        gauges = GaugeWriter(journal, other_pids=[pid for host, pid in others if host == this_process[0]])
        if rank == 0:
            gauges.watch_card_of(plan)
            gauges.start()
        try:
            return {"kind": "done", **asdict(run(job, journal, controls, ranks))}
        finally:
            gauges.stop()


def _gpu_uuid(plan: Plan) -> str:
    """Return the UUID of this process's GPU; empty on a CPU. Raises RunError if this node has too few GPUs.

    The plan names the GPUs of the first node. Other nodes use their GPU with the most free memory, and GPUs like it."""
    local_rank = int(os.environ["LOCAL_RANK"])
    if plan.device == "cpu":
        return ""
    if os.environ.get("GROUP_RANK", "0") == "0":
        return plan.gpu_uuids[local_rank] if plan.gpu_uuids else plan.gpu_uuid
    hardware = probe()
    first_card = choose_gpu(hardware, None)[0]
    cards = cards_for(hardware, first_card) if first_card else []
    if local_rank >= len(cards):
        count_text = f"{socket.gethostname()} has {quantity(len(cards), 'usable GPU')}"
        raise RunError(f"{count_text}, but each of {plan.processes_per_node} processes needs one")
    return cards[local_rank].cuda_uuid


def _prepared(plan: Plan) -> PreparedData:
    data = read_entry(prepared_data_folder() / plan.data_key)
    if data is None:
        raise DataError("the prepared data is missing", where=plan.data_key, hint="resume the run to prepare it again")
    return data


def _watch_starter(controls: Controls) -> None:
    """Start a thread that stops the run if the starter requests it, and exits if the starter or torchrun has ended.

    The request stays in the socket, so that all processes see it."""
    with suppress(OSError), socket.socket(fileno=os.dup(0)) as starter:
        if starter.recv(1, socket.MSG_PEEK) == STOP:
            controls.stop()
    wait_for_hang_up(0)
    os._exit(1)


if __name__ == "__main__":
    main()
