# make demo     the main job on real text, in about a minute
# make check    lint and the fast tests, in less than two minutes on two busy processors: for each change
# make test     lint and all tests, in stages with a verdict each
# make nightly  what is too long for each change: trainers, growth, peers, newest packages, deep, other Pythons
# make lint     lint, types and layers
# make format   format the code and sort imports
# make api      docs/api.md of the code
# A job of the night by itself: make trainers, growth, peers, unpinned, deep, python PYTHON=python3.13, threads PYTHON=python3.14t
PYTHON ?= python3
STAGES ?= lint pure system timing
BIN := .venv/bin
GATE := python3 tools/gate.py
# Tests start some thousand processes, which import stoker: it is compiled once, also where the environment says otherwise.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test check nightly lint format api environment trainers growth peers unpinned deep python threads clean

demo:
	@$(PYTHON) tools/environments.py --quiet demo
	.venvs/demo/bin/python examples/demo.py
	.venvs/demo/bin/python -m stoker simulate demo-out/store --nodes 2 --batch-size 32 --bandwidth 10mb --step-time 0.05
	.venvs/demo/bin/python -m stoker generate demo-out/generated --format npz --files 8 --record-bytes 5mb

environment:
	@$(PYTHON) tools/environments.py --quiet dev

test: environment
	@$(GATE) $(STAGES)

check: environment
	@$(GATE) check

nightly: environment
	@python3 tools/nightly.py

trainers growth peers unpinned deep: environment
	@python3 tools/nightly.py $@

python threads: environment
	@python3 tools/nightly.py $@ --python $(PYTHON)

lint: environment
	@$(GATE) lint

format: environment
	$(BIN)/ruff check --select I --fix --quiet .
	$(BIN)/ruff format --quiet .

api: environment
	$(BIN)/python docs/make_api.py

clean:
	rm -rf .venv .venvs build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
