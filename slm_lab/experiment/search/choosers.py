"""Which trial a search runs next. Ray asks; that a search can go on after anything is due to the trials' own folders,
so what Ray would keep of a chooser is not kept."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from statistics import NormalDist
from typing import Any

from ray.tune.search import Searcher

from slm_lab.experiment.search.plan import ENDED, FAILED, Plan, Record
from slm_lab.lib import seeds
from slm_lab.spec.space import LOGARITHMIC, Draw, Key


class Chooser(Searcher):
    """Trials that were begun before come first, then new ones until there are enough."""

    def __init__(self, plan: Plan, tells_again: bool):
        """`tells_again`: trials that have ended are handed out too, to report again what they came to."""
        super().__init__(metric=plan.meta.search_metric, mode=plan.meta.search_mode)
        self.plan = plan
        self.combinations = plan.combinations()
        self.total = plan.num_trials()
        self.stopping = False
        known = {index: Record.read(plan.folder(index), plan.space) for index in range(self.total)}
        self.records = {index: record for index, record in known.items() if record is not None}
        self._indices = self._in_order(tells_again)
        self._index_of: dict[str, int] = {}

    def _in_order(self, tells_again: bool) -> Iterator[int]:
        ended = [index for index, record in self.records.items() if record.status in ENDED]
        begun = [index for index in self.records if index not in ended]
        new = [index for index in range(self.total) if index not in self.records]
        return iter([*(ended if tells_again else ()), *begun, *new])

    def draw(self, index: int) -> Draw:
        """What a new trial is to be."""
        drawn = index // len(self.combinations)  # each combination meets the same draws
        return self.plan.space.random(self.plan.meta.seed or 0, drawn, self.given(index))

    def given(self, index: int) -> Draw:
        return self.combinations[index % len(self.combinations)]

    def suggest(self, trial_id: str) -> Any:
        index = None if self.stopping else next(self._indices, None)
        if index is None:
            return Searcher.FINISHED
        if index not in self.records:
            self.records[index] = Record(self.draw(index))
            self.records[index].write(self.plan.folder(index))
        self._index_of[trial_id] = index
        return {"trial": index, "draw": self.records[index].draw}

    def on_trial_complete(self, trial_id: str, result: dict | None = None, error: bool = False) -> None:
        if trial_id in self._index_of:
            index = self._index_of.pop(trial_id)
            record = Record.read(self.plan.folder(index), self.plan.space)
            failed = record is None or record.status == FAILED
            self.tell(index, None if failed else (result or {}).get(self.plan.meta.search_metric))

    def tell(self, index: int, score: float | None) -> None:
        """What a trial came to."""

    def set_search_properties(self, metric: str | None, mode: str | None, config: dict, **spec: Any) -> bool:
        return True

    def __getstate__(self) -> dict:
        """Ray keeps a copy of what it is given, which is never read."""
        return {}

    def save(self, checkpoint_path: str) -> None:
        pass

    def restore(self, checkpoint_path: str) -> None:
        pass


class OptunaChooser(Chooser):
    """Optuna's tree-structured Parzen estimator; keys inside of a block count only where the block was drawn."""

    def __init__(self, plan: Plan, tells_again: bool, scores: Iterable[tuple[int, float | None]]):
        """`scores`: what earlier trials came to, by index."""
        super().__init__(plan, tells_again)
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.optuna = optuna
        direction = "maximize" if plan.meta.search_mode == "max" else "minimize"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # multivariate and group are experimental
            seed = seeds.derive(plan.meta.seed or 0, "search", "optuna", len(self.records))
            sampler = optuna.samplers.TPESampler(seed=seed, multivariate=True, group=True)
        self.study = optuna.create_study(direction=direction, sampler=sampler)
        self.asked: dict[int, Any] = {}
        for index, score in scores:
            self._add(index, score)

    def draw(self, index: int) -> Draw:
        asked = self.asked[index] = self.study.ask()
        return self.plan.space.draw(lambda key: self._pick(asked, key), self.given(index))

    def _pick(self, asked: Any, key: Key) -> Any:
        kinds, over = self.optuna.distributions, self._distribution(key)
        if isinstance(over, kinds.CategoricalDistribution):
            value = asked.suggest_categorical(key.name, over.choices)
        elif isinstance(over, kinds.IntDistribution):
            value = asked.suggest_int(key.name, over.low, over.high, log=over.log)
        else:
            value = asked.suggest_float(key.name, over.low, over.high, log=over.log)
        return self._drawn(key, value)

    def _distribution(self, key: Key) -> Any:
        kinds = self.optuna.distributions
        if key.options:
            return kinds.CategoricalDistribution(tuple(range(len(key.options))))
        if key.kind in ("quniform", "qrandint"):
            return kinds.IntDistribution(0, key.steps - 1)
        if key.kind == "normal":
            return kinds.FloatDistribution(0, 1)
        low, high = key.limits
        if key.kind in ("randint", "lograndint"):
            return kinds.IntDistribution(int(low), int(high) - 1, log=key.kind in LOGARITHMIC)
        return kinds.FloatDistribution(low, high, log=key.kind in LOGARITHMIC)

    def _drawn(self, key: Key, value: Any) -> Any:
        """What Optuna said, as a draw has it."""
        if key.kind in ("quniform", "qrandint"):
            return key.step_of(key.limits[0] + value * key.limits[2])
        return key.at(value) if key.kind == "normal" else value

    def _said(self, key: Key, drawn: Any) -> Any:
        """`_drawn` the other way round."""
        if key.kind in ("quniform", "qrandint"):
            return min(max(round((drawn - key.limits[0]) / key.limits[2]), 0), key.steps - 1)
        if key.kind == "normal":
            return NormalDist(*key.limits).cdf(drawn)
        return drawn

    def _add(self, index: int, score: float | None) -> None:
        """A trial of an earlier run of the search."""
        draw, given = self.records[index].draw, self.given(index)
        keys = [key for key in self.plan.space.all_keys() if key.name in draw and key.name not in given]
        state = self.optuna.trial.TrialState
        self.study.add_trial(
            self.optuna.trial.create_trial(
                state=state.FAIL if score is None else state.COMPLETE,
                value=score,
                params={key.name: self._said(key, draw[key.name]) for key in keys},
                distributions={key.name: self._distribution(key) for key in keys},
            )
        )

    def tell(self, index: int, score: float | None) -> None:
        asked = self.asked.pop(index, None)
        if asked is None:
            self._add(index, score)
        else:
            state = self.optuna.trial.TrialState.FAIL if score is None else None
            self.study.tell(asked, score, state=state)
