"""PriorZero's options. Edit the values below, or change them from outside: `--preset`, `--batch_size 64`.

Every option has its meaning in the line above it. Names that do not exist and values out of range are refused with a
suggestion before anything starts.

How asynchronous the training is:

    off_policy_degree   meaning
    0                   synchronous: collect, train, evaluate strictly in turn
    1 to 10             low: collecting overlaps training a little
    10 to 50            medium
    above 50            high (a warning is printed)
    -1                  automatic: as many collects as fill about a tenth of the replay buffer

The unit is one collect (n_episode episodes, up to n_episode * max_steps steps). The embedded preset's 20,000 steps are about 32
collects in all; degrees of 20 and more are for longer runs.

Four examples:

    policy_config.update(off_policy_degree=0, async_eval=False)     # synchronous
    policy_config.update(off_policy_degree=5, async_eval=False)     # light
    policy_config.update(off_policy_degree=50, async_eval=True)     # aggressive, evaluation in the background
    policy_config.update(off_policy_degree=-1, async_eval=True)     # automatic

Recommended settings (docs/choosing-the-degree.md has the measurements: in the same time degree 2 scored best here, 8 no better):

    purpose                                  off_policy_degree   async_eval
    debugging, baselines, exact repeats      0                   False
    training: start here                     2                   True
    uneven stages, several collectors        4 to 8              True
    as much as the buffer can bear           -1                  True
"""

from __future__ import annotations

from typing import Any

env_config = dict(
    # Story file: a name to look for, or a path.
    env_id="tw-gannet.z5",
    # Folder to look in first ('' for none).
    rom_dir="",
    # Steps after which an episode is ended.
    max_steps=80,
    # Slots for actions; a state with more valid actions shows a part of them.
    max_action_num=16,
    # What the world model reads: 'state' (room, belongings, possible actions) or 'full' (the game's last answer as well).
    observation="state",
    # Games played at once by a collector.
    num_envs=8,
    # Games played at once by the evaluator.
    evaluator_env_num=4,
    # Seconds after which a game that does not answer is ended and started anew.
    step_timeout=20.0,
    # Let every game go at its own pace, none held back by a slow one: 'auto' (from degree 1 on), 'on', 'off' (repeats exactly).
    env_asynchrony="auto",
    # Games that are ready are searched together: at most this many (0: all that are ready) ...
    max_batch=0,
    # ... after waiting this many milliseconds for others to become ready.
    max_wait_ms=2.0,
    # File that keeps each state's valid actions across runs ('' for the user's cache folder, 'off' for none).
    valid_action_store="",
)

