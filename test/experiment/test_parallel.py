"""Sessions side by side: in processes, as tasks of Ray's, stacked in one process, and fed by workers."""

import importlib.util
import math
import os
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from slm_lab.analysis.tables import read_table
from slm_lab.errors import Interrupted, RunError, SpecError
from slm_lab.experiment import lab
from slm_lab.experiment.display import Display
from slm_lab.experiment.folder import RunFolder
from slm_lab.experiment.trial import Trial
from slm_lab.spec.schema import read_spec

NET = {"type": "MLPNet", "hid_layers": [8]}
AGENTS = {
    "dqn": {
        "algorithm": {"name": "DoubleDQN", "training_start_step": 40, "training_frequency": 4},
        "memory": {"name": "PrioritizedReplay", "batch_size": 8, "max_size": 500},
        "net": NET,
    },
    "ppo": {
        "algorithm": {"name": "PPO", "time_horizon": 32, "minibatch_size": 16, "training_epoch": 2},
        "memory": {"name": "OnPolicyBatchReplay"},
        "net": {**NET, "clip_grad_val": 0.5},
    },
    "reinforce": {  # whose sessions learn at different times
        "algorithm": {"name": "Reinforce"},
        "memory": {"name": "OnPolicyReplay"},
        "net": NET,
    },
    "sac": {  # whose learners see each other's nets: each session takes its own steps
        "algorithm": {"name": "SAC", "training_start_step": 60},
        "memory": {"name": "Replay", "batch_size": 8, "max_size": 500},
        "net": NET,
    },
    "crossq": {  # whose nets have running means
        "algorithm": {"name": "CrossQ", "training_start_step": 60},
        "memory": {"name": "Replay", "batch_size": 8, "max_size": 500},
        "net": NET,
    },
}


def tree_of(agent, **meta):
    env = {"name": "Pendulum-v1" if agent in ("sac", "crossq") else "CartPole-v1", "max_frame": 300}
    usual = {"seed": 5, "max_session": 2, "eval_frequency": 150, "rigorous_eval": 1, "compile": False}
    return {"agent": AGENTS[agent], "env": env, "meta": {**usual, **meta}}


@pytest.fixture
def train(tmp_path):
    """The run of such a spec, its sessions run side by side in that way."""

    def run(agent, parallel, **meta):
        spec, _ = lab.check(read_spec(tree_of(agent, parallel=parallel, **meta), "side"))
        folder = RunFolder.create(tmp_path / parallel, "side")
        Trial(spec, folder.trial(0), Display("side", spec.meta.max_session, -1)).run()
        return folder

    return run


def tables(run):
    for session in run.trial(0).sessions():
        for file in (session.train_table, session.eval_table):
            yield read_table(file)


@pytest.mark.parametrize("agent", list(AGENTS))
def test_stacked_sessions_learn_what_they_learn_alone(train, agent):
    for alone, stacked in zip(tables(train(agent, "process")), tables(train(agent, "stack")), strict=True):
        assert list(alone) == list(stacked)
        for column in set(alone) - {"wall_time", "fps"}:
            np.testing.assert_allclose(stacked[column], alone[column], rtol=1e-3, atol=1e-4, err_msg=column)


def test_steps_of_sessions_are_one_call(train, monkeypatch):
    from slm_lab.agent.stack import Stack

    sizes = []
    take = Stack._take_stacked

    def counted(self, key, requests):
        sizes.append(len(requests))
        take(self, key, requests)

    monkeypatch.setattr(Stack, "_take_stacked", counted)
    train("dqn", "stack", max_session=3)
    assert sizes.count(3) > 50


def test_a_stacked_session_that_fails_stops_no_other(train, monkeypatch):
    from slm_lab.experiment import session as sessions

    usual = sessions.Session._keep_books

    def fails(self):
        if self.folder.index == 0 and self.clock.frame == 100:
            raise RunError("it broke")
        usual(self)

    monkeypatch.setattr(sessions.Session, "_keep_books", fails)
    with pytest.raises(RunError, match="session 0: it broke"):
        train("dqn", "stack")


