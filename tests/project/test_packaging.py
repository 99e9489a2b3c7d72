"""The locks, the two `zoo` packages side by side, the wheel, and the import rules of the library."""

from __future__ import annotations

import ast
import importlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

import lzero_async

ROOT = Path(__file__).resolve().parents[2]
STACK = """
torch numpy easydict transformers tokenizers safetensors jericho ding lzero tensorboardX gymnasium ding.config ding.policy
lzero.policy.unizero lzero.mcts.buffer.game_buffer_unizero lzero.worker.muzero_segment_collector
zoo.jericho.envs.jericho_env
"""
BOTH_ZOOS = "import zoo.jericho.envs.jericho_env as env, zoo.jericho.priorzero as ours; print(env.__file__); print(ours.__file__)"


def pins(lock: str) -> dict[str, str]:
    lines = (ROOT / "requirements" / f"{lock}.lock.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


def python(code: str, cwd: Path, *, executable: str = sys.executable, **env: str) -> str:
    clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [executable, "-c", code], cwd=cwd, env={**clean, **env}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


needs_lightzero = pytest.mark.skipif(
    not any(Path(sysconfig.get_path("purelib")).glob("[Ll]ight[Zz]ero-*")), reason="needs the locked stack"
)


# -- the locks -------------------------------------------------------------------------------------------------------------


@needs_lightzero
def test_what_the_locks_pin_is_installed() -> None:
    for lock in ("stack", "dev"):
        for name, version in pins(lock).items():
            assert metadata.version(name).split("+")[0] == version, name


@pytest.mark.slow
@needs_lightzero
def test_what_the_stack_pins_can_be_imported() -> None:
    """In one fresh process, the packages that the applications use, LightZero's policy and buffer included."""
    names = STACK.split()
    python("import importlib\nfor name in " + repr(names) + ": importlib.import_module(name)", ROOT)


def test_the_lock_covers_its_inputs() -> None:
    for lock in ("stack", "dev"):
        text = (ROOT / "requirements" / f"{lock}.in").read_text()
        wanted = [line for line in text.splitlines() if line and not line.startswith("#")]
        locked = {
            re.sub(r"[-_.]+", "-", name).lower(): version for name, version in (pins("stack") | pins("dev")).items()
        }
        for line in wanted:
            name, _, version = line.partition("==")
            name = re.sub(r"[-_.]+", "-", re.split(r"[<>=]", name)[0]).lower()
            assert name in locked
            assert not version or locked[name] == version


# -- zoo ---------------------------------------------------------------------------------------------------------------------


@needs_lightzero
@pytest.mark.parametrize("folder", ["", "zoo/jericho/priorzero"])
def test_both_zoo_packages_from_the_checkout(folder: str) -> None:
    env, ours = python(BOTH_ZOOS, ROOT / folder).split()
    assert "site-packages" in env
    assert Path(ours).is_relative_to(ROOT / "zoo")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    shutil.copytree(
        ROOT, source, ignore=shutil.ignore_patterns(".venv*", ".git", "build", "*.egg-info", "__pycache__", ".*_cache")
    )
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "--quiet",
            "--no-deps",
            "--no-build-isolation",
            "-w",
            str(folder),
            str(source),
        ],
        check=True,
    )
    return next(folder.glob("lzero_async-*.whl"))


@needs_lightzero
def test_the_wheel_installs_no_file_that_lightzero_owns(wheel: Path) -> None:
    theirs = {str(file) for file in metadata.files("LightZero") or ()}
    assert "zoo/__init__.py" in theirs
    ours = set(zipfile.ZipFile(wheel).namelist())
    assert "zoo/jericho/priorzero/async_training_coordinator.py" in ours
    assert "lzero_async/py.typed" in ours
    assert ours & theirs == set()
    assert not [name for name in ours if name.startswith(("tests", "benchmarks", "requirements"))]


@needs_lightzero
def test_the_wheel_carries_the_game(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for name in ("tw-gannet.z5", "bindings.json", "walkthrough.txt"):
        assert f"zoo/jericho/priorzero/games/{name}" in names
    assert "zoo/jericho/priorzero/llm/__init__.py" in names


@pytest.mark.slow
def test_both_zoo_packages_installed(wheel: Path, tmp_path: Path) -> None:
    """A fresh environment with the locked packages (linked, LightZero's zoo copied) and our wheel."""
    venv.create(tmp_path / "venv", with_pip=False)
    executable = str(tmp_path / "venv" / "bin" / "python")
    target = Path(
        python("import sysconfig; print(sysconfig.get_path('purelib'))", tmp_path, executable=executable).strip()
    )
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if entry.name == "zoo":
            shutil.copytree(entry, target / "zoo", ignore=shutil.ignore_patterns("__pycache__"))
        elif entry.suffix != ".pth" and not entry.name.startswith("lzero_async"):
            (target / entry.name).symlink_to(entry)
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "--python",
            executable,
            "install",
            "--quiet",
            "--no-deps",
            "--no-index",
            str(wheel),
        ],
        check=True,
    )
    env, ours = python(BOTH_ZOOS, tmp_path, executable=executable).split()
    assert Path(env).is_relative_to(target)
    assert Path(ours).is_relative_to(target)
    assert (target / "zoo" / "__init__.py").read_bytes() == (
        Path(sysconfig.get_path("purelib")) / "zoo" / "__init__.py"
    ).read_bytes()


