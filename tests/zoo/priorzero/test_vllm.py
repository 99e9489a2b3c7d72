from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from lzero_async.errors import ConfigError
from zoo.jericho.priorzero.llm import Engine, ScoreRequest, make_engine
from zoo.jericho.priorzero.llm.vllm import engine as vllm_engine
from zoo.jericho.priorzero.llm.vllm import vllm_worker
from zoo.jericho.priorzero.llm.vllm.engine import VllmEngine, make_vllm_engine
from zoo.jericho.priorzero.llm.vllm.protocol import EngineFailure
from zoo.jericho.priorzero.llm.vllm.server import HttpTransport, ProcessTransport

# httpcore leaves a Unix socket whose connect failed to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")

FAKE = Path(__file__).with_name("fake_vllm.py")
_spec = importlib.util.spec_from_file_location("fake_vllm", FAKE)
fake = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(fake)

ACTIONS = ("go north", "go south", "take lamp", "", "go north", "g")
MANY = tuple(chr(code) + "x" for code in range(40, 90))


class Letters:
    """A tokenizer with one token per character and no chat template."""

    eos_token_id = 2
    chat_template = None
    all_special_tokens = ()

    def encode(self, text, add_special_tokens=False):
        return [ord(letter) for letter in text]

    def decode(self, ids, skip_special_tokens=True):
        return "".join(map(chr, ids))


def request(actions=ACTIONS, text="A dark room."):
    return ScoreRequest([{"role": "user", "content": text}], actions)


def expected(request, weights=fake.BASE_WEIGHTS, reduction="mean"):
    """One token after the other, no trie."""
    prompt = [ord(letter) for letter in f"User: {request.prompt[0]['content']}\n\nAssistant:\n"]
    scores = []
    for action in request.candidates:
        ids = [ord(letter) for letter in action]
        parts = [fake.log_prob(weights, prompt + ids[:i], ids[i]) for i in range(len(ids))]
        scores.append((sum(parts) / (len(parts) if reduction == "mean" else 1)) if parts else -np.inf)
    return np.array(scores, np.float32)


@pytest.fixture
def served():
    """Serves a stand-in on a loopback port: call it with a plan; gives the address and the server."""
    servers = []

    def start(**plan):
        server = fake.FakeServer(("127.0.0.1", 0), plan)
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{server.server_address[1]}", server

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def own(tmp_path):
    """Makes engines whose server process is the stand-in: call it with a plan and the engine's options."""
    engines = []

    def start(plan=None, *, max_restarts=3, request_timeout=60.0, start_timeout=60.0):
        arguments = {
            "plan": plan or {},
            "folder": str(tmp_path),
            "engines": str(Path(vllm_worker.__file__).parent),
        }
        transport = ProcessTransport(
            sys.executable,
            "fake",
            arguments,
            worker=str(FAKE),
            log_dir=str(tmp_path / "logs"),
            request_timeout=request_timeout,
            start_timeout=start_timeout,
        )
        engine = VllmEngine(transport, max_restarts=max_restarts, backoff=0.0, tokenizer=Letters())
        engines.append(engine)
        return engine

    yield start
    for engine in engines:
        engine.close()


def by_url(url, model="", **options):
    return VllmEngine(HttpTransport(url, model, **options), backoff=0.0, tokenizer=Letters())


def asked(folder):
    return [json.loads(line) for line in (folder / "asked").read_text().splitlines()]


