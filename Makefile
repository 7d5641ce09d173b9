# Everything a fresh machine needs is Python >= 3.11, git and make.
PYTHON ?= python3
TORCH  ?= torch==2.13.0
# The venv's own programs, so that no activation is needed.
BIN    := .venv/bin
# Without byte code, which Python makes of what is imported, a small part (45 -> 30 s of processor time for these steps).
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
# Each process that runs tests would make torch's byte code for itself (3.5 s in the place of 1.7 s to import it).
unexport PYTHONDONTWRITEBYTECODE
# Processes that run tests side by side; one that has run its own takes over some of another's.
JOBS   ?= 2
# What runs `make gpu`: the venv where there is one.
GPU_PYTHON ?= $(or $(wildcard $(BIN)/python),$(PYTHON))
GPU_JSON   ?= build/gpu.json
COVERED := schedule layout plan
# Models whose instances all have one graph: their plans come from measuring, see docs/stages.md.
STATIC := $(patsubst %,models/%.py,inception_v3 nasnet_a randwire squeezenet)
# Whose runs say which native loops are shipped.
LOOPS_OF := lattice_gru bilstm_tagger_char lstm_nmt molecule_mpn greedy_nmt
ZOO    := $(filter-out models/_% $(STATIC),$(wildcard models/*.py))

.DEFAULT_GOAL := help
.PHONY: release man site help venv loops demo test quick test-reach thin slow plain coverage lint format plans check rooms zoo bench triton gpu gpu-dry gpu-code clean

help: ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

venv: .venv/ready ## make .venv with edbc and what its tests need (more is added where a target needs it)

.venv/ready: pyproject.toml
	$(call install,.[test])
	@touch .venv/runs $@

.venv/dev: .venv/ready
	$(INSTALL) --editable ".[dev]"
	@touch $@

.venv/runs: pyproject.toml
	$(call install,.)
	@touch $@

# Native loops are compiled on the other core meanwhile, and then by both.
define install
	$(PYTHON) -m venv .venv
	$(INSTALL) numba pyyaml
	$(BIN)/python -m edbc.native.ahead 2>/dev/null & \
	$(INSTALL) "$(TORCH)" --editable "$(1)" && $(BIN)/python -m edbc.native.ahead && wait
endef

demo: .venv/runs ## compile a tree-LSTM, run it on built-in samples, compare with eager PyTorch
	$(BIN)/edbc compile models/tree_lstm.py -o build/tree_lstm.yaml
	$(BIN)/edbc run build/tree_lstm.yaml --batch-size 64 --verify

test: venv ## run the tests (under ten minutes on two cores)
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal

quick: venv ## run one case of every test that takes no seconds (two minutes on two cores, cold four)
	$(BIN)/python -m pytest --quick -n $(JOBS) --dist worksteal

test-reach: venv ## add Ray (0.3 GB) and run the tests that start torchrun, Ray, servers and pools of processes
	$(INSTALL) --editable ".[reach]"
	$(BIN)/python -m pytest --reach -m reach

loops: venv ## record anew which native loops first runs call, and with which types (wheels bring them)
	rm -rf build/loops
	$(BIN)/python tests/native/called_loops.py "run plans/tree_lstm.yaml --limit 32" "compile models/tree_lstm.py -o build/tree.yaml" \
	  "train models/tree_lstm.py build/tree.yaml --epochs 1 --limit 64 --output build/loops" \
	  "compile models/lstm_lm.py -o build/lm.yaml --time-limit 5" $(LOOPS_OF:%="run plans/%.yaml --limit 32") > build/loops.txt
	mv build/loops.txt edbc/native/loops.txt

# On circuits no table beats the fixed rule on fresh mini-batches (docs/policies.md), and training on 30,000 nodes is long.
PLAN_OPTIONS_dag_gru := --policy critical

plans: $(ZOO:models/%.py=plan-%) ## compile every committed plan again (no diff when nothing changed)

plan-%: venv
	$(BIN)/edbc compile models/$*.py -o plans/$*.yaml --quiet $(PLAN_OPTIONS_$*)

check: venv ## check the committed plans, as continuous integration does
	$(BIN)/edbc check plans/

rooms: ## every file in one sentence, room by room
	@$(PYTHON) docs/rooms.py

zoo: venv ## the table of the whole zoo on real data (EDBC_DATA=DIR names the data)
	$(BIN)/python benchmarks/zoo.py

bench: venv ## measure end to end against eager PyTorch
	$(BIN)/python benchmarks/end_to_end.py

triton: .venv/triton ## add Triton (0.3 GB): tests then run the GPU's kernels, in its interpreter where there is no GPU

.venv/triton: .venv/ready
	$(INSTALL) --editable ".[cuda]"
	@touch $@

# A machine with a GPU brings its own torch and Triton, often without a network: no virtual environment is made for it.
gpu: ## on a machine with a GPU: its tests, then the workloads against eager, in nine minutes
	$(GPU_PYTHON) benchmarks/gpu.py --json $(GPU_JSON)

gpu-dry: triton ## what `make gpu` runs, on one small instance in Triton's interpreter, without a GPU
	$(BIN)/python benchmarks/gpu.py --dry --json build/gpu-dry.json

gpu-code: triton ## compile the step kernels of all plans for GPUs, without one: registers, stack, shared memory
	$(BIN)/python benchmarks/gpu_code.py --dtypes f32,bf16,f64

thin: venv ## say anew which cases of tests reach nothing that others do not (tests/thin.txt, an hour)
	mkdir -p build
	$(BIN)/python tests/thin.py build/thin > build/thin.txt
	mv build/thin.txt tests/thin.txt
	rm -r build/thin

slow: .venv/dev ## run every test, the slow ones too
	$(BIN)/python -m pytest --slow -n $(JOBS) --dist worksteal

plain: venv ## run the tests without numba's compiler: every native loop as plain Python (long)
	NUMBA_DISABLE_JIT=1 $(BIN)/python -m pytest

coverage: venv ## line and branch coverage of schedule/, layout/ and plan/, in plain Python; fails under 90 % of any
	NUMBA_DISABLE_JIT=1 $(BIN)/python -m coverage run -m pytest $(COVERED:%=tests/%)
	$(foreach part,$(COVERED),$(BIN)/python -m coverage report --include='edbc/$(part)/*' --fail-under=90 &&) true

lint: .venv/dev ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: .venv/dev ## let ruff rewrite the layout of the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

site: venv ## build the documentation with search, gallery, notebooks and errors into build/site
	$(INSTALL) --editable ".[docs]"
	$(BIN)/python docs/site/build.py

man: venv ## make the manual pages anew
	EDBC_UPDATE_DOCS=1 $(BIN)/python -m pytest -q tests/tools/cli/test_man.py

release: .venv/dev ## build sdist and wheel into build/dist, check them, and run them in an empty environment
	$(BIN)/python -m edbc.native.ahead --ship
	$(BIN)/python -m build --outdir build/dist
	$(BIN)/python -m pytest --slow tests/test_release.py

clean: ## remove what the targets above made
	rm -rf .venv build .pytest_cache .mypy_cache .ruff_cache .hypothesis
