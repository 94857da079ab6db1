"""A spec as typed, frozen models: the outer shape is here; the agent's blocks belong to the classes they name."""

from __future__ import annotations

import re
from typing import Any, Literal

from pydantic import Field, SerializeAsAny, ValidationError, field_validator, model_validator
from pydantic.json_schema import SkipJsonSchema

from slm_lab.errors import Mistake, SpecError
from slm_lab.lib.files import can_name_a_folder
from slm_lab.spec import registry, shape
from slm_lab.spec.settings import Settings
from slm_lab.spec.words import NOTHING, explain, must_be, suggest

BLOCKS = {"algorithm": "name", "memory": "name", "net": "type"}  # and the key by which each names its class
IMAGINED = {"name": "Replay", "batch_size": 256}  # memory of imagined rows, where the spec leaves it out
DEVICE = re.compile(r"auto|cpu|mps|cuda(:\d+)?")


class AgentSpec(Settings):
    """Who learns: an algorithm, the memory it learns from and the net it trains."""

    name: str = Field("agent", description="a name for the agent; the lab only prints it")
    algorithm: SerializeAsAny[Settings] = Field(description="the algorithm's block, chosen by its 'name'")
    memory: SerializeAsAny[Settings] | None = Field(None, description="the memory's block, chosen by its 'name'")
    net: SerializeAsAny[Settings] | None = Field(None, description="the net's block, chosen by its 'type'")
    imagined_memory: SerializeAsAny[Settings] | None = Field(
        None, description="MBPO: the block of its memory of imagined rows, whose batch_size is that of all batches"
    )


# Beyond these a spec is taken for a mistake: what it asks for would be made before anything could be seen of it
MOST_ENVS, MOST_SESSIONS, MOST_EPISODES, MOST_FRAMES, MOST_TRIALS = 2**16, 2**12, 2**12, 2**10, 10**5


class EnvSpec(Settings):
    """Where it learns: a gymnasium env, how many copies of it, for how long, and what is done to what it says."""

    name: str = Field(
        description="id of a gymnasium env, such as CartPole-v1; 'module:Id-v0': of one that a module registers; "
        "'my_env.py:MyEnv': a class in a file, beside the spec file or from where the lab is started"
    )
    num_envs: int = Field(1, ge=1, le=MOST_ENVS, description="copies of the env that are stepped together")
    vectorization: Literal["auto", "sync", "async", "native"] = Field(
        "auto",
        description="how the copies are stepped: one after the other, in worker processes, or by the env's own vector "
        "env; auto: sync or async, whichever is faster (they give the same results)",
    )
    max_t: int | None = Field(
        None,
        ge=1,
        description="longest episode, in steps of one copy; null: as the env says, and where it says nothing, "
        "evaluation and enjoy end an episode after 10,000",
    )
    max_frame: int = Field(ge=1, description="length of a session in frames: env steps, all copies together")
    kwargs: dict[str, Any] = Field({}, description="keywords for the env itself, as gymnasium.make takes them")
    wrappers: list[dict[str, Any]] = Field(
        [],
        description='wrappers of the env, the innermost first: {"name": "gymnasium.wrappers.X", and its keywords}; '
        "the lab's own by the keys below come after them",
    )
    frame_op: Literal["stack", "concat"] | None = Field(
        None,
        description="the last frames as one observation: along a new first axis, or along the last axis; "
        "null: stack for Atari's images, else none",
    )
    frame_op_len: int = Field(4, ge=1, le=MOST_FRAMES, description="how many frames; 1: none but the present one")
    image_downsize: tuple[int, int] | None = Field(
        None, description="height and width to shrink images to, in pixels; null: 84 x 84 for Atari, else as they are"
    )
    time_aware: bool = Field(
        False, description="observations tell the share of the time limit that is gone (Pardo 2018), in [0, 1]"
    )
    normalize_obs: bool = Field(
        False, description="each number of an observation with the mean 0 and the deviation 1 that it has had so far"
    )
    clip_obs: float | None = Field(
        None, gt=0, description="observations are cut to [-clip_obs, clip_obs], in the env's units or normalized ones"
    )
    reward_scale: float | Literal["sign"] | None = Field(
        None, description="factor of rewards to learn from, or their sign; null: sign for Atari, else 1"
    )
    normalize_reward: bool = Field(
        False, description="rewards to learn from are divided by the deviation of the discounted return so far"
    )
    clip_reward: float | None = Field(
        None, gt=0, description="rewards to learn from are cut to [-clip_reward, clip_reward], after their scaling"
    )

    @field_validator("image_downsize")
    @classmethod
    def _an_image(cls, size: tuple[int, int] | None) -> tuple[int, int] | None:
        if size is not None and min(size) < 1:
            raise ValueError("height and width are at least 1 pixel")
        return size

    @field_validator("reward_scale")
    @classmethod
    def _tells_rewards_apart(cls, scale: float | str | None) -> float | str | None:
        if scale == 0:
            raise ValueError("0 would leave nothing of the rewards")
        return scale

    @field_validator("wrappers")
    @classmethod
    def _named(cls, wrappers: list[dict[str, Any]]) -> list[dict[str, Any]]:
        for wrapper in wrappers:
            if not isinstance(wrapper.get("name"), str):
                raise ValueError('each is a block {"name": "gymnasium.wrappers.X", and its keywords}')
        return wrappers