def wait_for_end(pid, seconds=30.0):
    """True when the process has ended within that time."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], seconds)[0])
    finally:
        os.close(handle)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_scores_are_those_of_one_token_after_the_other(served, reduction):
    engine = by_url(served()[0])
    assert isinstance(engine, Engine)
    requests = [request(), request(MANY), request(("look",), "Elsewhere."), request(())]
    for found, asked_for in zip(engine.score(requests, reduction), requests, strict=True):
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, expected(asked_for, reduction=reduction), rtol=1e-6)
    engine.close()


def test_one_question_per_inner_node_and_equal_prompts_asked_once(served):
    url, server = served()
    engine = by_url(url)
    before = server.asked
    engine.score([request(("go up", "go down")), request(("go up", "go down"))])
    # inner nodes: the prompt, g, o, the space, and u, d, o, w
    assert server.asked - before == 8
    engine.close()


def test_generation_stops_at_the_context_length(served):
    engine = by_url(served()[0])
    prompt = request().prompt
    assert engine.generate([prompt], 4) == ["2345"]
    tokens = engine.count_tokens(prompt)
    assert len(engine.generate([prompt], 10_000)[0]) == fake.CONTEXT_LENGTH - tokens
    assert engine.generate([request(text="x" * fake.CONTEXT_LENGTH).prompt], 4) == [""]
    with pytest.raises(ConfigError, match="reads at most 200"):
        engine.score([request(text="x" * fake.CONTEXT_LENGTH)])
    with pytest.raises(ConfigError, match="max_new_tokens"):
        engine.generate([prompt], 0)
    engine.close()


def test_a_server_that_exits_is_restarted_and_asked_again_only_what_is_open(own, tmp_path):
    engine = own({"lives": {"1": {"exit": 6}}})
    np.testing.assert_allclose(engine.score([request()])[0], expected(request()), rtol=1e-6)
    health = engine.health()
    assert health["ok"] and health["restarts"] == 1 and health["failures"] == 1
    first = [context for life, context in asked(tmp_path) if life == 1 and len(context) > 2]
    again = [context for life, context in asked(tmp_path) if life == 2 and len(context) > 2]
    answered = [context for context, times in Counter(map(tuple, first)).items() if list(context) not in again]
    assert answered, "everything was asked again"
    assert len(again) < health["questions"]


def test_kill_minus_nine_between_requests(own):
    engine = own()
    pid = engine._transport.process_id
    os.kill(pid, signal.SIGKILL)
    np.testing.assert_allclose(engine.score([request()])[0], expected(request()), rtol=1e-6)
    assert engine._transport.process_id != pid and engine.health()["restarts"] == 1


def test_a_hanging_server_is_replaced(own):
    engine = own({"lives": {"1": {"hang": 4}}}, request_timeout=1.0)
    np.testing.assert_allclose(engine.score([request()])[0], expected(request()), rtol=1e-6)
    assert engine.health()["restarts"] == 1


def test_restarts_are_bounded(own, tmp_path):
    always = {str(life): {"exit": 2} for life in range(1, 10)}
    engine = own({"lives": always}, max_restarts=2)
    with pytest.raises(EngineFailure, match="failed 3 times in a row"):
        engine.score([request()])
    assert len(list(tmp_path.glob("life-*"))) == 3


def test_a_start_that_fails_later_counts_and_the_next_one_may_work(own):
    engine = own({"lives": {"1": {"exit": 3}}, "no_start": [2]})
    np.testing.assert_allclose(engine.score([request()])[0], expected(request()), rtol=1e-6)
    assert engine.health()["restarts"] == 2


def test_an_error_of_a_living_server_is_asked_again_without_a_restart(own):
    engine = own({"lives": {"1": {"error": 3}}})
    np.testing.assert_allclose(engine.score([request()])[0], expected(request()), rtol=1e-6)
    assert engine.health() | {"failures": 1, "restarts": 0} == engine.health()


def test_a_server_that_does_not_start_says_why(own):
    with pytest.raises(ConfigError, match=r"(?s)code 1 while starting.*no mind to start.*transformers"):
        own({"no_start": [1]})


def test_a_server_that_never_listens_times_out_with_its_log(own, tmp_path):
    with pytest.raises(ConfigError, match=r"(?s)did not answer within 1 s.*life 1 of the stand-in"):
        own({"never_listens": [1]}, start_timeout=1.0)
    assert wait_for_end(int((tmp_path / "life-1").read_text()))


def weights(tmp_path, name):
    folder = tmp_path / name
    folder.mkdir()
    (folder / "model.safetensors").touch()
    return str(folder)


def test_new_weights_give_new_scores_and_survive_a_restart(own, tmp_path):
    engine = own()
    engine.load_weights(weights(tmp_path, "second"), 7)
    assert engine.weights_version == 7
    np.testing.assert_allclose(engine.score([request()])[0], expected(request(), "second"), rtol=1e-6)
    os.kill(engine._transport.process_id, signal.SIGKILL)
    np.testing.assert_allclose(engine.score([request()])[0], expected(request(), "second"), rtol=1e-6)
    assert engine.health()["weights_version"] == 7


def test_old_weights_never_answer_after_a_restart(own, tmp_path):
    engine = own({"reload_fails": [2, 3]}, max_restarts=1)
    engine.load_weights(weights(tmp_path, "second"), 1)
    os.kill(engine._transport.process_id, signal.SIGKILL)
    with pytest.raises(EngineFailure, match="do not fit"):
        engine.score([request()])
    # the third life cannot load them either; the fourth can
    np.testing.assert_allclose(engine.score([request()])[0], expected(request(), "second"), rtol=1e-6)


def test_bad_weights_leave_the_old_ones(own, tmp_path):
    engine = own()
    with pytest.raises(ConfigError, match="did not arrive whole"):
        engine.load_weights(weights(tmp_path, "first"), 1, expected_logprob=-1.0)
    np.testing.assert_allclose(engine.score([request()])[0], expected(request()), rtol=1e-6)
    engine.load_weights(weights(tmp_path, "good"), 1)
    with pytest.raises(ConfigError, match=r"no folder with .safetensors"):
        engine.load_weights(str(tmp_path / "absent"), 2)
    with pytest.raises(ConfigError, match="do not fit"):
        engine.load_weights(weights(tmp_path, "refused"), 2)
    with pytest.raises(ConfigError, match="did not arrive whole"):
        engine.load_weights(weights(tmp_path, "other"), 2, expected_logprob=-1.0)
    with pytest.raises(ConfigError, match="weights version"):
        engine.load_weights(str(tmp_path / "good"), -1)
    assert engine.weights_version == 1 and engine.health()["restarts"] == 0
    np.testing.assert_allclose(engine.score([request()])[0], expected(request(), "good"), rtol=1e-6)


def test_a_reload_that_is_lost_on_its_way_is_asked_again(own, tmp_path):
    engine = own({"lost_reloads": 1})
    engine.load_weights(weights(tmp_path, "next"), 3)
    assert engine.health()["restarts"] == 0
    np.testing.assert_allclose(engine.score([request()])[0], expected(request(), "next"), rtol=1e-6)


def test_weights_that_arrive_are_confirmed_by_their_log_prob(own, tmp_path):
    engine = own()
    right = expected(vllm_engine.CHECK_REQUEST, "next", "sum")[0]
    engine.load_weights(weights(tmp_path, "next"), 3, expected_logprob=float(right))
    assert engine.weights_version == 3


def test_a_plain_server_reloads_by_its_own_method(served):
    url, server = served(methods=["reload_weights"])
    engine = by_url(url)
    engine.load_weights("/somewhere/else", 1)
    assert server.weights == "else"
    engine.close()


def test_close_ends_the_server_and_its_folder(own):
    engine = own()
    pid, folder = engine._transport.process_id, Path(engine._transport._folder)
    assert folder.stat().st_mode & 0o077 == 0
    engine.close()
    engine.close()
    assert wait_for_end(pid, 0.0) and not folder.exists()
    assert engine.health()["ok"] is False
    with pytest.raises(ConfigError, match="closed"):
        engine.score([request()])


def test_the_server_does_not_outlive_a_killed_owner(tmp_path):
    code = f"""
