"""Write the language model that a run has trained as a folder that transformers and vLLM load.

  lzero-async export-llm runs/train my_model                     the best weights
  lzero-async export-llm runs/train my_model --weights last

What LoRA has learned is added to the model's own weights, so the folder needs neither peft nor this program.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from lzero_async.errors import ConfigError
from lzero_async.runs import checkpoint
from lzero_async.runs.options import make_parser
from lzero_async.runs.policy import WEIGHTS, find_weights
from lzero_async.runs.run_dir import exit_code

PROG = "lzero-async export-llm"
PROBE = "You stand at a locked gate.", ("unlock gate with brass key", "go north")
TOLERANCE = 1e-3


def main(arguments: list[str] | None = None) -> int:
    """Export; return the exit code: 0 done, 2 bad input."""
    return exit_code(lambda: _main(sys.argv[1:] if arguments is None else arguments))


def _main(arguments: list[str]) -> int:
    parser = make_parser(str(__doc__), PROG, "RUN DIR [options]")
    parser.add_argument("run", metavar="RUN", help="folder of a run with --llm_train")
    parser.add_argument("folder", metavar="DIR", help="folder to write; it must not exist yet")
    parser.add_argument(
        "--weights", default="best", choices=WEIGHTS,
        help="those of the best evaluation, or the last ones (default: %(default)s)",
    )  # fmt: skip
    flags: argparse.Namespace = parser.parse_args(arguments)
    version, size = export(Path(flags.run), Path(flags.folder), flags.weights)
    print(f"wrote {flags.folder} ({size / 1e6:,.0f} MB): the language model after {version} trains of its own")
    return 0


def trained_of(run: Path, weights: str) -> tuple[dict[str, Any], Any]:
    """The options of a run, and what its language model was trained to. Raises ConfigError if it was not trained."""
    from zoo.jericho.priorzero.learn.saving import CHECKPOINT
    from zoo.jericho.priorzero.roles.policy import llm_weights

    path = find_weights(run, weights)
    state = checkpoint.load(path, CHECKPOINT)
    with checkpoint.fitting(path):
        options, found = dict(state["options"]), llm_weights(state)
    if found is None:
        raise ConfigError(
            f"{path} has no trained language model: the run was made without --llm_train, or that had not begun yet"
            + ("; try --weights last." if weights == "best" else ".")
        )
    return options, found


def export(run: Path, folder: Path, weights: str = "best") -> tuple[int, int]:
    """Write the folder, whole or not at all; the version of what is in it, and its size in bytes."""
    if folder.exists():
        raise ConfigError(f"{folder} exists already; name a folder that does not.")
    options, found = trained_of(run, weights)
    import torch
    from transformers import AutoTokenizer

    from zoo.jericho.priorzero.llm.digest import weights_digest
    from zoo.jericho.priorzero.llm.model_loading import clear_errors, load_model
    from zoo.jericho.priorzero.llm.smollm2 import model_folder
    from zoo.jericho.priorzero.llm.trained import (
        ADAPTER,
        Trainable,
        load_trained,
        lora_layers,
        make_trainable,
        trained_digest,
    )

    model, how = options["llm_config"]["llm"], options["llm_train_config"]
    with clear_errors(f"cannot load the language model {model!r}", "put it where the run had it"):
        source = model_folder(model)
        tokenizer = AutoTokenizer.from_pretrained(source)
        plain: Any = load_model(source, torch.float32)
    trainable = Trainable(how["llm_method"], int(how["lora_rank"]), int(how["lora_alpha"]))
    tuned = make_trainable(load_model(source, torch.float32), trainable)
    weights_of_run = found.trained.open()
    load_trained(tuned, weights_of_run)
    if trained_digest(weights_digest(source), weights_of_run) != found.digest:
        raise ConfigError(f"the language model in {source} is not the one that the run trained; put that one back.")
    if trainable.method == "full":
        plain = tuned
    else:
        for name, layer in lora_layers(tuned).items():
            with torch.no_grad():
                plain.get_submodule(name).weight += layer.get_delta_weight(ADAPTER)
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        plain.save_pretrained(str(partial))
        tokenizer.save_pretrained(str(partial))
        _check(str(partial), tuned, tokenizer)
        partial.chmod(0o755)
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return found.version, sum(file.stat().st_size for file in folder.iterdir())


def _check(folder: str, tuned: Any, tokenizer: Any) -> None:
    """What was written says what the run's model says."""
    import torch

    from zoo.jericho.priorzero.llm import ScoreRequest
    from zoo.jericho.priorzero.llm.candidates import PromptTokenizer, TokenTrie
    from zoo.jericho.priorzero.llm.model_loading import load_model
    from zoo.jericho.priorzero.llm.packed import PackedRow, forward, node_log_probs

    prompt, actions = PROBE
    ids, candidates = PromptTokenizer(tokenizer).request_ids(
        ScoreRequest([{"role": "user", "content": prompt}], actions)
    )
    row = PackedRow("probe", ids, TokenTrie.build(candidates))
    with torch.inference_mode():
        one, other = (
            node_log_probs(row, forward(m.eval(), [row])[0]) for m in (tuned, load_model(folder, torch.float32))
        )
    if float((one - other).abs().max()) > TOLERANCE:
        raise ConfigError(
            f"what was written to {folder} differs from the run's model by {float((one - other).abs().max()):.2g} in a "
            "log-probability; nothing is kept."
        )
