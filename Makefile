# SPDX-License-Identifier: Apache-2.0
# `make` lists what there is to make. Everything happens inside this folder, apart from Debian packages that
# are missing and Horovod's environment, which is built once into ~/.cache/netmon.

python := .venv/bin/python
kernel_sources := $(wildcard bpf/*.c bpf/*.h)
native_sources := $(wildcard netmon/native/*.c)
mypy := .venv/bin/mypy --cache-dir $(HOME)/.cache/netmon/mypy

# An index that hiccups is asked again.
export PIP_RETRIES := 10
export PIP_TIMEOUT := 60

version := $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' netmon/version.py)
# What is built of one commit has one time, and is the same.
export SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null || date +%s)

.DEFAULT_GOAL := help
.PHONY: help setup setup-dev demo demo-cluster test test-unit test-kernel test-kernels test-rdma test-machine test-release test-lab test-readers test-long test-nccl test-gpu crash-states soak fuzz fuzz-native lint format \
  docs docs-archive proto man wheel deb image requirements sbom audit release horovod horovod-tensorflow jax frameworks clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: .venv/.complete ## make .venv on the interpreter that can import bcc, with netmon in it

setup-dev: .venv/.complete-dev ## the same with everything that tests, linters and documentation need

.venv/.complete .venv/.complete-dev: pyproject.toml .ci/setup .ci/packages $(native_sources)
	@.ci/setup $(if $(findstring dev,$@),dev)

demo: setup ## watch a training job meet cross traffic, on this machine, for 45 s (root)
	@$(python) -m netmon lab demo --data out/demo

demo-cluster: setup-dev horovod ## the same on three NATS servers and two workers, with real Horovod (root)
	@$(python) -m netmon lab run --bus --trainer horovod --iterations 40 --overwrite --data out/demo-cluster

# Most tests wait most of the time: one worker has kernel and lab, two have all the rest, those that take long first. Real
# training and real traffic share a few cores with whatever else runs there: a test that fails has to fail twice, the
# second time by itself. Both failures are printed.
test: setup-dev frameworks ## every test: unit, kernel and lab (kernel and lab: root); what fails is run once more, alone
	@$(python) -m pytest -n 3 --no-loadscope-reorder || { [ $$? = 1 ] && echo "netmon: once more, alone:" && \
	  $(python) -m pytest --last-failed --last-failed-no-failures none; }

test-unit: setup-dev ## the tests that need no privilege
	@$(python) -m pytest tests/unit

test-kernel: setup-dev ## the tests that load BPF programs, in network namespaces of their own (root)
	@$(python) -m pytest tests/kernel

test-kernels: setup-dev ## the tests that hold on every kernel, on other kernels under emulation (half an hour; before a release)
	@.ci/packages qemu-system-x86 qemu-system-arm cpio kmod
	@$(python) tests/kernels/run.py --only '$(ONLY)' $(ROWS)

test-rdma: setup-dev ## what is posted to an RDMA device, as the program, the device and the meter count it (emulated; three minutes; before a release)
	@.ci/packages qemu-system-x86 cpio kmod
	@$(python) tests/kernels/run.py --only '$(ONLY)' rdma

test-machine: setup-dev ## the services on an emulated machine: bounds, power cuts, suspend, NFS, failing disks (half an hour; before a release; root)
	@.ci/packages qemu-system-x86 mmdebstrap e2fsprogs debhelper dpkg-dev python3-dev python3-pip
	@$(python) -m pytest -s -m machine -k '$(ONLY)' tests/machine

test-release: setup-dev ## what `make release` made, on an emulated machine that never had netmon: installed, used, removed (half an hour; root)
	@[ -e dist/SHA256SUMS ] || { echo "make test-release: nothing is in dist; make release" >&2; exit 1; }
	@.ci/packages qemu-system-x86 mmdebstrap e2fsprogs
	@$(python) -m pytest -s -m release tests/machine

test-lab: setup-dev frameworks ## the tests with real training, in the lab (root)
	@$(python) -m pytest tests/lab

test-readers: setup-dev ## programs that read the dataset as it lies: DuckDB, pandas, Polars, Dask (Spark with test-long)
	@$(python) -m pytest tests/readers

test-long: setup-dev ## what `make test` has a short form of: cuts of 5 min, every attack, … (half an hour, root)
	@$(python) -m pytest -m long

test-nccl: setup-dev ## NVIDIA's wheels of NCCL, 2.21 to 2.32: where each tells what it sends, or why not (2 GB are fetched and removed; before a release)
	@$(python) tests/nccl/stock.py $(WHEELS)

test-gpu: setup-dev ## real NCCL, 2 and 4 ranks as hosts of their own on one GPU: what it sends against what the meter counts (NETMON_TORCH: a Python with PyTorch; root)
	@$(python) -m pytest -s -m gpu tests/gpu

SECONDS ?= 600
fuzz: setup-dev ## coverage-guided fuzzing of what strangers send, ten minutes each (SECONDS=5; TARGETS="batch hello"); finds go to out/fuzz
	@mkdir -p out; printf '%s\n' $(or $(TARGETS),batch tables hello marks timeline pcap elf viewer channel) | \
	  xargs -P "$$(nproc)" -I TARGET sh -c '$(python) tests/fuzz/fuzz.py TARGET out/fuzz -max_total_time=$(SECONDS) -max_len=8192 \
	    -timeout=10 -rss_limit_mb=2048 >out/fuzz-TARGET.log 2>&1 && echo "fuzz: TARGET: $$(tail -n 1 out/fuzz-TARGET.log)" || \
	    { echo "fuzz: TARGET"; tail -n 30 out/fuzz-TARGET.log; exit 1; }'

fuzz-native: setup-dev ## the loops in C under the sanitizers of gcc, against their twins in numpy (SECONDS=5)
	@$(python) tests/fuzz/native.py $(SECONDS)

crash-states: setup-dev ## everything that a power cut may leave of spool and dataset, opened by the real start-up (20 minutes)
	@.ci/packages strace
	@$(python) -m pytest -s -m long tests/unit/test_crash_states.py

SOAK_HOURS ?= 4
soak: setup-dev ## an agent and a collector under churn for hours: nothing that they hold may grow (SOAK_HOURS=4; root)
	@PYTHONPATH=tests/unit $(python) tests/kernel/soak.py $$(( $(SOAK_HOURS) * 3600 ))

lint: setup-dev ## ruff, mypy --strict and clang-format; changes nothing
	@.venv/bin/ruff check .
	@.venv/bin/ruff format --check .
	@# Where the machine is busy mypy gives up its workers (status 2): then it does without.
	@$(mypy) --num-workers 2 || { [ $$? -eq 2 ] && $(mypy); }
	@.venv/bin/clang-format --dry-run -Werror $(kernel_sources) $(native_sources)

format: setup-dev ## let ruff and clang-format put the sources in order
	@.venv/bin/ruff check --fix .
	@.venv/bin/ruff format .
	@.venv/bin/clang-format -i $(kernel_sources) $(native_sources)

docs: setup-dev ## the documentation as a site in out/site, with the reference made from the code
	@NO_MKDOCS_2_WARNING=1 $(python) -m mkdocs build --quiet --config-file docs/mkdocs.yml

docs-archive: docs ## the same as an archive in dist, to be read from the disk or put on a web server
	@mkdir -p dist
	@tar -C out/site --sort=name --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX --mtime=@$(SOURCE_DATE_EPOCH) \
	  --transform='s,^\.,netmon-$(version)-docs,' -c . | gzip -9n >dist/netmon-$(version)-docs.tar.gz
	@echo dist/netmon-$(version)-docs.tar.gz

proto: setup-dev ## generate netmon/wire from proto/netmon.proto
	@$(python) -m grpc_tools.protoc -Inetmon/wire=proto --python_out=. --grpc_python_out=. \
	  --plugin=protoc-gen-mypy=.venv/bin/protoc-gen-mypy --mypy_out=. netmon/wire/netmon.proto

man: setup-dev ## man pages and shell completions, from what --help is made from, into build/share
	@$(python) packaging/tools/manuals.py build/share

wheel: man ## the wheel, with programs, units and examples inside, into dist
	@$(python) -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .
	@ls dist/*.whl

deb: man requirements ## Debian packages of agent and collector, for the interpreter of this distribution, into dist
	@.ci/packages debhelper dpkg-dev python3-dev python3-pip
	@CONSTRAINTS=build/requirements.txt packaging/debian/build dist

image: deb ## the container image with that package, for `podman load` or `docker load`, into dist; no registry, no engine
	@.ci/packages mmdebstrap
	@packaging/container/build dist dist/netmon-$(version)-image.tar

requirements: setup-dev
	@mkdir -p build
	@$(python) packaging/tools/installed.py 'netmon[all]' >build/requirements.txt

sbom: requirements ## the libraries that an installation consists of, as they were tested (CycloneDX), into dist
	@mkdir -p dist
	@sed 's/^dynamic = .*/version = "$(version)"/' pyproject.toml >build/pyproject.toml
	@PYTHONWARNINGS=ignore .venv/bin/cyclonedx-py requirements --pyproject build/pyproject.toml --output-reproducible --output-file dist/netmon-$(version).cdx.json build/requirements.txt
	@sed -i 's/"timestamp": "[^"]*"/"timestamp": "'$$(date -u -d @$(SOURCE_DATE_EPOCH) +%FT%TZ)'"/' dist/netmon-$(version).cdx.json
	@echo dist/netmon-$(version).cdx.json

audit: setup-dev ## the libraries: do they fit, are they as published, under open licenses, known to be vulnerable (where a database can be reached)
	@$(python) packaging/tools/audit.py 'netmon[all]'

# What is missing is said before anything is built.
release: setup-dev ## everything that a release consists of, with checksums, in dist, which is emptied first
	@command -v dpkg-query >/dev/null || { echo "make release: the packages and the image take Debian or Ubuntu" >&2; exit 1; }
	@grep -q '^## $(version) ([0-9]' CHANGELOG.md || { echo "make release: CHANGELOG.md has no '## $(version) (DATE)'" >&2; exit 1; }
	@.ci/packages debhelper dpkg-dev python3-dev python3-pip mmdebstrap
	@rm -rf dist
	@$(MAKE) --no-print-directory wheel deb docs-archive sbom image
	@cp CHANGELOG.md dist
	@cd dist && sums=$$(sha256sum -- *) && echo "$$sums" | tee SHA256SUMS

horovod: setup ## build real Horovod with PyTorch for the lab, once (about five minutes)
	@.ci/packages g++ make python3-dev
	@bash netmon/lab/build_horovod.sh

horovod-tensorflow: setup ## the same with TensorFlow, which is optional: tests that need it are left out without it
	@.ci/packages g++ make python3-dev
	@bash netmon/lab/build_horovod.sh tensorflow

jax: setup ## JAX for the lab, once (half a minute)
	@bash netmon/lab/build_horovod.sh jax

frameworks: horovod jax ## Accelerate and Lightning beside Horovod, for the tests, once (half a minute)
	@bash tests/lab/build_frameworks.sh

clean: ## remove .venv, caches and out/; what the lab left behind is for `netmon lab clean`
	@rm -rf .venv out build dist ./*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
