import errno
import json
import os

import numpy as np
import pytest
from pydash import get

from slm_lab.agent.learner import Learner
from slm_lab.analysis.tables import read_table
from slm_lab.env import VectorEnv
from slm_lab.env.make import EnvFault
from slm_lab.errors import Interrupted, RunError
from slm_lab.experiment import checkpoint, evaluate, session
from slm_lab.experiment.folder import RunFolder
from slm_lab.experiment.session import Session, is_finished
from slm_lab.lib.files import read_json


def run(spec, folder, ear, **options):
    return Session(spec, folder, ear, **options).run()


def stop_at(*steps):
    """Asks for a stop at those calls, counted over all sessions that get it: each step, and each of an evaluation."""
    calls = [0]

    def stop():
        calls[0] += 1
        return calls[0] in steps

    return stop


def tables(folder, without=("wall_time", "fps")):
    """Columns of both tables that the seed decides."""
    return {
        (path.name, column): values.tolist()
        for path in (folder.train_table, folder.eval_table)
        for column, values in read_table(path).items()
        if column not in without
    }


def assert_same(folder, other):
    np.testing.assert_equal(tables(folder), tables(other))
    for name in ("latest", "best"):
        trees = [checkpoint.read(getattr(part, name)) for part in (folder, other)]
        for tree in trees:
            tree.pop("clock", None)  # holds the wall time
            tree.pop("logbook", None)  # holds the tables' sizes in bytes
            get(tree, "agent.memory.ring.segments", {}).pop("parts", None)  # of a save each; the checksums stay
        np.testing.assert_equal(*map(numbers, trees))


