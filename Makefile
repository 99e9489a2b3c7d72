# Every target sets up .venv by itself when that is needed; `make help` lists them. `make train ARGS='--seed 1'` passes options on.
# Linux only. Python 3.11 is looked for; `make PYTHON=/path/to/python3.11` names it.

VENV := .venv
STAMP := $(VENV)/.installed
PY := $(VENV)/bin/python
PARALLEL := -n 2
SOURCES := lzero_async zoo tests benchmarks requirements setup.py $(wildcard docs/*.py) docs/examples

.DEFAULT_GOAL := help
.PHONY: help train quick learn learn-async learn-llm lightzero lightzero-all bench-lightzero learn-lightzero mbpo learn-mbpo episode-ppo learn-episode-ppo test test-browser pictures bench-seen chaos check lint types bench bench-async bench-mbpo bench-episode-ppo bench-ray bench-reanalyze bench-scale bench-warm against docs docs-blocks soak mutants vllm vllm-test game lock clean

help: ## show this list
	@grep -E '^[a-z-]+:.*## ' Makefile | sed -E 's/:.*## /\t/' | expand -t 20

train: $(STAMP) ## train PriorZero on the bundled game: asynchronous, degree 2, evaluated in the background (about 10 minutes, CPU only)
	$(PY) zoo/jericho/priorzero/priorzero_entry.py --exp_name runs/train --off_policy_degree 2 --async_eval --max_seconds 540 $(ARGS)

quick: $(STAMP) ## every part of PriorZero once (1 to 3 minutes)
	$(PY) zoo/jericho/priorzero/priorzero_entry.py --quick_test $(ARGS)

learn: $(STAMP) ## the learning curves: three seeds, two at a time, 20 minutes each; resumable
	$(PY) -m benchmarks.learn

learn-async: $(STAMP) ## learning at degree 0, 2 and 8: five seeds, 2 minutes each, one at a time (40 minutes); resumable
	$(PY) -m benchmarks.learn_async

learn-llm: $(STAMP) ## the language model learns to play alone: three seeds, at most 60 minutes each; resumable
	$(PY) -m benchmarks.learn_llm $(ARGS)

mbpo: $(STAMP) ## train MBPO on Pendulum, batch by batch (about 2 minutes)
	$(PY) zoo/mbpo/train.py --num_envs 8 --num_steps_per_env 25 --batch_queue_size 2 --max_env_steps 15000 $(ARGS)

lightzero: $(STAMP) ## train a LightZero config asynchronously: cartpole with UniZero (about 3 minutes)
	$(VENV)/bin/lzero-async lightzero cartpole_unizero --exp_name runs/lightzero --async_eval --max_seconds 150 $(ARGS)

lightzero-all: $(STAMP) ## every LightZero config that runs here, serial and at degrees 0, 1 and 2 (about 45 minutes; resumable)
	$(PY) -m tests.lightzero.conformance

bench-lightzero: $(STAMP) ## LightZero configs at degree 2 beside LightZero's own serial entries (about 40 minutes; resumable)
	$(PY) -m benchmarks.lightzero

learn-lightzero: $(STAMP) ## learning of LightZero configs, serial and at degrees 0, 2 and 8; resumable
	$(PY) -m benchmarks.learn_lightzero

learn-mbpo: $(STAMP) ## MBPO's learning curves: three trainers, three seeds each; resumable
	$(PY) -m benchmarks.learn_mbpo

episode-ppo: $(STAMP) ## train PPO on whole episodes of CartPole, without a step barrier (about a minute)
	$(PY) zoo/episode_ppo/train.py --env CartPole-v1 --num-envs 16 --episodes-per-update 50 --total-episodes 3000 $(ARGS)

learn-episode-ppo: $(STAMP) ## whole-episode PPO's learning curves: both collectors, three seeds each (about 20 minutes); resumable
	$(PY) -m benchmarks.learn_episode_ppo

test: $(STAMP) ## all tests but browser, chaos, soak and vllm, two at a time
	$(PY) -m pytest $(PARALLEL) --durations=25
	$(VENV)/bin/frontrun $(PY) -m pytest tests/core/test_frontrun.py

test-browser: $(STAMP) ## reports and traces (in Perfetto) in headless Chromium (needs chromium and chromedriver; about two minutes)
	$(PY) -m pytest -m browser

bench-seen: $(STAMP) ## what looking at a run costs, the report of a long run, and what the advice is worth (about 55 minutes; needs chromium and chromedriver)
	$(PY) -m benchmarks.seen
	$(PY) -m benchmarks.advice

pictures: $(STAMP) ## the pictures of everything that there is to see, of make train and of the same run at degree 0 (about 22 minutes; needs chromium and chromedriver)
	$(PY) -m benchmarks.pictures

chaos: $(STAMP) ## kill every role of the real agent, busy and idle, and take machines of a Ray cluster away (about 8 minutes)
	$(PY) -m pytest -m chaos

check: lint types ## lint, types and the quick tests
	$(PY) -m pytest $(PARALLEL) -m "not slow and not soak and not vllm and not chaos and not browser"

lint: $(STAMP) ## ruff and import-linter
	$(PY) -m ruff check $(SOURCES)
	$(VENV)/bin/lint-imports
	$(PY) -m ruff format --check $(SOURCES)

types: $(STAMP) ## mypy, strict on library and zoo
	$(PY) -m mypy

bench: $(STAMP) ## the measured bars, as tables and as benchmarks/results/*.json (about 20 minutes)
	$(PY) -m benchmarks.core
	$(PY) -m benchmarks.priorzero

bench-async: $(STAMP) ## the bars of the asynchronous agent and its timeline (about 30 minutes)
	$(PY) -m benchmarks.priorzero_async

bench-mbpo: $(STAMP) ## the bars of MBPO's trainers and their timeline (about 20 minutes)
	$(PY) -m benchmarks.mbpo

bench-episode-ppo: $(STAMP) ## the bars of whole-episode PPO and the picture of a step barrier (about 20 minutes)
	$(PY) -m benchmarks.episode_ppo

bench-ray: $(STAMP) ## Ray against processes, what it costs, nodes that are lost and a cable that is pulled (about 14 minutes; the cable needs root)
	$(PY) -m benchmarks.on_ray

bench-reanalyze: $(STAMP) ## reanalysis in the background, on against off (about 10 minutes)
	$(PY) -m benchmarks.reanalyze

bench-scale: $(STAMP) ## 1 to 1,000 collectors and 1 to 8 learner ranks, simulated with the costs of make bench-ray (2 minutes)
	$(PY) -m benchmarks.scale

bench-warm: $(STAMP) ## how fast PriorZero's roles are ready, beside another revision (REV=d6cf054; about 10 minutes)
	$(PY) -m benchmarks.warm_start --rev $(or $(REV),d6cf054)

against: $(STAMP) ## speed beside another revision, in alternating pairs (REV=d6cf054 PAIRS=10; about 40 minutes)
	$(PY) -m benchmarks.against --rev $(or $(REV),d6cf054) --pairs $(or $(PAIRS),10)

docs: $(STAMP) ## write the references of the configuration and of the API again (docs/config-reference.md, docs/api.md)
	$(PY) docs/generate.py

docs-blocks: $(STAMP) ## list the commands and code blocks of the documentation that no test runs, with the reasons
	$(PY) -m tests.project.docs_blocks

vllm: $(STAMP) ## build .venv-vllm, the environment of the vLLM engine (3.5 GB, about 5 minutes)
	$(PY) requirements/install_vllm.py

vllm-test: vllm ## the tests that need a real vLLM (CPU build; about 10 minutes)
	$(PY) -m pytest -m vllm tests/zoo/priorzero/test_vllm.py

game: ## compile the shipped game again (needs inform6) and check that it is the frozen one
	$(or $(PYTHON),python3) zoo/jericho/priorzero/games/build.py

soak: $(STAMP) ## long random runs: a million steps of the state machine, the deep walk, 200 kill points, 100,000 parcels, every documented command
	$(PY) -m pytest -m soak -p no:cacheprovider

mutants: $(STAMP) ## break one line at a time (25 by hand, 150 drawn) and see whether the tests notice (resumable)
	$(PY) -m tests.mutants $(ARGS)

lock: $(STAMP) ## resolve requirements/*.in into the locks again (UPGRADE=1: let the pins move)
	$(PY) requirements/lock.py $(if $(UPGRADE),--upgrade)

clean: ## remove the environment and everything that was built
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find $(wildcard lzero_async zoo tests benchmarks) -name __pycache__ -type d -prune -exec rm -rf {} +

$(STAMP): requirements/stack.lock.txt requirements/dev.lock.txt requirements/install.py setup.py
	@requirements/venv.sh $(VENV) $(PYTHON)
	@$(PY) requirements/install.py $(STAMP)