SCHEDULERS = ("asha", "median", "pbt")


class SchedulerSpec(Settings):
    """Which trials of a search go on: bad ones are stopped early, or take over what good ones have learned."""

    name: Literal["asha", "median", "pbt"] = Field(
        "asha",
        description="asha: successive halving (Li 2020); median: stop below the median of the others (Golovin 2017); "
        "pbt: population-based training (Jaderberg 2017), which goes with meta.search: 'pbt'",
    )
    grace_period: int | None = Field(
        None, ge=1, description="frames of a trial before it may be stopped; null: a tenth of max_frame"
    )
    reduction_factor: float = Field(
        3, gt=1, description="asha: of so many trials that come to a rung, one goes beyond it"
    )
    interval: int | None = Field(None, ge=1, description="pbt: frames between takeovers; null: a tenth of max_frame")
    quantile: float = Field(
        0.25, gt=0, le=0.5, description="pbt: the share of trials, from below, that take over from that share above"
    )
    resample: float = Field(
        0.25, ge=0, le=1, description="pbt: how often a key is drawn anew, and not changed by a fifth up or down"
    )


class ResourcesSpec(Settings):
    """What a trial of a search takes of the machine or cluster."""

    cpu: float = Field(1, ge=0, description="cores; a session computes in one thread")
    gpu: float = Field(0, ge=0, description="GPUs, or a share of one; meta.device says whether it is used")


