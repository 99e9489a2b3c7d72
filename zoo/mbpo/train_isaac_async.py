"""Train MBPO on environments that are vectorised on one device, in the manner of Isaac Lab: tensors in, tensors out.

  python zoo/mbpo/train_isaac_async.py --task tensor-pendulum                       our own, needs no simulator
  python zoo/mbpo/train_isaac_async.py --task Isaac-Cartpole-Direct-v0 --num_envs 128 --num_collectors 8 --headless
  python zoo/mbpo/train_isaac_async_v2.py --task my_package.my_envs:make --num_envs 256 --max_queue_size 10

train_isaac_async.py is the continuous trainer (v1), train_isaac_async_v2.py the batch trainer (v2); --trainer says otherwise.
`module:function` is called with num_envs and device and returns such an environment (its contract: TensorVecEnv in
tensor_envs.py). A collector has its simulator in the main thread of its own process, as Isaac Lab wants it, and what it
collects passes through the host's memory once; with --backend thread everything stays on the device. One simulator runs at
a time in a process, so Isaac Lab's tasks are not evaluated apart: the returns of the collected episodes are shown.
Isaac Lab itself was not run by this project; the contract is tested on tensor-pendulum. All other options are those of train.py.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from lzero_async.errors import ConfigError
from lzero_async.runs.checks import present_device
from lzero_async.runs.run_dir import exit_code
from zoo.mbpo.envs.sources import TensorSource
from zoo.mbpo.options import CONTINUOUS, MbpoOptions
from zoo.mbpo.train import make_parser, parse_arguments, train

OWN = "tensor-pendulum"
PENDULUM = "zoo.mbpo.envs.tensor_pendulum:TensorPendulum"
ISAAC = "zoo.mbpo.envs.isaac:make_env"


def make_source(options: MbpoOptions, headless: bool) -> TensorSource:
    """Where the environments of `--task` come from; ConfigError for options that they do not know."""
    if options.env_args and ":" not in options.env:
        raise ConfigError(
            f"env_args is {options.env_args!r}, but {options.env} takes none; write a function of your own that makes the "
            "environment, and name it with --task module:function."
        )
    if options.step_seconds:
        raise ConfigError(f"step_seconds is {options.step_seconds!r}, but only the environments of train.py can wait.")
    device = present_device("device", options.device)
    if options.env == OWN:
        return TensorSource(options, PENDULUM, {"device": device})
    if ":" in options.env:
        return TensorSource(options, options.env, {"device": device, **options.env_args})
    arguments = {"task": options.env, "device": device, "headless": headless}
    return TensorSource(options, ISAAC, arguments, evaluates=False)


def main(
    arguments: list[str] | None = None, trainer: str = CONTINUOUS, prog: str = "python zoo/mbpo/train_isaac_async.py"
) -> int:
    """Run, with this trainer unless the command line or a resumed run names another; return the exit code as train.py does."""

    def program() -> int:
        flags = parse_arguments(arguments, make_parser(str(__doc__), prog))
        if flags.resume is None:
            flags = argparse.Namespace(**{"env": OWN, "trainer": trainer, **vars(flags)})
        return train(flags, make_source=lambda options: make_source(options, flags.headless))

    return exit_code(program)


if __name__ == "__main__":
    sys.exit(main())
