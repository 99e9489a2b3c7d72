from __future__ import annotations

import itertools
import logging
import re
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from lzero_async.errors import ConfigError
from tests.zoo.priorzero import fake_vllm as fake
from zoo.jericho.priorzero.llm import ScoreRequest, make_engine
from zoo.jericho.priorzero.llm.vllm.balance import Balance
from zoo.jericho.priorzero.llm.vllm.engine import VllmEngine
from zoo.jericho.priorzero.llm.vllm.pool import PoolTransport
from zoo.jericho.priorzero.llm.vllm.protocol import Answer, EngineFailure, Question
from zoo.jericho.priorzero.llm.vllm.server import GENERATE
from zoo.jericho.priorzero.options import build_options

PATIENCE = 30.0


class Letters:
    """A tokenizer with one token per character and no chat template."""

    eos_token_id = 2
    chat_template = None
    all_special_tokens = ()

    def encode(self, text, add_special_tokens=False):
        return [ord(letter) for letter in text]

    def decode(self, ids, skip_special_tokens=True):
        return "".join(map(chr, ids))


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def cluster():
    """Call it with one plan per server: gives the stand-ins and a way to make clients of them, all closed at the end."""
    servers, pools = [], []

    def start(*plans):
        for plan in plans:
            server = fake.FakeServer(("127.0.0.1", 0), plan)
            server.url = f"http://127.0.0.1:{server.server_address[1]}"
            servers.append(server)
            threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()

        def client(model="", *, restart=True, **options):
            pool = PoolTransport([s.url for s in servers], model, **{"first": 0, "clock": Clock()} | options)
            pools.append(pool)
            if restart:
                pool.restart()
                for server in servers:
                    server.answered.clear()
            return pool

        return servers, client

    yield start
    for pool in pools:
        pool.close()
    for server in servers:
        server.shutdown()
        server.server_close()


def question(number, key=None):
    return Question((100, number), (7, 8), key=key)


def right(asked, weights=fake.BASE_WEIGHTS):
    return {token: fake.log_prob(weights, list(asked.token_ids), token) for token in asked.wanted}


def check(questions, answers, weights=fake.BASE_WEIGHTS):
    """Every answer is there, and at the place of its question."""
    assert len(answers) == len(questions)
    for asked, answer in zip(questions, answers, strict=True):
        assert isinstance(answer, Answer), answer
        assert answer.log_probs == pytest.approx(right(asked, weights))


def numbers(server):
    return [tokens[1] for _, tokens in server.answered if tokens[0] == 100]


def counts(pool, name):
    return [server[name] for server in pool.statistics()["servers"]]


def settle(pool):
    """Wait until everybody who looks at a server in the background has come to a result."""
    for visit in list(pool._visits.values()):
        visit.result(PATIENCE)


class Held:
    """A hook that holds questions back until `release`; `arrived` counts them."""

    def __init__(self):
        self.arrived, self.go = threading.Semaphore(0), threading.Event()

    def __call__(self, server, what):
        self.arrived.release()
        assert self.go.wait(PATIENCE)

    def wait_for(self, count):
        for _ in range(count):
            assert self.arrived.acquire(timeout=PATIENCE)


# -- the rules, by themselves -------------------------------------------------------------------------------------------


def balance(count=3, **rules):
    made = Balance([f"http://{i}" for i in range(count)], **rules)
    for server in made.servers:
        made.take_in(server)
    return made


def test_first_questions_go_to_the_least_busy_server_and_equals_take_turns():
    rules = balance()
    a, b, c = rules.servers
    assert [rules.place("x", 5), rules.place("y", 2), rules.place("z", 3)] == [a, b, c]
    assert rules.place("w", 2) is b
    assert [s.outstanding for s in rules.servers] == [5, 4, 3]
    assert rules.place(None) is c
    assert rules.place(None) is b, "b and c have 4 each; c was the last one taken"
    assert Balance(["p", "q"], first=3)._turn == 1


def test_an_episode_stays_until_its_server_is_much_busier():
    rules = balance(2, margin=10)
    a, b = rules.servers
    assert rules.place("x", 10) is a
    assert rules.place("x", 1) is a, "ten more than at b is not too many"
    assert rules.place("x", 1) is b
    assert (a.moved, b.moved) == (1, 0)
    assert rules.place("x", 50) is b and rules.place("x") is a, "what is placed together stays together"
    assert (a.moved, b.moved) == (1, 1)


