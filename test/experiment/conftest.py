"""Small specs, and a listener that writes down what it is told."""

import pytest

from slm_lab.experiment.folder import RunFolder
from slm_lab.spec.schema import read_spec

NET = {"type": "MLPNet", "hid_layers": [8], "hid_layers_activation": "tanh"}
AGENTS = {
    "Random": {"algorithm": {"name": "Random"}},
    "DQN": {
        "algorithm": {"name": "DQN", "training_frequency": 4, "training_start_step": 64},
        "memory": {"name": "Replay", "max_size": 200, "batch_size": 8},
        "net": NET,
    },
    "DoubleDQN": {
        "algorithm": {"name": "DoubleDQN", "training_frequency": 4},
        "memory": {"name": "PrioritizedReplay", "max_size": 200, "batch_size": 8},
        "net": NET,
    },
    "Reinforce": {"algorithm": {"name": "Reinforce"}, "memory": {"name": "OnPolicyReplay"}, "net": NET},
    "ActorCritic": {
        "algorithm": {"name": "ActorCritic", "training_frequency": 8},
        "memory": {"name": "OnPolicyBatchReplay"},
        "net": {**NET, "shared": False},
    },
    "PPO": {
        "algorithm": {"name": "PPO", "time_horizon": 16, "minibatch_size": 16, "training_epoch": 2},
        "memory": {"name": "OnPolicyBatchReplay"},
        "net": NET,
    },
    "recurrent PPO": {
        "algorithm": {"name": "PPO", "time_horizon": 16, "minibatch_size": 16, "training_epoch": 2},
        "memory": {"name": "OnPolicyBatchReplay"},
        "net": {"type": "RecurrentNet", "rnn_hidden_size": 4, "seq_len": 8, "shared": False},
    },
    "recurrent DQN": {
        "algorithm": {"name": "DQN", "training_frequency": 8, "training_start_step": 64},
        "memory": {
            "name": "SequenceReplay",
            "max_size": 200,
            "batch_size": 4,
            "sequence_length": 5,
            "burn_in": 3,
            "n_step": 2,
            "store_hidden": True,
            "prioritized": True,
        },
        "net": {"type": "RecurrentNet", "cell_type": "LSTM", "rnn_hidden_size": 4},
    },
    "SARSA": {
        "algorithm": {"name": "SARSA", "training_frequency": 8, "lam": 0.5, "minibatch_size": 8},
        "memory": {"name": "OnPolicyBatchReplay"},
        "net": NET,
    },
    "C51": {
        "algorithm": {"name": "C51", "training_frequency": 4, "num_atoms": 5},
        "memory": {"name": "PrioritizedReplay", "max_size": 200, "batch_size": 8},
        "net": NET,
    },
    "PPOSIL": {
        "algorithm": {
            "name": "PPOSIL",
            "time_horizon": 16,
            "sil_memory": {"name": "PrioritizedReplay", "max_size": 50, "batch_size": 8},
        },
        "memory": {"name": "OnPolicyBatchReplay"},
        "net": NET,
    },
}


class Ear:
    """Listens to a session as the display does."""

    def __init__(self):
        self.progress, self.warnings, self.notes = [], [], []

    def update(self, progress):
        self.progress.append(progress)

    def note(self, text, warning=False):
        (self.warnings if warning else self.notes).append(text)

    def detail(self, text):
        self.notes.append(text)


@pytest.fixture
def ear():
    return Ear()


@pytest.fixture
def make_spec():
    def make(name="DQN", *, env=None, **meta):
        """A spec of that algorithm on CartPole; `env` and the rest go into their blocks."""
        tree = {
            "agent": AGENTS[name],
            "env": {"name": "CartPole-v1", "max_frame": 300, **(env or {})},
            "meta": {"seed": 1, "eval_frequency": 100, "log_frequency": 50, "rigorous_eval": 1, **meta},
        }
        return read_spec(tree, "small")

    return make


@pytest.fixture
def make_folder(tmp_path):
    def make(spec_name="small"):
        """The first session's folder of a new run."""
        return RunFolder.create(tmp_path, spec_name).trial(0).session(0)

    return make
