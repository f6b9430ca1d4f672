# make demo   the main job on real text, in about a minute
# make check  lint, types, layers and the fast tests, in less than two minutes on two processors: for each change
# make test   lint, types, layers and all tests
# make test-python PYTHON=python3.13  all tests on another Python, in an environment of its own below .venvs
# make test-threads PYTHON=python3.14t  the tests of threads on a free-threaded Python, and its samples compared with this one's
# make lint   lint, types and layers
# make format format the code and sort imports
# make api    docs/api.md of the code
# make growth  whether more files, shards, streams and processes cost more than they did, in about 4 minutes
# make peer   mosaicml-streaming in an environment of its own; with it, make test also compares with it as it runs
# make trainers       accelerate, transformers and others, in environments of their own
# make trainers-test  the tests of the trainers in these environments, and the table of which samples came
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# torch's plain index build carries several GB of CUDA; this one is what the project is tested with.
TORCH := torch==2.13.0
# Tests start some thousand processes, which import stoker: it is compiled once, also where the environment says otherwise.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test test-python test-threads lint format api unit unit-bench unit-first unit-order unit-processes unit-rest check check-first check-rest growth peer trainers trainers-test clean

demo: $(STAMP)
	$(BIN)/python examples/demo.py

test: lint unit

# The same rules with another environment. Of a Python for which there is no small build of torch, TORCH= names another.
test-python:
	$(MAKE) unit VENV=.venvs/$(notdir $(PYTHON))

# stoker without extras: few packages have wheels for such a Python, and none is compiled here.
OTHER = .venvs/$(notdir $(PYTHON))/bin/python

test-threads: $(STAMP)
	$(PYTHON) -m venv .venvs/$(notdir $(PYTHON))
	$(OTHER) -m pip install --quiet --only-binary :all: --editable . pytest pytest-timeout hypothesis boto3
	$(OTHER) -m pytest -p no:cacheprovider tests/concurrency tests/reading/test_shard_pool.py \
	tests/order/mixture/test_stream_locator.py tests/cluster/test_call_stack.py tests/formats/parquet/test_first_conversion.py
	$(BIN)/python benchmarks/thread_outputs.py --with $(OTHER)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: $(STAMP)
	$(BIN)/ruff check --select I --fix --quiet .
	$(BIN)/ruff format --quiet .

api: $(STAMP)
	$(BIN)/python docs/make_api.py

# Three parts at once: many tests wait for other processes, servers and clocks. The longer parts begin, and the shorter ones
# follow where one has ended. The first part holds what the others leave.
BENCH := tests/bench
PROCESSES := tests/processes
ORDER := $(addprefix tests/,coordination formats order)
FIRST := $(addprefix tests/,catalog conversion generation simulate storage streams tokens writing) \
	$(addprefix tests/loaders/test_,lm_stream.py mixtures.py mosaicml_order.py parquet_loader_files.py \
	parquet_loader_orders.py torch_tokens.py)
NAMED := $(BENCH) $(PROCESSES) $(ORDER) $(FIRST)

unit: $(STAMP)
	$(MAKE) --jobs=3 --output-sync=target unit-rest unit-first unit-bench unit-processes unit-order

unit-bench:
	$(BIN)/python -m pytest -p no:cacheprovider $(BENCH)

unit-processes:
	$(BIN)/python -m pytest -p no:cacheprovider $(PROCESSES)

unit-order:
	$(BIN)/python -m pytest -p no:cacheprovider $(ORDER)

unit-first:
	$(BIN)/python -m pytest -p no:cacheprovider $(FIRST)

unit-rest:
	$(BIN)/python -m pytest $(patsubst %,--ignore=%,$(NAMED))

# Of each test file as many tests as 0.4 s of a processor have room for, and none that start processes or servers.
FAST := -m "not processes and not s3 and not slow" --budget 0.4 -r fE

check: $(STAMP)
	$(MAKE) --jobs=2 --output-sync=target check-rest lint check-first

check-first:
	$(BIN)/python -m pytest -p no:cacheprovider $(FAST) $(BENCH) $(ORDER) $(FIRST)

check-rest:
	$(BIN)/python -m pytest -p no:cacheprovider $(FAST) $(patsubst %,--ignore=%,$(BENCH) $(ORDER) $(FIRST))

growth: $(STAMP)
	$(BIN)/python benchmarks/scale.py --quick

peer: $(STAMP)
	$(BIN)/python benchmarks/setup_peers.py mosaic

trainers: $(STAMP)
	$(BIN)/python tests/trainers/setup.py

trainers-test: trainers
	$(BIN)/python tests/trainers/setup.py --test

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install '$(TORCH)'
	$(BIN)/python -m pip install --editable '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) .venvs build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
