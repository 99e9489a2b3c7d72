"""Build the environment of vLLM on a CPU, apart from the project's own: the two cannot share a numpy.

    python3.11 requirements/install_vllm.py [FOLDER]

FOLDER is `.venv-vllm` in the checkout by default (3.5 GB, about 4 minutes). Can be interrupted and started again at any time:
what is complete stays, what is missing or torn is installed again. A complete environment is left as it is.
"""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))  # the checkout is not installed in that environment

from lzero_async.tools.setup import locked  # noqa: E402

LOCK = HERE / "vllm.lock.txt"
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
INSIDE = "--inside"
TRIAL = "from vllm.platforms import current_platform as p; from vllm import LLM; assert p.is_cpu(), type(p)"


def main(arguments: list[str]) -> int:
    """Make the environment, then continue inside it."""
    lock = locked.read_lock(LOCK)
    locked.check_environment(lock)
    if arguments == [INSIDE]:
        return fill(lock)
    folder = Path(arguments[0] if arguments else HERE.parent / ".venv-vllm").absolute()
    python = folder / "bin" / "python"
    works = python.exists() and subprocess.run([python, "-m", "pip", "--version"], capture_output=True).returncode == 0
    if not works:
        print(f"Making {folder} ...", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
    return subprocess.run([python, __file__, INSIDE]).returncode


def fill(lock: locked.Lock) -> int:
    """Install the lock into the running Python's environment, check it, and write the stamp."""
    stamp = Path(sys.prefix) / ".installed"
    with locked.alone():
        if stamp.exists() and stamp.stat().st_mtime >= LOCK.stat().st_mtime:
            print(f"{sys.prefix} is complete.")
            return 0
        stamp.unlink(missing_ok=True)
        torch = next(pin for pin in lock.pins if pin.startswith(locked.TORCH))
        if not locked.is_complete(torch) or not metadata.version("torch").endswith("+cpu"):
            install_torch(f"{torch}+cpu")
        locked.install([lock])
        print("Importing vLLM, for a trial ...", flush=True)
        if subprocess.run([sys.executable, "-W", "ignore", "-c", TRIAL]).returncode:
            print("vLLM is installed, but cannot be imported: see above. It needs Linux on x86_64 with AVX2.")
            return 1
        stamp.touch()
        print("Installed.", flush=True)
    return 0


def install_torch(pin: str) -> None:
    """Install the CPU build of torch, from the usual index where that has it, else from torch's own."""
    try:
        locked.pip(["--no-deps", "--force-reinstall", pin])
    except subprocess.CalledProcessError:
        print(f"{pin} is not on the usual index; trying {TORCH_CPU_INDEX} ...", flush=True)
        locked.pip(["--no-deps", "--force-reinstall", "--index-url", TORCH_CPU_INDEX, pin])


if __name__ == "__main__":
    sys.exit(locked.exit_code(lambda: main(sys.argv[1:])))
