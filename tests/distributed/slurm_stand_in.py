"""A stand-in for Slurm: `sbatch`, `squeue`, `scancel`, `scontrol` and `srun` for one machine, as their manuals say.

It is put on PATH under each of these names. A job is a folder `jobs/N` beside the commands. Time does not pass here:
`scontrol update JobId=N TimeLimit=0` brings the limit near, so that the signal of `--signal` is sent; what is alive
after `GRACE_SECONDS` gets SIGTERM and is killed, as at the limit. A file `full` beside the commands keeps jobs pending.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

HOME = Path(sys.argv[0]).parent
GRACE_SECONDS = 60
KILL_WAIT_SECONDS = 2


def read(job: str) -> dict:
    try:
        return json.loads((HOME / "jobs" / job / "state").read_text())
    except FileNotFoundError:
        return {}


def write(job: str, **changes: object) -> None:
    path = HOME / "jobs" / job / "state"
    path.with_suffix(".new").write_text(json.dumps(read(job) | changes))
    path.with_suffix(".new").replace(path)


def ask(job: str, what: str) -> None:
    (HOME / "jobs" / job / "asked").write_text(what)


def asked(job: str) -> str:
    path = HOME / "jobs" / job / "asked"
    return path.read_text() if path.exists() else ""


def options_of(script: Path) -> dict[str, str]:
    found = {}
    for line in script.read_text().splitlines()[1:]:
        if not line.startswith("#"):
            break
        if line.startswith("#SBATCH --"):
            name, _, value = line.removeprefix("#SBATCH --").partition("=")
            found[name] = value.strip('"')
    return found


def sbatch(arguments: list[str]) -> int:
    script = Path(arguments[-1])
    options = options_of(script)
    if options.get("partition") == "nowhere":
        print("sbatch: error: invalid partition specified: nowhere", file=sys.stderr)
        return 1
    (HOME / "jobs").mkdir(exist_ok=True)
    job = str(len(list((HOME / "jobs").iterdir())) + 1)
    (HOME / "jobs" / job).mkdir()
    # Slurm keeps a copy: what happens to the file later changes nothing.
    (HOME / "jobs" / job / "script").write_text(script.read_text())
    write(job, state="PENDING", reason="Resources", starts=0, options=options)
    subprocess.Popen(
        [sys.executable, __file__, "carry-out", job, str(HOME)], start_new_session=True, stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    print(job)
    return 0


def squeue(arguments: list[str]) -> int:
    found = read(arguments[arguments.index("--jobs") + 1])
    if not found:
        print("slurm_load_jobs error: Invalid job id specified", file=sys.stderr)
        return 1
    print(f"{found['state']}|{found['reason']}")
    return 0


def scancel(arguments: list[str]) -> int:
    ask(arguments[-1], "cancel")
    return 0


def scontrol(arguments: list[str]) -> int:
    match arguments:
        case ["show", "hostnames", nodes]:
            print("\n".join("127.0.0.1" for _ in nodes.split(",")))
        case ["requeue", job]:
            if "requeue" not in read(job)["options"]:
                print("Requested operation is presently disabled for job", job, file=sys.stderr)
                return 1
            ask(job, "requeue")
        case ["update", job, "TimeLimit=0"]:
            ask(job.removeprefix("JobId="), "limit")
    return 0


def srun(arguments: list[str]) -> int:
    """Each task is told its node; a signal is forwarded to all; one that fails ends the others."""
    options = [one for one in arguments if one.startswith("--")][:3]
    [count] = [int(one.partition("=")[2]) for one in options if one.startswith("--nodes=")]
    command = arguments[arguments.index(next(one for one in arguments if not one.startswith("--"))) :]
    step = {"SLURM_STEP_NUM_NODES": str(count), "SLURM_STEP_NODELIST": ",".join(f"n{k}" for k in range(count)),
            "SLURM_LOCALID": "0"}  # fmt: skip
    tasks = [subprocess.Popen(command, env=os.environ | step | {"SLURM_NODEID": str(k)}) for k in range(count)]
    for number in (signal.SIGUSR1, signal.SIGTERM):
        signal.signal(number, lambda number, _: [task.send_signal(number) for task in tasks])
    while any(task.poll() is None for task in tasks):
        if any(task.poll() for task in tasks):
            time.sleep(KILL_WAIT_SECONDS)
            for task in tasks:
                task.kill()
        time.sleep(0.05)
    return max(task.returncode % 256 for task in tasks)


def carry_out(job: str) -> None:
    """What slurmctld and slurmd do with one job."""
    while True:
        while (HOME / "full").exists() and asked(job) != "cancel":
            time.sleep(0.05)
        if asked(job) == "cancel":
            return write(job, state="CANCELLED", reason="None")
        ended = run_once(job)
        if ended != "requeue":
            return write(job, state=ended, reason="None")
        ask(job, "")
        write(job, state="PENDING", reason="BeginTime", starts=read(job)["starts"] + 1)


def run_once(job: str) -> str:
    found, script = read(job), HOME / "jobs" / job / "script"
    options = found["options"]
    environment = os.environ | {"SLURM_JOB_ID": job, "SLURM_JOB_NUM_NODES": options["nodes"], "SLURM_NODEID": "0"}
    environment |= {"SLURM_RESTART_COUNT": str(found["starts"])} if found["starts"] else {}
    output = options["output"].replace("%%", "%").replace("%j", job)
    with open(output, "ab") as file:  # noqa: PTH123
        batch = subprocess.Popen(["bash", str(script)], env=environment, stdout=file, stderr=file,
                                 start_new_session=True)  # fmt: skip
    write(job, state="RUNNING", reason="None", batch=batch.pid)
    limit_at = None
    while batch.poll() is None:
        now = asked(job)
        if now == "limit" and limit_at is None:
            limit_at = time.monotonic() + GRACE_SECONDS
            # B: the batch shell only.
            batch.send_signal(signal.Signals[f"SIG{options['signal'].removeprefix('B:').partition('@')[0]}"])
        if now in ("cancel", "requeue") or (limit_at and time.monotonic() > limit_at):
            end(batch)
            return {"cancel": "CANCELLED", "requeue": "requeue"}.get(now, "TIMEOUT")
        time.sleep(0.05)
    if asked(job) == "requeue":
        return "requeue"
    return "FAILED" if batch.returncode else "COMPLETED"


def end(batch: subprocess.Popen) -> None:
    with suppress(ProcessLookupError):
        os.killpg(batch.pid, signal.SIGTERM)
    try:
        batch.wait(KILL_WAIT_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(batch.pid, signal.SIGKILL)
        batch.wait()


COMMANDS = {"sbatch": sbatch, "squeue": squeue, "scancel": scancel, "scontrol": scontrol, "srun": srun}


def install(folder: Path) -> None:
    """The commands, in a folder for PATH."""
    folder.mkdir()
    here = str(Path(__file__).parent)
    for name in COMMANDS:
        lines = [
            f"#!{sys.executable} -S",
            f"import sys; sys.path.insert(0, {here!r})",
            "import slurm_stand_in",
            f"sys.exit(slurm_stand_in.COMMANDS[{name!r}](sys.argv[1:]))",
        ]
        (folder / name).write_text("\n".join([*lines, ""]))
        (folder / name).chmod(0o755)


if __name__ == "__main__":
    HOME = Path(sys.argv[3])
    carry_out(sys.argv[2])