import os, signal, sys
from zoo.jericho.priorzero.llm.vllm.server import ProcessTransport
arguments = {{"plan": {{}}, "folder": {str(tmp_path)!r}, "engines": {str(Path(vllm_worker.__file__).parent)!r}}}
transport = ProcessTransport(sys.executable, "fake", arguments, worker={str(FAKE)!r}, log_dir={str(tmp_path)!r})
transport.restart()
print(transport.process_id, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert wait_for_end(int(done.stdout))


def test_a_forked_child_leaves_the_server_alone(own):
    engine = own()
    child = os.fork()
    if child == 0:
        engine._transport.close()
        os._exit(0)
    os.waitpid(child, 0)
    assert engine.health()["ok"]


def test_unreachable_and_malformed_addresses():
    with pytest.raises(ConfigError, match=r"(?s)no answer from http://127.0.0.1:9/.*leave --llm_url out"):
        make_engine("vllm", url="http://127.0.0.1:9")
    with pytest.raises(ConfigError, match="must be http://HOST:PORT"):
        make_engine("vllm", url="localhost")


def test_a_server_with_another_model(served):
    url, _ = served(id="Qwen/Qwen2.5-0.5B-Instruct", root="/models/qwen")
    with pytest.raises(ConfigError, match=r"serves /models/qwen, Qwen/Qwen2.5-0.5B-Instruct"):
        by_url(url, "SmolLM2-135M-Instruct")
    engine = by_url(url, "/elsewhere/Qwen2.5-0.5B-Instruct")
    assert engine.context_length == fake.CONTEXT_LENGTH
    engine.close()


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ({"status": {"/inference/v1/generate": 404}}, "--enable-scale-out"),
        ({"status": {"/inference/v1/generate": 403}}, "--enable-scale-out"),
        ({"status": {"/inference/v1/generate": 400}}, "refused .*as planned"),
        ({"no_logprobs": True}, "logprob_token_ids"),
        ({"body": "<html>"}, "is it vLLM"),
    ],
)
def test_servers_that_lack_something(served, plan, message):
    with pytest.raises(ConfigError, match=message):
        by_url(served(**plan)[0])


