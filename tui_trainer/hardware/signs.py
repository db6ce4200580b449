"""Signs of NVIDIA hardware that cost nothing to look for, so that pynvml (0.15 s) is imported only where it helps."""

import os
from collections.abc import Mapping
from pathlib import Path

from tui_trainer.hardware.places import is_there

_LIBRARY = "libnvidia-ml.so.1"
_LIBRARY_FOLDERS = (
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib64",
    "usr/lib",
    "usr/lib/wsl/lib",  # Windows Subsystem for Linux
    "usr/local/nvidia/lib64",  # Google's Kubernetes
    "run/opengl-driver/lib",  # NixOS
)
_NVIDIA = "0x10de"
# PCI class 03: display controllers; the second byte tells VGA (00) from 3D (02), which data centre cards are.
_DISPLAY = "0x03"


def has_driver(root: Path = Path("/"), environment: Mapping[str, str] = os.environ) -> bool:
    """True when something of an NVIDIA driver is here: the kernel's part, a device file, or the library."""
    if any(is_there(root / sign) for sign in ("proc/driver/nvidia", "dev/nvidiactl")):
        return True
    searched = [root / folder for folder in _LIBRARY_FOLDERS]
    searched += [Path(folder) for folder in environment.get("LD_LIBRARY_PATH", "").split(":") if folder]
    return any(is_there(folder / _LIBRARY) for folder in searched)


def nvidia_pci_devices(root: Path = Path("/")) -> int | None:
    """How many NVIDIA display controllers are on the PCI bus; None where there is no such list.

    Same as `lspci -d 10de::03xx | wc -l`.
    """
    devices = root / "sys/bus/pci/devices"
    try:
        return sum(_is_nvidia_display(device) for device in devices.iterdir())
    except OSError:
        return None


def _is_nvidia_display(device: Path) -> bool:
    try:
        vendor, kind = (device / "vendor").read_text(), (device / "class").read_text()
    except OSError:
        return False
    return vendor.strip() == _NVIDIA and kind.startswith(_DISPLAY)
