"""The world: a vector env from the spec, its episode seeds. The only reset and autoreset logic of the lab."""

from slm_lab.env.make import FOREIGN, EnvFault, goal_functions, make_env
from slm_lab.env.repeat import why_not_repeated
from slm_lab.env.scaling import Statistics
from slm_lab.env.vector import VectorEnv, spaces_of

__all__ = [
    "FOREIGN",
    "EnvFault",
    "Statistics",
    "VectorEnv",
    "goal_functions",
    "make_env",
    "spaces_of",
    "why_not_repeated",
]