def test_an_episode_leaves_a_server_that_is_out_and_only_then():
    rules = balance(2)
    a, b = rules.servers
    rules.place("x")
    rules.leave_out(a, "why", 0.0)
    assert rules.place("x") is b and a.moved == 1
    rules.take_in(a)
    assert rules.place("x") is b
    assert rules.place("x", tried=[b]) is a and rules.place("x", tried=[a, b]) is None
    assert rules.place("new", tried=[a, b]) is None


def test_the_table_forgets_the_episode_that_was_asked_about_longest_ago():
    rules = balance(2, episodes_kept=2, margin=1000)
    a, b = rules.servers
    assert [rules.place("x"), rules.place("y"), rules.place("x", 5)] == [a, b, a]
    rules.place("z", 9)
    assert len(rules._homes) == 2 and "y" not in rules._homes
    assert rules.place("x") is a, "x was used after y"
    assert rules.place("y", 1) is a, "y is new again: a is less busy"


def test_the_pause_doubles_to_its_bound_and_only_an_answer_ends_that():
    rules = balance(1, pause=1.0, longest_pause=5.0)
    (a,) = rules.servers
    pauses = []
    for _ in range(5):
        rules.leave_out(a, "why", 100.0)
        pauses.append(a.due - 100.0)
        assert rules.visit_due(a.due - 0.01) == [] and rules.visit_due(a.due) == [a]
        assert rules.visit_due(a.due) == [], "somebody looks at it already"
        rules.take_in(a)
    assert pauses == [1, 2, 4, 5, 5]
    rules.place(None)
    rules.answered(a)
    rules.leave_out(a, "why", 0.0)
    assert a.due == 1.0


def test_a_failure_of_an_earlier_life_does_not_count():
    rules = balance(1)
    (a,) = rules.servers
    life = a.life
    rules.place(None, 3)
    assert rules.failed(a, life, "first", 0.0)
    assert not rules.failed(a, life, "second", 0.0), "it is out already"
    rules.take_in(a)
    assert not rules.failed(a, life, "late", 0.0)
    assert a.ok and a.failed == 3 and a.outstanding == 0 and a.failures == 1


# -- asking -----------------------------------------------------------------------------------------------------------