class MetaSpec(Settings):
    """How the lab runs it: seeds, sessions, how often to log and evaluate, where to compute."""

    seed: int | None = Field(None, ge=0, description="seeds everything; null: one is drawn, printed and saved")
    max_session: int = Field(
        1, ge=1, le=MOST_SESSIONS, description="sessions of a trial: the same spec with different seeds"
    )
    max_trial: int = Field(
        16,
        ge=1,
        le=MOST_TRIALS,
        description="draws of a search, each crossed with the keys of __grid_search; not used by 'grid'",
    )
    search: Literal["random", "grid", "optuna", "pbt"] = Field(
        "random",
        description="how trials are chosen: drawn at random, all combinations, by what others came to (TPE), or a "
        "population that is trained and changed at once (pbt)",
    )
    search_scheduler: SchedulerSpec | None = Field(
        None, description="which trials go on; null: all do. 'asha' and 'median' are short for blocks with that name"
    )
    search_metric: str = Field(
        "strength", description="what trials are ranked by: a number of the metrics, its mean over a trial's sessions"
    )
    search_mode: Literal["max", "min"] = Field("max", description="whether more of it is better, or less")
    search_resources: ResourcesSpec = Field(ResourcesSpec(), description="what a trial takes")
    search_time_budget: float | None = Field(
        None, gt=0, description="seconds after which a search stops, with all saved; null: when its trials are done"
    )
    max_concurrent: int | None = Field(
        None, ge=1, description="trials at the same time; null: as many as there are resources for"
    )
    max_failures: int = Field(
        3, ge=0, description="how often a trial whose process died begins again from its checkpoint"
    )
    log_frequency: int | None = Field(None, ge=1, description="frames between rows of the train table; null: automatic")
    eval_frequency: int = Field(10000, ge=1, description="frames between evaluations, which are also the checkpoints")
    rigorous_eval: int = Field(
        8,
        ge=0,
        le=MOST_EPISODES,
        description="greedy episodes of an evaluation, on envs of its own; 0: no such envs, "
        "the moving average of the training returns counts",
    )
    distributed: Literal[False, "shared", "synced", "actors"] = Field(
        False,
        description="the sessions train one set of parameters together and share out max_frame: 'shared' on the "
        "very same net (A3C, async SAC), 'synced' on copies that each learn step brings up to date (DPPO); 'actors': "
        "each session learns from what workers play for it, on Ray (Ape-X); false: each its own",
    )
    num_workers: int = Field(2, ge=1, le=MOST_SESSIONS, description="actors: processes that play for one session")
    envs_per_worker: int | None = Field(
        None, ge=1, le=MOST_ENVS, description="actors: copies of the env in each worker; null: env.num_envs"
    )
    broadcast_frequency: int = Field(
        400, ge=1, description="actors: frames after which workers are given the learner's parameters"
    )
    parallel: Literal["auto", "stack", "process", "ray"] = Field(
        "auto",
        description="how sessions run side by side: in one process with their learn steps stacked into one (where one "
        "learner has all nets: not SAC, TD3, CrossQ, MPC, MBPO), in processes, or as tasks of Ray's; auto: in "
        "processes, as many as there are cores",
    )
    on_env_error: Literal["stop", "restart_episode"] = Field(
        "stop",
        description="when an env fails in the middle of an episode: stop with the state saved, or give that copy "
        "its next episode, count the lost one in the log, and go on",
    )
    compile: bool | Literal["auto"] = Field(
        "auto", description="compile the learn step; auto: where the run is long enough to pay for it"
    )
    device: str = Field("cpu", description="where to compute: 'auto', 'cpu', 'cuda', 'cuda:0', 'mps'")

    @field_validator("search_scheduler", mode="before")
    @classmethod
    def _by_its_name(cls, scheduler: Any) -> Any:
        if not isinstance(scheduler, str):
            return scheduler
        if scheduler not in SCHEDULERS:
            raise ValueError(f"no such scheduler; {suggest(scheduler, list(SCHEDULERS))}, or a block with such a name")
        return {"name": scheduler}

    @property
    def shares(self) -> bool:
        """Whether sessions train one set of parameters."""
        return self.distributed in ("shared", "synced")

    @model_validator(mode="after")
    def _in_processes_if_together(self) -> MetaSpec:
        if self.distributed == "actors" and self.parallel != "auto":
            raise ValueError("sessions with actors run one after the other: leave parallel out")
        if self.shares and self.parallel not in ("auto", "process"):
            raise ValueError(f"distributed sessions are processes that share memory, not parallel '{self.parallel}'")
        return self

    @model_validator(mode="after")
    def _scheduler_of_its_search(self) -> MetaSpec:
        if self.search_scheduler is not None and (self.search_scheduler.name == "pbt") != (self.search == "pbt"):
            raise ValueError("search_scheduler 'pbt' goes with search 'pbt', and no other does")
        return self

    @field_validator("device")
    @classmethod
    def _known_device(cls, device: str) -> str:
        if not DEVICE.fullmatch(device):
            raise ValueError("must be one of 'auto', 'cpu', 'cuda', 'cuda:0' (or another number), 'mps'")
        return device


class Spec(Settings):
    """One experiment: everything that it takes to run it again."""

    name: SkipJsonSchema[str] = Field(description="the key of the spec in its file")
    description: str | None = Field(None, description="one line for the list of specs")
    agent: AgentSpec = Field(description="who learns")
    env: EnvSpec = Field(description="where it learns, and for how long")
    meta: MetaSpec = Field(MetaSpec(), description="how the lab runs it")
    search: dict[str, Any] | None = Field(None, description="search space over the keys of the spec, SLM Lab's grammar")
    spec_params: dict[str, Any] | None = Field(None, description="values for ${name} places of a spec template")
    provenance: dict[str, Any] | None = Field(
        None, description="written by the lab into a run's spec: versions, git state, command; read and passed over"
    )

    def to_tree(self) -> dict[str, Any]:
        """Plain JSON values with every default filled in; `read_spec` makes an equal spec of it."""
        tree = self.model_dump(mode="json", exclude={"name"})
        return {key: value for key, value in tree.items() if value is not None}


