"""What the sessions of a distributed trial begin with, and whole trials of them, in this process and in two others."""

import os
import signal

import pytest
import torch

from slm_lab.errors import Interrupted, RunError
from slm_lab.experiment import distributed
from slm_lab.experiment.checkpoint import Checkpoints
from slm_lab.experiment.display import Display
from slm_lab.experiment.enjoy import play
from slm_lab.experiment.folder import RunFolder
from slm_lab.experiment.trial import Trial
from slm_lab.lib.files import read_json
from slm_lab.spec.schema import read_spec


class Screen(Display):
    """Writes down the notes; at the first word of a session's progress, something may happen."""

    def __init__(self, spec, happens=None):
        super().__init__("small", spec.meta.max_session, -1)
        self.notes, self.happens = [], happens

    def note(self, text, warning=False):
        self.notes.append(text)

    def update(self, progress):
        if self.happens is not None:
            happens, self.happens = self.happens, None
            happens()


@pytest.fixture
def make_trial(tmp_path):
    def make(spec, name="small", happens=None):
        folder = tmp_path / f"{name}_2026_01_31_120000"
        folder.mkdir(exist_ok=True)
        return Trial(spec, RunFolder(folder).trial(0), Screen(spec, happens))

    return make


def tree_of(session):
    """The last checkpoint, without what depends on how fast it went."""
    tree, _ = Checkpoints(session).load()
    del tree["clock"]["wall_time"], tree["clock"]["paused"]
    del tree["logbook"]
    return tree


def rows_of(table):
    """Its rows without wall time and fps."""
    header, *rows = (line.split(",") for line in table.read_text().splitlines())
    kept = [place for place, column in enumerate(header) if column not in ("wall_time", "fps")]
    return [[row[place] for place in kept] for row in rows]


@pytest.mark.parametrize(("max_frame", "parts"), [(300, [100, 100, 100]), (302, [102, 100, 100]), (3, [1, 1, 1])])
def test_the_frames_are_shared_out_and_the_rest_goes_to_the_first(make_spec, max_frame, parts):
    spec = make_spec(env={"max_frame": max_frame}, max_session=3, distributed="shared")
    assert [distributed.spec_of_session(spec, index).env.max_frame for index in range(3)] == parts
    alone = make_spec(env={"max_frame": max_frame}, max_session=3)
    assert distributed.spec_of_session(alone, 1) == alone


@pytest.mark.parametrize("mode", ["shared", "synced"])
@pytest.mark.parametrize("name", ["ActorCritic", "DQN"])
def test_one_session_is_bit_for_bit_what_it_is_when_not_distributed(make_trial, make_spec, name, mode):
    trials = [make_trial(make_spec(name, distributed=each), str(each)) for each in (False, mode)]
    for trial in trials:
        trial.run()
    (plain,), (common,) = (trial.sessions for trial in trials)
    assert repr(tree_of(common)) == repr(tree_of(plain))
    assert rows_of(common.train_table) == rows_of(plain.train_table)
    assert rows_of(common.eval_table) == rows_of(plain.eval_table)
    assert trials[1].display.notes == []


def test_one_session_is_resumed_bit_for_bit(make_trial, make_spec):
    spec = make_spec("DQN", distributed="synced")
    whole, stopped = (make_trial(spec, name) for name in ("whole", "stopped"))
    whole.run()
    stopped.display.happens = lambda: os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(Interrupted):
        stopped.run()
    make_trial(spec, "stopped").run()
    assert repr(tree_of(stopped.sessions[0])) == repr(tree_of(whole.sessions[0]))


def test_two_sessions_train_one_set_of_parameters_stop_together_and_go_on(make_trial, make_spec):
    optim = {"name": "GlobalAdam", "lr": 0.001}

    def spec(max_frame):
        tree = make_spec("ActorCritic", distributed="shared", max_session=2, env={"max_frame": max_frame}).to_tree()
        tree["agent"]["net"]["actor_optim_spec"] = tree["agent"]["net"]["critic_optim_spec"] = optim
        return read_spec(tree, "small")

    trial = make_trial(spec(10**7), happens=lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(Interrupted):
        trial.run()
    assert [read_json(session.metrics_file)["status"] for session in trial.sessions] == ["stopped", "stopped"]
    assert trial.display.notes[0] == (
        "2 sessions train one set of parameters, without locks: the run cannot be repeated or resumed bit for bit"
    )
    saved = [Checkpoints(session).load()[0] for session in trial.sessions]
    longest = max(saved, key=lambda tree: tree["clock"]["wall_time"])

    more = 2 * (max(tree["clock"]["frame"] for tree in saved) + 200) + 1
    trial = make_trial(spec(more))
    common, source = distributed.make_common(trial.spec, trial.sessions)
    start = common["learner"].parameters
    for begun, left in zip(start, longest["agent"]["algorithm"]["learner"]["parameters"], strict=True):
        assert torch.equal(begun, left)
    metrics = trial.run()
    assert trial.display.notes[1] == f"the parameters are those that session {source.index} has saved"
    assert [session["frames"] for session in metrics] == [more // 2 + 1, more // 2]
    end = trial.common["learner"].parameters
    last = [session["opt_steps"] for session in metrics]
    steps = float(trial.common["learner"].optimizers[0]["step"])
    assert max(last) < steps <= sum(last)  # of both; one may be lost now and then, where both count at once
    finals = [
        Checkpoints(session).load()[0]["agent"]["algorithm"]["learner"]["parameters"] for session in trial.sessions
    ]
    assert any(torch.equal(final[0], end[0]) for final in finals)  # who ended last has what both have come to
    assert not torch.equal(start[0], end[0])
    assert len(list(play(trial.spec, trial.sessions[1], 1, render=False))) == 1


TOY = """
import os
import gymnasium
import numpy as np

class Fragile(gymnasium.Env):
    observation_space, action_space = gymnasium.spaces.Box(0, 1, (1,)), gymnasium.spaces.Discrete(2)
    steps = 0

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {{}}

    def step(self, action):
        self.steps += 1
        if self.steps == 50:  # in whichever session comes here first
            try:
                os.close(os.open({marker!r}, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                pass
            else:
                raise RuntimeError("the wheel came off")
        return np.zeros(1, np.float32), 1.0, self.steps % 5 == 0, False, {{}}

gymnasium.register("Fragile-v0", Fragile)
"""


def test_where_a_session_fails_the_others_are_stopped_and_the_trial_fails(make_trial, make_spec, tmp_path, monkeypatch):
    (tmp_path / "fragile_toy.py").write_text(TOY.format(marker=str(tmp_path / "marker")))
    monkeypatch.syspath_prepend(str(tmp_path))
    env = {"name": "fragile_toy:Fragile-v0", "max_frame": 10**9}  # without an end, if nobody is stopped
    rarely = {"eval_frequency": 10**6, "log_frequency": 10**6, "rigorous_eval": 0}
    trial = make_trial(make_spec("ActorCritic", env=env, distributed="synced", max_session=2, **rarely))
    with pytest.raises(RunError) as problem:
        trial.run()
    failure, rest = str(problem.value).splitlines()
    assert "RuntimeError: the wheel came off" in failure
    assert rest == "sessions that were training with it were stopped, with their states saved"
    statuses = [read_json(session.metrics_file)["status"] for session in trial.sessions]
    assert sorted(statuses) == ["failed", "stopped"]
