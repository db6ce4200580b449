"""What is read from files: signs, groups, processor, places, libraries."""

from __future__ import annotations

import subprocess
import sys
from collections import namedtuple
from dataclasses import replace
from pathlib import Path
from threading import Event

import pytest

from tui_trainer.files.hub_layout import cache_folder
from tui_trainer.hardware import libraries, processor
from tui_trainer.hardware import nvml as signs
from tui_trainer.hardware import storage as places
from tui_trainer.hardware.cgroup import CgroupLimits, memory_left, read_limits
from tui_trainer.hardware.probe import disk_free_bytes, look, probe, with_memory_now


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_the_probe_fills_every_field_of_this_machine():
    hardware = look()
    assert hardware.usable_cores >= 1
    assert hardware.usable_cores <= hardware.logical_cores
    assert 0 < hardware.memory_available_bytes <= hardware.memory_bytes <= hardware.machine_memory_bytes
    assert hardware.host
    assert hardware.libraries["torch"]
    assert hardware.libraries.keys() >= {"transformers", "peft", "bitsandbytes", "flash-attn"}
    assert [place.label for place in hardware.places] == ["runs", "prepared data", "model cache", "temporary"]
    assert probe() is probe()


def test_the_probe_imports_nothing_heavy():
    code = """
import sys
from tui_trainer.hardware.probe import look
hardware = look()
heavy = {"torch", "transformers", "pynvml"} & set(sys.modules)
assert hardware.driver is not None or not heavy, heavy
assert not heavy - {"pynvml"}, heavy
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_driver_is_recognised_by_its_traces(tmp_path):
    assert not signs.has_driver(tmp_path, {})
    for number, sign in enumerate(("proc/driver/nvidia/version", "dev/nvidiactl", "usr/lib/wsl/lib/libnvidia-ml.so.1")):
        assert signs.has_driver(write(tmp_path / str(number), {sign: ""}), {}), sign
    folder = write(tmp_path / "own", {"libnvidia-ml.so.1": ""})
    assert signs.has_driver(tmp_path / "none", {"LD_LIBRARY_PATH": f"/nowhere:{folder}"})


def test_cards_on_the_pci_bus_are_counted_without_a_driver(tmp_path):
    assert signs.nvidia_pci_devices(tmp_path) is None
    bus = "sys/bus/pci/devices"
    devices = {
        "h200": ("0x10de", "0x030200"),
        "its sound": ("0x10de", "0x040300"),
        "vga": ("0x10de", "0x030000"),
        "intel": ("0x8086", "0x030000"),
    }
    for name, (vendor, kind) in devices.items():
        write(tmp_path, {f"{bus}/{name}/vendor": f"{vendor}\n", f"{bus}/{name}/class": f"{kind}\n"})
    assert signs.nvidia_pci_devices(tmp_path) == 2


def closed_folder(monkeypatch, folder: Path) -> None:
    """Root may look everywhere, so what another user is told is what is faked."""
    real = Path.stat

    def stat(path, **options):
        if folder in path.parents:
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, **options)

    monkeypatch.setattr(Path, "stat", stat)


def test_what_is_in_a_closed_folder_is_not_there(monkeypatch, tmp_path):
    closed = write(tmp_path, {"closed/libnvidia-ml.so.1": "", "closed/runs/x": ""}) / "closed"
    assert signs.has_driver(tmp_path / "none", {"LD_LIBRARY_PATH": str(closed)})
    closed_folder(monkeypatch, closed)
    assert not signs.has_driver(tmp_path / "none", {"LD_LIBRARY_PATH": str(closed)})
    assert places.nearest_existing(closed / "runs" / "x") == closed
    assert places.read_place("runs", closed / "runs").free_bytes > 0


def test_memory_and_the_load_of_others_are_read_anew_and_nothing_else(monkeypatch):
    before = probe()
    free = namedtuple("free", "available total")(123 << 20, 64 << 30)
    monkeypatch.setattr("psutil.virtual_memory", lambda: free)
    monkeypatch.setattr("tui_trainer.hardware.probe.read_limits", CgroupLimits)
    monkeypatch.setattr("tui_trainer.hardware.processor.load_of_others", lambda: 1.5)
    assert with_memory_now(before) == replace(before, memory_available_bytes=123 << 20, load_of_others=1.5)
    limits = CgroupLimits(memory_bytes=100 << 20, memory_used_bytes=60 << 20)
    monkeypatch.setattr("tui_trainer.hardware.probe.read_limits", lambda: limits)
    assert with_memory_now(before).memory_available_bytes == 40 << 20


def test_the_tightest_limit_of_nested_groups_counts(tmp_path):
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/job/step\n",
            "sys/fs/cgroup/cgroup.controllers": "cpu memory",
            "sys/fs/cgroup/job/memory.max": "1000",
            "sys/fs/cgroup/job/memory.current": "600",
            "sys/fs/cgroup/job/memory.stat": "anon 400\ninactive_file 150\n",
            "sys/fs/cgroup/job/step/memory.max": "max",
            "sys/fs/cgroup/job/step/memory.current": "10",
            "sys/fs/cgroup/job/step/cpu.max": "150000 100000",
            "sys/fs/cgroup/job/step/cpu.stat": "usage_usec 2500000\n",
        },
    )
    assert read_limits(root) == CgroupLimits(memory_bytes=1000, memory_used_bytes=450, cores=1.5, cpu_used_seconds=2.5)


def test_groups_of_version_1_are_read_too(tmp_path):
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "5:memory:/docker/x\n4:cpu,cpuacct:/docker/x\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "2000",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": "500",
            "sys/fs/cgroup/memory/memory.stat": "total_inactive_file 100\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "200000",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000",
            "sys/fs/cgroup/cpu,cpuacct/cpuacct.usage": "3000000000",
        },
    )
    assert read_limits(root) == CgroupLimits(memory_bytes=2000, memory_used_bytes=400, cores=2.0, cpu_used_seconds=3.0)


HYBRID = {
    "proc/self/cgroup": "9:memory:/job\n4:cpu,cpuacct:/job\n1:name=systemd:/user\n0::/user\n",
    "sys/fs/cgroup/memory/job/memory.limit_in_bytes": str(8 << 30),
    "sys/fs/cgroup/memory/job/memory.usage_in_bytes": str(2 << 30),
    "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us": "400000",
    "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us": "100000",
    "sys/fs/cgroup/cpu,cpuacct/job/cpuacct.usage": "5000000000",
    "sys/fs/cgroup/unified/user/cgroup.procs": "1",
}


def test_version_1_counts_beside_a_version_2_that_has_no_controllers(tmp_path):
    limits = read_limits(write(tmp_path, HYBRID))
    assert limits == CgroupLimits(memory_bytes=8 << 30, memory_used_bytes=2 << 30, cores=4.0, cpu_used_seconds=5.0)


def test_a_controller_that_version_1_does_not_have_is_read_from_version_2(tmp_path):
    root = write(tmp_path, HYBRID | {"proc/self/cgroup": "4:cpu,cpuacct:/job\n0::/user\n"})
    write(root, {"sys/fs/cgroup/unified/user/memory.max": "1000", "sys/fs/cgroup/unified/user/memory.current": "1"})
    assert read_limits(root) == CgroupLimits(memory_bytes=1000, memory_used_bytes=1, cores=4.0, cpu_used_seconds=5.0)


def test_no_limit_is_none(tmp_path):
    assert read_limits(tmp_path) == CgroupLimits()
    write(
        tmp_path,
        {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max", "sys/fs/cgroup/cpu.max": "max 100000"},
    )
    assert read_limits(tmp_path) == CgroupLimits()


def test_a_quota_takes_cores_away():
    free = processor.usable_cores(CgroupLimits())
    assert processor.usable_cores(CgroupLimits(cores=0.5)) == 1
    assert processor.usable_cores(CgroupLimits(cores=1000)) == free


def test_from_four_cores_on_one_is_left_free():
    assert [processor.training_threads(cores) for cores in (1, 2, 3, 4, 5, 16)] == [1, 2, 3, 3, 4, 15]


def threads_of(root: Path, *siblings: str) -> Path:
    folder = "sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    return write(root, {folder.format(index): f"{text}\n" for index, text in enumerate(siblings)})


def test_both_threads_of_a_core_are_one_core(monkeypatch, tmp_path):
    """Eight cores of two threads each, as Slurm gives four of them; then one thread of each core."""
    root = threads_of(tmp_path, *(f"{index % 8},{index % 8 + 8}" for index in range(16)))
    allowed = {0, 1, 2, 3, 8, 9, 10, 11}
    monkeypatch.setattr(processor.os, "sched_getaffinity", lambda pid: allowed, raising=False)
    assert processor.usable_cores(CgroupLimits(), root) == 4
    assert processor.usable_cores(CgroupLimits(cores=2.5), root) == 2
    allowed |= set(range(16))
    assert processor.usable_cores(CgroupLimits(), root) == 8
    allowed -= set(range(8))
    assert processor.usable_cores(CgroupLimits(), root) == 8


def test_cores_are_counted_where_the_kernel_does_not_say_whose_they_are(monkeypatch, tmp_path):
    monkeypatch.setattr(processor.os, "sched_getaffinity", lambda pid: {0, 1, 2}, raising=False)
    monkeypatch.setattr(processor.psutil, "cpu_count", lambda logical: 16 if logical else 8)
    assert processor.usable_cores(CgroupLimits(), threads_of(tmp_path, "0,8")) == 3
    monkeypatch.setattr(processor.os, "sched_getaffinity", lambda pid: set(range(16)), raising=False)
    assert processor.usable_cores(CgroupLimits(), tmp_path) == 8


def test_processors_tell_their_instruction_sets(tmp_path):
    x86 = write(
        tmp_path / "x86", {"proc/cpuinfo": "model name\t: Some CPU\nflags\t\t: fpu avx2 amx_bf16 avx512_bf16 rtm\n"}
    )
    assert processor.read_cpuinfo(x86) == ("Some CPU", {"avx2", "amx_bf16", "avx512_bf16"})
    arm = write(tmp_path / "arm", {"proc/cpuinfo": "Features\t: fp asimd bf16 i8mm crc32\n"})
    assert processor.read_cpuinfo(arm)[1] == {"asimd", "bf16", "i8mm"}
    assert processor.read_cpuinfo(tmp_path / "none")[1] == frozenset()


def test_the_model_cache_follows_the_environment():
    folder = cache_folder
    assert folder({"HF_HUB_CACHE": "/a", "HF_HOME": "/b"}) == Path("/a")
    assert folder({"HF_HOME": "/b"}) == Path("/b/hub")
    assert folder({"XDG_CACHE_HOME": "/c"}) == Path("/c/huggingface/hub")
    assert folder({}) == Path.home() / ".cache/huggingface/hub"


def test_prepared_data_follows_the_environment():
    folder = places.prepared_data_folder
    assert folder({"TUI_TRAINER_HOME": "/h", "XDG_CACHE_HOME": "/c"}) == Path("/h/cache")
    assert folder({"XDG_CACHE_HOME": "/c"}) == Path("/c/tui-trainer")
    assert folder({}) == Path.home() / ".cache/tui-trainer"
    assert folder() == Path.cwd() / "home/cache"


def test_a_place_that_is_not_there_yet_has_the_room_of_the_folder_above(tmp_path):
    place = places.read_place("runs", tmp_path / "not" / "yet")
    assert place.free_bytes == disk_free_bytes(tmp_path) or abs(place.free_bytes - disk_free_bytes(tmp_path)) < 1 << 28
    assert place.total_bytes > place.free_bytes
    assert place.writable is True
    assert not (tmp_path / "not").exists()


def test_a_place_that_may_not_be_written_to_is_seen(monkeypatch, tmp_path):
    # Root may write everywhere, so the answer of the system is what is faked.
    monkeypatch.setattr(places.os, "access", lambda path, mode: False)
    place = places.read_place("runs", tmp_path)
    assert place.writable is False
    assert place.free_bytes > 0


def test_a_file_system_that_does_not_answer_is_not_waited_for(monkeypatch, tmp_path):
    released = Event()
    monkeypatch.setattr(places, "_DEADLINE_SECONDS", 0.05)
    monkeypatch.setattr(places, "_room", lambda folder: released.wait())
    place = places.read_place("runs", tmp_path)
    released.set()
    assert (place.free_bytes, place.total_bytes, place.writable) == (None, None, None)


def test_versions_are_read_for_what_is_there_and_what_is_not():
    assert libraries.read_versions(("psutil", "no-such-thing-at-all"))["no-such-thing-at-all"] is None
    import psutil

    assert libraries.read_versions(("psutil",)) == {"psutil": psutil.__version__}


def test_the_cuda_of_torch_is_read_from_its_version_file(monkeypatch, tmp_path):
    package = write(tmp_path / "site", {"torch/__init__.py": "raise SystemExit", "torch/version.py": ""}) / "torch"
    monkeypatch.syspath_prepend(str(package.parent))
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    (package / "version.py").write_text("__version__ = '2.11.0+cu126'\ncuda: Optional[str] = '12.6'\n")
    assert libraries.torch_cuda("2.11.0") == (12, 6)
    (package / "version.py").write_text("__version__ = '2.11.0+cpu'\ncuda: Optional[str] = None\n")
    assert libraries.torch_cuda("2.11.0+cpu") is None
    (package / "version.py").unlink()
    assert libraries.torch_cuda("2.11.0+cu128") == (12, 8)
    assert libraries.torch_cuda(None) is None


MEMINFO = "MemTotal:  1000 kB\nMemAvailable: 600 kB\nSwapTotal:  400 kB\nSwapFree:   100 kB\n"


@pytest.mark.parametrize(
    ("limit", "left", "total", "where"),
    [(None, 700 << 10, 1000 << 10, "the machine"), (300 << 10, 200 << 10, 300 << 10, "the container"),
     (1 << 30, 700 << 10, 1000 << 10, "the machine")],
)  # fmt: skip
def test_what_is_left_before_the_kernel_kills_is_the_least_of_machine_and_container(
    limit, left, total, where, tmp_path, monkeypatch
):
    """With the machine's free swap, which the kernel takes first."""
    groups = {
        "sys/fs/cgroup/cgroup.controllers": "memory",
        "sys/fs/cgroup/job/memory.max": str(limit or "max"),
        "sys/fs/cgroup/job/memory.current": str(150 << 10),
        "sys/fs/cgroup/job/memory.stat": f"inactive_file {50 << 10}\n",
    }
    root = write(tmp_path, {"proc/self/cgroup": "0::/job\n", "proc/meminfo": MEMINFO, **groups})
    free = namedtuple("free", "available total")(600 << 10, 1000 << 10)
    monkeypatch.setattr("psutil.virtual_memory", lambda: free)
    found = memory_left(root)
    assert (found.left_bytes, found.total_bytes, found.where) == (left, total, where)
    assert found.swap_used_bytes == 300 << 10 and found.process_bytes > 1 << 20


def test_what_is_left_here_is_read_quickly_enough_for_every_few_seconds():
    found = memory_left()
    assert found.left_bytes > 0 and found.total_bytes > 0
