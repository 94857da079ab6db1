"""Watch a trained agent: its best policy, played greedily. Reads the run's folder and changes nothing in it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from slm_lab.agent.agent import Agent
from slm_lab.env import FOREIGN, Statistics, VectorEnv
from slm_lab.errors import InputError, SpecError
from slm_lab.experiment.checkpoint import Checkpoints, taking_up
from slm_lab.experiment.evaluate import cut_note, step_limit
from slm_lab.experiment.folder import RunFolder, SessionFolder
from slm_lab.experiment.session import read_metrics
from slm_lab.experiment.video import LONGEST, to_rgb, write_film
from slm_lab.spec.schema import Spec


def best_session(run: RunFolder, trial: int | None, session: int | None) -> SessionFolder:
    """The session that was named, or of all in the run (or trial) the one with the best return."""
    trials = run.trials() if trial is None else [run.trial(trial)]
    folders = [folder for part in trials for folder in part.sessions() if session in (None, folder.index)]
    playable = [folder for folder in folders if folder.best.exists() or folder.latest.exists()]
    if not playable:
        place = folders[0].root if session is not None else run.root
        raise InputError(f"{place}: there is no checkpoint yet; train it first")
    return max(playable, key=_score)


def _score(folder: SessionFolder) -> float:
    score = read_metrics(folder).get("best_return")
    return float("-inf") if score is None else score


@dataclass
class Films:
    """The first `most` episodes as films in that folder; `note` tells what came of it."""

    folder: Path
    most: int
    note: str = ""
    files: list[Path] = field(default_factory=list)
    _frames: list[np.ndarray] = field(default_factory=list)

    def take(self, env: VectorEnv) -> None:
        """A picture of this moment."""
        if len(self.files) >= self.most or len(self._frames) >= LONGEST:
            return
        try:
            picture = to_rgb(env.render())
            if self._frames and picture.shape != self._frames[0].shape:
                raise ValueError(f"its pictures are of shape {self._frames[0].shape} and {picture.shape}")
        except FOREIGN as problem:  # the episodes count, with or without pictures
            self.most, self.note = 0, f"no video: {env.name} cannot be drawn: {problem}"
            return
        self._frames.append(picture.copy())  # some envs draw the next one into the same array

    def cut(self, episode: int) -> None:
        """The episode is over."""
        frames, self._frames = self._frames, []
        if frames and len(self.files) < self.most:
            self.files.append(write_film(self.folder, f"episode_{episode}", frames))
            more = f" and {len(self.files) - 1} more" if len(self.files) > 1 else ""
            self.note = f"video: {self.files[0]}{more}"


def play(
    spec: Spec, folder: SessionFolder, episodes: int, render: bool, films: Films | None = None
) -> Iterator[tuple[float, int, str]]:
    """(return, length, what to note) of each episode as it ends."""
    env, filmed = _make_env(spec, render, films)
    try:
        agent = Agent(spec, env.observation_space, env.action_space, spec.meta.seed or 0, env.goal_functions)
        frame = load_policy(agent, folder, env.statistics)
        obs = env.reset()
        for episode in range(episodes):
            total, length, over, note = 0.0, 0, False, ""
            carried = agent.first_carried(1)
            while not over:
                if filmed is not None:
                    filmed.take(env)
                step = env.step(agent.act(obs, frame, explore=False, carried=carried))
                obs = step.obs
                total, length = total + float(step.reward[0]), length + 1
                over = bool(step.terminated[0] or step.truncated[0])
                if length >= step_limit(env) and not over:
                    note, over, obs = cut_note(env), True, env.reset()
            if filmed is not None:
                filmed.cut(episode)
            yield total, length, note
    finally:
        env.close()


def _make_env(spec: Spec, render: bool, films: Films | None) -> tuple[VectorEnv, Films | None]:
    """The env, and the films if it can draw pictures."""
    seed = spec.meta.seed or 0
    mode = "human" if render else None if films is None else "rgb_array"
    keywords: dict[str, Any] = {"num_envs": 1, "stream": "enjoy", "training": False}
    try:
        return VectorEnv(spec.env, seed, render_mode=mode, **keywords), films
    except SpecError as problem:
        if films is None:
            raise
        films.note = f"no video: {spec.env.name} cannot be drawn: {problem.mistakes[0].problem}"
        return VectorEnv(spec.env, seed, **keywords), None


def load_policy(agent: Agent, folder: SessionFolder, statistics: Statistics | None = None) -> int:
    """Let the agent act as the best did, or before there is one, as the latest; the frame that it is from.

    `statistics` become those by which it knew observations.
    """
    checkpoints = Checkpoints(folder)
    best = folder.best.exists()
    tree = checkpoints.load_best() if best else checkpoints.load()[0]
    with taking_up(folder):
        if best:
            agent.algorithm.load_policy_state(tree["policy"])
        else:
            agent.algorithm.load_state_dict(tree["agent"]["algorithm"])
        if statistics is not None:
            statistics.load_state_dict(tree["statistics"] if best else tree["env"]["statistics"])
        return int(tree["frame"] if best else tree["clock"]["frame"])