def test_questions_of_one_episode_go_to_one_server(cluster):
    servers, client = cluster({}, {}, {})
    pool = client()
    for _ in range(3):
        questions = [question(10 * key + i, f"episode {key}") for i in range(4) for key in range(6)]
        check(questions, pool.ask(questions))
    homes = [{number // 10 for number in numbers(server)} for server in servers]
    assert sorted(map(sorted, homes)) == [[0, 3], [1, 4], [2, 5]]
    assert counts(pool, "served") == [24, 24, 24] and counts(pool, "moved") == [0, 0, 0]
    assert counts(pool, "outstanding") == [0, 0, 0]


def test_a_new_episode_goes_to_the_server_with_the_least_outstanding_questions(cluster):
    held = [Held(), Held(), Held()]
    servers, client = cluster({}, {}, {})
    pool = client(first=1)
    for server, hook in zip(servers, held, strict=True):
        server.plan["hook"] = hook
    with ThreadPoolExecutor(4) as threads:
        calls = [threads.submit(pool.ask, [question(i, "two") for i in range(2)])]
        held[1].wait_for(2)
        calls.append(threads.submit(pool.ask, [question(i, "three") for i in range(3)]))
        held[2].wait_for(3)
        calls.append(threads.submit(pool.ask, [question(i, "four") for i in range(4)]))
        held[0].wait_for(4)
        assert counts(pool, "outstanding") == [4, 2, 3]
        calls.append(threads.submit(pool.ask, [question(9, "new")]))
        held[1].wait_for(1)
        for hook in held:
            hook.go.set()
        for call in calls:
            assert all(isinstance(answer, Answer) for answer in call.result(PATIENCE))
    assert counts(pool, "outstanding") == [0, 0, 0] and counts(pool, "served") == [4, 3, 3]


def test_servers_work_at_the_same_time(cluster):
    meeting = threading.Barrier(4, timeout=PATIENCE)
    servers, client = cluster({}, {}, {}, {})
    pool = client(
        connections=1
    )  # one question at a time at each server: four together only if all four are asked at once
    for server in servers:
        server.plan["hook"] = lambda server, what: meeting.wait()
    questions = [question(i, i) for i in range(8)]
    check(questions, pool.ask(questions))
    assert counts(pool, "served") == [2, 2, 2, 2]


def hang(server, what):
    server.never.wait(PATIENCE)


@pytest.mark.parametrize("fault", [{"down": True}, {"status": {GENERATE: 503}}, {"hook": hang}])
def test_what_a_server_leaves_open_is_asked_at_another_one(cluster, fault):
    servers, client = cluster({}, {}, {})
    pool = client(request_timeout=1.0 if "hook" in fault else PATIENCE)
    pool.ask([question(0, key) for key in range(6)])  # two episodes to each server
    for server in servers:
        server.answered.clear()
    servers[1].never = threading.Event()
    servers[1].plan |= fault
    questions = [question(100 * key + i, key) for i in range(20) for key in range(6)]
    check(questions, pool.ask(questions))
    servers[1].never.set()
    elsewhere = Counter(numbers(servers[0]) + numbers(servers[2]))
    assert elsewhere == Counter(asked.token_ids[1] for asked in questions), "each is answered once"
    assert counts(pool, "ok") == [True, False, True] and counts(pool, "moved") == [0, 2, 0]
    assert 1 <= counts(pool, "failed")[1] <= 32 and counts(pool, "outstanding") == [0, 0, 0]
    asked = servers[1].asked
    check(questions, pool.ask(questions))
    assert servers[1].asked == asked, "a server that is out is not asked"


def test_a_question_is_asked_at_each_server_at_most_once(cluster):
    servers, client = cluster({}, {}, {})
    pool = client(connections=1)
    for server in servers:
        server.plan["status"] = {GENERATE: 500}
    seen = Counter()
    for way in pool._ways.values():
        asked = way.ask_one

        def ask_one(one, patience, asked=asked, url=way.url):
            seen[url, one.token_ids] += 1
            return asked(one, patience)

        way.ask_one = ask_one
    answers = pool.ask([question(i, i) for i in range(9)])
    assert all(isinstance(answer, EngineFailure) for answer in answers)
    assert set(seen.values()) == {1} and len({url for url, _ in seen}) == 3
    assert counts(pool, "ok") == [False] * 3 and counts(pool, "outstanding") == [0, 0, 0]
    (answer,) = pool.ask([question(1)])
    assert all(server.url in str(answer) for server in servers), "it says what is wrong with each"


def test_a_refused_question_is_the_callers_affair(cluster):
    servers, client = cluster({}, {})
    pool = client()
    for server in servers:
        server.plan["status"] = {GENERATE: 400}
    with pytest.raises(ConfigError, match=r"refused .*as planned"):
        pool.ask([question(1)])
    assert counts(pool, "ok") == [True, True] and sum(counts(pool, "failed")) == 1


def test_closing_ends_a_call_that_waits(cluster):
    held = Held()
    servers, client = cluster({}, {})
    pool = client(connections=2)
    for server in servers:
        server.plan["hook"] = held
    with ThreadPoolExecutor(1) as threads:
        call = threads.submit(pool.ask, [question(i, i) for i in range(12)])
        held.wait_for(4)
        pool.close()
        held.go.set()
        answers = call.result(PATIENCE)
    assert sum(isinstance(answer, EngineFailure) for answer in answers) >= 8
    (answer,) = pool.ask([question(1)])
    assert isinstance(answer, EngineFailure) and "closed" in str(answer)
    with pytest.raises(EngineFailure, match="closed"):
        pool.reload("anything")


def test_many_threads_and_a_server_that_comes_and_goes(cluster):
    servers, client = cluster({}, {}, {})
    pool = client(clock=Clock(), pause=0.0, longest_pause=0.0)  # a server that is out is looked at by every call
    turns = itertools.count()

    def fail_often(server, what):
        if next(turns) % 7 == 6:
            raise fake.Fault("as planned")

    servers[0].plan["hook"] = fail_often

    def play(player):
        for step in range(15):
            questions = [question(1000 * player + 10 * step + i, (player, step, i % 2)) for i in range(6)]
            check(questions, pool.ask(questions))

    with ThreadPoolExecutor(6) as threads:
        for done in [threads.submit(play, player) for player in range(6)]:
            done.result(2 * PATIENCE)
    settle(pool)
    assert counts(pool, "outstanding") == [0, 0, 0] and sum(counts(pool, "served")) == 6 * 15 * 6
    assert counts(pool, "failed")[0] > 1 and counts(pool, "failed")[1:] == [0, 0]
    assert pool._balance.servers[0].life > 2, "it was taken back several times"


# -- out and back -----------------------------------------------------------------------------------------------------


def test_a_server_is_left_out_looked_at_after_growing_pauses_and_taken_back(cluster):
    clock = Clock()
    servers, client = cluster({}, {})
    pool = client(clock=clock, pause=1.0, longest_pause=3.0)
    servers[0].plan["down"] = True
    questions = [question(i, i) for i in range(4)]
    looks = []
    restart = pool._ways[pool._balance.servers[0]].restart
    pool._ways[pool._balance.servers[0]].restart = lambda: (looks.append(clock.now), restart())
    for step in range(24):
        clock.now = step / 2
        check(questions, pool.ask(questions))
        settle(pool)
    assert looks == [1.0, 3.0, 6.0, 9.0]
    servers[0].plan["down"] = False
    clock.now = 12.0
    check(questions, pool.ask(questions))
    settle(pool)
    assert counts(pool, "ok") == [True, True]
    new = [question(i, f"new {i}") for i in range(4)]
    check(new, pool.ask(new))
    assert len(numbers(servers[0])) == 2, "new episodes are shared again; the old ones stay where they are"


def test_a_server_that_comes_back_with_another_model_stays_out(cluster, caplog):
    clock = Clock()
    servers, client = cluster({}, {})
    pool = client(clock=clock)
    servers[1].plan["down"] = True
    pool.ask([question(i, i) for i in range(2)])
    for change, why in (
        ({"id": "other", "root": "/x/other"}, "serves .*other"),
        ({"id": "fake", "root": "fake", "context": 50}, "at most 50 tokens"),
    ):
        clock.now += 1000
        servers[1].plan |= {"down": False} | change
        pool.ask([question(1, 1)])
        settle(pool)
        assert counts(pool, "ok") == [True, False]
        assert pool._balance.servers[1].why
        (entry,) = [r.getMessage() for r in caplog.records if "stays out" in r.getMessage()]
        assert re.search(why, entry)
        caplog.clear()
    servers[1].weights = "others"
    servers[1].plan["context"] = fake.CONTEXT_LENGTH
    clock.now += 1000
    pool.ask([question(1, 1)])
    settle(pool)
    assert counts(pool, "ok") == [True, False] and "weights differ" in pool._balance.servers[1].why


def test_what_a_look_did_not_expect_reaches_a_caller(cluster):
    clock = Clock()
    servers, client = cluster({}, {})
    pool = client(clock=clock)
    servers[0].plan["down"] = True
    pool.ask([question(i, i) for i in range(2)])
    pool._ways[pool._balance.servers[0]].restart = lambda: {}["no such key"]
    clock.now = 1000.0
    pool.ask([question(1, 1)])
    (visit,) = pool._visits.values()
    assert isinstance(visit.exception(PATIENCE), KeyError)
    with pytest.raises(KeyError, match="no such key"):
        pool.ask([question(1, 1)])


# -- the same model and the same weights ------------------------------------------------------------------------------


def test_the_server_with_another_model_is_named(cluster):
    servers, client = cluster({"root": "/a/qwen"}, {"root": "/b/llama"}, {"root": "/c/qwen"})
    with pytest.raises(
        ConfigError, match=f"{servers[1].url} serves 'llama', but that at {servers[0].url} serves 'qwen'"
    ):
        client()
    with pytest.raises(ConfigError, match=rf"llm is 'qwen', but the server at {servers[1].url} serves"):
        client("qwen")


def test_the_server_with_other_weights_is_named(cluster):
    servers, client = cluster({}, {}, {})
    servers[0].weights = "others"
    with pytest.raises(
        ConfigError, match=f"{servers[0].url} gives other log-probabilities than that at {servers[1].url}"
    ):
        client()


def test_names_may_differ_where_the_user_gives_one_and_the_shortest_context_counts(cluster):
    _, client = cluster({"root": "/a/qwen", "id": "m"}, {"root": "/b/m", "id": "n", "context": 90})
    pool = client("models/m")
    assert pool.context_length == 90 and pool.base_weights == "/a/qwen" and pool.model == "models/m"


def test_after_the_first_start_a_server_that_does_not_fit_is_left_out(cluster):
    servers, client = cluster({}, {})
    pool = client()
    servers[1].weights = "others"
    pool.restart()
    assert counts(pool, "ok") == [True, False], "of two the first one counts"
    servers[0].plan["root"] = servers[0].plan["id"] = "other"
    servers[1].plan["down"] = True
    with pytest.raises(EngineFailure, match=f"no answer from {servers[1].url}"):
        pool.restart()  # the second one may yet come back
    servers[1].plan |= {"down": False, "no_logprobs": True}
    with pytest.raises(ConfigError, match="serves other"):
        pool.restart()


def test_a_server_that_is_down_at_the_start_comes_later(cluster, caplog):
    clock = Clock()
    servers, client = cluster({"down": True}, {})
    with caplog.at_level(logging.WARNING):
        pool = client(clock=clock)
    assert counts(pool, "ok") == [False, True] and servers[0].url in caplog.text
    servers[0].plan["down"] = False
    clock.now = 1000.0
    pool.ask([question(1)])
    settle(pool)
    assert counts(pool, "ok") == [True, True]


def test_all_servers_down_is_what_one_server_down_is(cluster):
    servers, client = cluster({"down": True}, {"down": True})
    with pytest.raises(
        ConfigError, match=r"(?s)engine does not work: no answer from .*no answer from .*leave --llm_url out"
    ):
        VllmEngine(client(restart=False), tokenizer=Letters())
    for server in servers:
        server.plan["down"] = False
    engine = VllmEngine(client(restart=False), tokenizer=Letters(), max_restarts=1, backoff=0.0)
    for server in servers:
        server.plan["down"] = True
    with pytest.raises(EngineFailure, match="failed 2 times in a row"):
        engine.score([request("A room.")])
    assert engine.health()["ok"] is False
    servers[1].plan["down"] = False
    np.testing.assert_allclose(engine.score([request("A room.")])[0], expected("A room."), rtol=1e-6)
    health = engine.health()
    assert health["ok"] and [server["ok"] for server in health["servers"]] == [False, True]


# -- new weights ------------------------------------------------------------------------------------------------------


def test_new_weights_go_to_every_server(cluster):
    servers, client = cluster({}, {}, {})
    pool = client()
    pool.reload("/weights/second")
    assert [server.weights for server in servers] == ["second"] * 3
    questions = [question(i, i) for i in range(6)]
    check(questions, pool.ask(questions), "second")
    assert counts(pool, "ok") == [True] * 3


@pytest.mark.parametrize(
    "fault", [{"down": True}, {"status": {"/collective_rpc": 500}}, {"status": {"/collective_rpc": 404}}]
)
def test_a_server_that_misses_new_weights_is_not_asked_until_it_has_them(cluster, fault):
    clock = Clock()
    servers, client = cluster({}, {})
    pool = client(clock=clock)
    servers[0].plan |= fault
    pool.reload("/weights/second")
    questions = [question(i, i) for i in range(6)]
    check(questions, pool.ask(questions), "second")
    assert counts(pool, "ok") == [False, True]
    clock.now = 1000.0
    check(questions, pool.ask(questions), "second")
    settle(pool)
    assert counts(pool, "ok") == [False, True], "it still cannot take them"
    pool.reload("/weights/third")
    servers[0].plan |= {"down": False, "status": {}}
    clock.now = 2000.0
    pool.ask([question(0, 0)])
    settle(pool)
    assert counts(pool, "ok") == [True, True]
    new = [question(i, f"new {i}") for i in range(6)]
    check(new, pool.ask(new), "third")
    assert {weights for weights, tokens in servers[0].answered if tokens[0] == 100} == {"third"}


def test_a_server_that_restarted_gets_the_newest_weights_before_its_first_question(cluster):
    clock = Clock()
    servers, client = cluster({}, {})
    pool = client(clock=clock)
    pool.reload("/weights/second")
    servers[0].plan["down"] = True
    pool.ask([question(i, i) for i in range(2)])
    servers[0].plan["down"], servers[0].weights = False, fake.BASE_WEIGHTS
    clock.now = 1000.0
    pool.ask([question(1, 1)])
    settle(pool)
    new = [question(i, f"new {i}") for i in range(6)]
    check(new, pool.ask(new), "second")
    assert counts(pool, "ok") == [True, True] and numbers(servers[0])


def test_weights_that_change_while_a_server_comes_back_reach_it_too(cluster):
    clock, held = Clock(), Held()
    servers, client = cluster({}, {})
    pool = client(clock=clock)
    pool.reload("/weights/second")
    servers[0].plan["down"] = True
    pool.ask([question(i, i) for i in range(2)])
    servers[0].plan |= {"down": False, "hook": lambda server, what: what == "/weights/second" and held(server, what)}
    clock.now = 1000.0
    pool.ask([question(1, 1)])
    held.wait_for(1)  # the server is about to load the second weights
    pool.reload("/weights/third")
    held.go.set()
    settle(pool)
    assert [server.weights for server in servers] == ["third", "third"] and counts(pool, "ok") == [True, True]


def test_a_server_that_came_back_during_a_reload_without_it_is_left_out(cluster):
    clock, held = Clock(), Held()
    servers, client = cluster({}, {})
    pool = client(clock=clock)
    servers[0].plan["down"] = True
    pool.ask([question(i, i) for i in range(2)])
    servers[0].plan["down"] = False
    servers[1].plan["hook"] = lambda server, what: what == "/weights/second" and held(server, what)
    with ThreadPoolExecutor(1) as threads:
        reload = threads.submit(pool.reload, "/weights/second")
        held.wait_for(1)  # the reload has chosen its servers
        clock.now = 1000.0
        pool.ask([question(1, 1)])
        settle(pool)
        assert counts(pool, "ok") == [True, True]
        held.go.set()
        reload.result(PATIENCE)
    assert counts(pool, "ok") == [False, True], "it has the old weights"
    clock.now = 2000.0
    pool.ask([question(1, 1)])
    settle(pool)
    assert [server.weights for server in servers] == ["second", "second"] and counts(pool, "ok") == [True, True]


def test_a_reload_that_got_lost_everywhere_leaves_no_doubt(cluster):
    servers, client = cluster({"root": "/a/fake"}, {"root": "/b/fake"})
    pool = client()
    for server in servers:
        server.plan["lost_reloads"] = 1
        server.weights = "second"  # it arrived, but nobody knows
    with pytest.raises(EngineFailure, match="no answer"):
        pool.reload("/weights/second")
    assert counts(pool, "ok") == [False, False]
    pool.restart()
    assert [server.weights for server in servers] == [fake.BASE_WEIGHTS] * 2, "each from its own folder"
    questions = [question(i, i) for i in range(4)]
    check(questions, pool.ask(questions))


def engine_of(pool, **options):
    return VllmEngine(pool, backoff=0.0, tokenizer=Letters(), **options)


def request(text, actions=("go north", "go south", "take lamp", "go north"), key=None):
    return ScoreRequest([{"role": "user", "content": text}], actions, key)


def expected(text, weights=fake.BASE_WEIGHTS, actions=("go north", "go south", "take lamp", "go north")):
    prompt, scores = [ord(letter) for letter in f"User: {text}\n\nAssistant:\n"], []
    for action in actions:
        ids = [ord(letter) for letter in action]
        scores.append(np.mean([fake.log_prob(weights, prompt + ids[:i], ids[i]) for i in range(len(ids))]))
    return np.array(scores, np.float32)


def test_weights_that_every_server_refuses_leave_the_old_ones(cluster):
    servers, client = cluster({}, {})
    engine = engine_of(client(restart=False))
    engine.load_weights("/weights/second", 1)
    with pytest.raises(ConfigError, match=r"do not fit.*the old weights stay"):
        engine.load_weights("/weights/refused", 2)
    assert engine.weights_version == 1 and engine.health()["restarts"] == 0
    np.testing.assert_allclose(engine.score([request("Hm.")])[0], expected("Hm.", "second"), rtol=1e-6)
    assert [server.weights for server in servers] == ["second", "second"]


def test_weights_that_differ_between_the_machines_are_not_used(cluster):
    servers, client = cluster({}, {"suffix": "-of-yesterday"})
    engine = engine_of(client(restart=False))
    with pytest.raises(ConfigError, match=f"{servers[1].url} gives other log-probabilities"):
        engine.load_weights("/weights/second", 1)
    assert engine.weights_version == 0 and all(server["ok"] for server in engine.health()["servers"])
    requests = [request(f"Room {i}.", key=i) for i in range(4)]
    for found, asked in zip(engine.score(requests), requests, strict=True):
        np.testing.assert_allclose(found, expected(asked.prompt[0]["content"]), rtol=1e-6)
    assert [server.weights for server in servers] == [fake.BASE_WEIGHTS] * 2


# -- the engine over it -----------------------------------------------------------------------------------------------


def test_the_engine_keeps_episodes_and_prompts_together_and_shows_its_servers(cluster):
    servers, client = cluster({}, {})
    pool = client(restart=False)
    engine = engine_of(pool)
    for server in servers:
        server.answered.clear()
    before = sum(counts(pool, "served"))
    for step in range(3):
        requests = [request(f"Step {step} of {key}.", key=key) for key in "ab"] + [request("No episode.")]
        for found, asked in zip(engine.score(requests), requests, strict=True):
            np.testing.assert_allclose(found, expected(asked.prompt[0]["content"]), rtol=1e-6)
    engine.generate([request("Step 9 of a.").prompt], 2, keys=["a"])
    thought = [*request("No episode.").prompt, {"role": "assistant", "content": "I think"}]
    engine.generate([thought], 2)
    texts = [["".join(map(chr, tokens)) for _, tokens in server.answered if len(tokens) > 8] for server in servers]
    for wanted in ("of a", "of b", "No episode"):
        assert sum(any(wanted in text for text in asked) for asked in texts) == 1, wanted
    assert any("9 of a" in text for asked in texts for text in asked)
    health = engine.health()
    assert health["mode"] == "servers" and [s["url"] for s in health["servers"]] == [s.url for s in servers]
    flat = engine.server_statistics()
    assert flat["server_1_ok"] == 1 and flat["server_1_served"] + flat["server_2_served"] > before


def test_the_engine_notices_nothing_of_a_server_that_fails(cluster):
    servers, client = cluster({}, {})
    engine = engine_of(client(restart=False))
    requests = [request(f"Room {i}.", key=i) for i in range(6)]
    engine.score(requests)
    servers[0].plan["down"] = True
    for found, asked in zip(engine.score(requests), requests, strict=True):
        np.testing.assert_allclose(found, expected(asked.prompt[0]["content"]), rtol=1e-6)
    health = engine.health()
    assert health["ok"] and health["failures"] == health["restarts"] == 0
    assert health["servers"][0]["moved"] == 3 and health["servers"][0]["failed"] > 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("http://a:1,", "empty address"),
        ("http://a:1,,http://b:1", "empty address"),
        (",", "empty address"),
        ("http://a:1,http://a:1/", "http://a:1 twice"),
        ("http://a:1,b:1", "'b:1', which is no address"),
        ("http://:80", "no address"),
        ("http://a b", "no address"),
    ],
)
def test_bad_addresses(text, words):
    for make in (
        lambda: make_engine("vllm", "model", url=text),
        lambda: build_options(changes={"llm_config.llm_url": text}),
    ):
        with pytest.raises(ConfigError, match=words) as caught:
            make()
        assert "http://HOST:PORT" in str(caught.value) and "\n" not in str(caught.value)


