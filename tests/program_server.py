"""A process that has loaded the heavy libraries and forks for each program that a test starts.

    python tests/program_server.py SOCKET

A start costs a fork instead of ten seconds of imports. What a program is given (arguments, variables, folder, standard
files, terminal, cores) comes with the request; `tests/programs.py` asks. Of tui_trainer only what plans and trains is
loaded here: what a test replaces there it replaces in the module that uses it. Everything else is imported after the
test's own lines. It ends when the last test process has gone.
"""

from __future__ import annotations

import atexit
import faulthandler
import fcntl
import gc
import json
import os
import runpy
import selectors
import shutil
import signal
import socket
import sys
import termios
import threading
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

LARGEST_REQUEST = 1 << 17
LIBRARIES = """
torch torch.nn.functional torch.optim torch.utils.checkpoint torch._dynamo torch._subclasses.fake_tensor
transformers transformers.modeling_utils
transformers.models.auto.modeling_auto transformers.models.auto.tokenization_auto
transformers.models.llama.modeling_llama transformers.tokenization_utils_tokenizers transformers.optimization
transformers.generation.utils safetensors.torch tokenizers numpy pyarrow orjson xxhash psutil pynvml
huggingface_hub huggingface_hub.file_download huggingface_hub._snapshot_download datasets sklearn.metrics
textual.app textual.screen textual.drivers.linux_driver pydantic typer typer.testing tomlkit tomli_w yaml peft
tui_trainer.planning.plan tui_trainer.training.run
""".split()


def give_room_on_the_disk() -> None:
    """16 of 32 TiB free from now on, wherever anything can be written: plans for large models ask what the disk holds,
    and what the machine of the tests has left is no part of them."""
    statvfs = os.statvfs

    def with_room(path: Any) -> os.statvfs_result:
        found = statvfs(path)
        if not found.f_bavail:  # /proc
            return found
        blocks = (1 << 45) // found.f_frsize
        # Before: sizes of a block. Behind: numbers of files, flags, the longest name.
        return os.statvfs_result((*found[:2], blocks, blocks // 2, blocks // 2, *found[5:]))

    os.statvfs = with_room


def load() -> None:
    """Import what programs need; torch's own threads start with the first computation, so none is running here."""
    for name in LIBRARIES:
        __import__(name)
    # No program goes through all of it when it collects its garbage, which would copy it as well.
    gc.collect()
    gc.freeze()


def serve(path: str) -> dict[str, Any] | None:
    """Fork for each request. Returns the request in the child, and None in the server when nobody is left to ask."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(f"{path}.new")
    listener.listen()
    Path(f"{path}.new").rename(path)
    events = selectors.DefaultSelector()
    events.register(listener, selectors.EVENT_READ)
    askers: set[socket.socket] = set()
    running: dict[int, tuple[int, socket.socket]] = {}
    while True:
        # Whoever started it may be gone before it has loaded.
        for key, _ in events.select(None if askers else 60):
            if key.fileobj is listener:
                asker = listener.accept()[0]
                askers.add(asker)
                events.register(asker, selectors.EVENT_READ)
            elif key.fileobj in askers:
                text, files = b"", []
                # An asker that goes without having read its last answer is a reset, not an end.
                with suppress(ConnectionError):
                    text, files, _, _ = socket.recv_fds(key.fileobj, LARGEST_REQUEST, 3)
                if not text:
                    askers.remove(key.fileobj)
                    events.unregister(key.fileobj)
                    key.fileobj.close()
                    continue
                request = json.loads(text)
                if not (pid := os.fork()):
                    for other in (listener, *askers, events):
                        other.close()
                    for pidfd in running:
                        os.close(pidfd)
                    _take_over(request, files)
                    return request
                for file in files:
                    os.close(file)
                pidfd = os.pidfd_open(pid)
                running[pidfd] = pid, key.fileobj
                events.register(pidfd, selectors.EVENT_READ)
                with suppress(OSError):
                    key.fileobj.send(json.dumps({"pid": pid}).encode())
            else:
                pid, asker = running.pop(key.fd)
                events.unregister(key.fd)
                os.close(key.fd)
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                with suppress(OSError):
                    asker.send(json.dumps({"code": code}).encode())
        if not askers:
            shutil.rmtree(Path(path).parent, ignore_errors=True)
            return None


def _take_over(request: dict[str, Any], files: list[int]) -> None:
    """Become the process that was asked for."""
    os.setsid()
    if request["controlling"]:
        fcntl.ioctl(files[0], termios.TIOCSCTTY, 0)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    for number in request["closed"]:
        os.close(number)
    for number in (signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.sched_setaffinity(0, request["cores"])
    # A program that does not end is asked for the stacks of its threads. The number is out of the way of its own files.
    stacks = os.open(Path(sys.argv[1]).with_name(f"stacks-{os.getpid()}"), os.O_WRONLY | os.O_CREAT, 0o600)
    faulthandler.register(signal.SIGUSR2, file=fcntl.fcntl(stacks, fcntl.F_DUPFD_CLOEXEC, 500), all_threads=True)
    os.close(stacks)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    sys.stdin = sys.__stdin__ = _standard_file(0, "r")
    sys.stdout = sys.__stdout__ = _standard_file(1, "w")
    sys.stderr = sys.__stderr__ = _standard_file(2, "w", errors="backslashreplace")


def _standard_file(number: int, mode: str, errors: str = "strict") -> Any:
    """As Python opens it at its start: None where it is closed."""
    try:
        os.fstat(number)
    except OSError:
        return None
    lines = mode == "w" and (number == 2 or os.isatty(number))
    return open(number, mode, encoding="utf-8", errors=errors, closefd=False, buffering=1 if lines else -1)


def carry_out(request: dict[str, Any]) -> int:
    """What `python -m MODULE ARGUMENTS` does; the exit code."""
    sys.argv = [sys.executable, *request["arguments"]]
    sys.path.insert(0, "")
    try:
        exec(compile(request["prelude"], "<prelude>", "exec"), {"__name__": "prelude"})
        if request["module"]:
            runpy.run_module(request["module"], run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def main() -> None:
    # Ctrl+C and a hang-up are for the tests, which then close their connections.
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    give_room_on_the_disk()
    load()
    if not (request := serve(sys.argv[1])):
        return
    code = carry_out(request)
    threading._shutdown()
    atexit._run_exitfuncs()
    for file in filter(None, (sys.stdout, sys.stderr)):
        with suppress(OSError, ValueError):
            file.flush()
    # Taking apart all that was loaded takes longer than most programs here.
    os._exit(code)


if __name__ == "__main__":
    main()
