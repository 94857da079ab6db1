"""One session's fault, told with its place, is not the others' end."""

from slm_lab.experiment.folder import RunFolder
from slm_lab.lib.files import read_json

TOY = """
import gymnasium
import numpy as np

class Fragile(gymnasium.Env):
    observation_space, action_space = gymnasium.spaces.Box(0, 1, (1,)), gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 5
        self.breaks = self.np_random.random() < {chance}
        return np.zeros(1, np.float32), {{}}

    def step(self, action):
        self.left -= 1
        if self.breaks and self.left == 2:
            raise RuntimeError("the wheel came off")
        return np.zeros(1, np.float32), 1.0, self.left == 0, False, {{}}

gymnasium.register("Fragile-v0", Fragile)
"""


def test_a_session_whose_env_breaks_is_told_with_its_place_and_the_other_finishes(lab):
    (lab.folder / "toy.py").write_text(TOY.format(chance=0.01))
    words = ("-s", "env.name=toy:Fragile-v0", "-s", "meta.max_session=2", "-s", "meta.rigorous_eval=0")
    code, out = lab.run("specs.json", "ppo", "train", *words, "-s", "env.max_frame=480", "--seed", SEED)
    assert code == 1, out
    sessions = RunFolder(lab.latest()).trial(0).sessions()
    assert [read_json(session.metrics_file)["status"] for session in sessions] == ["failed", "finished"]
    failed = sessions[0]
    assert "error: session 0: env toy:Fragile-v0 failed in step: RuntimeError: the wheel came off" in out
    assert "(sub-env 0, episode 6, step 2, action " in out
    assert "Traceback" not in out
    assert "RuntimeError: the wheel came off" in failed.log_file.read_text()
    assert "Traceback" in failed.log_file.read_text()
    assert (lab.latest() / "t0" / "learning_curve.png").exists()


SEED = 9  # by its draws, the first env of session 0 breaks in its episode 6, and no other does
