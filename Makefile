# `make demo` and `make test` set up what they need in .venv, and nothing outside it, but for the
# Debian packages of tools that the tests of root call.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo train test quick check kernels model soak federated kills mutants lossy adder compiled \
  combinations fuzz bench picture tools clean

demo: $(VENV)/demo.ready
	$(BIN)/iswitch demo

# Every workload, in both modes; docs/train.md. About half an hour.
train: $(VENV)/rl.ready
	$(BIN)/python -m tests.bench.learning

# What waits for the network goes side by side, and what keeps one core busy. Tests wait a quarter of
# their time, so that three processes keep two cores busy.
test:
	@$(MAKE) --no-print-directory -j 2 --output-sync $(VENV)/dev.ready tools
	@$(MAKE) --no-print-directory -j 2 --output-sync check kernels
	$(BIN)/python -m pytest -n 3 --dist loadscope --no-loadscope-reorder

# Tests that need no root, no network and no second process; under a minute. Files without such
# tests are not even imported.
quick: $(VENV)/dev.ready
	$(BIN)/python -m pytest -q -n 2 -m "unit and not (slow or root or p4)" \
	  $$(grep -rl "pytest.mark.unit" tests --include="test_*.py")

check: $(VENV)/dev.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Compiles the fast path, if it can be kept here; the tests say what is wrong if it cannot.
kernels: $(VENV)/dev.ready
	-@$(BIN)/python -m iswitch.fast

# The random models of rounds, joins, crashes and trees, on more seeds than `make test` takes.
model: $(VENV)/dev.ready
	ISWITCH_MODEL_SEEDS=400 $(BIN)/python -m pytest -q $$(grep -rl ISWITCH_MODEL_SEEDS tests)

# Random histories in the simulated world; docs/soak.md.
soak: $(VENV)/dev.ready
	$(BIN)/iswitch soak --seeds 2000

# Random histories of federated rounds, alone and in racks; docs/federated.md. Five minutes.
federated: $(VENV)/dev.ready
	$(BIN)/python -m tests.federated --histories 2000
	$(BIN)/python -m tests.federated --histories 400 --racks 2

# Workers killed within rounds while they exchange packets through shared memory. Half an hour.
kills: $(VENV)/dev.ready
	$(BIN)/python -m tests.ports.rings.kills --kills 10000

# Defects put in one at a time: does soak see them, or a unit test? docs/soak.md.
mutants: $(VENV)/dev.ready
	$(BIN)/python -m tests.mutants

# The conformance cases over a path that loses and doubles packets, with more seeds.
lossy: $(VENV)/dev.ready
	ISWITCH_LOSSY_SEEDS=10 $(BIN)/python -m pytest -q tests/test_conformance.py -k under_loss

# The float adder of the P4 program on every pair of float16 numbers; docs/p4.md. 13 minutes.
adder: $(VENV)/dev.ready
	ISWITCH_ADDER_ALL=1 $(BIN)/python -m pytest -q tests/p4/test_lanes.py -k every_float16

# Compiled kernels, with every index checked, against the Python way; docs/performance.md.
compiled: $(VENV)/dev.ready
	ISWITCH_FAST_SEEDS=1000 $(BIN)/python -m pytest -q tests/fast

# Everything four times: packets by UDP or through shared memory, compiled or in Python. Two hours.
# TESTS=tests/worker takes some of it.
TESTS ?= tests
combinations: $(VENV)/dev.ready tools
	for shm in 0 1; do for fast in 0 1; do \
	  echo "ISWITCH_SHM=$$shm ISWITCH_FAST=$$fast"; \
	  ISWITCH_SHM=$$shm ISWITCH_FAST=$$fast $(BIN)/python -m pytest -q -n 2 --dist loadscope \
	    --no-loadscope-reorder $(TESTS) || exit 1; done; done

# Random histories, new ones every time, and ten minutes of fuzzing for each target.
FUZZ_TARGETS := control switch child chassis guard session trace
fuzz: $(VENV)/dev.ready
	ISWITCH_FUZZ_EXAMPLES=3000 $(BIN)/python -m pytest -q tests/fuzz
	ISWITCH_CTRL_C_TIMES=100 $(BIN)/python -m pytest -q -k random_times tests/commands
	ISWITCH_MEMORY_STEP=1 ISWITCH_MEMORY_SEEDS=1000 $(BIN)/python -m pytest -q \
	  -k "memory_that_lacks" tests/core/test_memory.py tests/core/test_memory_requests.py
	for target in $(FUZZ_TARGETS); do \
	  $(BIN)/python -m tests.fuzz $$target -max_total_time=600 || exit 1; done

bench: $(VENV)/dev.ready
	$(BIN)/iswitch bench --strategies iswitch,forward
	$(BIN)/python -m tests.bench.stranger
	$(BIN)/python -m tests.bench.watching
	$(BIN)/python -m tests.bench.asynchronous
	[ "$$(id -u)" != 0 ] || $(BIN)/iswitch bench --world netns --strategies iswitch,forward,gloo
	[ "$$(id -u)" != 0 ] || $(BIN)/python -m tests.bench.tcp
	[ "$$(id -u)" != 0 ] || $(BIN)/python -m tests.bench.loss
	[ "$$(id -u)" != 0 ] || $(BIN)/python -m tests.bench.links
	$(BIN)/python -m tests.bench.overlap
	$(BIN)/python -m tests.bench.replay
	[ "$$(id -u)" != 0 ] || $(BIN)/python -m tests.bench.overlap --world netns
	[ "$$(id -u)" != 0 ] || $(BIN)/iswitch bench --world netns --no-offload \
	  --strategies iswitch,forward

# README's picture: a round of a simulated job, as `iswitch web` shows it.
picture: $(VENV)/dev.ready tools
	$(BIN)/python -m tests.support.picture docs/web.png

# What tests of real networks and of pages call; mnexec is Mininet's.
TOOLS := promtool tshark ping mnexec ethtool iperf3 ip tc ifconfig tcpdump chromium mpirun
TOOL_PACKAGES := prometheus tshark iputils-ping mininet ethtool iperf3 iproute2 net-tools tcpdump \
  chromium openmpi-bin

APT := apt-get -q -o Acquire::Retries=5
tools: | $(BIN)/pip  # which may have apt-get install something, too
	@[ "$$(id -u)" != 0 ] || \
	  ( for tool in $(TOOLS); do command -v $$tool >/dev/null || exit 1; done ) || \
	  { $(APT) update && DEBIAN_FRONTEND=noninteractive \
	    $(APT) install -y --no-install-recommends $(TOOL_PACKAGES); }

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

# Debian's python3 comes without ensurepip; root can have it installed, others are told.
$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "iswitch needs Python 3.11 or newer; name one: make PYTHON=python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || \
	  { [ "$$(id -u)" = 0 ] && $(APT) update && $(APT) install -y python3-venv; } || \
	  { echo "this Python lacks venv: apt-get install python3-venv, then try again" >&2; exit 1; }
	@echo "setting up $(VENV): about 20 s for the demo, more for the tests"
	@$(PYTHON) -m venv $(VENV)

$(VENV)/%.ready: pyproject.toml | $(BIN)/pip
	@echo "installing iswitch[$*] and what it needs into $(VENV)"
	@$(BIN)/pip install --quiet --retries 10 --timeout 60 --disable-pip-version-check --editable '.[$*]'
	@touch $@
