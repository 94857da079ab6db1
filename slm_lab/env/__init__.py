"""The world: a vector env from the spec, its episode seeds. The only reset and autoreset logic of the lab."""

from slm_lab.env.make import goal_functions, make_env
from slm_lab.env.vector import VectorEnv

__all__ = ["VectorEnv", "goal_functions", "make_env"]