def read_spec(tree: dict[str, Any], name: str, file: str | None = None) -> Spec:
    """The spec that `tree` describes, in either shape; raises one SpecError with all that is wrong in it."""
    if not isinstance(tree, dict):
        raise SpecError([Mistake("", must_be(tree, "a block {agent: {…}, env: {…}, meta: {…}}"))], file, name)
    strange = shape.mistakes_of_values(tree)
    if any("itself" in mistake.problem for mistake in strange):
        raise SpecError(strange, file, name)  # nothing else can be said of a tree without an end
    flat, found = shape.flatten(tree)
    unusable = {mistake.path for mistake in found}
    if isinstance(flat.get("agent"), dict):
        flat["agent"], of_blocks = _read_blocks(flat["agent"])
        found += of_blocks
    if not can_name_a_folder(name):
        found.append(
            Mistake("", f"the spec name {name!r} cannot name a folder of runs; use letters, digits, '_' and '-'")
        )
    if "name" in flat:
        found.append(Mistake("name", "no such key; the name of a spec is its key in the file"))
    try:
        spec = Spec.model_validate({**flat, "name": name})
    except ValidationError as problem:
        outer = explain(problem, Spec, flat, "")
        found += [mistake for mistake in outer if mistake.path not in unusable]
    told = {mistake.path for mistake in strange}
    found = strange + [mistake for mistake in found if mistake.path not in told]
    if found:
        raise SpecError(found, file, name)
    return spec


def right_parts(tree: Any) -> dict[str, Any]:
    """Those of agent, env and meta that are right by themselves, wherever else `read_spec` found mistakes."""
    if not isinstance(tree, dict) or shape.mistakes_of_values(tree):
        return {}
    flat, _ = shape.flatten(tree)
    right: dict[str, Any] = {}
    for part, model in (("agent", AgentSpec), ("env", EnvSpec), ("meta", MetaSpec)):
        block, found = flat.get(part, {}), list[Mistake]()
        if part == "agent" and isinstance(block, dict):
            block, found = _read_blocks(block)
        try:
            read = model.model_validate(block)
        except ValidationError:
            continue
        if not found:
            right[part] = read
    return right


def _read_blocks(agent: dict[str, Any]) -> tuple[dict[str, Any], list[Mistake]]:
    """The agent with its blocks as settings, and their mistakes; an empty settings object stands for a wrong block."""
    read, found = dict(agent), []
    algorithm = agent.get("algorithm")
    algorithm_name = algorithm.get("name") if isinstance(algorithm, dict) else None
    for kind in BLOCKS:
        block = agent.get(kind, NOTHING)
        if kind != "algorithm" and block in (NOTHING, None) and not registry.needs(algorithm_name, kind):
            continue
        path = f"agent.{kind}"
        try:
            read[kind] = read_block(kind, block, path)
        except SpecError as problem:
            found += problem.mistakes
            read[kind] = Settings()
    _read_imagined_memory(read, found, algorithm_name)
    return read, found


def _read_imagined_memory(read: dict[str, Any], found: list[Mistake], algorithm_name: Any) -> None:
    path, block = "agent.imagined_memory", read.get("imagined_memory")
    if registry.needs(algorithm_name, "imagined_memory"):
        try:
            read["imagined_memory"] = read_block("memory", IMAGINED if block is None else block, path)
        except SpecError as problem:
            found += problem.mistakes
            read["imagined_memory"] = Settings()
    elif block is not None:
        found.append(Mistake(path, f"{algorithm_name} imagines no rows: leave it out"))
        read["imagined_memory"] = None


def read_block(kind: str, block: Any, path: str = "") -> Settings:
    """The settings of an algorithm, memory or net from its block, validated by the class that the block names."""
    key = BLOCKS[kind]
    known = ", ".join(registry.names(kind))
    if not isinstance(block, dict):
        raise SpecError([Mistake(path, must_be(block, f"a block with a '{key}': {known}"))])
    place = f"{path}.{key}".lstrip(".")
    name = block.get(key, NOTHING)
    if not isinstance(name, str):
        raise SpecError([Mistake(place, must_be(name, f"one of {known}"))])
    try:
        model = registry.settings_of(kind, name)
    except registry.UnknownName as problem:
        raise SpecError([Mistake(place, str(problem))]) from problem
    try:
        return model.model_validate(block)
    except ValidationError as problem:
        raise SpecError(explain(problem, model, block, path)) from None
