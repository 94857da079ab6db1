"""The trials of a plan on Ray Tune: Ray runs them wherever there is room, begins those again whose process died, and
asks a scheduler which go on. With `runner` and `choosers` this is all that knows Ray; it needs the extra `search`."""

from __future__ import annotations

import logging
import random
import shutil
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from slm_lab.experiment.remote.cluster import quieten

quieten()

import ray  # noqa: E402
from ray import tune  # noqa: E402
from ray.exceptions import RayActorError  # noqa: E402
from ray.tune import schedulers  # noqa: E402

from slm_lab.errors import InputError  # noqa: E402
from slm_lab.experiment.search.board import Board  # noqa: E402
from slm_lab.experiment.search.choosers import Chooser, OptunaChooser  # noqa: E402
from slm_lab.experiment.search.plan import FAILED, RUNNING, STOPPED_EARLY, Plan, Record  # noqa: E402
from slm_lab.experiment.search.runner import run_trial  # noqa: E402
from slm_lab.lib import seeds  # noqa: E402
from slm_lab.spec.schema import Spec  # noqa: E402

TIME = "frame"  # what a trial has come to is compared at the same


def run_trials(
    plan: Plan,
    spec: Spec,
    board: Board,
    *,
    stopping: Callable[[], bool],
    scores: dict[int, float | None],
    retried: Callable[[int], None],
    ended: Callable[[int, Record], None],
) -> None:
    """Run what is left of the plan. `spec`: of any trial; `stopping`: asked all the time; `scores`: of the trials that
    have ended before; `retried`, `ended`: are told of trials."""
    meta = plan.meta
    scheduler = make_scheduler(plan, spec)
    tells_again = meta.search_scheduler is not None and meta.search != "pbt"
    chooser = (
        OptunaChooser(plan, tells_again, scores.items()) if meta.search == "optuna" else Chooser(plan, tells_again)
    )
    watch = Watch(plan, board, chooser, stopping, retried, ended)
    shutil.rmtree(plan.run.ray_folder, ignore_errors=True)  # of an earlier run of the search: nothing is read from it
    population = meta.search == "pbt"
    trainable = tune.with_resources(partial(run_trial, plan=plan, tells_again=tells_again), _resources(plan))
    tuner = tune.Tuner(
        trainable,
        param_space=_members(chooser) if population else None,
        tune_config=tune.TuneConfig(
            search_alg=None if population else chooser,
            scheduler=scheduler,
            num_samples=1 if population else -1,  # until the chooser has no more
            max_concurrent_trials=meta.max_concurrent,
            reuse_actors=not population,
            trial_name_creator=_name,
            trial_dirname_creator=_name,
        ),
        run_config=tune.RunConfig(
            name=plan.run.ray_folder.name,
            storage_path=str(plan.run.root),
            failure_config=tune.FailureConfig(max_failures=meta.max_failures),
            checkpoint_config=tune.CheckpointConfig(num_to_keep=3),
            callbacks=[watch],
            verbose=0,
        ),
    )
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # a trial's death is told by the board
    warnings.filterwarnings("ignore", module="ray.tune")
    random.seed(seeds.derive(meta.seed or 0, "search", "scheduler"))
    tuner.fit()


def _members(chooser: Chooser) -> dict[str, Any]:
    """A population as Ray wants it: all at once, and from no chooser of others."""
    members: list[dict[str, Any]] = []
    while isinstance(member := chooser.suggest(str(len(members))), dict):
        members.append(member)
    draws = {member["trial"]: member["draw"] for member in members}
    return {"trial": tune.grid_search(list(draws)), "draw": tune.sample_from(lambda config: draws[config["trial"]])}


def _name(trial: Any) -> str:
    """Once for all: what takes over from another takes its whole config."""
    return f"t{trial.config['trial']}"


def index_of(trial: Any) -> int:
    return int(str(trial).removeprefix("t"))


def _resources(plan: Plan) -> Any:
    """Of a trial. InputError where Ray has not so much, and would wait for ever."""
    wanted, there = plan.meta.search_resources, ray.cluster_resources()
    for name, amount in (("CPU", wanted.cpu), ("GPU", wanted.gpu)):
        if amount > there.get(name, 0):
            key = f"meta.search_resources.{name.lower()}"
            raise InputError(f"{key}: a trial takes {amount:g}, and there are {there.get(name, 0):g} in all; lower it")
    if plan.meta.distributed == "actors":
        left = there["CPU"] - wanted.cpu
        if left <= 0:
            raise InputError("meta.distributed: no core is left for workers; lower meta.search_resources.cpu")
        worker: dict[str, int | float] = {"CPU": min(1.0, left / plan.meta.num_workers)}
        return tune.PlacementGroupFactory([{"CPU": wanted.cpu}, *[worker] * plan.meta.num_workers])
    if plan.meta.parallel == "ray":  # the trial itself only waits for its sessions
        session: dict[str, int | float] = {"CPU": 1}
        return tune.PlacementGroupFactory([{}, *[session] * min(plan.meta.max_session, int(there["CPU"]))])
    return {"cpu": wanted.cpu, **({"gpu": wanted.gpu} if wanted.gpu else {})}