def test_a_server_without_reload(served):
    engine = by_url(served(status={"/collective_rpc": 404})[0])
    with pytest.raises(ConfigError, match="VLLM_SERVER_DEV_MODE=1"):
        engine.load_weights("anywhere", 1)
    assert engine.weights_version == 0
    engine.close()


def test_no_environment_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr(vllm_engine, "ENVIRONMENT", "no-such-environment")
    monkeypatch.setattr(vllm_engine, "model_folder", lambda model: model)
    with pytest.raises(ConfigError, match="run `make vllm`, or give --llm_url, or use --llm_engine transformers"):
        make_vllm_engine("model", in_process=False)
    with pytest.raises(ConfigError, match="no vLLM environment at"):
        make_vllm_engine("model", python=str(tmp_path / "python"))


@pytest.mark.parametrize(
    "options",
    [
        {"tensor_parallel_size": 0},
        {"gpu_memory_utilization": 1.5},
        {"max_model_len": -1},
        {"request_timeout": 0},
        {"url": "http://127.0.0.1:9", "python": "python"},
    ],
)
def test_bad_options(options):
    with pytest.raises(ConfigError, match="|".join(options)):
        make_vllm_engine("model", **options)


def test_engine_options_reach_vllm():
    given = vllm_engine._engine_options(2, 0.5, "bfloat16", 4096, False)
    assert given == {
        "tensor_parallel_size": 2,
        "gpu_memory_utilization": 0.5,
        "dtype": "bfloat16",
        "max_model_len": 4096,
        "enforce_eager": False,
    }
    assert vllm_engine._engine_options(1, None, "", 0, None) == {}


# With vLLM itself, on the CPU: `pytest -m vllm`. A start takes about a minute.

ROOT = Path(__file__).parents[3]
REAL_PYTHON = ROOT / vllm_engine.ENVIRONMENT / "bin" / "python"
REAL = [
    ScoreRequest(
        [
            {"role": "system", "content": "You play a text game."},
            {"role": "user", "content": "You stand in an open field west of a white house. A mailbox is here. " * 12},
        ],
        ("go north", "go south", "open mailbox", "attack troll with sword", "put egg in case", "wait", "go up", ""),
    ),
    ScoreRequest([{"role": "user", "content": "What now?"}], (*(f"take the {chr(97 + i)}" for i in range(26)), "look")),
]
needs_vllm = [
    pytest.mark.vllm,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(not REAL_PYTHON.exists(), reason="no vLLM environment: run `make vllm`"),
]


def vllm_test(function):
    for mark in needs_vllm:
        function = mark(function)
    return function


@pytest.fixture(scope="module")
def reference():
    """The transformers engine, the scores of the model's own weights, and a folder with other weights and their scores."""
    engine = make_engine("transformers", threads=1)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def other_weights(reference, tmp_path_factory):
    """A folder with changed weights (the tied embedding among them), their scores and the score of CHECK_REQUEST."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = str(tmp_path_factory.mktemp("weights"))
    model = AutoModelForCausalLM.from_pretrained(vllm_engine.model_folder(""))
    model.get_input_embeddings().weight.data *= 1.1
    model.model.layers[3].mlp.down_proj.weight.data *= 0.5
    model.save_pretrained(folder)
    original = reference.score(REAL)
    AutoTokenizer.from_pretrained(vllm_engine.model_folder("")).save_pretrained(folder)
    with contextlib.closing(make_engine("transformers", folder, threads=1)) as other:
        changed, check = other.score(REAL), float(other.score([vllm_engine.CHECK_REQUEST], "sum")[0][0])
    assert np.abs(changed[1] - original[1]).max() > 0.1
    return folder, changed, check


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    engine = make_engine("vllm", max_model_len=1024, log_dir=str(tmp_path_factory.mktemp("logs")), in_process=False)
    yield engine
    engine.close()


def difference(found, right):
    """The largest difference of two lists of scores, which must be -inf at the same places."""
    found, right = np.concatenate(found), np.concatenate(right)
    finite = np.isfinite(right)
    assert (np.isfinite(found) == finite).all()
    return np.abs(found[finite] - right[finite]).max()


def processes(group, name):
    """Ids of the processes of a group whose title begins with `name`."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if os.getpgid(int(folder.name)) == group and (folder / "cmdline").read_text().startswith(name):
                found.append(int(folder.name))
        except (OSError, UnicodeDecodeError):
            pass  # it ended while we looked
    return found