def test_the_option_takes_one_address_or_several():
    for text, wanted in (
        ("", ""),
        ("http://a:1/", "http://a:1"),
        ("http://a:1, https://b/v", "http://a:1,https://b/v"),
    ):
        assert build_options(assignments=[f"llm_config.llm_url={text}"]).llm_config.llm_url == wanted


def test_one_address_needs_no_pool_and_several_make_one(cluster, monkeypatch):
    from zoo.jericho.priorzero.llm.vllm import engine as vllm_engine

    monkeypatch.setattr(vllm_engine, "_load_tokenizer", lambda model: Letters())
    servers, _ = cluster({}, {})
    for count, mode in ((1, "server"), (2, "servers")):
        engine = make_engine("vllm", url=",".join(server.url for server in servers[:count]))
        assert engine.health()["mode"] == mode
        engine.close()


def test_a_runs_own_statistics_have_those_of_its_servers(cluster, monkeypatch, tmp_path):
    from zoo.jericho.priorzero.llm.vllm import engine as vllm_engine
    from zoo.jericho.priorzero.play.components import Parts

    monkeypatch.setattr(vllm_engine, "_load_tokenizer", lambda model: Letters())
    servers, _ = cluster({}, {})
    addresses = ",".join(server.url for server in servers)
    options = build_options(changes={"llm_config.llm_url": addresses, "llm_config.llm_engine": "vllm"})
    parts = Parts(options, None, tmp_path)
    assert parts.prior is not None
    found = parts.statistics()
    assert found["engine_server_1_ok"] == found["engine_server_2_ok"] == 1
    assert found["engine_server_1_served"] + found["engine_server_2_served"] >= 1
    parts.close()