def numbers(tree):
    """The tree with its tensors as arrays, which numpy's assertion can compare."""
    if isinstance(tree, dict):
        return {key: numbers(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [numbers(value) for value in tree]
    return tree.numpy() if hasattr(tree, "numpy") else tree


@pytest.mark.parametrize(
    ("name", "num_envs"),
    [
        *(("DQN", 1), ("DoubleDQN", 4), ("C51", 1), ("SARSA", 2), ("Reinforce", 1), ("ActorCritic", 2)),
        *(("PPO", 4), ("PPOSIL", 2), ("Random", 3), ("recurrent PPO", 2), ("recurrent DQN", 2)),
    ],
)
def test_a_run_that_was_stopped_twice_ends_like_one_that_never_was(make_spec, make_folder, ear, name, num_envs):
    spec, whole, broken = make_spec(name, env={"num_envs": num_envs}), make_folder(), make_folder()
    run(spec, whole, ear)
    stop = stop_at(100 // num_envs - 10, 120 // num_envs)
    for _ in range(2):
        with pytest.raises(Interrupted):
            run(spec, broken, ear, stop=stop)
        assert not is_finished(broken, 300)
    run(spec, broken, ear, stop=stop)
    assert_same(whole, broken)
    assert is_finished(broken, 300)


def test_a_stop_in_the_middle_of_an_evaluation_makes_it_due_at_the_next_start(make_spec, make_folder, ear):
    spec, whole, broken = make_spec(env={"max_frame": 200}), make_folder(), make_folder()
    run(spec, whole, ear)
    stop = stop_at(103, 104)  # 1 at the start, 100 steps, the second and the third of the evaluation
    with pytest.raises(Interrupted):
        run(spec, broken, ear, stop=stop)
    assert len(read_table(broken.eval_table)["frame"]) == 0
    assert checkpoint.read(broken.latest)["evaluation_due"]
    run(spec, broken, ear)
    assert_same(whole, broken)


def test_the_same_seed_gives_the_same_run_and_another_session_another(make_spec, tmp_path, ear):
    trials = [RunFolder.create(tmp_path, "small").trial(0) for _ in range(2)]
    spec = make_spec()
    for trial in trials:
        run(spec, trial.session(0), ear)
    run(spec, trials[0].session(1), ear)
    assert_same(trials[0].session(0), trials[1].session(0))
    assert tables(trials[0].session(0)) != tables(trials[0].session(1))


def test_rows_of_a_start_that_came_to_no_checkpoint_are_forgotten(make_spec, make_folder, ear):
    spec, whole, folder = make_spec(), make_folder(), make_folder()
    run(spec, whole, ear)
    begun = Session(spec, folder, ear)
    begun.logbook.write_train(begun.clock, 0, {})
    begun.checkpoints.save_best({"frame": 1, "score": 500, "policy": {"parameters": []}})
    begun._close()
    run(spec, folder, ear)
    assert_same(whole, folder)


@pytest.mark.parametrize("name", ["DQN", "PPO", "Random", "recurrent PPO", "recurrent DQN"])
def test_evaluations_do_not_disturb_training(make_spec, make_folder, ear, name):
    found = []
    for episodes in (0, 1, 3):
        folder = make_folder()
        run(make_spec(name, env={"num_envs": 2}, rigorous_eval=episodes), folder, ear)
        found.append({key: values for key, values in tables(folder).items() if key[0] == "train.csv"})
    np.testing.assert_equal(found[0], found[1])
    np.testing.assert_equal(found[0], found[2])


def test_without_evaluation_the_training_returns_decide_on_the_best(make_spec, make_folder, ear):
    folder = make_folder()
    metrics = run(make_spec(rigorous_eval=0), folder, ear)
    averages = read_table(folder.train_table)
    at_checkpoints = averages["return_ma"][np.isin(averages["frame"], (100, 200, 300))]
    assert checkpoint.read(folder.best)["score"] == at_checkpoints.max()
    assert folder.eval_table.read_text().count("\n") == 1
    assert metrics["source"] == "train"


def test_a_return_of_nan_is_never_the_best(make_spec, make_folder, ear, monkeypatch):
    scores = iter([np.nan, 3.0, np.nan])
    monkeypatch.setattr(session.Evaluator, "run", lambda *words: Score(next(scores)))
    folder = make_folder()
    run(make_spec(), folder, ear)
    best = checkpoint.read(folder.best)
    assert (best["frame"], best["score"]) == (200, 3.0)


def test_learning_that_diverges_is_told_once_with_its_frame_and_a_remedy(make_spec, make_folder, ear, monkeypatch):
    monkeypatch.setattr(Learner, "report", lambda self: {"loss": np.nan, "grad_norm": np.inf})
    run(make_spec(), make_folder(), ear)
    (warning,) = ear.warnings
    assert "learning has diverged by frame 50: loss, grad_norm not finite; lower agent.net.optim_spec.lr" in warning


class Score:
    """An evaluation of a single return."""

    note, lost = "", ()

    def __init__(self, value):
        self.returns = np.array([value])

    def row(self):
        return {"episodes": 1, "return": float(self.returns[0])}


def test_evaluations_in_an_env_without_a_time_limit_end_and_are_told_once(make_spec, make_folder, ear, monkeypatch):
    monkeypatch.setattr(evaluate, "STEPS_WITHOUT_LIMIT", 30)
    folder, told = make_folder(), "CliffWalking-v1 sets no time limit: evaluation episodes end after 30 steps; set"
    run(make_spec("Random", env={"name": "CliffWalking-v1"}), folder, ear)
    assert read_table(folder.eval_table)["length"].tolist() == [30, 30, 30]
    assert [note.startswith(told) for note in ear.notes].count(True) == 1
    assert folder.log_file.read_text().count(told) == 1


def test_of_equal_scores_the_later_is_the_best(make_spec, make_folder, ear, monkeypatch):
    monkeypatch.setattr(session.Evaluator, "run", lambda *words: Score(500))
    folder = make_folder()
    run(make_spec(), folder, ear)
    assert checkpoint.read(folder.best)["frame"] == 300


@pytest.mark.parametrize(
    ("env", "meta", "train_rows", "eval_rows"),
    [
        ({"max_frame": 100, "num_envs": 4}, {"eval_frequency": 30, "log_frequency": 50}, [32, 52, 60, 92, 100], None),
        ({"max_frame": 20}, {"eval_frequency": 100}, [20], [20]),
        ({"max_frame": 4}, {"eval_frequency": 2, "log_frequency": 1}, [1, 2, 3, 4], [2, 4]),
        ({"max_frame": 1}, {"log_frequency": None}, [1], [1]),
        ({"max_frame": 2, "num_envs": 3}, {}, [3], [3]),
    ],
)
def test_rows_come_at_their_frames_and_at_the_end(make_spec, make_folder, ear, env, meta, train_rows, eval_rows):
    folder = make_folder()
    metrics = run(make_spec("DQN", env=env, **meta), folder, ear)
    assert read_table(folder.train_table)["frame"].tolist() == train_rows
    assert read_table(folder.eval_table)["frame"].tolist() == (eval_rows or [32, 60, 92, 100])
    assert metrics["frames"] == train_rows[-1]
    assert metrics["opt_steps"] == 0 or env["max_frame"] == 100
    assert [progress.done for progress in ear.progress if progress.frame == train_rows[-1]] == [True, True]


def test_a_run_goes_on_beyond_its_old_end(make_spec, make_folder, ear):
    folder, whole = make_folder(), make_folder()
    run(make_spec(env={"max_frame": 200}), folder, ear)
    longer = make_spec(env={"max_frame": 300})
    assert not is_finished(folder, 300)
    assert run(longer, folder, ear)["frames"] == 300
    run(longer, whole, ear)
    assert_same(folder, whole)


def faulty_step(monkeypatch, calls, stream="train"):
    """The env of that stream raises at its so manieth step."""
    real, left = VectorEnv.step, [calls]

    def step(self, action):
        left[0] -= self.stream.startswith(stream)
        if left[0] == 0:
            raise EnvFault("the wheel came off")
        return real(self, action)

    monkeypatch.setattr(VectorEnv, "step", step)


@pytest.mark.parametrize(("stream", "call"), [("train", 250), ("eval at 300", 1)])
def test_a_session_that_failed_leaves_its_metrics_and_is_not_finished(
    make_spec, make_folder, ear, monkeypatch, stream, call
):
    folder = make_folder()
    faulty_step(monkeypatch, call, stream)
    with pytest.raises(EnvFault):
        run(make_spec(), folder, ear)
    metrics = read_json(folder.metrics_file)
    assert metrics["status"] == "failed"
    assert metrics["frames"] >= 200
    assert folder.curve_file.exists()
    assert not is_finished(folder, 300)


def full_disk(monkeypatch, times):
    """So many times, a file cannot be flushed to disk."""
    real, left = os.fsync, [times]

    def fsync(handle):
        left[0] -= 1
        if left[0] >= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)


def test_training_goes_on_over_a_full_disk_and_saves_when_there_is_room(make_spec, make_folder, ear, monkeypatch):
    spec, whole, folder = make_spec(), make_folder(), make_folder()
    run(spec, whole, ear)
    full_disk(monkeypatch, 2)  # the best and the latest at frame 100
    run(spec, folder, ear)
    assert len(ear.warnings) == 2
    assert ear.warnings[1].startswith("session 0: frame 100: the checkpoint could not be written: ")
    assert ear.warnings[1].endswith("No space left on device")
    assert "warning: frame 100: the checkpoint" in folder.log_file.read_text()
    np.testing.assert_equal(tables(whole), tables(folder))
    assert checkpoint.read(folder.latest)["clock"]["frame"] == 300


def test_a_disk_that_is_full_to_the_end_is_told_at_the_end(make_spec, make_folder, ear, monkeypatch):
    folder = make_folder()
    full_disk(monkeypatch, 1000)
    with pytest.raises(RunError, match=r"at frame 300, the checkpoint could not be written: .*No space left"):
        run(make_spec(), folder, ear)
    assert not is_finished(folder, 300)
    assert not folder.latest.exists()


def test_two_damaged_checkpoints_are_told_and_nothing_is_written_over(make_spec, make_folder, ear):
    spec, folder = make_spec(), make_folder()
    run(spec, folder, ear)
    for path in (folder.latest, folder.previous):
        path.write_bytes(b"damaged")
    before = {path: path.read_bytes() for path in folder.root.rglob("*") if path.is_file()}
    with pytest.raises(RunError, match="no checkpoint to go on from"):
        run(make_spec(env={"max_frame": 400}), folder, ear)
    assert {path: path.read_bytes() for path in folder.root.rglob("*") if path.is_file()} == before


def test_a_damaged_checkpoint_is_told_and_the_one_before_it_goes_on(make_spec, make_folder, ear):
    spec, whole, folder = make_spec(), make_folder(), make_folder()
    run(spec, whole, ear)
    run(spec, folder, ear)
    folder.latest.write_bytes(b"damaged")
    run(spec, folder, ear)
    assert "going on from the one before it" in ear.warnings[0]
    assert_same(whole, folder)


def test_each_evaluation_leaves_in_the_log_what_the_memory_holds(make_spec, make_folder, ear):
    folder = make_folder()
    run(make_spec("DoubleDQN", env={"max_frame": 96}, eval_frequency=48), folder, ear)
    lines = [line.split("memory ", 1)[1] for line in folder.log_file.read_text().splitlines() if ": memory {" in line]
    held = [json.loads(line) for line in lines]
    assert [each["size"] for each in held] == [48, 96]
    assert held[0]["name"] == "PrioritizedReplay"
    assert held[0]["age"]["max"] == 47
    assert "priority" in held[0]


def test_what_strays_begins_anew_in_every_part(make_spec, make_folder, ear, monkeypatch):
    """An env that does not come to its observation again: neither the net's state nor the return under way go on."""
    folder = make_folder()
    env = {"max_frame": 64, "num_envs": 2, "normalize_reward": True}
    Session(make_spec("recurrent PPO", env=env), folder, ear).run()
    session = Session(make_spec("recurrent PPO", env={**env, "max_frame": 128}), folder, ear)
    tree, _ = session.checkpoints.load()
    assert np.asarray(tree["carried"]["values"]).any(axis=1).all()
    tree["env"]["obs"][1] = "another"
    monkeypatch.setattr(session.checkpoints, "load", lambda: (tree, None))
    session._begin()
    assert session.env.strayed == [1]
    assert session.carried.values.any(axis=1).tolist() == [True, False]
    assert (session.env._scale_reward.returns != 0).tolist() == [True, False]
    session._close()