def make_scheduler(plan: Plan, spec: Spec) -> Any:
    """The one that the plan names, in frames of all sessions of a trial together."""
    chosen, metric = plan.meta.search_scheduler, {"metric": plan.meta.search_metric, "mode": plan.meta.search_mode}
    sessions = spec.meta.max_session
    whole = spec.env.max_frame * (1 if spec.meta.shares else sessions)
    if plan.meta.search == "pbt":
        return _population(plan, whole // 10)
    if chosen is None:
        return None
    grace = chosen.grace_period or max(1, whole // 10)
    if chosen.name == "median":
        return schedulers.MedianStoppingRule(time_attr=TIME, grace_period=grace, min_samples_required=3, **metric)
    return schedulers.AsyncHyperBandScheduler(
        time_attr=TIME, max_t=whole + 1, grace_period=grace, reduction_factor=chosen.reduction_factor, **metric
    )


def _population(plan: Plan, interval: int) -> Any:
    chosen = plan.meta.search_scheduler
    keys = [key for key in plan.space.all_keys() if key.kind != "grid_search"]
    settings: dict[str, Any] = {"perturbation_interval": interval}
    if chosen is not None:
        settings = {
            "perturbation_interval": chosen.interval or interval,
            "quantile_fraction": chosen.quantile,
            "resample_probability": chosen.resample,
        }
    mutations = {key.name: list(range(len(key.options))) if key.options else partial(_anew, key) for key in keys}

    def keep_in_range(config: dict[str, Any]) -> dict[str, Any]:
        draw = config["draw"]
        return {**config, "draw": {**draw, **{key.name: key.near(draw[key.name]) for key in keys}}}

    return schedulers.PopulationBasedTraining(
        time_attr=TIME,
        metric=plan.meta.search_metric,
        mode=plan.meta.search_mode,
        hyperparam_mutations={"draw": mutations},
        custom_explore_fn=keep_in_range,
        **settings,
    )


def _anew(key: Any) -> Any:
    return key.at(random.random())


class Watch(tune.Callback):
    """Tells the board what Ray tells, hands the word to stop on, and sees to it that no end of a trial is lost."""

    def __init__(
        self,
        plan: Plan,
        board: Board,
        chooser: Chooser,
        stopping: Callable[[], bool],
        retried: Callable[[int], None],
        ended: Callable[[int, Record], None],
    ):
        self.plan, self.board, self.chooser = plan, board, chooser
        self.stopping, self.retried, self.ended = stopping, retried, ended

    def __getstate__(self) -> dict:
        """Ray keeps a copy of what it is given, which is never read."""
        return {}

    def on_step_begin(self, iteration: int, trials: list, **info: Any) -> None:
        if not self.chooser.stopping and self.stopping():
            self.chooser.stopping = True
            self.plan.run.stop_file.touch()
        self.board.refresh()

    def on_trial_start(self, iteration: int, trials: list, trial: Any, **info: Any) -> None:
        self.board.started(index_of(trial), self.plan.space.values(trial.config["draw"]))

    def on_trial_result(self, iteration: int, trials: list, trial: Any, result: dict, **info: Any) -> None:
        self.board.told(index_of(trial), result)

    def on_trial_recover(self, iteration: int, trials: list, trial: Any, **info: Any) -> None:
        self.retried(index_of(trial))

    def on_trial_complete(self, iteration: int, trials: list, trial: Any, **info: Any) -> None:
        """It came to an end of its own, which its record tells, or the scheduler gave it up."""
        index = index_of(trial)
        folder, draw = self.plan.folder(index), trial.config["draw"]
        record = Record.read(folder, self.plan.space) or Record(draw)
        if record.status == RUNNING and not self.chooser.stopping:
            record = replace(record, status=STOPPED_EARLY)
            record.write(folder)
            for session in folder.sessions():
                shutil.rmtree(session.memory_folder, ignore_errors=True)
        self._end(index, record)

    def on_trial_error(self, iteration: int, trials: list, trial: Any, **info: Any) -> None:
        index = index_of(trial)
        known = Record.read(self.plan.folder(index), self.plan.space) or Record(trial.config["draw"])
        died = f"its process died {trial.num_failures} times; was memory short?"
        error = trial.get_error()
        if error is not None and not isinstance(error, RayActorError):
            died = str(error).strip().splitlines()[-1]
        record = replace(known, status=FAILED, error=died)
        record.write(self.plan.folder(index))
        self._end(index, record)

    def _end(self, index: int, record: Record) -> None:
        self.board.ended(index, "interrupted" if record.status == RUNNING else record.status, record.error)
        self.ended(index, record)