policy_config = dict(
    # How many collects training may fall behind (a collect is n_episode episodes); see docs/choosing-the-degree.md.
    off_policy_degree=0,
    # Evaluate in the background, on frozen weights, while training goes on.
    async_eval=False,
    # Collectors that play at once, each with its own games, model and language model; at most off_policy_degree are busy.
    num_collectors=1,
    # Where the roles live: 'auto', 'inline', 'thread', 'process', 'ray'; auto: 'process', alone at degree 0 'inline'.
    backend="auto",
    # Address of a Ray cluster, as 'HOST:6379' or 'auto' (backend 'ray'; '': one of its own, on this machine).
    ray_address="",
    # What a role needs of a machine of that cluster, by kind: {'collector': {'CPU': 1, 'GPU': 0.5}}; {}: a core each.
    ray_resources={},
    # What happens to a batch that cannot keep its bound: 'wait' (it cannot happen), 'drop' or 'allow'.
    staleness_policy="wait",
    # Let the degree follow the run, from off_policy_degree (at least 1) up to max_degree.
    adaptive_degree=False,
    # The most that an adaptive degree may become.
    max_degree=16,
    # Restarts in a row of a collector or of the evaluator before it is given up; the others go on without a collector.
    max_restarts=3,
    # Seconds before the first restart; doubled for each further one.
    restart_backoff=1.0,
    # Seconds without a sign of life (stopped, or stuck in C code) after which a role's process counts as hung and is restarted.
    hang_timeout=60.0,
    # Episodes per collect; each collect plays them with one version of the weights.
    n_episode=8,
    # Updates per collect; 0 derives them from replay_ratio.
    update_per_collect=0,
    # Updates per collected step (used when update_per_collect is 0); fractions carry over.
    replay_ratio=0.5,
    # Sequences per update.
    batch_size=32,
    # Transitions that the replay buffer holds.
    replay_buffer_size=20_000,
    # Steps of a stored segment; longer episodes are cut into several.
    game_segment_length=100,
    # Steps of a training sequence.
    num_unroll_steps=8,
    # Steps of reward before a value target bootstraps.
    td_steps=5,
    # Discount of later rewards.
    discount_factor=0.95,
    # Simulations per move.
    num_simulations=25,
    # Earlier steps that the search's root sees, the present one included.
    root_window=2,
    # Share of every training batch whose policy targets are searched again (0 to 1).
    reanalyze_ratio=0.0,
    # Roles that search old batches again with newer weights, in the background, and hand the learner new targets (0: none).
    reanalyze_workers=0,
    # Share of the time that each of them works at most (above 0 to 1).
    reanalyze_share=0.5,
    # Batches that are kept for them, the last ones that were trained on.
    reanalyze_batches=32,
    # Sample by priority (the gap between searched and predicted value at collect time) instead of evenly.
    use_priority=False,
    # Steps of nothing that follow a death or a win in the stored data, so that the world model learns what an end is.
    absorbing_steps=2,
    # Learning rate of AdamW.
    learning_rate=1e-3,
    # Weight decay of AdamW.
    weight_decay=1e-4,
    # Norm that gradients are clipped to.
    grad_clip_value=5.0,
    # What to do about an update whose data, loss or gradients are not finite: 'skip' (leave it out; ten in a row end the run) or
    # 'stop' (end the run at the first). Either way the weights stay as they were.
    on_bad_update="skip",
    # Share of the trained weights that flows into the target network after every update.
    target_update_theta=0.05,
    # Temperature of the visit counts while collecting, at the start.
    temperature_start=1.0,
    # The same after temperature_decay_steps.
    temperature_end=0.35,
    # Environment steps from the one to the other.
    temperature_decay_steps=6_000,
    # Share of uniformly random moves while collecting.
    epsilon=0.05,
    # Steps without a reward after which the known part of the game is behind, and more moves are random (0: never).
    stuck_steps=10,
    # Share of random moves then.
    stuck_epsilon=0.5,
    # Weight of the Dirichlet noise at the root while collecting.
    root_noise_weight=0.25,
    # Concentration of that noise.
    root_dirichlet_alpha=0.3,
    # Width of the world model's transformer.
    embed_dim=64,
    # Its layers.
    num_layers=2,
    # Its heads.
    num_heads=4,
    # Dropout in the world model while training.
    dropout=0.0,
    # Weight of the policy's entropy in the loss.
    policy_entropy_weight=0.0,
    # Ranks of the learner (processes of torch.distributed) that share every update's batch; batch_size must be a multiple.
    learner_ranks=1,
    # Where the learner's world model runs: 'cpu', 'cuda', 'cuda:1' ..., or 'auto'; for several ranks also one device for each.
    device="auto",
    # Where the collectors' run: one device, or several with commas between them, which the collectors take in turn.
    collector_devices="auto",
    # Where the evaluator's runs.
    evaluator_device="auto",
    # Threads of torch per role (0: the role's share of the cores; never more than that share).
    torch_threads=1,
)

