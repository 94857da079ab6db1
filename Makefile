# make demo   train the demo spec on CartPole-v1          make lint   style and types
# make test   run the tests (ARGS="-k memory" for some)   make bench  measure against other libraries
# make setup  only set up .venv                           make clean  remove .venv and all that tools leave; data/ stays
# make docs   write the key tables of docs/algorithms.md anew
# Another Python than python3: make PYTHON=python3.12 …

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip install -qq --disable-pip-version-check
READY := $(VENV)/.ready
BUSY := $(VENV)/.unfinished
.DELETE_ON_ERROR:
.PHONY: demo test lint bench docs setup clean

demo: $(READY)
	@$(PY) run_lab.py spec/demo.json dqn_cartpole train

test: $(READY)
	@$(PY) -m pytest -q $(ARGS)

lint: $(READY)
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check --quiet .
	@$(PY) -m mypy

docs: $(READY)
	@$(PY) -m slm_lab.spec.reference docs/algorithms.md

bench: $(VENV)/.bench
	@for script in benchmark/*.py; do $(PY) $$script $(ARGS) || exit 1; done

setup: $(READY)
	@:

# A set-up that was broken off is begun anew; one that is merely out of date is brought up to date.
$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "SLM Lab needs Python 3.11 or newer; '$(PYTHON)' says: $$($(PYTHON) --version 2>&1)"; \
	  echo "Name another one: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@if [ -e $(BUSY) ]; then rm -rf $(VENV); fi
	@mkdir -p $(VENV) && touch $(BUSY) && rm -f $(READY) $(VENV)/.bench
	@echo "Setting up $(VENV) (once; a few minutes): torch first, then the rest"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) "$$(grep '^torch==' requirements.lock)"
	@$(PIP) -r requirements.lock
	@$(PIP) --no-deps --no-build-isolation -e .
	@rm $(BUSY) && touch $@

$(VENV)/.bench: $(READY)
	@echo "Installing the libraries to compare with"
	@$(PIP) --constraint requirements.lock --no-build-isolation -e '.[bench]'
	@touch $@

clean:
	@rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