@pytest.fixture(scope="module")
def kill():
    place = importlib.util.spec_from_file_location("kill", Path(__file__).parents[2] / "benchmark" / "kill.py")
    module = sys.modules["kill"] = importlib.util.module_from_spec(place)
    place.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def cluster():
    ray = pytest.importorskip("ray", reason="needs the extra 'search'")
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=128 * 2**20)
    yield
    ray.shutdown()


def test_tasks_of_ray_come_to_what_processes_come_to(cluster, train, kill):
    assert list(kill.differences(train("dqn", "process").root, train("dqn", "ray").root)) == []


def workers():
    """Processes in which Ray plays for a learner."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if (folder / "cmdline").read_bytes().startswith(b"ray::Worker"):
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def actors_spec(**env):
    tree = tree_of("dqn", distributed="actors", max_session=1, num_workers=2, broadcast_frequency=50)
    tree["env"] |= {"num_envs": 2, "max_frame": 2000} | env
    return lab.check(read_spec(tree, "apex"))[0]


def test_a_learner_learns_from_rows_of_each_worker(cluster, tmp_path):
    run = RunFolder.create(tmp_path, "apex")
    [metrics] = Trial(actors_spec(), run.trial(0), Display("apex", 1, -1)).run()
    assert metrics["frames"] >= 2000
    assert metrics["opt_steps"] == pytest.approx((2000 - 40) / 4, abs=40)
    assert metrics["episodes"] > 20
    train = read_table(run.trial(0).session(0).train_table)
    assert np.nanmean(train["length"]) == np.nanmean(train["return"])  # CartPole pays one a step
    assert np.isfinite(train["loss"][-1])
    from slm_lab.experiment.checkpoint import Checkpoints

    tree, _ = Checkpoints(run.trial(0).session(0)).load()
    assert len(tree["agent"]["memory"]["ring"]["head"]) == 4  # 2 workers of 2 envs
    assert all(head > 100 for head in tree["agent"]["memory"]["ring"]["head"])


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc for the workers")
def test_a_worker_that_dies_is_begun_anew(cluster, tmp_path):
    run = RunFolder.create(tmp_path, "apex")
    spec = actors_spec(max_frame=1_000_000)

    def strike():
        ends = time.monotonic() + 60
        table = run.trial(0).session(0).eval_table
        while time.monotonic() < ends and not (table.exists() and table.read_text().count("\n") > 1 and workers()):
            time.sleep(0.01)
        os.kill(max(workers()), signal.SIGKILL)  # the newest: of an earlier test one may be about to end

    def stop():
        session = run.trial(0).session(0)
        return session.log_file.exists() and "it has begun anew" in session.log_file.read_text()

    killer = threading.Thread(target=strike)
    killer.start()
    with pytest.raises(Interrupted):
        Trial(spec, run.trial(0), Display("apex", 1, -1), stop=stop).run()
    killer.join()


def test_a_run_with_actors_goes_on_from_its_checkpoint(cluster, tmp_path):
    run = RunFolder.create(tmp_path, "apex")
    table = run.trial(0).session(0).train_table

    def stop():
        return table.exists() and table.read_text().count("\n") > 5

    with pytest.raises(Interrupted):
        Trial(actors_spec(), run.trial(0), Display("apex", 1, -1), stop=stop).run()
    stopped = read_table(table)["frame"][-1]
    [metrics] = Trial(actors_spec(), run.trial(0), Display("apex", 1, -1)).run()
    assert stopped < 2000 <= metrics["frames"]
    assert not math.isnan(metrics["final_return"])


@pytest.mark.parametrize(
    ("agent", "meta", "told"),
    [
        ("ppo", {"distributed": "actors"}, "PPO learns from its own alone"),
        ("dqn", {"distributed": "actors", "parallel": "ray"}, "leave parallel out"),
        ("dqn", {"distributed": "shared", "parallel": "stack"}, "processes that share memory"),
        ("dqn", {"distributed": "actors", "on_env_error": "restart_episode"}, "an env that fails stops the run"),
    ],
)
def test_what_does_not_go_together_is_refused(agent, meta, told):
    with pytest.raises(SpecError, match=told):
        lab.check(read_spec(tree_of(agent, **meta), "side"))
