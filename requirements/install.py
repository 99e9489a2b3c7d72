"""Install the locks and the checkout into the environment of the running Python.

    .venv/bin/python requirements/install.py STAMP

Can be interrupted and started again at any time: what is complete stays, what is missing or torn is installed again, and
STAMP is written only when everything is there. Two calls at once wait for each other.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))  # the checkout is not installed yet

from lzero_async.tools.setup import locked  # noqa: E402

LOCKS = (HERE / "stack.lock.txt", HERE / "dev.lock.txt")
SOURCES = (*LOCKS, HERE.parent / "setup.py", Path(__file__))
PATH_FILE = "lzero_async_checkout.pth"


def main(stamp: Path) -> int:
    """Install, check, and write the stamp."""
    locks = [locked.read_lock(path) for path in LOCKS]
    for lock in locks:
        locked.check_environment(lock)
    with locked.alone():
        if stamp.exists() and all(stamp.stat().st_mtime >= path.stat().st_mtime for path in SOURCES):
            return 0
        stamp.unlink(missing_ok=True)
        locked.install(locks)
        # LightZero owns the packages `zoo` and `zoo.jericho`; the checkout, which extends them, must come first.
        where = "next((i for i, p in enumerate(sys.path) if p.endswith('site-packages')), 0)"
        line = f"import sys; sys.path.insert({where}, {str(HERE.parent)!r})\n"
        (Path(sysconfig.get_path("purelib")) / PATH_FILE).write_text(line)
        install_metadata()
        stamp.touch()
        print("Installed.", flush=True)
    return 0


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


if __name__ == "__main__":
    sys.exit(locked.exit_code(lambda: main(Path(sys.argv[1]))))
