"""Packaging. Installed, `zoo` and `zoo.jericho` belong to LightZero, so the wheel leaves their `__init__.py` out."""

import re
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

HERE = Path(__file__).parent
OWNED_BY_LIGHTZERO = {("zoo", "__init__"), ("zoo.jericho", "__init__")}
RUNS = [
    "numpy>=1.24",
    "xxhash>=3.0",
    "tensorboardX>=2.6",
    "rich>=13",
    "psutil>=5.9",
    "matplotlib>=3.7",
]
LIGHTZERO = [
    "LightZero==0.2.0; python_version < '3.12'",
    "DI-engine==0.5.3; python_version < '3.12'",
    "gym>=0.25",
    "gymnasium>=0.28,<1",
    "torch>=2.0",
    "easydict>=1.13",
]


class BuildPy(build_py):
    """Copies every module of ours, and none that LightZero's wheel installs."""

    def find_package_modules(self, package, package_dir):
        modules = super().find_package_modules(package, package_dir)
        return [module for module in modules if (module[0], module[1]) not in OWNED_BY_LIGHTZERO]


setup(
    name="lzero-async",
    version=re.search(r'__version__ = "(.+)"', (HERE / "lzero_async" / "__init__.py").read_text()).group(1),
    description="Asynchronous training for LightZero-style agents, within a staleness bound that is kept",
    long_description=(HERE / "README.md").read_text(),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    classifiers=["Operating System :: POSIX :: Linux", "Programming Language :: Python :: 3"],
    python_requires=">=3.10",
    packages=find_packages(include=["lzero_async", "lzero_async.*", "zoo", "zoo.*"]),
    package_data={
        "lzero_async": ["py.typed"],
        "lzero_async.lightzero": ["*.lock.txt"],
        "zoo.episode_ppo": ["*.sh"],
        "zoo.mbpo": ["*.sh"],
        "zoo.jericho.priorzero": [
            "games/*.z5",
            "games/*.inf",
            "games/*.txt",
            "games/*.json",
            "games/*.md",
        ],
    },
    cmdclass={"build_py": BuildPy},
    entry_points={
        "console_scripts": ["lzero-async = lzero_async.__main__:main"],
        "lzero_async.applications": [
            "episode_ppo = zoo.episode_ppo.application:APPLICATION",
            "lightzero = lzero_async.lightzero.application:APPLICATION",
            "mbpo = zoo.mbpo.application:APPLICATION",
            "priorzero = zoo.jericho.priorzero.application:APPLICATION",
        ],
    },
    extras_require={
        # An application of your own: checkpoints, TensorBoard, the live view, the use of the machine, pictures.
        "runs": RUNS,
        # LightZero has wheels for Python 3.10 and 3.11 only, and pip cannot resolve its stack: `lzero-async setup priorzero`
        # installs the tested set, requirements/stack.lock.txt, which the wheel carries.
        "priorzero": [
            *RUNS,
            *LIGHTZERO,
            "tensorboard>=2.14",
            "jericho>=3.3.1",
            "transformers>=4.40",
            "safetensors>=0.4",
            "httpx>=0.25",
            "gguf>=0.10",
            "accelerate>=1.0",
            "peft>=0.15",
        ],
        "lightzero": [*RUNS, *LIGHTZERO],
        # Environments of LightZero's zoo that its own requirements leave out: Box2D's, and Atari with the ROMs of your own.
        "lightzero-envs": [
            "Box2D==2.3.10",
            "pygame>=2.5",
            "imageio>=2.14",
            "ale-py==0.8.1",
            "opencv-python-headless>=4.5,<4.12",
        ],
        "mbpo": [*RUNS, "torch>=2.0", "gymnasium>=0.28,<1", "easydict>=1.13"],
        "episode_ppo": [*RUNS, "torch>=2.0", "gymnasium>=0.28,<1", "easydict>=1.13"],
        # gymnasium 0.28's models are refused by newer versions of mujoco.
        "mujoco": ["mujoco==2.3.3", "imageio>=2.14"],
        # nasim needs tkinter as well, which comes with Python or from the system (python3-tk).
        "nasim": ["nasim==0.12.0", "gymnasium>=0.28,<1"],
        "ray": ["ray>=2.60"],
        "wandb": ["wandb>=0.16"],
        "metrics": ["prometheus-client>=0.20"],
        "dev": [
            "pytest>=8",
            "pytest-timeout>=2.3",
            "pytest-xdist>=3.6",
            "hypothesis>=6.100",
            "frontrun>=0.7",
            "numpy>=1.24",
            "ruff>=0.5",
            "mypy>=1.10",
        ],
    },
)