@pytest.fixture(scope="module")
def fresh(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The scripts of a fresh environment that has our wheel and nothing else."""
    folder = tmp_path_factory.mktemp("fresh") / "venv"
    venv.create(folder, with_pip=True)
    pip_install(folder / "bin", wheel)
    return folder / "bin"


def pip_install(scripts: Path, *wheels: Path) -> None:
    words = ["install", "--quiet", "--no-deps", "--no-index", *map(str, wheels)]
    subprocess.run([scripts / "python", "-m", "pip", *words], check=True)


def tiny_wheel(folder: Path, name: str, files: dict[str, str]) -> Path:
    """A wheel of these files, beside its metadata."""
    info = f"{name}-1.0.dist-info"
    metadata_files = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    every = {**files, **metadata_files}
    record = "".join(f"{path},,{len(text)}\n" for path, text in every.items())
    path = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in {**every, f"{info}/RECORD": f"{record}{info}/RECORD,,\n"}.items():
            archive.writestr(file, text)
    return path


def setup_command(scripts: Path, *words: str, links: Path | None = None) -> subprocess.CompletedProcess[str]:
    """`lzero-async setup` without an index, outside of the checkout."""
    offline = {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull, "PIP_FIND_LINKS": str(links or "")}
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PIP_", "PYTHONPATH"))}
    return subprocess.run(
        [scripts / "lzero-async", "setup", *words], cwd=scripts.parent, env={**environment, **offline},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.slow
def test_setup_says_what_the_wheels_own_lock_would_install(fresh: Path) -> None:
    done = setup_command(fresh, "priorzero", "--dry_run")
    assert done.returncode == 0, done.stderr
    wanted = pins("stack")
    assert f"priorzero needs {len(wanted)} packages; {len(wanted)} are missing here." in done.stdout
    assert "size         about 2 GB" in done.stdout
    for name, version in wanted.items():
        assert f"{name}=={version}" in done.stdout
    assert not any((fresh.parent / "lib").glob("python*/site-packages/torch*"))


@pytest.mark.parametrize(("application", "how"), [
    ("priorzero", "lzero-async setup priorzero."), ("mbpo", "pip install 'lzero-async[mbpo]'."),
])  # fmt: skip
def test_an_application_without_its_packages_says_how_to_install_them(fresh: Path, application: str, how: str) -> None:
    words = [fresh / "lzero-async", "train", application]
    done = subprocess.run(words, cwd=fresh.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    said = re.fullmatch(r"error: (\w+) needs \w+, which is not installed here; install it: (.+)\n", done.stderr)
    assert said is not None and said.groups() == (application, how), done.stderr


@pytest.mark.slow
def test_setup_installs_the_lock_of_any_application(fresh: Path, tmp_path: Path) -> None:
    """From wheels: an application that this repository does not know, whose lock pins one package."""
    part = tiny_wheel(tmp_path, "tinypart", {"tinypart.py": "x = 1\n"})
    entry = (
        "from lzero_async.runs.applications import ApplicationEntry\n"
        "APPLICATION = ApplicationEntry('tinyapp', 'tiny', 'tinyapp:main', lock='tinyapp:tiny.lock.txt')\n"
    )
    running = ".".join(map(str, sys.version_info[:2]))
    files = {
        "tinyapp/__init__.py": entry,
        "tinyapp/tiny.lock.txt": f"# python: {running}\ntinypart==1.0\n",
        "tinyapp-1.0.dist-info/entry_points.txt": "[lzero_async.applications]\ntinyapp = tinyapp:APPLICATION\n",
    }
    pip_install(fresh, tiny_wheel(tmp_path, "tinyapp", files))
    assert setup_command(fresh, "tinyapp").returncode == 1, "there is nowhere to find it"
    done = setup_command(fresh, "tinyapp", links=part.parent)
    assert done.returncode == 0, done.stderr
    assert "tinyapp needs 1 packages; 1 are missing here." in done.stdout
    installed = Path(
        python("import tinypart; print(tinypart.__file__)", tmp_path, executable=str(fresh / "python")).strip()
    )
    assert installed.is_relative_to(fresh.parent)
    installed.write_text("")  # as after an interruption
    assert setup_command(fresh, "tinyapp", links=part.parent).returncode == 0
    assert installed.read_text() == "x = 1\n"
    assert "All 1 packages of tinyapp are complete" in setup_command(fresh, "tinyapp").stdout


def test_the_checks_run_from_their_own_folder_and_from_the_root() -> None:
    for folder, script in (
        ("zoo/jericho/priorzero", "test_async_training.py"),
        ("", "zoo/jericho/priorzero/test_async_training.py"),
    ):
        done = subprocess.run(
            [sys.executable, script, "--mode", "sync", "--clock", "virtual"],
            cwd=ROOT / folder,
            text=True,
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "1 passed, 0 failed" in done.stdout


# -- the library -----------------------------------------------------------------------------------------------------------------


def test_importing_the_library_pulls_in_nothing_heavy() -> None:
    loaded = python("import sys, lzero_async; print(*sys.modules)", ROOT, PYTHONPATH=str(ROOT)).split()
    assert {"torch", "ray", "vllm", "transformers", "numpy"} & set(loaded) == set()
    names = [
        "runs.checkpoint",
        "runs.options",
        "telemetry.terminal.progress",
        "telemetry.sinks",
        "telemetry.utilisation",
    ]
    code = f"import importlib, sys\nfor name in {names}: importlib.import_module('lzero_async.' + name)\nprint(*sys.modules)"
    heavy = {"torch", "numpy", "safetensors", "tensorboardX", "wandb", "psutil"}
    assert heavy & set(python(code, ROOT, PYTHONPATH=str(ROOT)).split()) == set()
    python("import sys, lzero_async.testing; assert 'torch' not in sys.modules", ROOT, PYTHONPATH=str(ROOT))


LIGHT = {"core", "workers", "testing"}  # and the files at the top: the standard library, numpy, and what stands here
HEAVIER = {"torch": {"workers/parcels.py", "testing/conformance/roles.py"}, "ray": {"workers/ray"}}


def imports_of(path: Path) -> set[str]:
    """The packages that a file imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").partition(".")[0])
    return found


def test_the_core_needs_the_standard_library_and_numpy_only() -> None:
    library = ROOT / "lzero_async"
    files = [
        path for path in library.rglob("*.py") if path.parent == library or path.relative_to(library).parts[0] in LIGHT
    ]
    assert len(files) > 30
    for path in files:
        name = path.relative_to(library).as_posix()
        for package in imports_of(path) - set(sys.stdlib_module_names) - {"lzero_async", "numpy"}:
            assert any(name.startswith(place) for place in HEAVIER.get(package, ())), f"{name} imports {package}"


def test_the_top_of_the_library_is_small() -> None:
    library = ROOT / "lzero_async"
    assert len(list(library.glob("*.py"))) <= 7
    assert len([path for path in library.iterdir() if path.is_dir() and path.name != "__pycache__"]) <= 8


def test_only_one_module_starts_threads() -> None:
    starters = [path.stem for path in (ROOT / "lzero_async").rglob("*.py") if "threading.Thread(" in path.read_text()]
    assert starters == ["threads"]


def test_the_public_names_are_pinned() -> None:
    assert sorted(lzero_async.__all__) == lzero_async.__all__
    assert set(lzero_async.__all__) == {
        "Adaptation",
        "AsyncTrainingCoordinator",
        "Batch",
        "Bound",
        "CollectContext",
        "ConfigError",
        "EvalContext",
        "EvalResult",
        "GateTimeout",
        "LzeroAsyncError",
        "Parcel",
        "Recovery",
        "RemoteError",
        "RunResult",
        "Snapshot",
        "Stopped",
        "Worker",
        "WorkerDied",
        "load_policy",
        "make_backend",
    }
    assert len(lzero_async.__all__) <= 20
    for name in lzero_async.__all__:
        assert getattr(lzero_async, name).__doc__


PUBLIC = {  # the modules of a package that applications may use; everything else may change
    "core": {"weights"},
    "workers": {"backend", "calls", "parcels", "step_watch"},
    "telemetry": {"quantities", "sinks", "terminal", "utilisation", "view"},
    "telemetry.terminal": {"progress"},
    "runs": {
        "application", "applications", "checkpoint", "checks", "folder_lock", "options", "policy", "program", "role_set",
        "run_dir", "scored", "soundness", "summary",
    },
    "simulate": {"distributions", "pipeline"},
    "tools": set(),
}  # fmt: skip


@pytest.mark.parametrize("package", PUBLIC)
def test_the_public_modules_of_a_package_are_pinned(package: str) -> None:
    assert set(importlib.import_module(f"lzero_async.{package}").__all__) == PUBLIC[package]


def test_zoo_and_examples_import_only_what_packages_list() -> None:
    found = []
    for path in [*(ROOT / "zoo").rglob("*.py"), *(ROOT / "docs" / "examples").rglob("*.py")]:
        for name in library_imports(path):
            parts = name.split(".")[1:]
            for depth, part in enumerate(parts):
                package = ".".join(parts[:depth])
                if part.startswith("_") or (package in PUBLIC and part not in PUBLIC[package]):
                    found.append(f"{path.relative_to(ROOT)} imports {name}")
    assert found == []


def library_imports(path: Path) -> set[str]:
    """What a file imports of the library, with the imported names."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "lzero_async":
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names if alias.name.split(".")[0] == "lzero_async"}
    return names