def kill_at_question(engine, name, number, monkeypatch):
    """Kill the engine's process `name` with SIGKILL when the given number of questions is on its way."""
    ask_one, count = engine._transport.ask_one, iter(range(1, 10_000))

    def ask(question, timeout):
        if next(count) == number:
            (victim,) = processes(engine._transport.process_id, name)
            os.kill(victim, signal.SIGKILL)
        return ask_one(question, timeout)

    monkeypatch.setattr(engine._transport, "ask_one", ask)


@vllm_test
def test_vllm_scores_and_text_equal_those_of_transformers(real, reference):
    assert difference(real.score(REAL), reference.score(REAL)) < 1e-3
    assert difference(real.score(REAL, "sum"), reference.score(REAL, "sum")) < 1e-3
    prompts = [request.prompt for request in REAL]
    assert real.generate(prompts, 8) == reference.generate(prompts, 8)
    assert real.count_tokens(prompts[0]) == reference.count_tokens(prompts[0]) and real.context_length == 1024


@vllm_test
def test_vllm_killed_engine_core_gives_the_same_answers(real, reference, monkeypatch):
    restarts = real.health()["restarts"]
    kill_at_question(real, "VLLM::EngineCore", 10, monkeypatch)
    assert difference(real.score(REAL), reference.score(REAL)) < 1e-3
    assert real.health()["restarts"] > restarts and real.health()["ok"]


@vllm_test
def test_vllm_new_weights_arrive_and_survive_a_killed_worker(real, reference, other_weights, monkeypatch):
    folder, changed, check = other_weights
    with pytest.raises(ConfigError, match="did not arrive whole"):
        real.load_weights(folder, 1, expected_logprob=check + 1)
    assert difference(real.score(REAL), reference.score(REAL)) < 1e-3
    real.load_weights(folder, 2, expected_logprob=check, tolerance=1e-3)
    assert difference(real.score(REAL), changed) < 1e-3
    kill_at_question(real, "VLLM::Worker", 10, monkeypatch)
    assert difference(real.score(REAL), changed) < 1e-3
    group = real._transport.process_id
    real.close()
    assert processes(group, "VLLM::") == []