llm_config = dict(
    # 'transformers' (in this process), or 'vllm' (its own process and environment; `make vllm` builds that).
    llm_engine="transformers",
    # Folder or hub name; '' is SmolLM2-135M-Instruct from PyPI, converted once into the user's cache.
    llm="",
    # Address of a running vLLM server, or of several with the same model, with commas between them: they share the episodes. ''
    # starts a server for each role that plays; several collectors want one that runs already.
    llm_url="",
    # Where the transformers engine runs: one device, or several with commas between them, which the roles that play take in turn.
    llm_devices="auto",
    # GPUs that share the language model (vllm).
    tensor_parallel_size=1,
    # Share of the GPU's memory for the language model (vllm).
    gpu_memory_utilization=0.3,
    # Policy at the root of the search: 'llm_logits', 'wm_logits' (no language model at all) or 'llm_plus_wm_logits'.
    root_policy="llm_plus_wm_logits",
    # Weight of the language model in the mixture, from 0 to 1.
    llm_weight=0.3,
    # 'fixed', or 'adaptive': the less certain the world model, the more of llm_weight counts.
    weighting="adaptive",
    # Earlier turns shown in the prompt; 0 makes equal states equal prompts, which then cost nothing the second time.
    history_length=0,
    # Let the model reason before it is asked for the action.
    use_cot=False,
    # Divides the log-probabilities of the actions: above 1 flatter, below 1 sharper.
    prior_temperature=4.0,
    # Log-probability of an action: 'mean' over its tokens or their 'sum'.
    reduction="mean",
    # Compute each prior by itself, so that resumed runs are exact (transformers). False keeps an episode's history between steps,
    # which is much faster when history_length is above 0.
    repeatable_prior=True,
    # Priors kept, by prompt, actions and weights version.
    prior_cache_size=50_000,
)

llm_train_config = dict(
    # What the language model learns from: 'off' (nothing), 'distill' (the search's visits), 'rft' (policy gradient), or 'both'.
    llm_train="off",
    # 'together': beside the world model's updates; 'alternate': after them.
    llm_schedule="together",
    # It trains in every so-many-th train, on the batches of these trains.
    llm_every=1,
    # Trains of the world model alone, at first.
    llm_warmup=0,
    # Updates in one of its trains.
    llm_updates=4,
    # Distinct prompts per update.
    llm_batch_size=8,
    # Share of the distinct prompts that it never trains on, to see what it makes of states that it has not been taught.
    llm_holdout=0.0,
    # Most of one core's time that it may take, from 0 to 1: trains beyond that are left out (0: no limit).
    llm_share=0.0,
    # 'lora' (small matrices beside the model's own, by peft) or 'full' (all weights).
    llm_method="lora",
    # Rank of LoRA's matrices.
    lora_rank=16,
    # Their scale: the trained part counts lora_alpha / lora_rank times.
    lora_alpha=32,
    # Learning rate of AdamW.
    llm_learning_rate=3e-4,
    # Updates over which the learning rate rises to that.
    llm_warmup_updates=10,
    # What it does then: 'constant', or 'cosine' down to a tenth ...
    llm_lr_schedule="constant",
    # ... over so many updates.
    llm_decay_updates=1_000,
    # Weight decay of AdamW.
    llm_weight_decay=0.0,
    # Norm that gradients are clipped to.
    llm_grad_clip=1.0,
    # Tokens that go through the model at once, padding included; an update's gradients are added up over such passes.
    llm_tokens_per_pass=512,
    # Weight of the cross-entropy to the search's visits.
    distill_weight=1.0,
    # What those visits are raised to: 1 takes them as they are, above 1 makes them sharper.
    distill_power=1.0,
    # Weight of the policy gradient.
    rft_weight=1.0,
    # What its ratio compares: 'ppo' (the action's probability) or 'gspo' (the likelihood of its text).
    rft_ratio="ppo",
    # How far that ratio may move before it is clipped.
    rft_clip=0.2,
    # Most that a step counts more because the language model would have taken its action more often than the search did.
    rft_max_correction=2.0,
    # Steps of reward before the advantage bootstraps with the search's value.
    rft_steps=5,
    # Weight of the divergence from the untrained model.
    llm_kl_weight=0.0,
    # Weight of the policy's entropy.
    llm_entropy_weight=0.0,
    # Where its learner runs: 'cpu', 'cuda', 'cuda:1' ..., or 'auto'.
    llm_learner_device="auto",
)

encoder_config = dict(
    # The frozen text encoder: folder or hub name; '' is all-MiniLM-L6-v2 from PyPI.
    encoder_model="",
    # Tokens of a text that are read.
    max_tokens=128,
    # Text vectors kept.
    cache_size=50_000,
)

