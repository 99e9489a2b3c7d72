"""Build the environment of vLLM on a CPU, apart from the project's own: the two cannot share a numpy.

    python3.11 requirements/install_vllm.py [FOLDER]

FOLDER is `.venv-vllm` in the checkout by default (3.5 GB, about 4 minutes). Can be interrupted and started again at any time:
what is complete stays, what is missing or torn is installed again. A complete environment is left as it is.
"""

from __future__ import annotations

import fcntl
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from install import is_complete, pip

HERE = Path(__file__).resolve().parent
LOCK = HERE / "vllm.lock.txt"
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
INSIDE = "--inside"
TRIAL = "from vllm.platforms import current_platform as p; from vllm import LLM; assert p.is_cpu(), type(p)"


def main(arguments: list[str]) -> int:
    """Make the environment, then go on inside it."""
    if sys.version_info[:2] != (3, 11):
        print(
            f"The lock of vLLM is for Python 3.11, but this is {sys.version.split()[0]}; make PYTHON=/path/to/python3.11."
        )
        return 2
    if arguments == [INSIDE]:
        return fill()
    folder = Path(arguments[0] if arguments else HERE.parent / ".venv-vllm").absolute()
    python = folder / "bin" / "python"
    works = python.exists() and subprocess.run([python, "-m", "pip", "--version"], capture_output=True).returncode == 0
    if not works:
        print(f"Making {folder} ...", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
    return subprocess.run([python, __file__, INSIDE]).returncode


def fill() -> int:
    """Install the lock into the running Python's environment, check it, and write the stamp."""
    stamp = Path(sys.prefix) / ".installed"
    with (Path(sys.prefix) / ".install-lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if stamp.exists() and stamp.stat().st_mtime >= LOCK.stat().st_mtime:
            print(f"{sys.prefix} is complete.")
            return 0
        stamp.unlink(missing_ok=True)
        pins = [line for line in LOCK.read_text().splitlines() if line and not line.startswith("#")]
        broken = [pin for pin in pins if not is_there(pin)]
        print(f"Installing {len(broken)} of {len(pins)} packages into {sys.prefix} (3.5 GB in all) ...", flush=True)
        torch = next((pin for pin in broken if pin.startswith("torch==")), None)
        if torch:
            install_torch(f"{torch}+cpu")
        if broken := [pin for pin in pins if not is_there(pin)]:
            pip(["--no-deps", "--force-reinstall", *broken])
        if torn := [pin for pin in pins if not is_there(pin)]:
            print(f"These packages are still incomplete: {', '.join(torn)}. Remove {sys.prefix} and try again.")
            return 1
        print("Importing vLLM, for a trial ...", flush=True)
        if subprocess.run([sys.executable, "-W", "ignore", "-c", TRIAL]).returncode:
            print("vLLM is installed, but cannot be imported: see above. It needs Linux on x86_64 with AVX2.")
            return 1
        stamp.touch()
        print("Installed.", flush=True)
    return 0


def is_there(pin: str) -> bool:
    """Whether the pinned package is complete, and torch a CPU build."""
    return is_complete(pin) and (not pin.startswith("torch==") or metadata.version("torch").endswith("+cpu"))


def install_torch(pin: str) -> None:
    """Install the CPU build of torch, from the usual index where that has it, else from torch's own."""
    try:
        pip(["--no-deps", "--force-reinstall", pin])
    except subprocess.CalledProcessError:
        print(f"{pin} is not on the usual index; trying {TORCH_CPU_INDEX} ...", flush=True)
        pip(["--no-deps", "--force-reinstall", "--index-url", TORCH_CPU_INDEX, pin])


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        print("\nInterrupted; the same command goes on from here.")
        sys.exit(130)
    except subprocess.CalledProcessError as error:
        print(f"A step ended with code {error.returncode}: see above; the same command goes on from here.")
        sys.exit(1)
