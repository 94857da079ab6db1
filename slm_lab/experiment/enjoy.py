"""Watch a trained agent: its best policy, played greedily. Reads the run's folder and changes nothing in it."""

from __future__ import annotations

from collections.abc import Iterator

from slm_lab.agent.agent import Agent
from slm_lab.env import VectorEnv
from slm_lab.errors import RunError
from slm_lab.experiment.checkpoint import Checkpoints
from slm_lab.experiment.evaluate import cut_note, step_limit
from slm_lab.experiment.folder import RunFolder, SessionFolder
from slm_lab.experiment.session import read_metrics
from slm_lab.spec.schema import Spec


def best_session(run: RunFolder, trial: int | None, session: int | None) -> SessionFolder:
    """The session that was named, or of all in the run (or trial) the one with the best return."""
    trials = run.trials() if trial is None else [run.trial(trial)]
    folders = [folder for part in trials for folder in part.sessions() if session in (None, folder.index)]
    playable = [folder for folder in folders if folder.best.exists() or folder.latest.exists()]
    if not playable:
        place = folders[0].root if session is not None else run.root
        raise RunError(f"{place}: there is no checkpoint yet; train it first")
    return max(playable, key=_score)


def _score(folder: SessionFolder) -> float:
    score = read_metrics(folder).get("best_return")
    return float("-inf") if score is None else score


def play(spec: Spec, folder: SessionFolder, episodes: int, render: bool) -> Iterator[tuple[float, int, str]]:
    """(return, length, what to note) of each episode as it ends."""
    env = VectorEnv(spec.env, spec.meta.seed or 0, num_envs=1, stream="enjoy", render_mode="human" if render else None)
    try:
        agent = Agent(spec, env.observation_space, env.action_space, spec.meta.seed or 0, env.goal_functions)
        frame = load_policy(agent, folder)
        obs = env.reset()
        for _ in range(episodes):
            total, length, over, note = 0.0, 0, False, ""
            carried = agent.first_carried(1)
            while not over:
                step = env.step(agent.act(obs, frame, explore=False, carried=carried))
                obs = step.obs
                total, length = total + float(step.reward[0]), length + 1
                over = bool(step.terminated[0] or step.truncated[0])
                if length >= step_limit(env) and not over:
                    note, over, obs = cut_note(env), True, env.reset()
            yield total, length, note
    finally:
        env.close()


def load_policy(agent: Agent, folder: SessionFolder) -> int:
    """Let the agent act as the best did, or before there is one, as the latest; the frame that it is from."""
    checkpoints = Checkpoints(folder)
    if folder.best.exists():
        tree = checkpoints.load_best()
        agent.algorithm.load_policy_state(tree["policy"])
        return tree["frame"]
    tree, _ = checkpoints.load()
    agent.algorithm.load_state_dict(tree["agent"]["algorithm"])
    return tree["clock"]["frame"]