run_config = dict(
    # Folder of everything that the run writes; relative to the current one.
    exp_name="runs/priorzero",
    # Seed of everything random.
    seed=0,
    # Trains after which the run ends (one for each collect; 0: no limit).
    max_iter=0,
    # Environment steps after which the run ends (0: no limit).
    max_env_steps=20_000,
    # Seconds after which the run ends (0: no limit).
    max_seconds=0.0,
    # Mean score at which the run ends, once a second evaluation confirms it (0: none).
    target_score=0.0,
    # Trains between two evaluations (0: none).
    eval_every=5,
    # Episodes per evaluation and mode.
    eval_episodes=4,
    # What is evaluated while training, of: prior (search with the language model), world_model (search alone), llm (no search);
    # with llm_train also prior_frozen and llm_frozen, the same with the language model as it was at first.
    eval_modes=("prior",),
    # What is evaluated once more at the end.
    final_eval_modes=("prior", "world_model", "llm"),
    # Temperature of the visit counts in evaluation; 0 always takes the most visited.
    eval_temperature=0.25,
    # Trains between two checkpoints (0: only at the end).
    checkpoint_every=5,
    # Save the replay buffer with each checkpoint; without it a resumed run starts with an empty one.
    checkpoint_buffer=True,
    # Lines instead of the live view, also on a terminal.
    plain=False,
    # Write trace.json, which Perfetto, the report and the timeline need.
    trace=True,
    # Write report.html at the end.
    report=True,
    # Weights & Biases: off, offline (no account needed) or online.
    wandb="off",
    # Serve Prometheus metrics on this port of this machine (0: not).
    metrics_port=0,
)

SECTIONS: dict[str, dict[str, Any]] = dict(
    env_config=env_config,
    policy_config=policy_config,
    llm_config=llm_config,
    llm_train_config=llm_train_config,
    encoder_config=encoder_config,
    run_config=run_config,
)

_gpu: dict[str, dict[str, Any]] = dict(
    env_config=dict(env_id="zork1.z5", max_steps=400, max_action_num=32, num_envs=8, observation="full"),
    policy_config=dict(
        batch_size=64, replay_buffer_size=100_000, game_segment_length=50, num_unroll_steps=10, num_simulations=50,
        embed_dim=768, num_layers=2, num_heads=8, dropout=0.1, learning_rate=1e-4, device="cuda",
        collector_devices="cuda", evaluator_device="cuda", torch_threads=0,
        temperature_decay_steps=100_000, discount_factor=0.97, replay_ratio=0.25,
    ),
    llm_config=dict(llm_engine="vllm", history_length=5, prior_temperature=1.0, llm_weight=0.5),
    encoder_config=dict(max_tokens=256),
    run_config=dict(max_env_steps=500_000, eval_every=50),
)  # fmt: skip

# What a preset changes. The GPU presets name Qwen2.5-Instruct models of the hub and need vLLM on CUDA.
PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "embedded": {},
    "qwen2.5-0.5b": {**_gpu, "llm_config": {**_gpu["llm_config"], "llm": "Qwen/Qwen2.5-0.5B-Instruct"}},
    "qwen2.5-1.5b": {**_gpu, "llm_config": {**_gpu["llm_config"], "llm": "Qwen/Qwen2.5-1.5B-Instruct"}},
    "qwen2.5-3b": {
        **_gpu,
        "llm_config": {**_gpu["llm_config"], "llm": "Qwen/Qwen2.5-3B-Instruct", "gpu_memory_utilization": 0.4},
    },
    "qwen2.5-7b": {
        **_gpu,
        "llm_config": {
            **_gpu["llm_config"],
            "llm": "Qwen/Qwen2.5-7B-Instruct",
            "tensor_parallel_size": 2,
            "gpu_memory_utilization": 0.6,
        },
    },
}

# What --quick_test changes: every part runs, nothing is learned in earnest.
QUICK_TEST: dict[str, dict[str, Any]] = dict(
    env_config=dict(max_steps=30, num_envs=4, evaluator_env_num=2),
    policy_config=dict(n_episode=4, num_simulations=8, update_per_collect=10, batch_size=16),
    run_config=dict(max_iter=4, max_env_steps=0, eval_every=2, eval_episodes=2, checkpoint_every=2),
)
