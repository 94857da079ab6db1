"""Sessions that train one set of parameters at the same time: what each of them plays, and what they begin with."""

from __future__ import annotations

from slm_lab.agent.agent import make_algorithm
from slm_lab.agent.common import Common
from slm_lab.env import make_env, spaces_of
from slm_lab.experiment.checkpoint import Checkpoints, taking_up
from slm_lab.experiment.folder import SessionFolder
from slm_lab.experiment.session import session_seed
from slm_lab.spec.schema import Spec


def spec_of_session(spec: Spec, index: int) -> Spec:
    """The spec as that session runs it: of a distributed trial's `max_frame` its own part, the first one's with the
    rest that cannot be divided."""
    if not spec.meta.shares:
        return spec
    part, rest = divmod(spec.env.max_frame, spec.meta.max_session)
    max_frame = part + rest if index == 0 else part
    return spec.model_copy(update={"env": spec.env.model_copy(update={"max_frame": max_frame})})


def make_common(spec: Spec, sessions: list[SessionFolder]) -> tuple[dict[str, Common], SessionFolder | None]:
    """What the sessions train, by learner, and whose checkpoint it is from: of those that there are, the one that had
    run for longest when it was saved. Without one it begins as it would in the first session."""
    alone = spec.model_copy(update={"meta": spec.meta.model_copy(update={"compile": False})})  # it takes no step here
    env = make_env(spec.env)
    try:
        algorithm = make_algorithm(alone, *spaces_of(env, spec.env), session_seed(spec, 0))
    finally:
        env.close()
    begun = [folder for folder in sessions if folder.latest.exists() or folder.previous.exists()]
    trees = {folder.index: Checkpoints(folder).load()[0] for folder in begun}
    source = max(begun, key=lambda folder: _trained_for(folder, trees[folder.index]), default=None)
    if source is not None:
        with taking_up(source):
            algorithm.load_state_dict(trees[source.index]["agent"]["algorithm"])
    return algorithm.share(synced=spec.meta.distributed == "synced"), source


def _trained_for(folder: SessionFolder, tree: dict) -> float:
    with taking_up(folder):
        return float(tree["clock"]["wall_time"])