@contextlib.contextmanager
def real_server(log, port=0, more=()):
    """A server of vLLM's own: its address and its process, once it answers."""
    if not port:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
    command = [REAL_PYTHON, "-m", "vllm.entrypoints.openai.api_server", "--model", vllm_engine.model_folder("")]
    command += ["--dtype", "float32", "--enforce-eager", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--max-model-len", "1024", "--enable-scale-out", *more]
    environment = os.environ | {"VLLM_SERVER_DEV_MODE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "PYTHONPATH": str(ROOT)}
    with log.open("wb") as out:
        server = subprocess.Popen(command, stdout=out, stderr=out, env=environment, start_new_session=True)
    try:
        url = f"http://127.0.0.1:{port}"
        while True:
            assert server.poll() is None, log.read_text()[-2000:]
            try:
                make_engine("vllm", url=url).close()
                break
            except ConfigError as error:
                assert "no answer from" in str(error)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    server.wait(1)
        yield url, server
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def episodes(name):
    """Questions of four episodes, each with a text of its own."""
    return [
        ScoreRequest(
            [{"role": "user", "content": f"Room {i}. A mailbox is here. " * 20}], REAL[0].candidates, f"{name} {i}"
        )
        for i in range(4)
    ]


@vllm_test
def test_vllm_server_by_address(reference, other_weights, tmp_path):
    with real_server(tmp_path / "log") as (url, _):
        engine = make_engine("vllm", url=url)
        assert difference(engine.score(REAL), reference.score(REAL)) < 1e-3
        # Without our worker extension a CPU server keeps its packed output layer: caught by the expected log-probability.
        folder, _, check = other_weights
        with pytest.raises(ConfigError, match="did not arrive whole"):
            engine.load_weights(folder, 1, expected_logprob=check)
        assert difference(engine.score(REAL), reference.score(REAL)) < 1e-3
        engine.close()


@vllm_test
def test_vllm_several_servers_of_which_one_is_killed_and_comes_back(reference, other_weights, tmp_path, monkeypatch):
    folder, _, check = other_weights
    right = reference.score(episodes(""))
    with contextlib.closing(make_engine("transformers", folder, threads=1)) as other:
        changed = other.score(episodes(""))
    extension = ["--worker-extension-cls", f"{vllm_worker.__name__}.WeightReload"]
    with contextlib.ExitStack() as stack:
        (first, victim), (second, _) = (
            stack.enter_context(real_server(tmp_path / str(i), more=extension)) for i in range(2)
        )
        engine = make_engine("vllm", url=f"{first},{second}")
        stack.callback(engine.close)

        def servers(what):
            return [one[what] for one in engine.health()["servers"]]

        assert difference(engine.score(episodes("before")), right) < 1e-3
        assert servers("ok") == [True, True] and all(servers("served"))
        engine.load_weights(folder, 1, expected_logprob=check, tolerance=1e-3)
        assert difference(engine.score(episodes("new weights")), changed) < 1e-3

        way = next(way for server, way in engine._transport._ways.items() if server.url == first)
        ask_one, count = way.ask_one, iter(range(1, 10_000))

        def ask(question, timeout):
            if next(count) == 5:
                os.killpg(victim.pid, signal.SIGKILL)
            return ask_one(question, timeout)

        monkeypatch.setattr(way, "ask_one", ask)
        assert difference(engine.score(episodes("killed")), changed) < 1e-3
        assert servers("ok") == [False, True] and servers("failed")[0] >= 1
        assert engine.health()["restarts"] == 0

        victim.wait()
        port = int(first.rpartition(":")[2])
        stack.enter_context(real_server(tmp_path / "again", port, extension))
        served, rounds = servers("served")[0], 0
        while not servers("ok")[0]:  # a call looks at it when its pause is over
            rounds += 1
            assert rounds < 1000 and difference(engine.score(episodes(f"alone {rounds}")), changed) < 1e-3
        assert difference(engine.score(episodes("both")), changed) < 1e-3  # it was given the newest weights
        assert servers("served")[0] > served


IN_PROCESS = """
import json, os, signal, subprocess, sys
from zoo.jericho.priorzero.llm import ScoreRequest, make_engine
if __name__ == "__main__":
    requests = [ScoreRequest(*pair) for pair in json.loads(sys.argv[1])]
    engine = make_engine("vllm", sys.argv[2], max_model_len=1024)
    scores = [[list(map(float, row)) for row in engine.score(requests)]]
    found = subprocess.run(["ps", "-eo", "pid,ppid,args"], capture_output=True, text=True).stdout.splitlines()
    core = [line.split() for line in found if "VLLM::EngineCore" in line]
    (victim,) = [int(pid) for pid, parent, *_ in core if int(parent) == os.getpid()]
    os.kill(victim, signal.SIGKILL)
    scores.append([list(map(float, row)) for row in engine.score(requests)])
    engine.load_weights(sys.argv[3], 1, expected_logprob=float(sys.argv[4]))
    scores.append([list(map(float, row)) for row in engine.score(requests)])
    health = engine.health()
    engine.close()
    print("RESULT", json.dumps([scores, health]))
"""


@vllm_test
def test_vllm_in_process(reference, other_weights, tmp_path):
    folder, changed, check = other_weights
    script = tmp_path / "in_process.py"
    script.write_text(IN_PROCESS)
    requests = json.dumps([[request.prompt, request.candidates] for request in REAL])
    command = [REAL_PYTHON, script, requests, vllm_engine.model_folder(""), folder, str(check)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=900, check=False)
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("RESULT")] or [done.stderr[-3000:]]
    (first, again, new), health = json.loads(line.removeprefix("RESULT "))
    right = reference.score(REAL)
    assert difference(first, right) < 1e-3 and difference(again, right) < 1e-3 and difference(new, changed) < 1e-3
    assert health["mode"] == "in-process" and health["ok"] and health["restarts"] == 1
