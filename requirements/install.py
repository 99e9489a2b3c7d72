"""Install the locks into the environment of the running Python, and check that every file arrived.

    .venv/bin/python requirements/install.py STAMP

Can be interrupted and started again at any time: what is complete stays, what is missing or torn is installed again, and
STAMP is written only when everything is there. Two calls at once wait for each other.
"""

from __future__ import annotations

import fcntl
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from importlib import metadata
from pathlib import Path

HERE = Path(__file__).resolve().parent
LOCKS = (HERE / "stack.lock.txt", HERE / "dev.lock.txt")
SOURCES = (*LOCKS, HERE.parent / "setup.py", Path(__file__))
PATH_FILE = "lzero_async_checkout.pth"


def main(stamp: Path) -> int:
    """Install, check, and write the stamp."""
    if sys.version_info[:2] != (3, 11):
        print(
            f"The locked stack is for Python 3.11, but this is {sys.version.split()[0]}; make PYTHON=/path/to/python3.11."
        )
        return 2
    with (Path(sys.prefix) / ".install-lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if stamp.exists() and all(stamp.stat().st_mtime >= path.stat().st_mtime for path in SOURCES):
            return 0
        stamp.unlink(missing_ok=True)
        pins = [line for path in LOCKS for line in path.read_text().splitlines() if line and not line.startswith("#")]
        broken = [pin for pin in pins if not is_complete(pin)]
        print(f"Installing {len(broken)} of {len(pins)} packages into {Path(sys.prefix).name} ...", flush=True)
        torch = [pin for pin in broken if pin.startswith("torch==")]
        if torch:
            # With its dependencies: a CUDA build needs its own libraries, which no lock of ours can know.
            pip([*torch, *(word for path in LOCKS for word in ("-c", str(path)))])
            broken = [pin for pin in broken if not is_complete(pin)]
        if broken:
            pip(["--no-deps", "--force-reinstall", *broken])
        if torn := [pin for pin in pins if not is_complete(pin)]:
            print(f"These packages are still incomplete: {', '.join(torn)}. Run `make clean` and try again.")
            return 1
        # LightZero owns the packages `zoo` and `zoo.jericho`; the checkout, which extends them, must come first.
        where = "next((i for i, p in enumerate(sys.path) if p.endswith('site-packages')), 0)"
        line = f"import sys; sys.path.insert({where}, {str(HERE.parent)!r})\n"
        (Path(sysconfig.get_path("purelib")) / PATH_FILE).write_text(line)
        install_metadata()
        stamp.touch()
        print("Installed.", flush=True)
    return 0


def pip(arguments: list[str]) -> None:
    """Run pip with its progress on the screen."""
    subprocess.run([sys.executable, "-m", "pip", "install", "--disable-pip-version-check", *arguments], check=True)


def install_metadata() -> None:
    """The checkout's metadata, by which its applications are found, and the command `lzero-async`.

    Not `pip install -e`: that would put the checkout behind LightZero's `zoo`.
    """
    site, scripts = Path(sysconfig.get_path("purelib")), Path(sysconfig.get_path("scripts"))
    for old in site.glob("lzero_async-*.dist-info"):
        shutil.rmtree(old)
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "made"
        made.mkdir()
        subprocess.run(
            [sys.executable, "setup.py", "--quiet", "dist_info", "--output-dir", str(made)], cwd=HERE.parent, check=True
        )
        info = next(made.glob("lzero_async-*.dist-info"))
        shutil.copytree(info, site / info.name)
    (site / info.name / "INSTALLER").write_text("lzero-async checkout\n")
    command = scripts / "lzero-async"
    command.write_text(f"#!{sys.executable}\nimport sys\nfrom lzero_async.__main__ import main\nsys.exit(main())\n")
    command.chmod(0o755)


def is_complete(pin: str) -> bool:
    """Whether this version is installed and every file that it recorded is there in full."""
    name, version = pin.split("==")
    try:
        distribution = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return False
    if re.sub(r"\+.*", "", distribution.version) != version:
        return False
    files = distribution.files
    if not files:
        return False
    for file in files:
        if file.suffix == ".pyc":
            continue
        try:
            size = file.locate().stat().st_size
        except OSError:
            return False
        if file.size is not None and size != file.size:
            return False
    return True


if __name__ == "__main__":
    try:
        sys.exit(main(Path(sys.argv[1])))
    except KeyboardInterrupt:
        print("\nInterrupted; the same command goes on from here.")
        sys.exit(130)
    except subprocess.CalledProcessError as error:
        print(f"pip ended with code {error.returncode}; the same command goes on from here.")
        sys.exit(1)
